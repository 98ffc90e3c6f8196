"""The characters that a vocabulary can write, and plain forms of others."""

import re
from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar
from unicodedata import category, name, normalize
from weakref import WeakKeyDictionary

from transformers import PreTrainedTokenizerBase

from ..text.protection import LARGE_SCRIPTS

# Entries of a `Memo`.
MAX_KEPT = 65_536

_T = TypeVar("_T")

# Plain forms of typographic punctuation, used where the vocabulary lacks it or training data rarely had it.
PLAIN_PUNCTUATION = {
    **dict.fromkeys("“”„‟«»", '"'),
    **dict.fromkeys("‘’‚‛‹›", "'"),
    **dict.fromkeys("‐‑‒–—―−", "-"),
    "…": "...",
    **dict.fromkeys("\u00a0\u2009\u202f\u3000", " "),
    **dict.fromkeys("\u00ad\u200b\u2060\ufeff", ""),
}
# Categories (letters, punctuation) in which NFKC also gives plain forms, as of ligatures and full-width characters.
PLAIN_CATEGORIES = frozenset(("Lu", "Ll", "Pd", "Pe", "Po", "Ps"))

HALF_WIDTH_KANA = re.compile("[\uff65-\uff9f]+")


class Memo(dict[str, _T]):
    """Cache of a function's results, cleared at `MAX_KEPT` entries because a server sees ever new texts."""

    def __init__(self, function: Callable[[str], _T]):
        self._function = function

    def __missing__(self, text: str) -> _T:
        if len(self) >= MAX_KEPT:
            self.clear()
        result = self[text] = self._function(text)
        return result


class Alphabet:
    """The characters that a tokenizer's source vocabulary has, not counting byte fallback."""

    _of: "WeakKeyDictionary[PreTrainedTokenizerBase, Alphabet]" = WeakKeyDictionary()

    def __init__(self, side: Any):
        self._side, self._size = side, len(side)
        self._has_features = bool(getattr(side, "init_kwargs", {}).get("feature_columns"))
        self._knows = Memo(self._has).__getitem__
        self._plain = Memo(self._plain_form).__getitem__

    @classmethod
    def of(cls, tokenizer: Any) -> "Alphabet":
        """Return the alphabet of a tokenizer, built at the first call."""
        side, known = getattr(tokenizer, "source_tokenizer", tokenizer), cls._of.get(tokenizer)
        if known is None or known._size != len(side):
            known = cls._of[tokenizer] = cls(side)
        return known

    def can_write(self, character: str) -> bool:
        """Whether the vocabulary has a character, or a plain form of it."""
        return self._plain(character) is not None

    def composed(self, text: str) -> str:
        """Compose accents, and half-width kana with their marks, if the text has characters that are unknown."""
        if text.isascii() or all(map(self.can_write, text)):
            return text
        return HALF_WIDTH_KANA.sub(lambda match: normalize("NFKC", match[0]), normalize("NFC", text))

    def plain(self, text: str) -> str:
        """Replace unknown characters with their plain forms."""
        if text.isascii():
            return text
        return "".join(character if (form := self._plain(character)) is None else form for character in text)

    def _plain_form(self, character: str) -> str | None:
        """Return a character or, if it is unknown, its plain form; None if it has none."""
        if self._knows(character):
            return character
        if character in PLAIN_PUNCTUATION:
            return PLAIN_PUNCTUATION[character]
        form = normalize("NFKC", character)
        return form if category(character) in PLAIN_CATEGORIES and all(map(self._knows, form)) else None

    def _has(self, character: str) -> bool:
        if character.isascii():
            return True
        if script := LARGE_SCRIPTS.match(name(character, "")):
            return script[0] in self._scripts
        normalizer = getattr(getattr(self._side, "backend_tokenizer", None), "normalizer", None)
        written = normalizer.normalize_str(character) if normalizer else character
        # U+2581 is a space in a unigram vocabulary.
        return self._characters.issuperset(written.strip("\u2581 "))

    @cached_property
    def is_cased(self) -> bool:
        """Whether any token of several letters has capitals, or any token at all if none has several letters."""
        words = [text for text in self._texts if sum(map(str.isalpha, text)) > 1]
        return any(text != text.lower() for text in words or self._texts)

    @cached_property
    def _texts(self) -> list[str]:
        rows = [[token] for token in range(self._size)]
        texts: list[str] = self._side.batch_decode(rows, skip_special_tokens=True)
        # Tags are no text.
        return [text for text in texts if not (self._has_features and text.startswith("\t"))]

    @cached_property
    def _characters(self) -> frozenset[str]:
        return frozenset("".join(self._texts)) - {"\ufffd"}

    @cached_property
    def _scripts(self) -> set[str]:
        return {match[0] for character in self._characters if (match := LARGE_SCRIPTS.match(name(character, "")))}
