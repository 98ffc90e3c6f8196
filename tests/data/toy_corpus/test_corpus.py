import hashlib
import re

import pytest

from hf_vanilla_transformer.data.toy_corpus import corpus as module
from hf_vanilla_transformer.data.toy_corpus import load_toy_corpus
from hf_vanilla_transformer.data.toy_corpus.corpus import HELD_OUT_SHARE, MAX_PAIRS, is_held_out, split_sentences
from hf_vanilla_transformer.data.toy_corpus.lexicon import ADJECTIVES, NOUNS, VERBS

SIZES = {"num_pairs": 2_000, "num_validation": 100, "num_test": 100}


def words(text):
    return set(re.findall(r"\w+", text))


@pytest.fixture(scope="module")
def splits():
    return split_sentences(**SIZES)


@pytest.fixture(scope="module")
def corpus():
    return load_toy_corpus(**SIZES)


def test_same_seed_same_corpus(corpus):
    again = load_toy_corpus(**SIZES, seed=0)
    assert {split: again[split].to_dict() for split in again} == {split: corpus[split].to_dict() for split in corpus}


def test_another_seed_another_corpus(corpus):
    first, second = (set(each["train"]["source"]) for each in (corpus, load_toy_corpus(**SIZES, seed=1)))
    assert len(first & second) < 0.3 * len(first)


def test_corpus_is_that_of_every_release(corpus):
    """Or scores of models trained on it could not be compared; the digest is that of the first release."""
    text = "\n".join(f"{row['source']}\t{row['target']}" for split in corpus.values() for row in split)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "fe095b15c028ea40"


def test_loader_gives_the_sentences_of_the_splits(corpus, splits):
    assert {split: len(corpus[split]) for split in corpus} == {"train": 2_000, "validation": 100, "test": 100}
    for split, sentences in splits.items():
        assert corpus[split].column_names == ["source", "target"]
        assert corpus[split]["source"][:] == [sentence.source for sentence in sentences]
        assert corpus[split]["target"][:] == [sentence.target for sentence in sentences]


def test_sources_are_distinct_over_all_splits(splits):
    sources = [sentence.source for sentences in splits.values() for sentence in sentences]
    assert len(set(sources)) == len(sources)


def test_held_out_combinations_occur_in_test_sentences_only(splits):
    held_out = {
        split: [any(map(is_held_out, sentence.combinations)) for sentence in sentences]
        for split, sentences in splits.items()
    }
    assert all(held_out["test"])
    assert not any(held_out["train"] + held_out["validation"])


def test_held_out_adjectives_never_stand_beside_their_noun_in_training(splits):
    """Checks the strings themselves: a derivation could miss a combination."""
    train = [sentence.source.lower() for sentence in splits["train"]]
    pairs = [(a, n) for a in ADJECTIVES for n in NOUNS if is_held_out(("adjective", a.english, n.english))]
    beside = re.compile("|".join(rf"\b{a.english.lower()} {n.english}s?\b" for a, n in pairs))
    assert len(pairs) > 100
    assert [source for source in train if beside.search(source)] == []
    assert any(beside.search(sentence.source.lower()) for sentence in splits["test"])


def test_held_out_share():
    combinations = [("object", verb.english, noun.english) for verb in VERBS for noun in NOUNS]
    share = sum(map(is_held_out, combinations)) / len(combinations)
    assert share == pytest.approx(HELD_OUT_SHARE, rel=0.15)
    assert {c for c in combinations if is_held_out(c, 0)} != {c for c in combinations if is_held_out(c, 1)}


def test_every_test_word_occurs_in_training(splits):
    for side in ("source", "target"):
        known = set().union(*(words(getattr(sentence, side)) for sentence in splits["train"]))
        assert set().union(*(words(getattr(sentence, side)) for sentence in splits["test"])) <= known


@pytest.mark.parametrize("argument", ["num_pairs", "num_validation", "num_test"])
@pytest.mark.parametrize("size", [0, -5, 10**7])
def test_sizes_out_of_range(argument, size):
    maximum = MAX_PAIRS[{"num_pairs": "train"}.get(argument, argument[4:])]
    with pytest.raises(ValueError, match=f"`{argument}` {size} .*from 1 to {maximum}$"):
        load_toy_corpus(**{**SIZES, argument: size})


def test_too_few_training_words_for_the_test_set(monkeypatch):
    monkeypatch.setattr(module, "MIN_TEST_DRAWS", 1_000)
    with pytest.raises(ValueError, match="`num_test` 5 is too many for `num_pairs` 2:.*lower `num_test`"):
        load_toy_corpus(2, num_validation=1, num_test=5)


@pytest.mark.slow
def test_grammar_gives_a_hundred_thousand_pairs():
    corpus = load_toy_corpus(100_000)
    assert len(set(corpus["train"]["source"])) == 100_000
