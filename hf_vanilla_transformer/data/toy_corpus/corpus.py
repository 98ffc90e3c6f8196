"""The built-in English-Spanish corpus: a small grammar that writes both languages at once, no download.

The Spanish is a function of the English: `you` is always *tú*, each noun has one gender, and no English verb
of the lexicon looks the same in the present and in the past. Words are added in `lexicon.tsv`.
"""

import hashlib
import re
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice

from datasets import Dataset, DatasetDict

from .grammar import Combination, Sentence
from .sampling import generate_sentences

MAX_PAIRS = {"train": 300_000, "validation": 20_000, "test": 20_000}
"""Largest splits of `load_toy_corpus`; beyond them new sentences become rare, and generation slow."""

HELD_OUT_SHARE = 0.05
"""Fraction of word combinations that occur in test sentences only."""

# A test sentence with known words takes 10 draws with 30,000 training pairs, and hundreds with 100.
MIN_TEST_DRAWS = 30_000
MAX_DRAWS_PER_TEST_PAIR = 100


@lru_cache(maxsize=1 << 16)
def is_held_out(combination: Combination, seed: int = 0) -> bool:
    """Whether the combination is reserved for the test split of the corpus with this seed."""
    digest = hashlib.blake2b("|".join((str(seed), *combination)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") < HELD_OUT_SHARE * 2**64


def split_sentences(
    num_pairs: int = 30_000, *, num_validation: int = 1_000, num_test: int = 1_000, seed: int = 0
) -> dict[str, list[Sentence]]:
    """Generate the splits of `load_toy_corpus` with the word combinations of each sentence.

    Args:
        num_pairs: Training sentences.
        num_validation: Validation sentences.
        num_test: Test sentences.
        seed: Determines the sentences and the combinations held out.

    Returns:
        Lists of distinct sentences under "train", "validation" and "test". Every test sentence, and no other, contains
        a held-out combination; all its words, capitals included, occur in "train".

    Raises:
        ValueError: A size is below 1 or above `MAX_PAIRS`, or the words of `num_pairs` sentences do not suffice for
            `num_test` test sentences.
    """
    sizes = {"train": num_pairs, "validation": num_validation, "test": num_test}
    for (split, size), argument in zip(sizes.items(), ("num_pairs", "num_validation", "num_test"), strict=True):
        if not 1 <= size <= MAX_PAIRS[split]:
            raise ValueError(f"`{argument}` {size} is out of range; choose from 1 to {MAX_PAIRS[split]}")
    sentences = generate_sentences(seed)
    seen: set[str] = set()
    known = list(islice(_fresh(sentences, seen, lambda s: not _has_held_out(s, seed)), num_pairs + num_validation))
    train = known[:num_pairs]
    words = {word for sentence in train for word in _words(sentence)}
    draws = islice(sentences, max(MIN_TEST_DRAWS, MAX_DRAWS_PER_TEST_PAIR * num_test))
    test = list(islice(_fresh(draws, seen, lambda s: _has_held_out(s, seed) and _words(s) <= words), num_test))
    if len(test) < num_test:
        raise ValueError(
            f"`num_test` {num_test} is too many for `num_pairs` {num_pairs}: the training words make only {len(test)} "
            "test sentences; raise `num_pairs` or lower `num_test`"
        )
    return {"train": train, "validation": known[num_pairs:], "test": test}


def _fresh(sentences: Iterator[Sentence], seen: set[str], wanted: Callable[[Sentence], bool]) -> Iterator[Sentence]:
    """Yield the wanted sentences with a source not in `seen`, and add it there."""
    for sentence in sentences:
        if sentence.source not in seen and wanted(sentence):
            seen.add(sentence.source)
            yield sentence


def _has_held_out(sentence: Sentence, seed: int) -> bool:
    return any(is_held_out(combination, seed) for combination in sentence.combinations)


def _words(sentence: Sentence) -> set[tuple[str, str]]:
    """Words of both sides, case-sensitive."""
    return {(side, word) for side in ("source", "target") for word in re.findall(r"\w+", getattr(sentence, side))}


def load_toy_corpus(
    num_pairs: int = 30_000, *, num_validation: int = 1_000, num_test: int = 1_000, seed: int = 0
) -> DatasetDict:
    """Generate the built-in English-Spanish corpus.

    The test split measures compositional generalization: each sentence combines words (an adjective or a verb with a
    noun) that never occur together in training or validation. Validation sentences are merely unseen.

    Args:
        num_pairs: Training pairs.
        num_validation: Validation pairs.
        num_test: Test pairs.
        seed: The same seed gives the same bytes.

    Returns:
        Splits "train", "validation" and "test" with the string columns `source` (English) and `target` (Spanish), all
        with distinct sources.

    Raises:
        ValueError: As `split_sentences` does.
    """
    splits = split_sentences(num_pairs, num_validation=num_validation, num_test=num_test, seed=seed)
    return DatasetDict(
        {
            split: Dataset.from_dict(
                {"source": [s.source for s in sentences], "target": [s.target for s in sentences]}
            )
            for split, sentences in splits.items()
        }
    )


__all__ = ["HELD_OUT_SHARE", "MAX_PAIRS", "is_held_out", "load_toy_corpus", "split_sentences"]
