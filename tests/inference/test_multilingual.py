"""Multilingual models: translation, scoring and alignment."""

import logging

import pytest
import torch
from transformers import GenerationConfig, pipeline

from hf_vanilla_transformer.inference.alignment import word_alignments
from hf_vanilla_transformer.inference.ensemble import VanillaTransformerEnsemble
from hf_vanilla_transformer.inference.glossary import Glossary
from hf_vanilla_transformer.inference.preparation import Preparation
from hf_vanilla_transformer.inference.reranking import ChannelReranker
from hf_vanilla_transformer.inference.scoring import score
from hf_vanilla_transformer.inference.translation import translate, translate_lines
from hf_vanilla_transformer.model.multilingual_vanilla_transformer import VanillaTransformerMultilingualTokenizer
from hf_vanilla_transformer.pretrained import languages
from hf_vanilla_transformer.pretrained.languages import (
    choose_pair,
    is_multilingual,
    is_zero_shot,
    language_pairs,
    only_pair,
    set_languages,
)
from translators import DIRECTIONS, ENGLISH, SHARED, SPANISH, assert_alike, build, several_languages, texts

TARGETS = ["es", "en", "de", "es", "en"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def model():
    return build("multilingual")[0]


@pytest.fixture
def tokenizer():
    return build("multilingual")[1]


@pytest.fixture(scope="module")
def by_target(model):
    """Translations with the tokenizer set to each target language."""
    found = {}
    for target in ("es", "en", "de"):
        tokenizer = build("multilingual")[1]
        tokenizer.tgt_lang = target
        found[target] = translate(model, tokenizer, ENGLISH, with_scores=True, with_alignments=True)
    assert len({str(texts(results)) for results in found.values()}) == 3
    return found


def mixed(by_target):
    return [by_target[target][i] for i, target in enumerate(TARGETS)]


def test_languages(tokenizer):
    assert is_multilingual(tokenizer)
    assert language_pairs(tokenizer) == DIRECTIONS
    assert only_pair(tokenizer) == (None, None)
    assert only_pair(VanillaTransformerMultilingualTokenizer.from_shared(SHARED, [("en", "es")])) == ("en", "es")
    assert set_languages(tokenizer, "es", "en") == {} == set_languages(tokenizer, None, None)
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("es", "en")
    with pytest.raises(ValueError, match="no language 'fr'; the languages are en, es, de"):
        set_languages(tokenizer, "fr", "en")


def test_zero_shot_directions(tokenizer, caplog):
    assert is_zero_shot(tokenizer, "es", "de")
    for source, target in (*DIRECTIONS, ("de", "fr")):
        assert not is_zero_shot(tokenizer, source, target)
    # `warning_once` may have been used up by another test.
    languages.logger.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            set_languages(tokenizer, "es", "de")
    assert caplog.text.count("es to de is zero-shot") == 1
    fewer = VanillaTransformerMultilingualTokenizer.from_shared(SHARED, [("en", "es"), ("de", "es")])
    with pytest.raises(ValueError, match="not trained to translate to de, only to es"):
        set_languages(fewer, "en", "de")


def test_the_direction_that_is_left(tokenizer):
    assert choose_pair(tokenizer, "es", None) == choose_pair(tokenizer, None, "en") == ("es", "en")
    assert choose_pair(tokenizer, "es", "de") == ("es", "de")
    for source, target in ((None, None), ("en", None)):
        with pytest.raises(
            ValueError, match="several directions.*`source_lang` and `target_lang`: .*en-es, es-en, en-de"
        ):
            choose_pair(tokenizer, source, target)
    with pytest.raises(ValueError, match="'fr'.*en, es, de"):
        choose_pair(tokenizer, "en", "fr")
    with pytest.raises(ValueError, match="does not translate fr-any: it has en-es"):
        choose_pair(tokenizer, "fr", None)
    single = VanillaTransformerMultilingualTokenizer.from_shared(SHARED, [("en", "es")])
    assert choose_pair(single, None, None) == ("en", "es")
    assert choose_pair(SHARED, None, None) == (None, None)
    with pytest.raises(ValueError, match="en-any: its tokenizer records no languages"):
        choose_pair(SHARED, "en", None)
    assert choose_pair(several_languages()[1], None, "es_XX") == (None, "es_XX")


def test_translations_to_one_language_or_one_each(model, tokenizer, by_target):
    options = {"with_scores": True, "with_alignments": True}
    for target, expected in by_target.items():
        assert translate(model, tokenizer, ENGLISH, tgt_lang=target, **options) == expected
    found = translate(model, tokenizer, ENGLISH, src_lang="en", tgt_lang=TARGETS, **options)
    assert_alike(found, mixed(by_target), abs=1e-5)
    assert [each.alignment for (each,) in found] == [each.alignment for (each,) in mixed(by_target)]
    # The tokenizer's languages are unchanged.
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("en", "es")
    assert translate(model, tokenizer, ENGLISH, **options) == by_target["es"]


def test_lines_are_cut_as_those_of_their_language(model, tokenizer):
    text = "Dr. No kam. Er ging."
    for language, count in (("de", 2), ("en", 3)):
        tokenizer.src_lang = language
        assert len(Preparation(model, tokenizer).split(text).sentences) == count
    (found,) = translate(model, tokenizer, [text], src_lang="de", tgt_lang="es", num_beams=2)
    tokenizer.src_lang, tokenizer.tgt_lang = "de", "es"
    assert [found] == translate(model, tokenizer, [text], num_beams=2)


def test_streams_of_different_languages_do_not_mix(model, tokenizer, by_target):
    streams = [translate_lines(model, tokenizer, iter(ENGLISH), chunk_size=1, tgt_lang=each) for each in by_target]
    for (*found,), *expected in zip(zip(*streams, strict=True), *by_target.values(), strict=True):
        assert texts(found) == texts(expected)


def test_languages_that_are_wrong(model, tokenizer):
    with pytest.raises(ValueError, match="fewer languages than sentences"):
        translate(model, tokenizer, ENGLISH, tgt_lang=["es", "en"])
    with pytest.raises(ValueError, match="'fr'"):
        translate(model, tokenizer, ENGLISH, tgt_lang=["es", "en", "fr", "es", "es"])
    with pytest.raises(ValueError, match="one direction at a time"):
        translate(*several_languages(), ENGLISH, tgt_lang=["es_XX"] * 5)
    with pytest.raises(ValueError, match="no languages to choose from"):
        translate(model, SHARED, ENGLISH, tgt_lang="es")


def test_languages_of_another_family():
    model, tokenizer = several_languages()
    options = set_languages(tokenizer, "en_XX", "es_XX")
    expected = translate(model, tokenizer, ENGLISH, **options)
    _, other = several_languages()
    assert translate(model, other, ENGLISH, src_lang="en_XX", tgt_lang="es_XX") == expected


def test_scores(model, tokenizer):
    expected = {}
    for target in ("es", "en"):
        tokenizer.tgt_lang = target
        expected[target] = score(model, tokenizer, ENGLISH, SPANISH)
    tokenizer.tgt_lang = "de"
    assert expected["es"] != expected["en"] == score(model, tokenizer, ENGLISH, SPANISH, tgt_lang="en")
    found = score(model, tokenizer, ENGLISH, SPANISH, tgt_lang=["es", "en", "es", "en", "es"], max_tokens=10_000)
    for i, each in enumerate(found):
        assert each.log_prob == pytest.approx(expected["en" if i % 2 else "es"][i].log_prob, abs=1e-4)
    # Target ids have no language tag.
    assert found[0].token_ids == SHARED(SPANISH[0])["input_ids"]
    with pytest.raises(ValueError, match="fewer languages than sentences"):
        score(model, tokenizer, ENGLISH, SPANISH, tgt_lang=["es"])


def test_words_are_aligned_by_their_direction(model, tokenizer):
    expected = {}
    for target in ("es", "en"):
        tokenizer.tgt_lang = target
        expected[target] = word_alignments(model, tokenizer, ENGLISH, SPANISH)
    directions = [("en", "es" if i % 2 else "en") for i in range(5)]
    found = word_alignments(model, tokenizer, ENGLISH, SPANISH, directions=directions)
    assert found == [expected[target][i] for i, (_, target) in enumerate(directions)]
    assert expected["es"] != expected["en"]


def test_glossaries_and_kept_items(model, tokenizer):
    glossary = Glossary([("cat", "gato"), ("house", "casa")])
    found = translate(model, tokenizer, ENGLISH, tgt_lang=TARGETS, glossary=glossary, protect=["dogs"], num_beams=2)
    assert "casa" in found[0][0].text and "gato" in found[1][0].text and "dogs" in found[2][0].text


def test_reranking_by_the_same_model(model, tokenizer):
    reranker = ChannelReranker(model, tokenizer, src_lang="es", tgt_lang="en")
    options = {"num_beams": 3, "num_hypotheses": 3, "tgt_lang": "es"}
    found = translate(model, tokenizer, ENGLISH, reranker=reranker, **options)
    _, other = build("multilingual")
    other.tgt_lang = "en"
    expected = translate(model, tokenizer, ENGLISH, reranker=ChannelReranker(model, other), **options)
    assert found == expected


def test_members_of_an_ensemble_have_the_same_languages(tmp_path):
    for name, code in (("one", "de"), ("other", "fr")):
        model, _ = build("multilingual")
        tokenizer = VanillaTransformerMultilingualTokenizer.from_shared(SHARED, [*DIRECTIONS[:2], ("en", code)])
        for part in (model, tokenizer):
            part.save_pretrained(tmp_path / name)
    with pytest.raises(ValueError, match="the vocabulary of model .*other differs from that of model .*one"):
        VanillaTransformerEnsemble.from_pretrained([tmp_path / "one", tmp_path / "other"])
    model, tokenizer = build("multilingual")
    other, _ = build("multilingual")
    other.generation_config.language_ids = None
    with pytest.raises(ValueError, match="has None as its language_ids"):
        VanillaTransformerEnsemble([model, other])


class TestPipeline:
    def test_languages_of_a_call(self, model, tokenizer, by_target):
        translator = pipeline("translation", model=model, tokenizer=tokenizer, device="cpu")
        for target, expected in by_target.items():
            found = translator(ENGLISH, src_lang="en", tgt_lang=target, batch_size=2)
            assert [each["translation_text"] for each in found] == [each.text for (each,) in expected]
        found = translator(ENGLISH)
        assert [each["translation_text"] for each in found] == [each.text for (each,) in by_target["es"]]
        with pytest.raises(ValueError, match="'fr'.*en, es, de"):
            translator(ENGLISH, tgt_lang="fr")

    def test_languages_of_the_task(self, tokenizer, by_target):
        # A model of its own, because the pipeline moves it to the CPU.
        model, _ = build("multilingual")
        translator = pipeline("translation_en_to_de", model=model, tokenizer=tokenizer, device="cpu")
        found = translator(ENGLISH)
        assert [each["translation_text"] for each in found] == [each.text for (each,) in by_target["de"]]
        given = translator.score(ENGLISH, SPANISH)
        assert given == score(model, tokenizer, ENGLISH, SPANISH, tgt_lang="de")
        assert translator.score(ENGLISH, SPANISH, tgt_lang="en") != given


class TestGenerate:
    @pytest.fixture
    def inputs(self, tokenizer):
        return {
            side: tokenizer(ENGLISH, padding=True, padding_side=side, return_tensors="pt")
            for side in ("right", "left")
        }

    @pytest.mark.parametrize("target", ["es", "en", "de"])
    def test_a_forced_language_is_the_one_of_the_source(self, model, tokenizer, inputs, target):
        language = tokenizer.get_lang_id(target)
        options = {"num_beams": 2, "max_new_tokens": 6}
        for side, given in inputs.items():
            tokenizer.tgt_lang = target
            other = tokenizer(ENGLISH, padding=True, padding_side=side, return_tensors="pt")
            expected = model.generate(**other, **options)
            assert model.generate(**given, **options, forced_bos_token_id=language).equal(expected)
            assert model.generate(given["input_ids"], **options, forced_bos_token_id=language).equal(expected)
            assert not (expected == language).any()

    def test_of_the_settings(self, tokenizer, inputs):
        model, _ = build("multilingual")
        expected = model.generate(**inputs["right"], max_new_tokens=6, forced_bos_token_id=tokenizer.get_lang_id("en"))
        model.generation_config.forced_bos_token_id = tokenizer.get_lang_id("en")
        assert model.generate(**inputs["right"], max_new_tokens=6).equal(expected)
        settings = GenerationConfig(forced_bos_token_id=tokenizer.get_lang_id("es"), max_new_tokens=6)
        assert not model.generate(**inputs["right"], generation_config=settings).equal(expected)

    def test_another_token_is_forced_as_ever(self, model, inputs):
        assert (model.generate(**inputs["right"], forced_bos_token_id=5, max_new_tokens=3)[:, 1] == 5).all()

    def test_what_has_no_language_token(self, model, tokenizer, inputs):
        language = tokenizer.get_lang_id("en")
        encoded = model.get_encoder()(**inputs["right"])
        for given in (
            {"encoder_outputs": encoded, "attention_mask": inputs["right"]["attention_mask"]},
            {"encoder_outputs": encoded, **inputs["right"]},
            {"inputs_embeds": torch.zeros(1, 3, 16)},
        ):
            with pytest.raises(ValueError, match="is a language.* pass `input_ids`"):
                model.generate(**given, forced_bos_token_id=language)
        with pytest.raises(ValueError, match="does not begin with a language token"):
            model.generate(torch.tensor([[5, 6, 2]]), forced_bos_token_id=language)

    def test_by_an_ensemble(self, model, tokenizer, inputs, by_target):
        ensemble = VanillaTransformerEnsemble([model, build("multilingual")[0]])
        language = tokenizer.get_lang_id("en")
        expected = model.generate(**inputs["right"], forced_bos_token_id=language, num_beams=2, max_new_tokens=6)
        found = ensemble.generate(**inputs["right"], forced_bos_token_id=language, num_beams=2, max_new_tokens=6)
        assert found.equal(expected)
        assert texts(translate(ensemble, tokenizer, ENGLISH, tgt_lang=TARGETS)) == texts(mixed(by_target))
