"""Splits of a parallel corpus: given, or held out from the training pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from transformers.utils import logging

from ..errors import DataError
from ..files import check_output_file
from .alignments import read_alignments
from .arguments import AUTO, SPLITS, DataArguments
from .corpora import Corpora, Corpus, corpora_of
from .encoding import add_alignments
from .features import texts_of
from .filtering import filter_pairs
from .reading import PAIR_FEATURES, PART_COLUMN, check_files, iterate_pairs, load_files, load_named, located_pairs
from .toy_corpus import load_toy_corpus

logger = logging.get_logger(__name__)

LocatedPairs = Iterator[tuple[str, Mapping[str, str]]]


def load_parallel_text(arguments: DataArguments) -> datasets.DatasetDict | datasets.IterableDatasetDict:
    """Load the splits that the arguments select, as pairs of strings.

    Pairs with an empty side are kept here; `tokenize_pairs` counts and drops them. Held-out splits are selected by a
    seeded hash of the source sentence: equal sources always fall in the same split, and the selection depends on
    neither the order of the corpus nor the machine. A logged warning counts validation and test pairs whose source
    also occurs in the training pairs.

    Args:
        arguments: Corpora, columns and splits; see `DataArguments`.

    Returns:
        Those of `train`, `validation` and `test` that exist, with the string columns `source` and `target` and, with
        several corpora or directions, `PART_COLUMN`: an index into `corpora.Corpora.parts`. With
        `arguments.streaming` the splits are read lazily: errors other than unequal line counts and an invalid first
        row are raised during iteration, and corpora are sampled by their weights alone.

    Raises:
        DataError: The data cannot be read or used.
    """
    _check_named(arguments)
    corpora = corpora_of(arguments)
    loaded = _Loader(arguments, corpora).splits()
    ordered = {split: loaded[split] for split in SPLITS if split in loaded}
    if not arguments.streaming:
        _warn_of_overlap(ordered)
    return datasets.IterableDatasetDict(ordered) if arguments.streaming else datasets.DatasetDict(ordered)


class LocatedCorpus(NamedTuple):
    """A corpus as given, before pairs are held out, sampled or added.

    Attributes:
        direction: Language codes of source and target; None if unknown.
        read: Returns (location, pair) tuples, with locations such as "line 7" in a text file or "row 7" in other data.
    """

    direction: tuple[str | None, str | None]
    read: Callable[[], LocatedPairs]


def located_splits(arguments: DataArguments) -> dict[str, LocatedCorpus]:
    """Return each corpus as given, by split and, for a listed corpus, its location in the list."""
    _check_named(arguments)
    corpora = corpora_of(arguments)
    loader, located = _Loader(arguments, corpora), dict[str, LocatedCorpus]()
    for split, entries in corpora.entries.items():
        for corpus in entries:
            name = f"{split}, {corpus.where}" if corpus.where else split
            read: Callable[[], LocatedPairs]
            if files := corpus.text.files("train"):
                with _naming(corpus):
                    check_files(files)
                read = partial(located_pairs, files, corpus.text)
            elif (pairs := loader.read(corpus, split)) is not None:
                read = partial(_located, pairs)
            else:
                continue
            located[name] = LocatedCorpus(corpus.parts[0].direction, read)
    return located


def _check_named(arguments: DataArguments) -> None:
    if not arguments.names_data:
        raise DataError(
            "no data is named; give `train_source_file` and `train_target_file`, `train_file`, `corpora`, "
            "`dataset_name` or `toy_corpus`"
        )


@contextmanager
def _naming(corpus: Corpus) -> Iterator[None]:
    """Prefix errors with the location of a listed corpus."""
    try:
        yield
    except DataError as error:
        raise (DataError(f"{corpus.where}: {error}") if corpus.where else error) from None


def _located(pairs: Any) -> LocatedPairs:
    return ((f"row {number}", pair) for number, pair in enumerate(iterate_pairs(pairs), start=1))


_Loaded = list[tuple[Corpus, Any]]
"""Corpora of a split with their pairs."""


class _Loader:
    """Loads the corpora of all splits."""

    def __init__(self, arguments: DataArguments, corpora: Corpora) -> None:
        self.arguments, self.corpora, self.parts = arguments, corpora, corpora.parts
        self._sets: dict[str, dict[str, Any]] = {}

    def read(self, corpus: Corpus, split: str) -> Any:
        """Return the pairs of a corpus; None if its dataset lacks this split and the split is optional."""
        text = corpus.text
        with _naming(corpus):
            if files := text.files("train"):
                return load_files(files, text)
            if text.toy_corpus:
                return load_toy_corpus()[split]
            # Entries may select several language pairs from one dataset.
            key = repr(text)
            if key not in self._sets:
                self._sets[key] = load_named(text)
            # Parts are numbered before loading, so none may turn out to be missing.
            is_needed = corpus.where or (split == "train" and len(self.parts) > 1)
            if split not in self._sets[key] and is_needed:
                raise DataError(
                    f"{text.dataset_name} has no split {split}, only {', '.join(self._sets[key])}; list it under those"
                )
            return self._sets[key].get(split)

    def splits(self) -> dict[str, Any]:
        """Return the pairs of all splits, including held-out ones."""
        loaded: dict[str, _Loaded] = {split: [] for split in SPLITS}
        for split, entries in self.corpora.entries.items():
            texts = ((corpus, self.read(corpus, split)) for corpus in entries)
            loaded[split] = [(corpus, pairs) for corpus, pairs in texts if pairs is not None]
        train = self._training_pairs(loaded)
        splits = {"train": self._joined(train)} if train else {}
        for split in SPLITS[1:]:
            evaluated = list[Any]()
            for corpus, pairs in loaded[split]:
                evaluated += self._directions(corpus, pairs, map(self.corpora.index, corpus.parts))
            if evaluated:
                splits[split] = _concatenated(evaluated)
        return splits

    def _training_pairs(self, loaded: dict[str, _Loaded]) -> list[Any]:
        """Return the training pairs of each part, and add held-out pairs to `loaded`."""
        sizes, train, first_part = self._held_out_sizes(loaded), list[Any](), 0
        for corpus, pairs in loaded["train"]:
            pairs = self._prepared(corpus, pairs)
            if corpus.hold_out:
                with _naming(corpus):
                    held_out, pairs = _hold_out(pairs, sizes, self.arguments)
                for split, cut in held_out.items():
                    loaded[split].append((corpus, cut))
                if (size := self.arguments.max_train_samples) is not None:
                    pairs = _sample(pairs, size, self.arguments)
            if corpus.weight > 0:
                train += self._directions(corpus, pairs, range(first_part, first_part + len(corpus.parts)))
            first_part += len(corpus.parts)
        if loaded["train"] and not train:
            corpus, _ = loaded["train"][0]
            weight = f"{corpus.where}: `weight`" if corpus.where else "`train_weight`"
            raise DataError(f"{weight} 0 leaves nothing to train on; list other corpora, or set it above")
        return train

    def _held_out_sizes(self, loaded: Mapping[str, _Loaded]) -> dict[str, float]:
        """Return the requested size of each split that is not given."""
        wanted = {split: getattr(self.arguments, f"{split}_split_size") for split in SPLITS[1:]}
        wanted = {split: size for split, size in wanted.items() if size is not None}
        for split in wanted:
            if listed := [corpus for corpus, _ in loaded[split] if corpus.where]:
                raise DataError(f"{listed[0].where}: {split} pairs are listed; leave `{split}_split_size` out")
        sizes = {split: size for split, size in wanted.items() if not loaded[split]}
        if sizes and not loaded["train"]:
            raise DataError(f"`{next(iter(sizes))}_split_size` needs training pairs to split; give a training file")
        return sizes

    def _prepared(self, corpus: Corpus, pairs: Any) -> Any:
        """Add alignments from a file, if there is one, and apply the filters of a corpus."""
        if self.arguments.links not in (None, AUTO):
            texts = texts_of(pairs["source"], corpus.text.feature_columns)
            aligned = list(zip(texts, pairs["target"], strict=True))
            pairs = add_alignments(pairs, read_alignments(self.arguments.links, aligned))
        if not corpus.filters:
            return pairs
        languages = (corpus.text.source_lang, corpus.text.target_lang)
        with _naming(corpus):
            if corpus.left_out_file:
                check_output_file(corpus.left_out_file, self._inputs(), "left_out_file")
            features = bool(corpus.text.feature_columns)
            kept, counts = filter_pairs(pairs, corpus.filters, *languages, corpus.left_out_file, features)
        if isinstance(pairs, datasets.Dataset):
            reasons = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or 0
            logger.warning(f"{corpus.where}: filters kept {len(kept)} of {len(pairs)} pairs; left out: {reasons}")
            if not len(kept):
                raise DataError(
                    f"{corpus.where}: the filters left out all {len(pairs)} pairs; remove some filters, or the entry"
                )
        return kept

    def _inputs(self) -> Iterator[str | Path]:
        yield from filter(None, [self.arguments.corpora])
        for corpus in chain.from_iterable(self.corpora.entries.values()):
            yield from corpus.text.files("train")
            # Yields nothing for a name on the Hub.
            yield from Path(corpus.text.dataset_name).rglob("*") if corpus.text.dataset_name else ()

    def _directions(self, corpus: Corpus, pairs: Any, indices: Iterable[int]) -> list[Any]:
        """Return the pairs in each direction, with `PART_COLUMN` if there are several parts."""
        directions = [pairs, _exchanged(pairs)] if corpus.both_directions else [pairs]
        if len(self.parts) == 1:
            return directions
        return [_with_part_index(direction, index) for direction, index in zip(directions, indices, strict=True)]

    def _joined(self, train: list[Any]) -> Any:
        if not self.arguments.streaming or len(train) == 1:
            return _concatenated(train)
        weights = np.array([part.weight for part in self.parts if part.weight])
        probabilities = (weights / weights.sum()).tolist()
        seed, strategy = self.arguments.split_seed, "all_exhausted"
        return datasets.interleave_datasets(train, probabilities, seed, stopping_strategy=strategy)


def _exchanged(pairs: Any) -> Any:
    if isinstance(pairs, datasets.IterableDataset):
        return pairs.map(_exchange, batched=True, features=PAIR_FEATURES)
    # Zero-copy.
    return pairs.rename_columns({"source": "target", "target": "source"}).select_columns([*PAIR_FEATURES])


def _exchange(batch: dict[str, list[str]]) -> dict[str, list[str]]:
    return {"source": batch["target"], "target": batch["source"]}


def _with_part_index(pairs: Any, index: int) -> Any:
    if isinstance(pairs, datasets.Dataset):
        column = pa.array(np.full(len(pairs), index, np.int32))
        return pairs.add_column(PART_COLUMN, column, feature=datasets.Value("int32"))
    features = datasets.Features({**PAIR_FEATURES, PART_COLUMN: datasets.Value("int32")})
    return pairs.map(_add_part_index, batched=True, fn_kwargs={"index": index}, features=features)


def _add_part_index(batch: dict[str, list[str]], index: int) -> dict[str, list[Any]]:
    return {**batch, PART_COLUMN: [index] * len(batch["source"])}


def _concatenated(parts: list[Any]) -> Any:
    return datasets.concatenate_datasets(parts) if len(parts) > 1 else parts[0]


def _sample(train: Any, size: int, arguments: DataArguments) -> Any:
    if arguments.streaming:
        return train.take(size)
    if size >= len(train):
        return train
    chosen = np.random.default_rng(arguments.split_seed).choice(len(train), size, replace=False)
    return train.select(np.sort(chosen))


def _warn_of_overlap(splits: dict[str, datasets.Dataset]) -> None:
    for split in SPLITS[1:] if "train" in splits else ():
        if split not in splits:
            continue
        sources, targets = (pa.array(splits[split][side][:], pa.string()) for side in PAIR_FEATURES)
        seen, exchanged = set[str](), set[tuple[str, str]]()
        for table in splits["train"].with_format("arrow").iter(100_000):
            seen.update(table["source"].filter(pc.is_in(table["source"], value_set=sources)).to_pylist())
            others = table.filter(pc.is_in(table["target"], value_set=sources))
            others = others.filter(pc.is_in(others["source"], value_set=targets))
            exchanged.update(zip(others["target"].to_pylist(), others["source"].to_pylist(), strict=True))
        pairs = zip(sources.to_pylist(), targets.to_pylist(), strict=True)
        shared = [pair[0] in seen for pair in pairs if pair[0] in seen or pair in exchanged]
        if shared:
            or_exchanged = "" if all(shared) else ", or occur there in the opposite direction"
            logger.warning(
                f"{len(shared)} of {len(sources)} {split} pairs have a source that also occurs in the training pairs"
                f"{or_exchanged}"
            )


def _hold_out(train: Any, sizes: Mapping[str, float], arguments: DataArguments) -> tuple[dict[str, Any], Any]:
    """Hold out splits of these sizes by ranges of a source hash; return them and the remaining pairs."""
    seed, keys, low = arguments.split_seed, None, 0.0
    if not sizes:
        return {}, train
    if not arguments.streaming:
        sources = (source for batch in train.iter(10_000) for source in batch["source"])
        keys = np.fromiter((_split_key(source, seed) for source in sources), np.float64, len(train))
    parts = {}
    for split, size in sizes.items():
        high = low + size if keys is None else _upper_edge(np.sort(keys), low, size)
        if high >= 1.0:
            remedy = "streamed pairs need a fraction" if arguments.streaming else f"there are {len(train)} pairs"
            raise DataError(f"`{split}_split_size` {size:g} leaves nothing to train on; {remedy}")
        parts[split] = _with_keys(train, keys, low, high, seed)
        low = high
    return parts, _with_keys(train, keys, low, 1.0, seed)


def _split_key(source: str, seed: int) -> float:
    """Map a sentence to a number in [0, 1), the same on every machine."""
    digest = hashlib.blake2b(source.strip().encode(), digest_size=8, salt=str(seed).encode()[:16]).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _upper_edge(ordered: np.ndarray, low: float, size: float) -> float:
    """Return the upper bound of a range of keys from `low` with at least `size` pairs; 1.0 if too few remain."""
    start = int(np.searchsorted(ordered, low))
    last = start + max(1, round(size * len(ordered)) if size < 1 else int(size)) - 1
    after = int(np.searchsorted(ordered, ordered[last], side="right")) if last < len(ordered) else len(ordered)
    return float(ordered[after]) if after < len(ordered) else 1.0


def _with_keys(dataset: Any, keys: np.ndarray | None, low: float, high: float, seed: int) -> Any:
    """Return the pairs with low <= key < high; keys are None for a stream."""
    if keys is not None:
        return dataset.select(np.flatnonzero((keys >= low) & (keys < high)))
    return dataset.filter(lambda row: low <= _split_key(row["source"], seed) < high)
