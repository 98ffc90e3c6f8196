"""One trained model by four ways: as it is, by CTranslate2, as MarianMTModel, and imported from Marian again."""

import pytest
from transformers import MarianMTModel

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.conversion import convert_checkpoint
from hf_vanilla_transformer.data.toy_corpus.corpus import load_toy_corpus
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.ctranslate2 import load_ctranslate2
from hf_vanilla_transformer.inference.translation import load, translate
from translators import trained


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_four_translations_of_100_sentences(tmp_path):
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
    ways = {
        "as it is": load(tmp_path / "model"),
        "CTranslate2": load_ctranslate2(tmp_path / "ctranslate2"),
        "Marian": load(tmp_path / "marian"),
        "and back": load(tmp_path / "back"),
    }
    assert isinstance(ways["Marian"][0], MarianMTModel)
    found = {
        way: [rows[0].text for rows in translate(*loaded, corpus["test"]["source"][:])] for way, loaded in ways.items()
    }
    references = corpus["test"]["target"][:]
    right = sum(text == reference for text, reference in zip(found["as it is"], references, strict=True))
    # A model that says the same of every sentence would prove nothing.
    assert right >= 20 and len(set(found["as it is"])) > 90
    for way, texts in found.items():
        assert texts == found["as it is"], way
