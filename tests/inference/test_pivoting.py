"""Translation through a third language."""

import logging
from functools import partial

import datasets
import pytest
import torch
from transformers import pipeline
from transformers.pipelines.pt_utils import KeyDataset

from hf_vanilla_transformer.inference import translator
from hf_vanilla_transformer.inference.ctranslate2 import check_settings
from hf_vanilla_transformer.inference.glossary import Glossary
from hf_vanilla_transformer.inference.reranking import ChannelReranker
from hf_vanilla_transformer.inference.translation import translate, translate_lines
from hf_vanilla_transformer.inference.translator import composed
from hf_vanilla_transformer.model.multilingual_vanilla_transformer import VanillaTransformerMultilingualTokenizer
from hf_vanilla_transformer.pretrained import languages
from hf_vanilla_transformer.pretrained.languages import pivot_of
from hf_vanilla_transformer.pretrained.loading import load_model
from hf_vanilla_transformer.pretrained.text_facts import set_pivots
from translators import DIRECTIONS, SHARED, SPANISH, assert_alike, build, set_end_bias, texts

# Of two legs, Spanish to English and English to German; German is no source.
ROUTE = {"src_lang": "es", "tgt_lang": "de"}
OPTIONS = {"num_beams": 2, "num_hypotheses": 2, "with_scores": True, "with_alignments": True}

pytestmark = pytest.mark.usefixtures("one_thread")


# `translate` ignores the bound of the model, which the pipeline uses.
translated = partial(translate, max_new_tokens=8)


def talkative():
    """Return a model that translates to several words, and its tokenizer."""
    model, tokenizer = build("multilingual")
    with torch.no_grad():
        model.lm_head.bias[tokenizer.all_special_ids] -= 20
    model.generation_config.max_new_tokens = 8
    return set_end_bias(model, -1.0), tokenizer


@pytest.fixture(scope="module")
def pair():
    return talkative()


@pytest.fixture(scope="module")
def first(pair):
    found = translated(*pair, SPANISH, src_lang="es", tgt_lang="en", **OPTIONS)
    assert all(best.text for best, *_ in found)
    return found


@pytest.fixture(scope="module")
def second(pair, first):
    found = translated(*pair, [best.text for best, *_ in first], src_lang="en", tgt_lang="de", **OPTIONS)
    assert texts(found) != texts(translated(*pair, SPANISH, **ROUTE, **OPTIONS, pivot="none"))
    return found


@pytest.fixture
def warnings(caplog):
    # It may have been used up by another test.
    languages.logger.warning_once.cache_clear()
    with caplog.at_level(logging.WARNING):
        yield caplog


def tagged(*directions):
    return VanillaTransformerMultilingualTokenizer.from_shared(SHARED, directions)


class TestChoice:
    def test_the_first_language_with_both_legs(self):
        tokenizer = tagged(("es", "it"), ("es", "fr"), ("es", "en"), ("fr", "de"), ("en", "de"), ("en", "it"))
        assert pivot_of(tokenizer, ("es", "de"), {}) == "fr"
        for direction in (("es", "fr"), ("fr", "it"), ("es", "es"), ("de", "es")):
            assert pivot_of(tokenizer, direction, {}) is None

    def test_a_recorded_decision_wins(self):
        tokenizer = tagged(("es", "fr"), ("es", "en"), ("fr", "de"), ("en", "de"))
        recorded = {"es-de": "en", "es-fr": "en"}
        assert pivot_of(tokenizer, ("es", "de"), recorded) == "en"
        assert pivot_of(tokenizer, ("es", "fr"), recorded) is None
        assert pivot_of(tokenizer, ("es", "de"), {"es-de": ""}) is None


