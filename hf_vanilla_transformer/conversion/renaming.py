"""Renaming of keys by prefixes: pairs `old=new`, in which `{i}` is the index of a layer, or files of them."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from torch import Tensor

from ..files import read_lines
from .layouts import LAYOUTS
from .recognition import abbreviate
from .rules import key_pattern

INDEX = "{i}"


class Rename(NamedTuple):
    """One pair.

    Attributes:
        old: Prefix of a key; `{i}` stands for one index, wherever it is.
        new: What replaces it.
        where: The pair as messages name it: its text, or file and line.
    """

    old: str
    new: str
    where: str

    def apply(self, key: str) -> str | None:
        """Return the new key, or None if this one has another prefix."""
        found = key_pattern(self.old).match(key)
        return found and self.new.replace(INDEX, found.groupdict().get("i", "")) + key[found.end() :]


def read_renames(values: Iterable[str | os.PathLike[str]]) -> list[Rename]:
    """Return the pairs of the arguments, each `old=new` or a file with one a line.

    In a file, blank lines and lines that begin with # do not count.

    Raises:
        DataError: A file cannot be read.
        ValueError: A text is no pair and no file, or a pair has an index only in `new`.
    """
    return [rename for value in values for rename in _renames(value)]


def _renames(value: str | os.PathLike[str]) -> Iterator[Rename]:
    if isinstance(value, str) and not os.path.isfile(value):
        if "=" not in value:
            raise ValueError(
                f"`rename` {value} is neither old=new nor a file; give the prefix of a key and its replacement"
            )
        yield _rename(value, f"`rename` {value}")
        return
    for number, line in enumerate(read_lines(value), start=1):
        if (text := line.strip()) and not text.startswith("#"):
            yield _rename(text, f"{os.fspath(value)}, line {number}: {text}")


def _rename(text: str, where: str) -> Rename:
    old, separator, new = (part.strip() for part in text.partition("="))
    if not separator:
        raise ValueError(f"{where} is not old=new; give the prefix of a key and its replacement")
    if INDEX in new and INDEX not in old:
        raise ValueError(f"{where}: {INDEX} occurs only in the replacement; use it in the key too")
    return Rename(old, new, where)


def rename_keys(weights: Mapping[str, Tensor], renames: Iterable[Rename]) -> dict[str, Tensor]:
    """Replace prefixes of keys; a key with several new names gets each of them.

    Raises:
        ValueError: A pair matches no key, two weights get one key, or one gets an ignored key.
    """
    renames = list(renames)
    for rename in renames:
        if not any(rename.apply(key) is not None for key in weights):
            raise ValueError(f"{rename.where}: no key begins with {rename.old!r}; the keys are {abbreviate(weights)}")
    ignored = "|".join(re.escape(key) for layout in LAYOUTS.values() for key in layout.ignored_keys)
    is_ignored = re.compile(f"(?:{ignored})$".replace(re.escape(INDEX), r"\d+")).search
    renamed: dict[str, Tensor] = {}
    for key, tensor in weights.items():
        for new_key in [new for rename in renames if (new := rename.apply(key)) is not None] or [key]:
            if new_key in renamed:
                raise ValueError(f"`rename` gives two weights the name {new_key}; rename one of them differently")
            if is_ignored(new_key) and not is_ignored(key):
                raise ValueError(f"`rename` gives {key} the name {new_key}, which is no weight and would be ignored")
            renamed[new_key] = tensor
    return renamed
