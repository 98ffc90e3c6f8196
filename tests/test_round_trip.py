"""A trained model, its CTranslate2 and Marian exports, and the model converted back from Marian agree."""

import pytest
from transformers import MarianMTModel

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.conversion import convert_checkpoint
from hf_vanilla_transformer.data.toy_corpus import load_toy_corpus
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.ctranslate2 import load_ctranslate2
from hf_vanilla_transformer.inference.translation import load, translate
from translators import trained


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_translations_of_100_sentences_agree(tmp_path):
    pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")
    corpus = load_toy_corpus(20_000, num_validation=10, num_test=100)
    sources, targets = (corpus["train"][side][:] for side in ("source", "target"))
    tokenizer = train_tokenizer([*sources, *targets], vocab_size=1000)
    model = trained(tokenizer, sources, targets, steps=1500, rows=64)
    model.generation_config.update(num_beams=4, early_stopping=True, max_length=64)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    export_model(tmp_path / "model", "ctranslate2", tmp_path / "ctranslate2")
    export_model(tmp_path / "model", "marian", tmp_path / "marian")
    convert_checkpoint(tmp_path / "marian", tmp_path / "back")
    models = {
        "original": load(tmp_path / "model"),
        "CTranslate2": load_ctranslate2(tmp_path / "ctranslate2"),
        "Marian": load(tmp_path / "marian"),
        "converted back": load(tmp_path / "back"),
    }
    assert isinstance(models["Marian"][0], MarianMTModel)
    sources, references = (corpus["test"][side][:] for side in ("source", "target"))
    translations = {name: [rows[0].text for rows in translate(*loaded, sources)] for name, loaded in models.items()}
    original = translations["original"]
    # A model with the same output for every sentence would prove nothing.
    assert len(set(original)) > 90
    assert sum(text == reference for text, reference in zip(original, references, strict=True)) >= 20
    for name, texts in translations.items():
        assert texts == original, name
