import asyncio
import threading
from functools import partial

import pytest
import torch
from transformers import T5Config, T5ForConditionalGeneration

from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.serving import engine as engine_module
from hf_vanilla_transformer.serving.engine import (
    Engine,
    ServedModel,
    TranslationOptions,
    UnknownModel,
    release_memory,
)
from translators import ENGLISH, SHARED, build, hypotheses_of, set_end_bias

BEAMS = TranslationOptions(num_beams=3, num_hypotheses=2, with_scores=True)


@pytest.fixture
def served():
    served = ServedModel("tiny", *build("shared"), patience=0.05)
    yield served
    served.close()


def test_concurrent_requests_are_translated_as_offline(served):
    async def ask():
        greedy = [served.translate([sentence], TranslationOptions(num_beams=1)) for sentence in ENGLISH * 3]
        return await asyncio.gather(served.translate([*ENGLISH, ENGLISH[0]], BEAMS), *greedy)

    with_beams, *greedy = map(hypotheses_of, asyncio.run(ask()))
    options = {"num_beams": 3, "num_hypotheses": 2, "with_scores": True}
    expected = translate(served.model, served.tokenizer, [*ENGLISH, ENGLISH[0]], **options)
    assert [[each.text for each in row] for row in with_beams] == [[each.text for each in row] for row in expected]
    scores = [each.score for row in with_beams for each in row]
    assert scores == pytest.approx([each.score for row in expected for each in row], abs=1e-5)
    assert [row for (row,) in greedy] == translate(served.model, served.tokenizer, ENGLISH * 3, num_beams=1)


@pytest.mark.parametrize("options", [TranslationOptions(num_beams=1), BEAMS], ids=["greedy", "beams"])
def test_what_other_clients_send_does_not_prolong_a_translation(options):
    """The model never generates the end token."""
    served = ServedModel("endless", set_end_bias(build("shared")[0], -1e4), SHARED, patience=0.05)
    sentences, sizes = ["no", "a red house " * 12, "no", "we see a cat"], []
    served.observers.append(lambda count, _: sizes.append(count))

    async def ask():
        return await asyncio.gather(*(served.translate([sentence], options) for sentence in sentences))

    together = map(hypotheses_of, asyncio.run(ask()))
    assert max(sizes) > 1, "alone, no sentence has neighbours"
    for sentence, found in zip(sentences, together, strict=True):
        (alone,) = hypotheses_of(asyncio.run(served.translate([sentence], options)))
        assert [each.text for each in found[0]] == [each.text for each in alone]
    served.close()


def test_memory_is_released_every_so_many_batches(served, monkeypatch):
    released = []
    monkeypatch.setattr(engine_module, "BATCHES_BETWEEN_RELEASES", 3)
    monkeypatch.setattr(engine_module, "release_memory", lambda: released.append(1))
    for _ in range(7):
        asyncio.run(served.translate(["a red house"]))
    assert len(released) == 2


def test_releasing_memory_fails_nowhere(monkeypatch):
    release_memory()
    monkeypatch.setattr("sys.platform", "darwin")
    release_memory()


def test_functions_run_in_the_thread_of_the_model(served):
    async def ask():
        return await served.run(lambda number: (threading.current_thread().name, number), 3)

    assert asyncio.run(ask()) == ("model tiny", 3)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"num_hypotheses": 2}, "2 hypotheses need as many beams"),
        ({"num_beams": 0}, "`num_beams` is 0"),
        ({"length_penalty": float("nan")}, "`length_penalty` is nan"),
        ({"no_repeat_ngram_size": -1}, "`no_repeat_ngram_size` is -1"),
    ],
)
def test_options_out_of_range_are_refused_before_they_wait(served, options, message):
    with pytest.raises(ValueError, match=message):
        asyncio.run(served.translate(["a cat"], TranslationOptions(**options)))
    assert served.num_waiting == 0


def test_a_prefix_is_put_before_every_sentence():
    """Alignments exclude its words."""
    served = ServedModel("t5", *build("shared"), source_prefix="no no ")
    settings = {"num_beams": 1, "max_new_tokens": 8, "with_alignments": True}
    translated = asyncio.run(served.translate(["a red house", " "], TranslationOptions(**settings)))
    expected = translate(served.model, served.tokenizer, ["no no a red house", " "], **settings)
    ((sentence,),) = (text.sentences for text in served.preparation.prepare(["a cat"]))
    assert len(sentence.ids) == 5
    served.close()
    (((hypothesis,),), ((offline,),)) = (hypotheses_of(translated), expected[:1])
    assert offline.alignment and hypothesis.text == offline.text and translated[1].joined().text == " "
    assert hypothesis.alignment == [(i - 2, k) for i, k in offline.alignment if i >= 2]


