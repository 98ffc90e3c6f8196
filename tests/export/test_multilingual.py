"""Exports of a multilingual model translate its directions as the model does."""

import pytest

from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.translation import translate
from translators import DIRECTIONS, ENGLISH, save_translator

TARGETS = ["es", "en", "de", "es", "en"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("multilingual")
    return *save_translator("multilingual", folder, num_beams=2), folder


def texts(model, tokenizer, target, **options):
    return [each.text for (each,) in translate(model, tokenizer, ENGLISH, tgt_lang=target, **options)]


def test_ctranslate2(saved, tmp_path):
    ctranslate2 = pytest.importorskip("hf_vanilla_transformer.inference.ctranslate2")
    if missing := ctranslate2.ctranslate2_missing():
        pytest.skip(missing)
    model, tokenizer, folder = saved
    runtime, own = ctranslate2.load_ctranslate2(export_model(folder, "ctranslate2", tmp_path / "exported"))
    assert own.directions == DIRECTIONS
    for target in ("es", "en", "de", TARGETS):
        expected = translate(model, tokenizer, ENGLISH, tgt_lang=target, with_alignments=True)
        assert translate(runtime, own, ENGLISH, tgt_lang=target, with_alignments=True) == expected


@pytest.mark.slow
def test_onnx(saved, tmp_path, load_script):
    pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
    pytest.importorskip("onnxruntime", reason="ONNX graphs run in onnxruntime, of the extra `export`")
    model, tokenizer, folder = saved
    exported = export_model(folder, "onnx", tmp_path / "exported")
    translator_class = load_script("onnx_translate").Translator
    for target in ("es", "en", "de", None):
        found = translator_class(exported, threads=1, target_lang=target).translate(ENGLISH)
        assert found == texts(model, tokenizer, target, raw=True)
    with pytest.raises(ValueError, match="--target_lang fr is none of es, en, de"):
        translator_class(exported, target_lang="fr")