class TestLines:
    def test_two_legs_are_two_calls(self, pair, second, warnings):
        found = translated(*pair, SPANISH, **ROUTE, **OPTIONS)
        assert_alike(found, second, abs=1e-5)
        assert {each.pivot for row in found for each in row} == {"en"}
        assert {each.pivot for row in second for each in row} == {None}
        said = (
            "es to de goes through en: the model was not trained on pairs of this direction (`pivot` none translates"
        )
        assert warnings.text.count(said) == 1 and "zero-shot" not in warnings.text

    def test_alignments_are_composed(self, pair, first, second):
        found = translated(*pair, SPANISH, **ROUTE, **OPTIONS)
        assert any(each.alignment for row in found for each in row)
        for row, (best, *_), others in zip(found, first, second, strict=True):
            assert [each.alignment for each in row] == [composed(best.alignment, each.alignment) for each in others]

    def test_mixed_directions_of_a_stream(self, pair, second):
        sources, targets, taken = ["es", "en", "es", "es", "es"], ["de", "de", "en", "de", "de"], []
        options = {**OPTIONS, "src_lang": sources, "tgt_lang": targets, "chunk_size": 2, "max_new_tokens": 8}
        results = translate_lines(*pair, (taken.append(line) or line for line in SPANISH), **options)
        found = [next(results)]
        assert taken == SPANISH[:2]
        found += results
        assert [row[0].pivot for row in found] == ["en", None, None, "en", "en"]
        direct = translated(*pair, SPANISH, **{**OPTIONS, "src_lang": sources, "tgt_lang": targets}, pivot="none")
        routes = [second[0], direct[1], direct[2], *second[3:]]
        assert_alike(found, routes, abs=1e-5)

    def test_directly(self, pair, warnings):
        # The tag of a source is that of its target alone, and this direction has training pairs.
        expected = translated(*pair, SPANISH, src_lang="en", tgt_lang="de", **OPTIONS)
        assert translated(*pair, SPANISH, **ROUTE, **OPTIONS, pivot="none") == expected
        assert "es to de is zero-shot" in warnings.text and "through" not in warnings.text

    def test_another_language(self, pair, warnings):
        model, tokenizer = pair[0], tagged(*DIRECTIONS, ("es", "de"))
        bests = [row[0].text for row in translated(model, tokenizer, SPANISH, src_lang="en", tgt_lang="es")]
        expected = translated(model, tokenizer, bests, **ROUTE)
        found = translated(model, tokenizer, SPANISH, src_lang="en", tgt_lang="de", pivot="es")
        assert texts(found) == texts(expected) and found[0][0].pivot == "es"
        # Its own directions stay.
        for direction in (("en", "es"), ("es", "de")):
            options = dict(zip(("src_lang", "tgt_lang"), direction, strict=True))
            expected = translated(model, tokenizer, SPANISH, **options)
            assert translated(model, tokenizer, SPANISH, **options, pivot="es") == expected
        assert "zero-shot" not in warnings.text and "through" not in warnings.text

    def test_recorded_with_the_model(self, tmp_path):
        model, tokenizer = talkative()
        expected = translated(model, tokenizer, SPANISH, **ROUTE, pivot="none")
        set_pivots(model, tokenizer, {"es-de": ""})
        model.save_pretrained(tmp_path)
        loaded = load_model(tmp_path)
        check_settings(loaded.generation_config.to_dict())
        assert translated(loaded, tokenizer, SPANISH, **ROUTE) == expected
        # The call decides.
        assert translated(loaded, tokenizer, SPANISH, **ROUTE, pivot="en") != expected

    def test_a_glossary_or_a_reranker_translates_directly(self, pair, warnings):
        reranker = ChannelReranker(*pair, src_lang="de", tgt_lang="es")
        for given in ({"glossary": Glossary([("gato", "cat")])}, {"reranker": reranker}):
            found = translated(*pair, SPANISH, **ROUTE, num_beams=4, **given)
            assert found == translated(*pair, SPANISH, **ROUTE, num_beams=4, pivot="none", **given)
            with pytest.raises(ValueError, match="`pivot` en goes with neither glossary nor reranker"):
                translated(*pair, SPANISH, **ROUTE, num_beams=4, pivot="en", **given)
        assert "es to de is zero-shot" in warnings.text and "through" not in warnings.text
        assert translated(*pair, SPANISH[:1], **ROUTE, glossary=Glossary([]))[0][0].pivot == "en"

    @pytest.mark.parametrize(("pivot", "leg"), [("de", "de to es"), ("fr", "en to fr")])
    def test_a_leg_without_training_pairs(self, pair, pivot, leg):
        with pytest.raises(
            ValueError, match=f"en to es cannot go through {pivot}: .* not trained to translate {leg};"
        ):
            translated(*pair, SPANISH, src_lang="en", tgt_lang="es", pivot=pivot)

    def test_a_recorded_language_of_another_model(self):
        model, tokenizer = talkative()
        set_pivots(model, tokenizer, {"es-de": "fr"})
        with pytest.raises(ValueError, match="es to de cannot go through fr"):
            translated(model, tokenizer, SPANISH, **ROUTE)

    def test_a_model_without_directions(self):
        model, tokenizer = build("shared")
        with pytest.raises(ValueError, match="`pivot` en needs a multilingual model"):
            translated(model, tokenizer, SPANISH, pivot="en")
        assert translated(model, tokenizer, SPANISH, pivot="none") == translated(model, tokenizer, SPANISH)

    def test_warnings_and_progress_of_both_legs(self, pair, monkeypatch, caplog, capsys):
        monkeypatch.setattr(translator, "is_suspicious", lambda *texts: True)
        options = {"chunk_size": 2, "max_source_length": 4, "show_progress": True}
        first = translated(*pair, SPANISH, src_lang="es", tgt_lang="en", max_source_length=4)
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = translated(*pair, ["", *SPANISH], **ROUTE, **options)
        assert found[0][0].text == "" and found[0][0].remarks is None and found[1][0].remarks == ["limit", "short"]
        assert (
            caplog.text.count("suspiciously short") == 1
            and "of 6 lines, 5 ended at the length limit" in caplog.text
            and "and 5 came back" in caplog.text
        )
        tokenizer = pair[1]
        sources = [*SPANISH, *(best.text for (best,) in first)]
        too_long = sum(len(ids) > 4 for ids in tokenizer(sources)["input_ids"])
        assert f"{too_long} of 10 sentences had more than 4 tokens" in caplog.text and too_long > 2
        # One line is blank; the others are sentences of two legs.
        assert "10/10" in capsys.readouterr().err