class Stub(ServedModel):
    """A served model without a thread."""

    def __init__(self, name, *pairs):
        self.name, self.tokenizer, self.pairs = name, None, dict.fromkeys(pairs).keys()


def test_models_are_picked_by_name_or_languages():
    engine = Engine([Stub("a", ("en", "de")), Stub("b", ("de", "en"), ("de", "fr"))])
    first, second = engine.models.values()
    assert engine.choose(source="en") == engine.choose(target="de") == engine.choose(name="a") == (first, "en", "de")
    assert engine.choose("de", "fr") == engine.choose(target="fr", name="b") == (second, "de", "fr")
    for question, message in [
        ({"source": "fr", "target": "en"}, "no model translates fr-en; available: en-de, de-en, de-fr"),
        ({"source": "de"}, "several models or language pairs match de-any"),
        ({"source": "de", "target": "en", "name": "a"}, "no model translates de-en; available: en-de"),
        ({"name": "c"}, "there is no model c; available: a, b"),
    ]:
        with pytest.raises(UnknownModel, match=message):
            engine.choose(**question)


def test_a_model_of_unknown_languages_answers_any_pair_when_alone():
    engine = Engine([Stub("a")])
    assert engine.choose("en", "de") == (engine.models["a"], "en", "de")
    with pytest.raises(UnknownModel, match="no model translates en-de; available: fr-de, model a"):
        Engine([Stub("a"), Stub("b", ("fr", "de"))]).choose("en", "de")


@pytest.mark.parametrize(
    "models, message",
    [
        ([], "no models given"),
        ([Stub("a"), Stub("a")], "two models are called a"),
        ([Stub("a", ("en", "de")), Stub("b", ("en", "de"))], "a and b both translate en-de"),
    ],
    ids=["none", "one name", "one pair"],
)
def test_ambiguous_models_are_refused(models, message):
    with pytest.raises(ValueError, match=message):
        Engine(models)


def t5():
    torch.manual_seed(5)
    shape = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
    ids = {"pad_token_id": 0, "eos_token_id": 2, "decoder_start_token_id": 0}
    return T5ForConditionalGeneration(T5Config(vocab_size=len(SHARED), **shape, **ids)).eval(), SHARED


FAMILIES = {"t5": t5} | {kind: partial(build, kind) for kind in ("marian", "bart", "m2m100")}


@pytest.mark.parametrize("translator", FAMILIES.values(), ids=FAMILIES)
def test_models_of_other_families(translator):
    served = ServedModel("other", *translator())
    options = TranslationOptions(num_beams=2, max_new_tokens=5)
    expected = translate(served.model, served.tokenizer, ENGLISH, num_beams=2, max_new_tokens=5)
    assert hypotheses_of(asyncio.run(served.translate(ENGLISH, options))) == expected
    assert served.preparation.max_length >= 64
    served.close()


def test_the_limit_of_the_queue_counts_the_pieces_of_cut_sentences():
    """A request that finds the queue empty is always accepted; the others must not add theirs to it."""
    model, tokenizer = build("learned", max_position_embeddings=8)
    served = ServedModel("short", model, tokenizer, max_queue=3, max_tokens=8)
    waiting, release = [], threading.Event()
    served.observers.append(lambda *_: waiting.append(served.num_waiting))
    text, options = "a red house " * 20, TranslationOptions(num_beams=1, max_new_tokens=2)
    (alone,) = asyncio.run(served.translate([text], options))
    served.call(release.wait)

    async def ask():
        requests = [asyncio.ensure_future(served.translate([text], options)) for _ in range(3)]
        await asyncio.sleep(0)
        release.set()
        return await asyncio.gather(*requests, return_exceptions=True)

    waiting.clear()
    asyncio.run(ask())
    served.close()
    assert len(alone.hypotheses) > 3, "the sentence is not cut"
    assert max(waiting) <= len(alone.hypotheses) + 3


def test_blank_texts_do_not_wait(served):
    blocked = threading.Event()
    served.call(blocked.wait)
    (translated,) = asyncio.run(served.translate([" \n"]))
    assert translated.joined().text == " \n" and not translated.hypotheses
    blocked.set()
