"""A served multilingual model: all directions, also mixed in one batch."""

import asyncio
import logging

import pytest
from fastapi.testclient import TestClient

from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.serving.application import create_application
from hf_vanilla_transformer.serving.attention_map import attend
from hf_vanilla_transformer.serving.engine import Choice, Engine, ServedModel, TranslationOptions, UnknownModel
from hf_vanilla_transformer.serving.models import Loading, load_engine
from translators import DIRECTIONS, ENGLISH, SPANISH, build, hypotheses_of, save_translator

OPTIONS = TranslationOptions(num_beams=2, with_alignments=True)


@pytest.fixture
def engine():
    engine = Engine([ServedModel("many", *build("multilingual"), DIRECTIONS, patience=0.0)])
    yield engine
    engine.close()


def expected(source, target):
    model, tokenizer = build("multilingual")
    tokenizer.src_lang, tokenizer.tgt_lang = source, target
    return translate(model, tokenizer, ENGLISH, num_beams=2, with_alignments=True)


def test_directions_share_batches(engine):
    (model,) = engine.models.values()
    sizes = []
    model.observers.append(lambda sentences, tokens: sizes.append(sentences))

    async def ask():
        return await asyncio.gather(*(model.translate(ENGLISH, OPTIONS, *pair) for pair in DIRECTIONS))

    for pair, found in zip(DIRECTIONS, asyncio.run(ask()), strict=True):
        assert hypotheses_of(found) == expected(*pair)
    # All that arrives while the first batch is decoded forms one batch.
    assert max(sizes) > len(ENGLISH)


def test_any_pair_of_its_languages(engine, caplog):
    (model,) = engine.models.values()
    assert engine.choose("es", "en") == engine.choose("es") == Choice(model, "es", "en")
    assert engine.choose("es", "de") == Choice(model, "es", "de")
    with caplog.at_level(logging.WARNING):
        found = asyncio.run(model.translate(ENGLISH, OPTIONS, "es", "de"))
    assert hypotheses_of(found) == expected("es", "de")
    for pair in (("en", "fr"), ("fr", "en"), ("en", "en"), (None, "fr")):
        with pytest.raises(UnknownModel, match="no model translates .*; available: en-es, es-en, en-de"):
            engine.choose(*pair)


def test_a_model_of_the_pair_comes_before_one_that_has_not_seen_it():
    models = [
        ServedModel("many", *build("multilingual"), DIRECTIONS),
        ServedModel("es-de", *build("shared"), [("es", "de")]),
    ]
    engine = Engine(models)
    assert engine.choose("es", "de").model.name == "es-de"
    engine.close()


def test_by_the_interfaces(engine):
    client = TestClient(create_application(engine))
    languages = {each["code"]: each["targets"] for each in client.get("/languages").json()}
    assert languages == {"en": ["de", "es"], "es": ["en"]}
    for source, target in [*DIRECTIONS, ("es", "de")]:
        answer = client.post("/translate", json={"q": ENGLISH[0], "source": source, "target": target})
        (best,) = translate(*build("multilingual"), ENGLISH[:1], src_lang=source, tgt_lang=target)[0]
        assert answer.json()["translatedText"] == best.text
        answer = client.post("/v1/translations", json={"text": ENGLISH[0], "source": source, "target": target})
        (text,) = answer.json()["translations"]
        assert text["text"] == best.text
        assert text.get("pivot") == best.pivot == ("en" if (source, target) == ("es", "de") else None)
    given = {"text": "a cat. two dogs", "source": "es", "target": "de", "num_hypotheses": 2}
    (text,) = client.post("/v1/translations", json=given).json()["translations"]
    assert text["pivot"] == "en" and len(text["sentences"]) == 2
    (text,) = client.post("/v1/translations", json=given | {"glossary": {"cat": "gato"}}).json()["translations"]
    assert "pivot" not in text
    assert client.post("/translate", json={"q": "a", "source": "en", "target": "fr"}).status_code == 400


def test_attention_is_that_of_the_direction(engine):
    (model,) = engine.models.values()
    for target in ("es", "de"):
        ((sentence,),) = (text.sentences for text in model.preparation.prepare(ENGLISH[:1], [("en", target)]))
        pair = asyncio.run(model.run(attend, Choice(model, "en", target), sentence, SPANISH[0]))
        assert pair.source_tokens[0] == f"__{target}__" and pair.target_tokens[0] == "una"


def test_a_name_serves_one_pair(tmp_path):
    save_translator("multilingual", tmp_path)
    for pair in (("en", "de"), ("es", "de")):
        engine = load_engine([f"{'-'.join(pair)}={tmp_path}"], Loading(device="cpu"))
        assert engine.choose() == Choice(next(iter(engine.models.values())), *pair)
        with pytest.raises(UnknownModel):
            engine.choose("es", "en")
        engine.close()
    with pytest.raises(ValueError, match="has no pair en-fr; its languages are de, en, es"):
        load_engine([f"en-fr={tmp_path}"], Loading(device="cpu"))
