"""Sentence pairs of a run, as text and as token ids: loaded, aligned, and grouped by corpus and direction."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import datasets
import numpy as np

from ..data.arguments import AUTO, SPLITS, DataArguments
from ..data.batching import EpochRows
from ..data.corpora import Part, corpora_of, rows_per_epoch
from ..data.encoding import PairCounts, TokenizedStream, add_alignments
from ..data.features import Features, texts_of
from ..data.inspection import SeenPairs
from ..data.reading import PART_COLUMN, iterate_pairs, spread
from ..data.splits import load_parallel_text
from ..data.word_alignment import align_corpus
from ..errors import DataError
from ..text.notation import SAMPLE, Notation, find_notation
from ..text.protection import Link
from .arguments import VanillaTransformerTrainingArguments


@dataclass(frozen=True)
class TextSplits:
    """Sentence pairs; only the training pairs may be a stream.

    Attributes:
        train: Training pairs.
        validation: Validation pairs, if any.
        test: Test pairs, if any.
        parts: Corpora and directions that `PART_COLUMN` indexes; a single one for pairs without that column.
        temperature: Temperature of the sampling of directions.
        features: Features of the sources, if any.
        repeated: Number of training pairs that `without_repeats` left out; None before.
    """

    train: datasets.Dataset | datasets.IterableDataset
    validation: datasets.Dataset | None = None
    test: datasets.Dataset | None = None
    parts: tuple[Part, ...] = (Part(),)
    temperature: float = 1.0
    features: Features | None = None
    repeated: int | None = None

    def present(self) -> dict[str, Any]:
        """Splits by name, without missing ones."""
        return {split: pairs for split in SPLITS if (pairs := getattr(self, split)) is not None}

    @property
    def trained(self) -> list[tuple[str, str]]:
        """Known directions of the training pairs."""
        directions = (part.direction for part in self.parts if part.weight > 0 and None not in part.direction)
        return cast(list[tuple[str, str]], list(dict.fromkeys(directions)))

    @property
    def has_several_directions(self) -> bool:
        """Whether there are several directions to train or evaluate, in which case all are known."""
        return len({part.direction for part in self.parts}) > 1

    @cached_property
    def target_notation(self) -> Notation:
        """How the targets are written, by training pairs that stand for all; for a stream, by its first ones."""
        train = self.train
        if isinstance(train, datasets.Dataset):
            return find_notation(spread(train, SAMPLE)["target"])
        return find_notation(pair["target"] for pair in train.take(SAMPLE))

    def rows_by_direction(self, pairs: datasets.Dataset) -> dict[tuple[str | None, str | None], np.ndarray]:
        numbers = part_numbers(pairs)
        directions = [part.direction for part in self.parts]
        masks = {pair: np.array([other == pair for other in directions])[numbers] for pair in directions}
        return {pair: np.flatnonzero(mask) for pair, mask in masks.items() if mask.any()}

    @cached_property
    def without_repeats(self) -> "TextSplits":
        """The same splits with each training pair of a corpus once; a stream stays as it is."""
        train = self.train
        if self.repeated is not None or not isinstance(train, datasets.Dataset):
            return self
        numbers = part_numbers(train)
        seen = [SeenPairs() for _ in self.parts]
        repeats = (seen[number](pair) for number, pair in zip(numbers, iterate_pairs(train), strict=True))
        rows = np.flatnonzero(~np.fromiter(repeats, bool, len(train)))
        repeated = len(train) - len(rows)
        return replace(self, train=train.select(rows) if repeated else train, repeated=repeated)

    def distinct_share(self) -> float:
        """Share of the training pairs that are neither repeats nor reversed copies of others."""
        distinct = self.without_repeats.train
        if not isinstance(distinct, datasets.Dataset):
            return 1.0
        return float(self._is_distinct(part_numbers(distinct)).sum() / len(cast(datasets.Dataset, self.train)))

    def distinct_rows(self, seed: int) -> datasets.Dataset:
        """Return the training pairs of the first epoch, without reversed copies."""
        train = cast(datasets.Dataset, self.train)
        numbers = part_numbers(train)
        epoch = self.epoch_rows(numbers, seed)
        rows = np.arange(len(train)) if epoch is None else epoch(0)
        return train.select(rows[self._is_distinct(numbers[rows])])

    def epoch_rows(self, numbers: np.ndarray, seed: int) -> EpochRows | None:
        """Return which rows each epoch has, given the part of each row; None if all occur once."""
        sizes = np.bincount(numbers, minlength=len(self.parts)).tolist()
        wanted = rows_per_epoch(sizes, self.parts, self.temperature)
        return None if wanted == sizes else EpochRows(numbers, wanted, seed)

    def _is_distinct(self, numbers: np.ndarray) -> np.ndarray:
        return np.array([not part.is_reversed for part in self.parts])[numbers]


@dataclass(frozen=True)
class TokenizedSplits:
    """Token ids of the pairs that pass the filters; `counts` has the pairs read, kept and dropped in each split."""

    train: datasets.Dataset | TokenizedStream
    validation: datasets.Dataset | None
    counts: dict[str, PairCounts]


def part_numbers(pairs: datasets.Dataset) -> np.ndarray:
    """Index of the part of each row."""
    if PART_COLUMN not in pairs.column_names:
        return np.zeros(len(pairs), np.int32)
    return np.asarray(pairs.with_format("numpy")[PART_COLUMN][:])


def load_text(data_args: DataArguments) -> TextSplits:
    """Load the pairs of every split; raises DataError if they cannot be used, or there are none for training."""
    loaded = dict(load_parallel_text(data_args))
    if "train" not in loaded:
        raise DataError("there are no training pairs; give a training file or a data set with a train split")
    for split, pairs in loaded.items():
        if split != "train" and not isinstance(pairs, datasets.Dataset):
            loaded[split] = datasets.Dataset.from_list(list(pairs))
            if not len(loaded[split]):
                raise DataError(f"there are no {split} pairs; raise `{split}_split_size` or give a {split} file")
    corpora = corpora_of(data_args)
    features = Features.named_by(data_args)
    return TextSplits(**loaded, parts=corpora.parts, temperature=corpora.temperature, features=features)


def align_text(text: TextSplits, data_args: DataArguments, args: VanillaTransformerTrainingArguments) -> TextSplits:
    """Align the training pairs, if requested, using the statistics of all pairs in the same two languages."""
    if data_args.links != AUTO:
        return text
    train = cast(datasets.Dataset, text.train)
    numbers = part_numbers(train)
    links: list[Any] = [()] * len(train)
    for languages in dict.fromkeys(frozenset(part.direction) for part in text.parts):
        parts = [number for number, part in enumerate(text.parts) if {*part.direction} == languages]
        first = text.parts[parts[0]].direction
        distinct = [number for number in parts if not text.parts[number].is_reversed]
        rows = np.flatnonzero(np.isin(numbers, distinct))
        exchanged = np.array([part.direction != first for part in text.parts])[numbers[rows]]
        pairs = train.select(rows)
        sides = [*zip(texts_of(pairs["source"][:], text.features), pairs["target"][:], strict=True)]
        sides = [pair[::-1] if exchange else pair for pair, exchange in zip(sides, exchanged, strict=True)]
        sources, targets = [*zip(*sides, strict=True)] or ((), ())
        aligned = align_corpus(sources, targets, show_progress=not args.disable_tqdm)
        for row, exchange, alignment in zip(rows, exchanged, aligned, strict=True):
            links[row] = _exchanged(alignment) if exchange else alignment
    for number in np.flatnonzero([part.is_reversed for part in text.parts]):
        # The part before has the same pairs in the same order.
        own, others = np.flatnonzero(numbers == number), np.flatnonzero(numbers == number - 1)
        for row, other in zip(own, others, strict=True):
            links[row] = _exchanged(links[other])
    return replace(text, train=add_alignments(train, links))


def _exchanged(links: Iterable[Link]) -> list[Link]:
    return sorted((target, source) for source, target in links)
