"""Scores against those of `generate()`, with and without batches, and refusals."""

import math

import pytest
import torch
from transformers import GenerationConfig

from devices import ACROSS_BATCHES
from hf_vanilla_transformer.inference.scoring import Score, score
from tables import looped
from translators import ENGLISH, SPANISH, build

KINDS = ("shared", "pair", "learned", "marian", "bart", "m2m100")
pytestmark = pytest.mark.usefixtures("one_thread")


def generated(model, tokenizer, **options):
    source = tokenizer(ENGLISH, padding=True, return_tensors="pt")
    asked = {"return_dict_in_generate": True, "output_scores": True, "max_new_tokens": 6, "min_new_tokens": 2}
    return model.generate(**source, **asked, **options)


@pytest.mark.parametrize("num_beams", [1, 4], ids=["greedy", "beams"])
def test_equal_what_generate_reports(translator, num_beams):
    model, tokenizer = translator
    out = generated(model, tokenizer, num_beams=num_beams, **({"length_penalty": 0.0} if num_beams > 1 else {}))
    scores = score(model, tokenizer, ENGLISH, list(out.sequences))
    if num_beams > 1:
        torch.testing.assert_close(
            torch.tensor([each.log_prob for each in scores]), out.sequences_scores, rtol=1e-5, atol=ACROSS_BATCHES
        )
        return
    logits = generated(model, tokenizer, num_beams=1, output_logits=True).logits
    for place, each in enumerate(scores):
        expected = [
            step[place].log_softmax(-1)[token].item() for step, token in zip(logits, each.token_ids, strict=False)
        ]
        if model.generation_config.forced_bos_token_id is not None:
            expected[0] = 0.0
        assert each.token_log_probs == pytest.approx(expected[: len(each.token_ids)], abs=ACROSS_BATCHES)


def test_texts_and_their_ids_score_alike(translator):
    model, tokenizer = translator
    texts = score(model, tokenizer, ENGLISH, SPANISH)
    ids = [tokenizer(text_target=text)["input_ids"] for text in SPANISH]
    start = model.generation_config.decoder_start_token_id
    assert score(model, tokenizer, ENGLISH, ids) == texts
    if start != 2:  # BART starts with its end token
        assert score(model, tokenizer, ENGLISH, [[start, *row, 0, 0] for row in ids]) == texts
    assert [each.token_ids for each in texts] == ids
    assert texts[0].tokens == [*SPANISH[0].split(), "</s>"]


@looped("max_tokens", [1, 12, 4096])
def test_do_not_depend_on_the_batch(translator, max_tokens):
    model, tokenizer = translator
    together = score(model, tokenizer, ENGLISH, SPANISH, max_tokens=max_tokens)
    for source, target, expected in zip(ENGLISH, SPANISH, together, strict=True):
        (alone,) = score(model, tokenizer, [source], [target])
        assert alone.token_log_probs == pytest.approx(expected.token_log_probs, abs=ACROSS_BATCHES)


def test_are_probabilities():
    """The probabilities of all single-token targets and of the remaining tokens add up to one."""
    model, tokenizer = build("shared")
    targets = [[token] for token in range(2, model.config.decoder_vocab_size)]
    total = sum(math.exp(each.log_prob) for each in score(model, tokenizer, ["a red house"] * len(targets), targets))
    rest = score(model, tokenizer, ["a red house"] * 2, [[1, 1], [3, 0, 3]])
    missing = [rest[0].token_log_probs[0], score(model, tokenizer, ["a red house"], [[1, 0, 3]])[0].token_log_probs[0]]
    assert total + sum(map(math.exp, missing)) == pytest.approx(1, abs=1e-4)


def test_say_how_surprised_the_model_is():
    model, tokenizer = build("shared")
    (each,) = score(model, tokenizer, ["a red house"], ["una casa roja"])
    assert each.log_prob == pytest.approx(sum(each.token_log_probs))
    assert each.perplexity == pytest.approx(math.exp(-each.log_prob / 4))


def test_leave_the_model_as_it_was():
    model, tokenizer = build("shared")
    model.config.dropout = 0.5
    model.train()
    assert score(model, tokenizer, ENGLISH, SPANISH) == score(model, tokenizer, ENGLISH, SPANISH)
    assert model.training and score(model, tokenizer, [], []) == []


@looped(
    ("kind", "sources", "targets", "message"),
    [
        ("shared", "a house", ["una casa"], "must be lists of sentences"),
        ("shared", ["a house"], ["una", "casa"], "1 sources but 2 targets"),
        ("shared", ["a house", 3], ["una", "casa"], "source 2 is a int"),
        ("shared", ["a house"], [[]], "target 1 has no tokens"),
        ("shared", ["a house"], [None], "target 1 is a NoneType"),
        ("learned", ["a house", "a " * 80], ["una", "casa"], "source 2 has 81 tokens.* 64"),
        ("learned", ["a house"], ["una " * 80], "target 1 has 81 tokens.* 64"),
        ("marian", ["a house"], ["una " * 80], "target 1 has 81 tokens.* 64"),
    ],
)
def test_what_cannot_be_scored_is_named(kind, sources, targets, message):
    with pytest.raises(ValueError, match=message):
        score(*build(kind), sources, targets)
    with pytest.raises(ValueError, match="`max_tokens` is 0"):
        score(*build(kind), ["a"], ["b"], max_tokens=0)


def test_a_forced_first_token_is_certain():
    model, tokenizer = build("shared")
    free, forced = (score(model, tokenizer, ["no"], [[7, 8, 2]], forced_bos_token_id=token)[0] for token in (6, 7))
    assert forced.token_log_probs == [0.0, *free.token_log_probs[1:]] and free.token_log_probs[0] < 0
    model.generation_config.forced_bos_token_id = 7
    assert score(model, tokenizer, ["no"], [[7, 8, 2]])[0] == forced


def test_settings_of_generate_are_those_of_the_model():
    model, tokenizer = build("shared")
    model.generation_config = GenerationConfig(decoder_start_token_id=1, pad_token_id=0, eos_token_id=2)
    expected = score(model, tokenizer, ENGLISH, SPANISH)
    model.generation_config = GenerationConfig(bos_token_id=1, pad_token_id=0, eos_token_id=2)
    assert score(model, tokenizer, ENGLISH, SPANISH) == expected


def test_a_perplexity_beyond_all_numbers_is_infinite():
    assert Score([5, 2], ["a", "</s>"], [-2000.0, 0.0]).perplexity == math.inf


def test_a_score_that_overflows_is_refused():
    model, tokenizer = build("shared")
    model.lm_head.weight.data *= 1e39
    with pytest.raises(ValueError, match="a score is NaN"):
        score(model, tokenizer, ENGLISH[:2], SPANISH[:2])