def test_links_through_words_in_between():
    assert composed([(0, 1), (1, 0), (2, 2), (3, 1)], [(0, 3), (1, 0), (1, 2), (4, 4)]) == [
        (0, 0), (0, 2), (1, 3), (3, 0), (3, 2),
    ]  # fmt: skip  # a table


@pytest.fixture(scope="module")
def pipe():
    # A model of its own, because the pipeline moves it to the CPU.
    model, tokenizer = talkative()
    return pipeline("translation_es_to_de", model=model, tokenizer=tokenizer, device="cpu")


@pytest.fixture(scope="module")
def expected(second):
    return [[each.text for each in row] for row in second]


class TestPipeline:
    def test_texts(self, pipe, expected, warnings):
        given = {"num_beams": 2}
        assert pipe(SPANISH[1], **given) == [{"translation_text": expected[1][0]}]
        for inputs in (SPANISH, tuple(SPANISH), datasets.Dataset.from_dict({"x": SPANISH})["x"]):
            found = pipe(inputs, batch_size=2, **given)
            assert [each["translation_text"] for each in found] == [best for best, *_ in expected]
        assert pipe([], **given) == []
        assert warnings.text.count("es to de goes through en") == 1 and "zero-shot" not in warnings.text

    @pytest.mark.parametrize("batch_size", [1, 2])
    def test_streams(self, pipe, expected, batch_size):
        taken = []
        stream = (taken.append(text) or text for text in SPANISH)
        found = iter(pipe(stream, num_beams=2, batch_size=batch_size))
        first = next(found)
        assert len(taken) < len(SPANISH)
        assert [each["translation_text"] for (each,) in (first, *found)] == [best for best, *_ in expected]
        dataset = KeyDataset(datasets.Dataset.from_dict({"x": SPANISH}), "x")
        found = pipe(dataset, num_beams=2, batch_size=batch_size, num_workers=1)
        assert [each["translation_text"] for (each,) in found] == [best for best, *_ in expected]

    def test_outputs_are_those_of_the_second_leg(self, pipe, expected, second):
        given = {"num_beams": 2, "num_return_sequences": 2}
        found = pipe(SPANISH, return_scores=True, **given)
        assert [[each["translation_text"] for each in row] for row in found] == expected
        scores = [each["score"] for row in found for each in row]
        assert scores == pytest.approx([each.score for row in second for each in row], abs=1e-5)
        ids = pipe(SPANISH[0], return_tensors=True, **given)
        decoded = [pipe.tokenizer.decode(each["translation_token_ids"], skip_special_tokens=True) for each in ids]
        assert decoded == expected[0] and ids[0].keys() == {"translation_token_ids"}

    def test_the_choice(self, pipe, second):
        direct = [each.text for (each,) in translated(*talkative(), SPANISH, **ROUTE, pivot="none")]
        for given in (
            pipe,
            pipeline("translation", pipe.model, tokenizer=pipe.tokenizer, pivot="none"),
        ):
            found = given(SPANISH, **ROUTE, **({"pivot": "none"} if given is pipe else {}))
            assert [each["translation_text"] for each in found] == direct
        through = translated(*talkative(), SPANISH, **ROUTE, pivot="en")
        found = given(SPANISH, **ROUTE, pivot="en")
        assert [each["translation_text"] for each in found] == [each.text for (each,) in through] != direct
        with pytest.raises(ValueError, match="es to en cannot go through de"):
            pipe(SPANISH, tgt_lang="en", pivot="de")
        with pytest.raises(ValueError, match="`pivot` en needs a multilingual model"):
            pipeline("translation", build("shared")[0], tokenizer=SHARED, device="cpu")("a", pivot="en")

    def test_recorded_with_the_model(self):
        model, tokenizer = talkative()
        set_pivots(model, tokenizer, {"es-de": ""})
        found = pipeline("translation", model, tokenizer=tokenizer, device="cpu")(SPANISH, **ROUTE)
        direct = translated(model, tokenizer, SPANISH, **ROUTE, pivot="none")
        assert [each["translation_text"] for each in found] == [each.text for (each,) in direct]
