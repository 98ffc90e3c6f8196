"""Which words of a sentence pair translate each other: marks that the words carry until the sentence is finished.

A mark is a private-use character before a word. Words of both languages with the same mark are linked: surely if both
marks are sure, otherwise possibly (Och and Ney 2003, section 6.1). Only possible are the words beside the head of an
expression, and those that the other language leaves out, such as "did" or the pronouns that Spanish drops.
"""

import re
from itertools import count
from typing import NamedTuple

Links = frozenset[tuple[int, int]]

# Marks of `_SIZE` units, of which a sentence has fewer than fifty: first the sure ones, then the possible ones.
_FIRST, _SIZE = 0xE000, 3000
MARK = f"[{chr(_FIRST)}-{chr(_FIRST + 2 * _SIZE - 1)}]"
_numbers = count()

# Positions of words that surely translate each other. By default those are all words, one by one, if there are as many
# in both languages, and otherwise the last ones.
SURE = {
    ("a lot of", "mucho"): {(1, 0)},
    ("a lot of", "mucha"): {(1, 0)},
    ("what a", "qué"): {(0, 0)},
    ("with me", "conmigo"): {(0, 0), (1, 0)},
    ("with you", "contigo"): {(0, 0), (1, 0)},
    ("near", "cerca de"): {(0, 0)},
    ("behind", "detrás de"): {(0, 0)},
    ("next to", "al lado de"): {(0, 1)},
    ("in front of", "delante de"): {(1, 0)},
    ("every day", "todos los días"): {(0, 0), (1, 2)},
    ("every week", "todas las semanas"): {(0, 0), (1, 2)},
    ("on Mondays", "los lunes"): {(1, 1)},
    ("on Sundays", "los domingos"): {(1, 1)},
    ("on Friday", "el viernes"): {(1, 1)},
    ("on Saturday", "el sábado"): {(1, 1)},
    ("at night", "por la noche"): {(0, 0), (1, 2)},
    ("last week", "la semana pasada"): {(0, 2), (1, 1)},
    ("last month", "el mes pasado"): {(0, 2), (1, 1)},
    ("last year", "el año pasado"): {(0, 2), (1, 1)},
    ("next week", "la próxima semana"): {(0, 1), (1, 2)},
    ("next month", "el próximo mes"): {(0, 1), (1, 2)},
    ("two days ago", "hace dos días"): {(0, 1), (1, 2), (2, 0)},
    ("an hour ago", "hace una hora"): {(0, 1), (1, 2), (2, 0)},
}


class Unit:
    """Something that both languages express."""

    def __init__(self) -> None:
        number = next(_numbers) % _SIZE
        self._sure, self._possible = chr(_FIRST + number), chr(_FIRST + _SIZE + number)

    def sure(self, words: str) -> str:
        """Mark words that surely express it."""
        return _mark(words, self._sure)

    def possible(self, words: str) -> str:
        """Mark words beside those."""
        return _mark(words, self._possible)


class Expression(NamedTuple):
    """Marked words of both languages."""

    english: str
    spanish: str


def link(english: str, spanish: str) -> Expression:
    """Mark two expressions that translate each other."""
    sources, targets = english.split(" "), spanish.split(" ")
    one_by_one = {(i, i) for i in range(len(sources))}
    last = {(len(sources) - 1, len(targets) - 1)}
    sure = SURE.get((english, spanish), one_by_one if len(sources) == len(targets) else last)
    heads = {i for i, _ in sure}, {j for _, j in sure}
    for i, j in sure:
        unit = Unit()
        sources[i], targets[j] = unit.sure(sources[i]), unit.sure(targets[j])
    # A word beside the heads may translate any word of the other side.
    for beside in (0, 1):
        unit = Unit()
        for side, words in enumerate((sources, targets)):
            words[:] = [
                unit.possible(word) if side != beside or i not in heads[side] else word for i, word in enumerate(words)
            ]
    return Expression(" ".join(sources), " ".join(targets))


def link_possibly(english: str, spanish: str) -> Expression:
    """Mark that any of these words may translate each other."""
    unit = Unit()
    return Expression(unit.possible(english), unit.possible(spanish))


def _mark(words: str, character: str) -> str:
    return " ".join(character + word for word in words.split(" ")) if words else ""


def without_marks(text: str) -> str:
    return re.sub(MARK, "", text)


def links(english: str, spanish: str) -> tuple[Links, Links]:
    """Return the positions (English, Spanish) of words that surely, and of those that at least possibly, translate."""
    sources, targets = ([set(re.findall(MARK, word)) for word in text.split(" ")] for text in (english, spanish))
    sure, possible = set(), set()
    for i, source in enumerate(sources):
        for j, target in enumerate(targets):
            if any(ord(character) < _FIRST + _SIZE for character in source & target):
                sure.add((i, j))
            if {_unit(character) for character in source} & {_unit(character) for character in target}:
                possible.add((i, j))
    return frozenset(sure), frozenset(possible)


def _unit(character: str) -> int:
    return (ord(character) - _FIRST) % _SIZE
