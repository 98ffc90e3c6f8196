"""Splits of a parallel corpus: given, or held out from the training pairs."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from transformers.utils import logging

from ..errors import DataError
from .alignments import read_alignments
from .arguments import AUTO, SPLITS, SYNTHETIC, DataArguments
from .encoding import add_alignments
from .reading import check_files, iterate_pairs, load_files, load_named, located_pairs
from .toy_corpus import load_toy_corpus

logger = logging.get_logger(__name__)


def load_parallel_text(arguments: DataArguments) -> datasets.DatasetDict | datasets.IterableDatasetDict:
    """Load the splits that the arguments select, as pairs of strings.

    Pairs with an empty side are kept here; `tokenize_pairs` counts and drops them. Held-out splits are selected by a
    seeded hash of the source sentence: equal sources always fall on the same side, and the selection depends on
    neither the order of the corpus nor the machine. A logged warning counts source sentences of a given validation
    or test split that also occur in the training pairs.

    Args:
        arguments: Files or dataset, columns and splits; see `DataArguments`.

    Returns:
        Some of `train`, `validation` and `test`, with the string columns `source` and `target`. With
        `arguments.streaming` the splits are read lazily: errors other than unequal line counts and a faulty first row
        are raised during iteration.

    Raises:
        DataError: The data cannot be read or used.
    """
    _check_named(arguments)
    splits = _load_sets(arguments)
    splits |= {split: load_files(files, arguments) for split in SPLITS if (files := arguments.files(split))}
    if not arguments.streaming:
        _warn_of_overlap(splits)
    if "train" in splits and arguments.links not in (None, AUTO):
        splits["train"] = _with_alignments(splits["train"], arguments.links)
    splits |= _hold_out(splits, arguments)
    if "train" in splits and arguments.max_train_samples is not None:
        splits["train"] = _sample(splits["train"], arguments.max_train_samples, arguments)
    if "train" in splits:
        splits["train"] = _with_synthetic(splits["train"], arguments)
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    return datasets.IterableDatasetDict(ordered) if arguments.streaming else datasets.DatasetDict(ordered)


def located_splits(arguments: DataArguments) -> dict[str, Callable[[], Iterator[tuple[str, Mapping[str, str]]]]]:
    """Return a reader of each split as it is given, before any pairs are held out, sampled or added.

    Args:
        arguments: As for `load_parallel_text`.

    Returns:
        For some of `SPLITS` and `SYNTHETIC` a function that yields the pairs, each after its place: "line 7" of a file
        of text, "row 7" of others.

    Raises:
        DataError: The data cannot be read or used.
    """
    _check_named(arguments)
    splits: dict[str, Any] = {split: partial(_located, pairs) for split, pairs in _load_sets(arguments).items()}
    for split in (*SPLITS, SYNTHETIC):
        if files := arguments.files(split):
            check_files(files)
            splits[split] = partial(located_pairs, files, arguments)
    return splits


def _check_named(arguments: DataArguments) -> None:
    if not (arguments.dataset_name or arguments.toy_corpus or any(map(arguments.files, SPLITS))):
        raise DataError(
            "no data is named; give `train_source_file` and `train_target_file`, `train_file`, `dataset_name` or "
            "`toy_corpus`"
        )


def _load_sets(arguments: DataArguments) -> dict[str, Any]:
    """Load the splits that are no files."""
    splits: dict[str, Any] = {}
    if arguments.toy_corpus:
        splits |= load_toy_corpus()
    if arguments.dataset_name:
        splits |= load_named(arguments)
    return splits


def _located(pairs: Any) -> Iterator[tuple[str, Mapping[str, str]]]:
    return ((f"row {number}", pair) for number, pair in enumerate(iterate_pairs(pairs), start=1))


def _with_alignments(train: datasets.Dataset, path: str) -> datasets.Dataset:
    """Add the word alignments in a file to the pairs on the same lines."""
    pairs = list(zip(train["source"], train["target"], strict=True))
    return add_alignments(train, read_alignments(path, pairs))


def _with_synthetic(train: Any, arguments: DataArguments) -> Any:
    """Return the training pairs, as often as is asked for, and the synthetic pairs."""
    parts = [train] * arguments.train_copies
    if files := arguments.files(SYNTHETIC):
        pairs = load_files(files, arguments)
        tag = {"tag": arguments.synthetic_tag}
        parts.append(pairs.map(_tagged, batched=True, fn_kwargs=tag) if arguments.synthetic_tag else pairs)
    if not parts:
        raise DataError("`train_copies` 0 leaves nothing to train on; set at least 1, or give synthetic pairs")
    return datasets.concatenate_datasets(parts) if len(parts) > 1 else parts[0]


def _tagged(batch: dict[str, list[str]], tag: str) -> dict[str, list[str]]:
    """Put the tag before sources that are not blank: pairs with a blank side are dropped."""
    return {"source": [f"{tag}{source}" if source.strip() else source for source in batch["source"]]}


def _sample(train: Any, size: int, arguments: DataArguments) -> Any:
    if arguments.streaming:
        return train.take(size)
    if size >= len(train):
        return train
    chosen = np.random.default_rng(arguments.split_seed).choice(len(train), size, replace=False)
    return train.select(np.sort(chosen))


def _warn_of_overlap(splits: dict[str, datasets.Dataset]) -> None:
    for split in [split for split in SPLITS[1:] if split in splits and "train" in splits]:
        held_out = pa.array(splits[split]["source"][:], pa.string())
        seen: set[str] = set()
        for table in splits["train"].with_format("arrow").iter(100_000):
            seen.update(table["source"].filter(pc.is_in(table["source"], value_set=held_out)).to_pylist())
        shared = sum(source in seen for source in held_out.to_pylist())
        if shared:
            logger.warning(
                f"{shared} of {len(held_out)} {split} pairs have a source that is also in the training pairs"
            )


def _hold_out(splits: dict[str, Any], arguments: DataArguments) -> dict[str, Any]:
    """Return the missing splits that have a size, and the training pairs left: ranges of a hash of the source."""
    sizes = {split: getattr(arguments, f"{split}_split_size") for split in SPLITS[1:] if split not in splits}
    sizes = {split: size for split, size in sizes.items() if size is not None}
    if not sizes:
        return {}
    if "train" not in splits:
        raise DataError(f"`{next(iter(sizes))}_split_size` needs training pairs to cut from; name a training file")
    train, seed, keys, low = splits["train"], arguments.split_seed, None, 0.0
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
    return {**parts, "train": _with_keys(train, keys, low, 1.0, seed)}


def _split_key(source: str, seed: int) -> float:
    """Map a sentence to a number in [0, 1), the same on every machine."""
    digest = hashlib.blake2b(source.strip().encode(), digest_size=8, salt=str(seed).encode()[:16]).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _upper_edge(ordered: np.ndarray, low: float, size: float) -> float:
    """Return the end of the range of keys from `low` on that contains at least `size` pairs; 1.0 if too few remain."""
    start = int(np.searchsorted(ordered, low))
    last = start + max(1, round(size * len(ordered)) if size < 1 else int(size)) - 1
    after = int(np.searchsorted(ordered, ordered[last], side="right")) if last < len(ordered) else len(ordered)
    return float(ordered[after]) if after < len(ordered) else 1.0


def _with_keys(dataset: Any, keys: np.ndarray | None, low: float, high: float, seed: int) -> Any:
    """Return the pairs with low <= key < high; keys are None for a stream."""
    if keys is not None:
        return dataset.select(np.flatnonzero((keys >= low) & (keys < high)))
    return dataset.filter(lambda row: low <= _split_key(row["source"], seed) < high)


__all__ = ["load_parallel_text", "located_splits"]
