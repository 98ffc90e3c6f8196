"""Pairs of strings to token ids, filtered by length."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain, islice
from typing import Any, Literal

import datasets
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..errors import DataError
from .arguments import RATIO_SLACK
from .fingerprint import CODE_FINGERPRINT
from .reading import PAIR_FEATURES

logger = logging.get_logger(__name__)

_IDS = datasets.List(datasets.Value("int32"))

_KEPT, _EMPTY, _LONG, _RATIO, _TRUNCATED = range(5)


@dataclass
class PairCounts:
    """How many pairs were read and kept, and why the others were not; `str()` is a line for the log.

    Attributes:
        read: Pairs before the filters.
        kept: Pairs after them.
        empty: Pairs with a side of white space only, or with no token but `</s>`.
        too_long: Pairs over `max_source_length` or `max_target_length` that were not cut.
        ratio: Pairs whose lengths differ too much.
        truncated: Pairs cut to the lengths.
        limits: `max_source_length`, `max_target_length` and `max_length_ratio`, for the text.
    """

    read: int = 0
    kept: int = 0
    empty: int = 0
    too_long: int = 0
    ratio: int = 0
    truncated: int = 0
    limits: tuple[int | None, int | None, float | None] = (None, None, None)

    def clear(self) -> None:
        """Set the counts to zero and keep the limits."""
        for counter in fields(self)[:-1]:
            setattr(self, counter.name, 0)

    def add(self, verdicts: np.ndarray, kept: int) -> None:
        """Count pairs by their verdicts, an int array of any length, of which `kept` pairs stay."""
        tally = np.bincount(verdicts, minlength=_TRUNCATED + 1)
        self.read, self.kept = self.read + len(verdicts), self.kept + kept
        self.empty += int(tally[_EMPTY])
        self.too_long += int(tally[_LONG])
        self.ratio += int(tally[_RATIO])
        self.truncated += int(tally[_TRUNCATED])

    def __str__(self) -> str:
        """Return e.g. `read 29000, kept 28963: 12 empty, 25 longer than 256`, without the reasons that count zero."""
        source, target, ratio = self.limits
        longest = f"{source}" if source == target else f"{source} (source) or {target} (target)"
        reasons = [
            (self.empty, "empty"),
            (self.too_long, f"longer than {longest}"),
            (self.ratio, f"with length ratio above {ratio or 0:g}"),
            (self.truncated, "truncated"),
        ]
        text = ", ".join(f"{count} {reason}" for count, reason in reasons if count)
        return f"read {self.read}, kept {self.kept}" + (f": {text}" if text else "")


def tokenize_pairs(
    dataset: datasets.Dataset | datasets.IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_source_length: int | None = 256,
    max_target_length: int | None = 256,
    on_long: Literal["drop", "truncate"] = "drop",
    max_length_ratio: float | None = 9.0,
    evaluation: bool = False,
    num_proc: int | None = None,
) -> tuple[datasets.Dataset | TokenizedStream, PairCounts]:
    """Turn pairs of strings into ids.

    Args:
        dataset: Rows with the strings `source` and `target`.
        tokenizer: Ends both sides with its `eos_token`; `text_target=` selects the target side.
        max_source_length: Longest source in tokens, the end token included; None for no limit.
        max_target_length: The same for the target.
        on_long: Drop a longer pair, or cut it and keep the end token.
        max_length_ratio: Drop a pair if one side exceeds this many times the other plus `RATIO_SLACK` tokens; None
            for no limit.
        evaluation: Drop nothing, since every sentence is scored; pairs are cut if `on_long` says so, and counted.
        num_proc: Processes to use; a fast tokenizer uses several threads without it. Streams ignore it.

    Returns:
        The rows with int32 lists `input_ids` and `labels`, and the counts. For a stream the rows are made lazily, and
        the counts are those of the current pass, logged at its end.

    Raises:
        DataError: No pair is left, or the tokenizer does not end its sequences.
    """
    limits = (max_source_length, max_target_length, max_length_ratio)
    for name, limit in zip(("max_source_length", "max_target_length"), limits, strict=False):
        if limit is not None and limit < 2:
            raise DataError(f"--{name} {limit} leaves room for nothing but the end token; set at least 2")
    if max_length_ratio is not None and max_length_ratio < 1:
        raise DataError(f"--max_length_ratio {max_length_ratio:g} would drop pairs of equal lengths; set at least 1")
    counts = PairCounts(limits=limits)
    encode = _Encoder(tokenizer, *limits, truncate=on_long == "truncate")
    if isinstance(dataset, datasets.IterableDataset):
        return TokenizedStream(dataset, encode, counts, evaluation), counts
    rows = dataset.map(
        encode,
        batched=True,
        remove_columns=dataset.column_names,
        features=datasets.Features({"input_ids": _IDS, "labels": _IDS, "verdict": datasets.Value("int8")}),
        num_proc=num_proc,
        desc="Tokenizing",
    )
    verdicts = np.asarray(rows.with_format("numpy")["verdict"][:], dtype=np.int8)
    keep = _stays(verdicts, evaluation)
    counts.add(verdicts, int(keep.sum()))
    if not counts.kept:
        raise DataError(f"no pair is left ({counts}); check the data and the length options")
    rows = rows.remove_columns("verdict")
    return rows if keep.all() else rows.select(np.flatnonzero(keep)), counts


def _stays(verdicts: np.ndarray, evaluation: bool) -> np.ndarray:
    return np.full(len(verdicts), True) if evaluation else np.isin(verdicts, (_KEPT, _TRUNCATED))


@dataclass
class _Encoder:
    """Tokenizes a batch of pairs and judges each of them."""

    tokenizer: PreTrainedTokenizerBase
    max_source_length: int | None
    max_target_length: int | None
    max_length_ratio: float | None
    truncate: bool
    # For the cache of `Dataset.map`.
    code: str = CODE_FINGERPRINT

    def __call__(self, batch: Mapping[str, list[str]]) -> dict[str, list[Any]]:
        encoded = self.tokenizer(
            batch["source"], text_target=batch["target"], return_attention_mask=False, verbose=False
        )
        sources, targets = encoded["input_ids"], encoded["labels"]
        self._check_ends(chain(sources, targets))
        verdicts = [
            _EMPTY if not (source.strip() and target.strip()) else self._verdict(len(source_ids), len(target_ids))
            for source, target, source_ids, target_ids in zip(
                batch["source"], batch["target"], sources, targets, strict=True
            )
        ]
        if self.truncate:
            sources = [_cut(ids, self.max_source_length) for ids in sources]
            targets = [_cut(ids, self.max_target_length) for ids in targets]
        return {"input_ids": sources, "labels": targets, "verdict": verdicts}

    def _verdict(self, source_length: int, target_length: int) -> int:
        shorter, longer = sorted((source_length, target_length))
        if shorter < 2:
            return _EMPTY
        long = source_length > (self.max_source_length or source_length) or (
            target_length > (self.max_target_length or target_length)
        )
        if long and not self.truncate:
            return _LONG
        if self.max_length_ratio is not None and longer > self.max_length_ratio * shorter + RATIO_SLACK:
            return _RATIO
        return _TRUNCATED if long else _KEPT

    def _check_ends(self, sequences: Iterable[list[int]]) -> None:
        eos = self.tokenizer.eos_token_id
        if eos is None or any(ids[-1:] != [eos] for ids in sequences):
            raise DataError(
                f"the tokenizer does not end its sequences with eos_token {self.tokenizer.eos_token!r} (id {eos}); "
                "use one whose post-processor appends it"
            )


def _cut(ids: list[int], length: int | None) -> list[int]:
    return ids if length is None or len(ids) <= length else ids[: length - 1] + ids[-1:]


class TokenizedStream(torch.utils.data.IterableDataset):
    """Pairs that are tokenized as they are read; made by `tokenize_pairs`.

    Each pass yields `{"input_ids": list[int], "labels": list[int]}` and ends with a log line of its counts. Workers
    of a DataLoader share the shards of the underlying stream.

    Attributes:
        counts: What the current (or last) pass read and kept, in this process.
    """

    def __init__(
        self, pairs: datasets.IterableDataset, encode: _Encoder, counts: PairCounts, evaluation: bool
    ) -> None:
        """Wrap a stream of string pairs."""
        self.pairs, self.encode, self.counts, self.evaluation = pairs, encode, counts, evaluation

    @property
    def num_shards(self) -> int:
        """How many workers of a DataLoader can share the stream."""
        return self.pairs.num_shards

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to the underlying stream, which may shuffle by it."""
        self.pairs.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        """Yield the pairs that the filters keep."""
        self.counts.clear()
        for rows in chunks(self.pairs, 1000):
            encoded = self.encode({side: [row[side] for row in rows] for side in PAIR_FEATURES})
            verdicts = np.array(encoded["verdict"], dtype=np.int8)
            keep = _stays(verdicts, self.evaluation)
            self.counts.add(verdicts, int(keep.sum()))
            for i in np.flatnonzero(keep):
                yield {"input_ids": encoded["input_ids"][i], "labels": encoded["labels"][i]}
        logger.info(f"end of a pass over the stream: {self.counts}")


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


__all__ = ["PairCounts", "TokenizedStream", "chunks", "tokenize_pairs"]
