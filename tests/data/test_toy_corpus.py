import hashlib
import re

import pytest

from hf_vanilla_transformer.data import load_toy_corpus
from tables import looped


def test_corpus_is_that_of_every_release():
    """Otherwise scores of models trained on it would not be comparable. The digest is from the first release."""
    corpus = load_toy_corpus()
    sizes = {split: len(pairs) for split, pairs in corpus.items()}
    assert sizes == {"train": 30_000, "validation": 1_000, "test": 1_000}
    text = "".join(f"{row['source']}\t{row['target']}\n" for split in corpus.values() for row in split)
    assert hashlib.sha256(text.encode()).hexdigest().startswith("460c9948ef3927d2")


def test_test_sentences_are_unseen_and_their_words_are_not():
    corpus = load_toy_corpus()
    sources = [source for split in corpus.values() for source in split["source"]]
    assert len({*sources}) == len(sources)
    for side in ("source", "target"):
        train, test = ({*re.findall(r"\w+", " ".join(corpus[split][side]))} for split in ("train", "test"))
        assert test <= train


def test_sizes_take_the_first_pairs():
    whole, part = load_toy_corpus(), load_toy_corpus(5, num_validation=3, num_test=2)
    for split, size in (("train", 5), ("validation", 3), ("test", 2)):
        assert part[split].to_list() == whole[split].select(range(size)).to_list()


@looped(("argument", "most"), [("num_pairs", 30_000), ("num_validation", 1_000), ("num_test", 1_000)])
@looped("size", [0, -5, 10**7])
def test_sizes_out_of_range(argument, most, size):
    with pytest.raises(ValueError, match=f"`{argument}` {size} .*from 1 to {most}$"):
        load_toy_corpus(**{argument: size})
