"""Blocks of text in immediate succession, of which a translation that loops has more than the targets of training."""

from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any

# Longest block, in words or in letters of a word.
MAX_BLOCK = 16

# Share of texts with more repeats than usual: training text may have loops too.
UNUSUAL_SHARE = 0.001

# A letter with combining marks, such as the vowels of Indic scripts, and joiners.
_LETTER = r"\p{L}[\p{M}\u200C\u200D]*"


def count_repeats(text: str) -> int:
    """Return how often a block of up to `MAX_BLOCK` words, or of letters in a word, stands in a row; at least 1."""
    # Numbers and dashes repeat themselves.
    words = _pattern(rf"(?:{_LETTER})+").findall(text.casefold())
    return max(_repeats(words), *map(_repeats_within, set(words)), 1)


@lru_cache(maxsize=1 << 14)
def _repeats_within(word: str) -> int:
    return _repeats(_pattern(_LETTER).findall(word))


@cache
def _pattern(text: str) -> Any:
    # The command line imports this module before it checks which packages are installed.
    import regex

    return regex.compile(text)


def _repeats(units: Sequence[str]) -> int:
    return max((_repeats_of(size, units) for size in range(1, min(MAX_BLOCK, len(units) // 2) + 1)), default=1)


def _repeats_of(size: int, units: Sequence[str]) -> int:
    """Compare each unit with the one a block before it."""
    most = run = 0
    for unit, later in zip(units, units[size:], strict=False):
        run = run + 1 if unit == later else 0
        most = max(most, run)
    return most // size + 1


def usual_repeats(texts: Iterable[str]) -> int:
    """Return the repeats that all but an unusual few of the texts have at most; 0 without texts."""
    counts = Counter(map(count_repeats, texts))
    above = 0
    for repeats in sorted(counts, reverse=True):
        above += counts[repeats]
        if above > UNUSUAL_SHARE * counts.total():
            return repeats
    return 0
