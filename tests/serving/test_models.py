"""Loading models: names and languages, CTranslate2 exports and their cache."""

import asyncio
import threading
from unittest.mock import Mock

import pytest
import torch
from transformers import pipeline

from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.ctranslate2 import CTranslate2Model
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.serving import models
from hf_vanilla_transformer.serving.batching import InvalidRequest
from hf_vanilla_transformer.serving.engine import TranslationOptions, UnknownModel
from hf_vanilla_transformer.serving.models import Loading, load_engine
from translators import ENGLISH, hypotheses_of, save_translator, several_languages


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "tiny"
    save_translator("shared", folder)
    return folder


@pytest.fixture
def serve():
    """Load engines, closed after the test."""
    engines = []

    def load(*names, **loading):
        engines.append(load_engine(map(str, names), Loading(**loading)))
        return engines[-1]

    yield load
    for engine in engines:
        engine.close()


def test_names_and_languages(folder, serve, monkeypatch):
    monkeypatch.chdir(folder)
    engine = serve(folder, f"en-es={folder}", f"my-model={folder}", f"eng_Latn-spa_Latn={folder}")
    assert {model.name: list(model.pairs) for model in engine.models.values()} == {
        "tiny": [],
        "en-es": [("en", "es")],
        "my-model": [],
        "eng_Latn-spa_Latn": [("eng_Latn", "spa_Latn")],
    }
    assert list(serve(".").models) == ["tiny"]


def test_the_thread_that_loads_a_model_ends(folder, serve, monkeypatch):
    """If kept alive, it would slow down the model's own thread."""
    threads, load = [], Loading.load
    monkeypatch.setattr(Loading, "load", lambda *args: (threads.append(threading.current_thread()), load(*args))[1])
    serve(folder)
    assert [thread.is_alive() for thread in threads] == [False]


def test_the_languages_of_a_model_of_ours_are_on_its_card(tmp_path, serve):
    save_translator("shared", tmp_path)
    for content, pairs in [
        ("---\nlanguage:\n- en\n- es\n---\n", [("en", "es")]),
        ("---\nlanguage: en\n---\n", []),
        ("---\nlanguage: [\n---\n", []),
        ("nothing", []),
    ]:
        (tmp_path / "README.md").write_text(content)
        (model,) = serve(tmp_path).models.values()
        assert list(model.pairs) == pairs


def test_an_export_is_recognized(folder, tmp_path, serve):
    export_model(folder, "ctranslate2", tmp_path / "export")
    (model,) = serve(tmp_path / "export").models.values()
    assert isinstance(model.model, CTranslate2Model)
    sampling = TranslationOptions(do_sample=True)
    with pytest.raises(InvalidRequest, match="CTranslate2 does not support `do_sample`=True"):
        asyncio.run(model.translate(["a cat"], sampling))
    with pytest.raises(ValueError, match="is already an export; leave `quantization` out"):
        serve(tmp_path / "export", quantization="int8")
    with pytest.raises(ValueError, match="translate with `backend=ctranslate2`"):
        serve(tmp_path / "export", backend="transformers")


def test_a_quantized_export_is_made_once(folder, tmp_path, serve, monkeypatch):
    monkeypatch.setattr(models, "EXPORTS", tmp_path / "exports")
    exports = Mock(wraps=export_model)
    monkeypatch.setattr(models, "export_model", exports)
    texts = []
    for _ in range(2):
        (model,) = serve(folder, quantization="int8").models.values()
        assert isinstance(model.model, CTranslate2Model)
        texts.append([row[0].text for row in translate(model.model, model.tokenizer, ENGLISH, max_new_tokens=5)])
    assert exports.call_count == 1 and texts[0] == texts[1]
    (export,) = (tmp_path / "exports").iterdir()
    assert (export / "model.bin").is_file()
    # Different weights are a different model.
    other, tokenizer = save_translator("shared", tmp_path / "other")
    with torch.no_grad():
        other.lm_head.bias[0] += 1
    other.save_pretrained(tmp_path / "other")
    serve(tmp_path / "other", quantization="int8")
    assert len(list((tmp_path / "exports").iterdir())) == 2


def test_an_export_that_another_server_made_meanwhile_is_used(folder, tmp_path, serve, monkeypatch):
    monkeypatch.setattr(models, "EXPORTS", tmp_path / "exports")

    def lose_the_race(name, to, output, **options):
        export_model(name, to, output, **options)
        return export_model(name, to, output, **options)

    monkeypatch.setattr(models, "export_model", lose_the_race)
    (model,) = serve(folder, quantization="int8").models.values()
    assert isinstance(model.model, CTranslate2Model)
    with pytest.raises(ValueError, match="`quantization` int3 is unknown"):
        serve(folder, quantization="int3")


def test_a_multilingual_model_translates_between_all_of_its_languages(tmp_path, serve):
    model, tokenizer = several_languages()
    for each in (model, tokenizer):
        each.save_pretrained(tmp_path)
    engine = serve(tmp_path)
    served = engine.choose("en_XX", "es_XX").model
    with pytest.raises(UnknownModel, match="no model translates en_XX-xx; available: .*, ..."):
        engine.choose("en_XX", "xx")
    with pytest.raises(UnknownModel, match="several models or language pairs match any-es_XX"):
        engine.choose(target="es_XX")

    async def ask():
        pairs = [("en_XX", "es_XX"), ("fr_XX", "es_XX"), ("en_XX", "de_DE")] * 2
        options = TranslationOptions(max_new_tokens=6)
        return pairs, await asyncio.gather(*(served.translate(ENGLISH[:3], options, *pair) for pair in pairs))

    translate = pipeline("translation", model=model, tokenizer=tokenizer)
    for (source, target), rows in zip(*asyncio.run(ask()), strict=True):
        expected = translate(ENGLISH[:3], src_lang=source, tgt_lang=target, max_new_tokens=6)
        assert [row[0].text for row in hypotheses_of(rows)] == [each["translation_text"] for each in expected]


def test_a_pair_that_a_multilingual_model_lacks_is_refused(tmp_path, serve):
    for each in several_languages():
        each.save_pretrained(tmp_path)
    (model,) = serve(f"en_XX-es_XX={tmp_path}").models.values()
    assert list(model.pairs) == [("en_XX", "es_XX")]
    with pytest.raises(ValueError, match="its tokenizer has no pair en-es; its languages are af_ZA, ar_AR, "):
        serve(f"en-es={tmp_path}")
