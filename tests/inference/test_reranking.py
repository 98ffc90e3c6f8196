"""Reranking: the sum of both models' scores decides."""

import math

import pytest
import torch

from devices import same_numbers
from hf_vanilla_transformer.inference.decoding import Hypothesis
from hf_vanilla_transformer.inference.reranking import ChannelReranker
from hf_vanilla_transformer.inference.scoring import score
from hf_vanilla_transformer.inference.translation import translate
from tables import looped
from translators import PAIR, SHARED, build

KINDS = ("shared", "pair", "marian")
SENTENCES = ["two dogs run in the red street", "", "a cat", "the cat sleeps in a house", " ", "we see a small cat"]

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
@same_numbers
def reverse():
    """An untrained model whose output depends strongly on its source."""
    model, tokenizer = build("shared", d_model=24)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(torch.randn_like(weight) * 0.3)
    return model, tokenizer


@looped("weight", [0.0, 0.5, 3.0, -1.0])
def test_the_lists_are_sorted_by_the_sum(translator, reverse, weight):
    options = {"num_beams": 5, "max_length": 8, "with_scores": True}
    plain = translate(*translator, SENTENCES, num_hypotheses=5, **options)
    found = translate(
        *translator, SENTENCES, num_hypotheses=5, reranker=ChannelReranker(*reverse, weight, max_tokens=30), **options
    )
    for sentence, own, others in zip(SENTENCES, found, plain, strict=True):
        if not sentence.strip():
            assert own == others
            continue
        # One at a time, by the public function.
        expected = []
        for each in others:
            (channel,) = score(*reverse, [each.text], [sentence])
            expected.append((each.score + weight * channel.log_prob / len(channel.token_ids), each.text))
        expected.sort(key=lambda pair: -pair[0])
        assert [each.score for each in own] == pytest.approx([total for total, _ in expected], abs=1e-4)
        assert sorted(each.text for each in own) == sorted(each.text for each in others)
        best = {text for total, text in expected if total > expected[0][0] - 1e-4}
        assert own[0].text in best
    if weight == 3.0:
        assert found != plain
    fewer = translate(*translator, SENTENCES, num_hypotheses=2, reranker=ChannelReranker(*reverse, weight), **options)
    for own, others in zip(fewer, found, strict=True):
        assert [each.score for each in own] == pytest.approx([each.score for each in others[:2]], abs=1e-4)


def test_all_beams_are_reranked_for_one_translation(reverse):
    seen = []

    class Recorder(ChannelReranker):
        def __call__(self, sentences, lists):
            seen.extend(len(own) for own in lists)
            return super().__call__(sentences, lists)

    found = translate(*build("shared"), SENTENCES, num_beams=4, reranker=Recorder(*reverse))
    assert seen == [4] * sum(map(bool, map(str.strip, SENTENCES))) and [len(own) for own in found] == [1] * len(
        SENTENCES
    )


def test_samples_are_reranked(reverse):
    options = {"do_sample": True, "num_beams": 1, "num_hypotheses": 4, "max_length": 8}
    found = translate(*build("shared"), SENTENCES, reranker=ChannelReranker(*reverse), **options)
    for own in found:
        scores = [each.score for each in own]
        assert scores == sorted(scores, reverse=True) and len(scores) == 4


def test_the_reverse_model_may_have_a_tokenizer_of_its_own_and_few_positions():
    model, _ = build("pair")
    short, tokenizer = build("learned", max_position_embeddings=6)
    lists = translate(model, PAIR, ["the small cat " * 9, "a cat"], num_beams=3, num_hypotheses=3, with_scores=True)
    found = ChannelReranker(short, tokenizer)(["the small cat " * 9, "a cat"], lists)
    assert [{each.text for each in own} for own in found] == [{each.text for each in own} for own in lists]
    assert all(math.isfinite(each.score) for own in found for each in own)


def test_words_that_come_from_the_source_win(reverse):
    """For a reverse model that copies, hypotheses that repeat the source are the most probable."""
    model, tokenizer = reverse
    torch.manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    batch = tokenizer(["a cat", "two dogs run", "no", "the street"], padding=True, return_tensors="pt")
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    for _ in range(60):
        model(batch["input_ids"], batch["attention_mask"], labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    lists = [[Hypothesis("no", -1.0), Hypothesis("two dogs run", -1.2), Hypothesis("the street", -0.9)]]
    assert ChannelReranker(model.eval(), tokenizer)(["two dogs run"], lists)[0][0].text == "two dogs run"
    assert ChannelReranker(model, tokenizer, weight=0.0)(["two dogs run"], lists)[0][0].text == "the street"


def test_what_cannot_be_used(reverse):
    for weight in (math.nan, math.inf):
        with pytest.raises(ValueError, match=f"`rerank_weight` is {weight}; it must be finite"):
            ChannelReranker(*reverse, weight)
    with pytest.raises(ValueError, match="reranking needs several hypotheses, but `num_beams` is 1; raise it"):
        translate(*build("shared"), SENTENCES, num_beams=1, reranker=ChannelReranker(*reverse))
    assert SHARED is reverse[1]
