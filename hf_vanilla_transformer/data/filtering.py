"""Filters for pairs of a parallel corpus that cannot be translations of each other."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar, cast

import datasets

from ..errors import DataError, did_you_mean
from ..files import LINE_ENDS_TO_SPACES, atomic_write
from ..text.languages import is_known, odds_against
from .inspection import SIDES, CorpusStatistics, SeenPairs, TextPair, sample_of
from .reading import iterate_pairs

REPEATED, LANGUAGE = "repeated", "language"

# Filters, in the order in which they apply, and the kinds of odd pairs that each leaves out. `language` does not use
# the `*_language` kinds, which compare the words of both sides and so miss a third language.
FILTERS = {
    REPEATED: ("repeated",),
    "equal": ("equal",),
    "lengths": ("lengths",),
    "script": ("source_script", "target_script"),
    LANGUAGE: (),
}

# A text is in the wrong language if another one is more than this many times as likely. This flags 0.03 % of Tatoeba's
# short sentences, and 97 % of English sentences in place of Spanish.
FOREIGN_ODDS = 30

Pairs = TypeVar("Pairs", datasets.Dataset, datasets.IterableDataset)

_TO_SPACES = LINE_ENDS_TO_SPACES | str.maketrans("\t", " ")


def parse_filters(names: Sequence[str], where: str) -> tuple[str, ...]:
    """Return the named filters in the order in which they apply; `where` locates the list in errors."""
    for name in names:
        if name not in FILTERS:
            raise DataError(
                f"{where}: unknown filter {name!r}{did_you_mean(name, FILTERS)}; write any of {', '.join(FILTERS)}"
            )
    return tuple(name for name in FILTERS if name in names)


def filter_pairs(
    pairs: Pairs,
    filters: Sequence[str],
    source_lang: str | None,
    target_lang: str | None,
    left_out: str | Path | None = None,
    has_features: bool = False,
) -> tuple[Pairs, dict[str, int]]:
    """Filter pairs, using statistics from a sample of the corpus.

    Writes the pairs left out to the TSV file `left_out`: filter, source, target. Returns the remaining pairs, in
    order, and how many pairs each filter left out; a pair counts for the first filter that applies. For a stream,
    which is read later, the counts are empty.
    """
    if not filters:
        return pairs, {}
    streamed = isinstance(pairs, datasets.IterableDataset)
    if streamed and (REPEATED in filters or left_out is not None):
        refused = f"the filter {REPEATED!r}" if REPEATED in filters else "`left_out_file`"
        raise DataError(f"{refused} needs the whole corpus; leave it out, or do without `streaming`")
    languages = {"source": source_lang, "target": target_lang} if LANGUAGE in filters else {}
    for side, language in languages.items():
        if language is None or not is_known(language):
            lacks = f"a `{side}_lang`" if language is None else f"a supported {side} language, not {language!r}"
            raise DataError(f"the filter {LANGUAGE!r} needs {lacks}; set it, or leave the filter out")
    text = pairs.select_columns([*SIDES])
    statistics = CorpusStatistics(sample_of(text), has_features)
    judge = _Judge(filters, statistics, cast(dict[str, str], languages))
    if streamed:
        return pairs.filter(judge.keeps, batched=True, input_columns=[*SIDES]), {}
    kept: list[int] = []
    counts = dict.fromkeys(filters, 0)
    with nullcontext() if left_out is None else atomic_write(left_out) as table:
        for index, pair in enumerate(iterate_pairs(text)):
            if name := judge(pair):
                counts[name] += 1
                if table is not None:
                    table.write(_row(name, *pair.values()))
            else:
                kept.append(index)
    return pairs.select(kept), counts


def _row(*cells: str) -> bytes:
    return ("\t".join(cell.translate(_TO_SPACES) for cell in cells) + "\n").encode()


class _Judge:
    """Returns the filter that leaves a pair out, or None."""

    def __init__(self, filters: Sequence[str], statistics: CorpusStatistics, languages: dict[str, str]) -> None:
        self._statistics, self._languages = statistics, languages
        self._filter_of = {kind: name for name in filters for kind in FILTERS[name]}
        self._seen = SeenPairs() if REPEATED in filters else None

    def __call__(self, pair: TextPair) -> str | None:
        if self._seen and self._seen(pair):
            return REPEATED
        for kind in self._statistics.kinds_of(pair):
            if kind in self._filter_of:
                return self._filter_of[kind]
        pair = self._statistics.texts(pair)
        is_foreign = (odds_against(pair[side], language) > FOREIGN_ODDS for side, language in self._languages.items())
        return LANGUAGE if any(is_foreign) else None

    def keeps(self, *columns: list[str]) -> list[bool]:
        return [self(dict(zip(SIDES, pair, strict=True))) is None for pair in zip(*columns, strict=True)]
