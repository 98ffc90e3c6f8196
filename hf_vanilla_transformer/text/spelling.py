"""Correct typos in frequent words: two letters swapped, a letter doubled, or a double letter typed once.

On clean text of the training domain, these corrections change nothing; in other text, they may replace a word that
training lacked. Correcting other typos, such as a wrong letter, would do so far more often.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import NamedTuple
from unicodedata import normalize

from .casing import COMPOUNDS, capitalized

MIN_LETTERS, MAX_LETTERS = 3, 30

# Maximum number of words, and minimum count of each. Words of three letters must be among the `MAX_SHORT` most
# frequent ones, to correct "teh" but not "cpu".
MAX_WORDS, MIN_COUNT, MAX_SHORT = 2000, 5, 100

# A training word counts as a typo if the word it resembles is more than this many times as frequent.
TYPO_RATIO = 1000

# Maximum share of sources in which the lexicon of others would correct a word.
MAX_CORRECTED = 0.005

# Maximum share of words that resemble a frequent one, among at least `FEW_WORDS`: 0.2 to 1.4 % do in English, German
# and Spanish, and far more in sequences of symbols.
MAX_SIMILAR, FEW_WORDS = 0.03, 100


class Lexicon(NamedTuple):
    """Frequent words, and rarer words that look like typos of them, such as "dose" of "does", in lower case."""

    words: frozenset[str]
    lookalikes: frozenset[str]

    def correct(self, word: str) -> str:
        """Return the frequent word that `word` is a typo of, or `word` itself if there is none or more than one."""
        if not _is_plain(word) or any(form in self.words or form in self.lookalikes for form in _forms(word)):
            return word
        candidates = self.words.intersection(_slips(word))
        return next(iter(candidates)) if len(candidates) == 1 else word


def lexicon_of(sentences: Iterable[str]) -> Lexicon:
    """Return the lexicon of training text; empty if typos cannot be told from words, as in sequences of symbols."""
    texts = (normalize("NFC", sentence) for sentence in sentences)
    counts = Counter(word for text in texts for word in COMPOUNDS.findall(text) if _is_plain(word))
    frequent = [word for word, count in counts.most_common() if count >= MIN_COUNT]
    usable = [word for i, word in enumerate(frequent) if len(word) > MIN_LETTERS or i < MAX_SHORT]
    words = frozenset(usable[:MAX_WORDS])
    totals: Counter[str] = Counter()
    for word, count in counts.items():
        totals[word.lower()] += count
    similar = {
        word: alike for word in totals if (alike := words.intersection(chain.from_iterable(map(_slips, _forms(word)))))
    }
    if len(similar) > MAX_SIMILAR * max(len(totals), FEW_WORDS):
        return Lexicon(frozenset(), frozenset())
    lookalikes = [
        word
        for word, alike in similar.items()
        if words.isdisjoint(_forms(word)) and totals[word] * TYPO_RATIO >= max(counts[other] for other in alike)
    ]
    return Lexicon(words, frozenset(sorted(lookalikes, key=totals.__getitem__)[-MAX_WORDS:]))


def corrected_share(sentences: Sequence[str]) -> float:
    """Return in which share of every second sentence the lexicon of the others would correct a word."""
    lexicon, held_out = lexicon_of(sentences[::2]), sentences[1::2]
    words = [{*COMPOUNDS.findall(text)} for text in held_out]
    typos = {word for word in set().union(*words) if lexicon.correct(word) != word}
    changed = sum(not typos.isdisjoint(row) for row in words)
    return changed / max(1, len(held_out))


def _is_plain(word: str) -> bool:
    return MIN_LETTERS <= len(word) <= MAX_LETTERS and word.isalpha() and word[1:].islower()


def _forms(word: str) -> tuple[str, str]:
    """Return a word as it is written within a sentence and at its start."""
    return word.lower(), capitalized(word)


def _slips(word: str) -> Iterator[str]:
    """Yield the words that a word can be a typo of."""
    for i, (letter, following) in enumerate(zip(word, word[1:], strict=False)):
        if letter == following:
            yield word[:i] + word[i + 1 :]
        else:
            yield word[:i] + following + letter + word[i + 2 :]
            if i:
                yield word[:i] + letter + word[i:]
