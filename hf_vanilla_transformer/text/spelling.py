"""Correct typos in frequent words: two letters swapped, or a letter doubled or not doubled.

Measured on text without typos, such corrections are right; those of other letters often replace one word with another.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from .casing import COMPOUNDS

MIN_LETTERS = 3

# Words of a lexicon, and their least count. Those of three letters must be among the first `MAX_SHORT`, to correct
# "teh" but not "cpu".
MAX_WORDS, MIN_COUNT, MAX_SHORT = 2000, 5, 100

# A word is taken for a typo of another one that is this many times as frequent.
TYPO_RATIO = 1000

# Largest share of words that look like another one, of at least so many words: 0.2 to 1.4 % in English, German and
# Spanish, 60 % of the strings of 5 letters out of 6.
MAX_SIMILAR, FEW_WORDS = 0.03, 100


class Lexicon(NamedTuple):
    """Frequent words as they are written, and rarer words that look like typos of them, as "dose" does of "does"."""

    words: frozenset[str]
    lookalikes: frozenset[str]

    def correct(self, word: str) -> str:
        """Return the only frequent word that a word can be a typo of, or else the word itself."""
        if not _is_plain(word) or word in self.words or word in self.lookalikes:
            return word
        found = self.words.intersection(_slips(word))
        return next(iter(found)) if len(found) == 1 else word


def lexicon_of(sentences: Iterable[str]) -> Lexicon:
    """Return the lexicon of training text; an empty one if typos cannot be told from words, as in text of symbols."""
    counts = Counter(word for sentence in sentences for word in COMPOUNDS.findall(sentence) if _is_plain(word))
    frequent = [word for word, count in counts.most_common() if count >= MIN_COUNT]
    usable = [word for i, word in enumerate(frequent) if len(word) > MIN_LETTERS or i < MAX_SHORT]
    words = frozenset(usable[:MAX_WORDS])
    similar = {word: found for word in counts if (found := words.intersection(_slips(word)))}
    if len(similar) > MAX_SIMILAR * max(len(counts), FEW_WORDS):
        return Lexicon(frozenset(), frozenset())
    lookalikes = [
        word
        for word, found in similar.items()
        if word not in words and counts[word] * TYPO_RATIO >= max(counts[each] for each in found)
    ]
    return Lexicon(words, frozenset(sorted(lookalikes, key=counts.__getitem__)[-MAX_WORDS:]))


def _is_plain(word: str) -> bool:
    return len(word) >= MIN_LETTERS and word.isalpha() and word[1:].islower()


def _slips(word: str) -> Iterator[str]:
    """Yield the words that a word can be a typo of."""
    for i, (letter, following) in enumerate(zip(word, word[1:], strict=False)):
        if letter == following:
            yield word[:i] + word[i + 1 :]
        else:
            yield word[:i] + following + letter + word[i + 2 :]
            if i:
                yield word[:i] + letter + word[i:]
