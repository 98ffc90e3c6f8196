"""Glossaries: terms with required translations."""

import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Self

from ..errors import DataError, lone_surrogate
from ..files import StrPath, read_lines
from ..text.protection import UNSPACED_SCRIPTS


class GlossaryError(ValueError):
    """A glossary cannot be followed; the message is one line."""


@dataclass(frozen=True)
class Glossary:
    """Source terms and their translations.

    A term is one or more words. It matches whole words, with any white space between them, spelled as in the glossary
    or with a capital first letter ("dog" also matches "Dog", but "US" does not match "us"). Of overlapping terms the
    leftmost matches, and of several at the same start the longest.

    Attributes:
        entries: Pairs of a source term and its translation.

    Raises:
        ValueError: A term or translation is blank or not a string, or a term has two translations.
    """

    entries: tuple[tuple[str, str], ...]

    def __post_init__(self) -> None:
        translations: dict[str, str] = {}
        for term, translation in self.entries:
            _check_entry(term, translation, translations)

    @classmethod
    def of(cls, translations: Mapping[str, str]) -> Self:
        """Make a glossary from a mapping of terms to translations."""
        return cls(tuple(translations.items()))

    def translations(self) -> list[str]:
        """Return the translations of all terms."""
        return list(self._translations.values())

    def fingerprint(self) -> str:
        """Return a digest of the entries."""
        return blake2b("\n".join(map("\t".join, sorted(self.entries))).encode(), digest_size=8).hexdigest()

    def translations_in(self, sentence: str) -> list[str]:
        """Return the translations of the terms in a sentence, in order; one for each occurrence."""
        text = normalized(sentence)
        return [self._translations[self._spelling(text[start:end])] for start, end in self.spans_in(text)]

    def spans_in(self, text: str) -> list[tuple[int, int]]:
        """Return the spans (start, end) of the terms in a normalized text."""
        spans: list[tuple[int, int]] = []
        edges = word_edges(text)
        for start in sorted(edges):
            if spans and start < spans[-1][1]:
                continue
            ends = (start + length for length in self._lengths if start + length in edges)
            longest = next((end for end in ends if self._spelling(text[start:end]) in self._translations), None)
            if longest is not None:
                spans.append((start, longest))
        return spans

    def _spelling(self, text: str) -> str:
        """Return the text as it would be spelled in the glossary."""
        return text if text in self._translations else text[:1].lower() + text[1:]

    @cached_property
    def _translations(self) -> dict[str, str]:
        return {normalized(term): " ".join(translation.split()) for term, translation in self.entries}

    @cached_property
    def _lengths(self) -> list[int]:
        return sorted({len(term) for term in self._translations}, reverse=True)


def read_glossary(path: StrPath) -> Glossary:
    """Read a glossary: a source term, a tab and its translation per line; blank lines are skipped.

    Args:
        path: The file, UTF-8, plain or gzip.

    Raises:
        DataError: The file cannot be read; or a line does not have exactly one tab, or gives a term of an earlier line
            another translation.
    """
    entries: list[tuple[str, str]] = []
    translations: dict[str, str] = {}
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        sides = line.split("\t")
        try:
            if len(sides) != 2:
                raise ValueError(f"{len(sides) - 1} tabs instead of one; write a term, a tab and its translation")
            _check_entry(sides[0], sides[1], translations)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}") from None
        entries.append((sides[0].strip(), sides[1].strip()))
    return Glossary(tuple(dict.fromkeys(entries)))


def _check_entry(term: str, translation: str, earlier: dict[str, str]) -> None:
    """Check an entry against earlier ones, and add it to them."""
    for name, text in (("term", term), ("translation", translation)):
        if not isinstance(text, str):
            raise ValueError(f"a glossary's {name} is a {type(text).__name__}, not a string; pass strings")
        if not text.strip():
            raise ValueError(f"a glossary's {name} is empty; fill it in, or leave out the entry")
        if surrogate := lone_surrogate(text):
            raise ValueError(f"a glossary's {name} has {surrogate}; read it as UTF-8")
    if earlier.setdefault(normalized(term), translation.strip()) != translation.strip():
        raise ValueError(
            f"the term {term.strip()!r} has two translations, {earlier[normalized(term)]!r} and "
            f"{translation.strip()!r}; keep one"
        )


def normalized(text: str) -> str:
    """Return a text in Unicode's composed form (NFC), with runs of white space replaced by single spaces."""
    return " ".join(unicodedata.normalize("NFC", text).split())


def word_edges(text: str) -> set[int]:
    """Return the positions in a text that are not inside a word."""
    inside = {i for i in range(1, len(text)) if in_word(text[i - 1]) and in_word(text[i])}
    return set(range(len(text) + 1)) - inside


@lru_cache(maxsize=4096)
def in_word(character: str) -> bool:
    """Whether a character is part of a word; never true for scripts without spaces between words.

    U+FFFD, which stands for part of a character, counts as part of a word.
    """
    if character == "_" or character == "\ufffd":
        return True
    if not (character.isalnum() or unicodedata.category(character).startswith("M")):
        return False
    return not UNSPACED_SCRIPTS.match(unicodedata.name(character, ""))
