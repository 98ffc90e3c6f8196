"""BPE-dropout: different tokens for the same text in training, and an unchanged tokenizer."""

import copy
import json
import pickle
from collections import Counter

import pytest

from hf_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from hf_vanilla_transformer.data.bpe_dropout import DroppingTokenizer
from hf_vanilla_transformer.data.encoding import LengthLimits
from hf_vanilla_transformer.data.resampling import Resampling

TEXTS = ["the children are playing in the garden", "the garden is playing the children"] * 4


@pytest.fixture(scope="module")
def tokenizer():
    return train_tokenizer(TEXTS, vocab_size=300)


def rows_of(tokenizer, number=20):
    """Distinct sentences, and their tokens with all merges."""
    texts = [" ".join([TEXTS[0]] * (1 + i)) for i in range(number)]
    ids = tokenizer(texts)["input_ids"]
    return [
        {"source": text, "target": text, "input_ids": own, "labels": own} for text, own in zip(texts, ids, strict=True)
    ]


def collator(tokenizer, probability, max_length=None, seed=0):
    limits = LengthLimits(max_length, max_length)
    return Resampling(DroppingTokenizer(tokenizer, probability, seed), limits=limits)


def test_every_epoch_has_another_split_of_the_same_text(tokenizer):
    rows = rows_of(tokenizer, 1)
    sample, splits = collator(tokenizer, 0.5), {"input_ids": [], "labels": []}
    for epoch in range(20):
        sample.set_epoch(epoch)
        for name, found in splits.items():
            found.append(sample(rows)[0][name])
    for name, found in splits.items():
        assert len({tuple(ids) for ids in found}) > 10
        assert min(map(len, found)) > len(rows[0][name])
        assert {tokenizer.decode(ids, skip_special_tokens=True) for ids in found} == {TEXTS[0]}
        assert all(ids[-1] == tokenizer.eos_token_id for ids in found)


def test_the_tokens_of_a_pair_follow_from_seed_and_epoch(tokenizer):
    """Regardless of its batch, earlier batches and the process."""
    rows = rows_of(tokenizer)
    whole = collator(tokenizer, 0.3)(rows)
    sample = pickle.loads(pickle.dumps(collator(tokenizer, 0.3)))
    for epoch in (1, 0):
        sample.set_epoch(epoch)
        assert ([sample([row])[0] for row in reversed(rows)][::-1] == whole) == (epoch == 0)
    assert collator(tokenizer, 0.3, seed=1)(rows) != whole


def splits_by_definition(ranks, word, probability):
    """Probabilities of the splits of a word, by algorithm 1 of Provilkov et al. 2020."""
    steps = [
        (word[:i] + (word[i] + word[i + 1],) + word[i + 2 :], ranks.get(word[i : i + 2])) for i in range(len(word) - 1)
    ]
    merges = sorted((rank, merged) for merged, rank in steps if rank is not None)
    found = Counter({word: probability ** len(merges)})
    for dropped, (_, merged) in enumerate(merges):
        for split, share in splits_by_definition(ranks, merged, probability).items():
            found[split] += (1 - probability) * probability**dropped * share
    return found


@pytest.mark.parametrize("probability", [0.1, 0.5])
def test_the_distribution_is_that_of_the_paper(tokenizer, probability):
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
    word, number = tuple("playing"), 4000
    expected = splits_by_definition(ranks, word, probability)
    assert sum(expected.values()) == pytest.approx(1) and len(expected) > 10
    dropping, found = DroppingTokenizer(tokenizer, probability), Counter()
    for epoch in range(number):
        dropping.set_epoch(epoch)
        found[tuple(tokenizer.convert_ids_to_tokens(dropping("playing")["input_ids"][:-1]))] += 1
    assert found.keys() <= expected.keys()
    for split, share in expected.items():
        # Five standard deviations.
        assert abs(found[split] - number * share) <= 5 * (number * share * (1 - share)) ** 0.5 + 1, split


def test_the_tokenizer_itself_leaves_out_no_merge(tokenizer):
    before = tokenizer(TEXTS)["input_ids"]
    dropping = DroppingTokenizer(tokenizer, 0.9)
    assert dropping(TEXTS)["input_ids"] != before
    assert tokenizer(TEXTS)["input_ids"] == before


def test_with_no_dropout_the_tokens_are_the_same(tokenizer):
    rows = rows_of(tokenizer, 2)
    plain = [{name: row[name] for name in ("input_ids", "labels")} for row in rows]
    assert collator(tokenizer, 0.0)(rows) == plain


def test_a_vocabulary_for_each_side(tokenizer):
    pair = VanillaTransformerTokenizer.from_pair(tokenizer, train_tokenizer(TEXTS, vocab_size=280))
    text = TEXTS[0]
    own = pair(text, text_target=text)
    (sampled,) = collator(pair, 0.5)([{"source": text, "target": text, **own}])
    assert len(sampled["input_ids"]) > len(own["input_ids"]) and len(sampled["labels"]) > len(own["labels"])
    assert pair.decode(sampled["labels"], skip_special_tokens=True) == text
    assert pair(text, text_target=text) == own


def test_a_side_that_would_be_too_long_keeps_its_tokens(tokenizer):
    rows = rows_of(tokenizer)
    length = max(len(row["input_ids"]) for row in rows)
    sampled = collator(tokenizer, 0.9, length)(rows)
    kept = [row["input_ids"] == own["input_ids"] for row, own in zip(sampled, rows, strict=True)]
    assert max(len(row["input_ids"]) for row in sampled) <= length and 0 < sum(kept) < len(kept)


def test_a_pair_that_keeps_its_tokens_has_the_columns_of_the_others(tokenizer):
    rows = [dict(row, length=5, weight=1.0) for row in rows_of(tokenizer)]
    assert all(set(row) == {"input_ids", "labels"} for row in collator(tokenizer, 0.9, 1)(rows))
    truncated = [dict(rows[0], source=None, target=None), *rows[1:]]
    columns = {frozenset(row) for row in collator(tokenizer, 0.5)(truncated)}
    assert len(columns) == 1 and {"input_ids", "labels"} <= next(iter(columns))


@pytest.mark.parametrize("algorithm", ["unigram", "word"])
def test_other_vocabularies_have_no_merges(algorithm):
    other = train_tokenizer(TEXTS, algorithm=algorithm, vocab_size=100)
    with pytest.raises(ValueError, match="`bpe_dropout` needs a BPE vocabulary, not (Unigram|WordLevel); leave it"):
        DroppingTokenizer(other, 0.1)


def test_vocabularies_that_mark_the_end_of_a_word_are_refused(tokenizer):
    marked = copy.deepcopy(tokenizer)
    marked.backend_tokenizer.model.end_of_word_suffix = "</w>"
    with pytest.raises(ValueError, match="`bpe_dropout` does not support marks for continuing subwords or word ends"):
        DroppingTokenizer(marked, 0.1)


def test_an_added_token_stays_whole(tokenizer):
    tagged = copy.deepcopy(tokenizer)
    tagged.add_tokens(["<tag>"])
    ids = DroppingTokenizer(tagged, 0.9)(f"<tag>{TEXTS[0]}")["input_ids"]
    assert ids[0] == len(tokenizer) and tagged.decode(ids[1:], skip_special_tokens=True) == TEXTS[0]
