"""Splits of a parallel corpus: loaded, or cut off the training pairs."""

from __future__ import annotations

import hashlib
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from transformers.utils import logging

from ..errors import DataError
from .arguments import SPLITS, DataArguments
from .reading import load_files, load_named
from .toy_corpus.corpus import load_toy_corpus

logger = logging.get_logger(__name__)


def load_parallel_text(arguments: DataArguments) -> datasets.DatasetDict | datasets.IterableDatasetDict:
    """Load the splits that the arguments name as pairs of strings.

    Pairs with an empty side are still there; `tokenize_pairs` counts and drops them. Splits cut off the training
    pairs are chosen by a seeded hash of the source sentence, so equal sources always fall on the same side, and the
    choice depends on neither the order of the corpus nor the machine. Source sentences of a given validation or
    test split that also occur in the training pairs are counted in a logged warning.

    Args:
        arguments: Files or data set, columns, splits; see `DataArguments`.

    Returns:
        Some of `train`, `validation` and `test`, with the string columns `source` and `target`; with
        `arguments.streaming` the splits are read while they are iterated over, and faults beyond line counts and the
        first row come up only there.

    Raises:
        DataError: The data cannot be read or used; see the message.
    """
    if not (arguments.dataset_name or arguments.toy_corpus or any(map(arguments.files, SPLITS))):
        raise DataError(
            "no data is named; give --train_source_file and --train_target_file, --train_file, --dataset_name or "
            "--toy_corpus"
        )
    splits: dict[str, Any] = dict(load_toy_corpus()) if arguments.toy_corpus else {}
    if arguments.dataset_name:
        splits = load_named(arguments)
    for split in SPLITS:
        if files := arguments.files(split):
            splits[split] = load_files(files, arguments)
    if not arguments.streaming:
        _report_overlap(splits)
    _hold_out(splits, arguments)
    limit = arguments.max_train_samples
    if limit is not None and "train" in splits:
        train = splits["train"]
        if arguments.streaming:
            splits["train"] = train.take(limit)
        elif limit < len(train):
            chosen = np.random.default_rng(arguments.split_seed).choice(len(train), limit, replace=False)
            splits["train"] = train.select(np.sort(chosen))
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    return datasets.IterableDatasetDict(ordered) if arguments.streaming else datasets.DatasetDict(ordered)


def _report_overlap(splits: dict[str, datasets.Dataset]) -> None:
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


def _hold_out(splits: dict[str, Any], arguments: DataArguments) -> None:
    """Cut the splits that are asked for and missing off the training pairs, by hash of the source sentence."""
    sizes = {split: getattr(arguments, f"{split}_split_size") for split in SPLITS[1:] if split not in splits}
    sizes = {split: size for split, size in sizes.items() if size is not None}
    if not sizes:
        return
    if "train" not in splits:
        raise DataError(f"--{next(iter(sizes))}_split_size needs training pairs to cut from; name a training file")
    train, seed, keys, low = splits["train"], arguments.split_seed, None, 0.0
    if not arguments.streaming:
        sources = (source for batch in train.iter(10_000) for source in batch["source"])
        keys = np.fromiter((_split_key(source, seed) for source in sources), np.float64, len(train))
    for split, size in sizes.items():
        high = low + size if keys is None else _upper_edge(np.sort(keys), low, size)
        if high >= 1.0:
            remedy = "streamed pairs need a fraction" if arguments.streaming else f"there are {len(train)} pairs"
            raise DataError(f"--{split}_split_size {size:g} leaves nothing to train on; {remedy}")
        splits[split] = _with_keys(train, keys, low, high, seed)
        low = high
    splits["train"] = _with_keys(train, keys, low, 1.0, seed)


def _split_key(source: str, seed: int) -> float:
    """Map a sentence to a number in [0, 1) that is the same on every machine."""
    digest = hashlib.blake2b(source.strip().encode(), digest_size=8, salt=str(seed).encode()[:16]).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _upper_edge(ordered: np.ndarray, low: float, size: float) -> float:
    """Return the end of the range of keys from `low` on that holds at least `size` pairs, 1.0 if there are too few."""
    start = int(np.searchsorted(ordered, low))
    last = start + max(1, round(size * len(ordered)) if size < 1 else int(size)) - 1
    after = int(np.searchsorted(ordered, ordered[last], side="right")) if last < len(ordered) else len(ordered)
    return float(ordered[after]) if after < len(ordered) else 1.0


def _with_keys(dataset: Any, keys: np.ndarray | None, low: float, high: float, seed: int) -> Any:
    if keys is not None:
        return dataset.select(np.flatnonzero((keys >= low) & (keys < high)))
    return dataset.filter(lambda row: low <= _split_key(row["source"], seed) < high)


__all__ = ["load_parallel_text"]
