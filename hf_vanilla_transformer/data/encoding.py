"""Tokenize pairs of strings, and filter them by length."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice, product
from typing import Any, Literal, NamedTuple

import datasets
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..errors import DataError, unknown_words
from ..options import Range, check_range
from ..text.protection import Link
from .alignments import words_and_ids
from .arguments import RATIO_SLACK
from .augmentation import has_placeholders, protect_pairs
from .features import Features, texts_of
from .fingerprint import CODE_FINGERPRINT
from .reading import ALIGNMENT_COLUMN, PAIR_FEATURES, PART_COLUMN, TEXT_COLUMNS

logger = logging.get_logger(__name__)

_IDS = datasets.List(datasets.Value("int32"))
# Outcomes of the length filters.
_KEPT, _EMPTY, _TOO_LONG, _RATIO, _TRUNCATED = range(5)

_ENCODED = {"input_ids": _IDS, "labels": _IDS, "outcome": datasets.Value("int8")}


class SourcePrefix(NamedTuple):
    """Tokens prepended to the sources of a part: the target language, and the tag of its corpus."""

    ids: tuple[int, ...] = ()
    # How many leading tokens they replace: those that the tokenizer adds for its current languages.
    replaced: int = 0


Prefixes = Sequence[SourcePrefix]
"""Source prefix of each part, indexed by `PART_COLUMN`."""

Resample = Callable[[Sequence[Mapping[str, Any]], int], list[dict[str, Any]]]
"""Re-tokenizes rows that have texts, differently in each epoch."""


class LengthLimits(NamedTuple):
    """Length limits of a pair in tokens, including the end token; None for no limit."""

    source: int | None = None
    target: int | None = None
    # Maximum tokens of the longer side per token of the shorter, plus `RATIO_SLACK`.
    ratio: float | None = None


NO_LIMITS = LengthLimits()


@dataclass
class PairCounts:
    """Counts of pairs read, kept, and dropped by reason; `str()` is a line for the log.

    Attributes:
        read: Pairs before filtering.
        kept: Pairs after filtering.
        repeated: Pairs left out because the corpus has them already.
        empty: Pairs with a side of white space only, or without a token before `</s>`.
        too_long: Pairs over `max_source_length` or `max_target_length`, not truncated.
        ratio: Pairs with lengths that differ too much.
        truncated: Pairs truncated to the limits.
        limits: The limits that `str()` reports.
    """

    read: int = 0
    kept: int = 0
    repeated: int = 0
    empty: int = 0
    too_long: int = 0
    ratio: int = 0
    truncated: int = 0
    limits: LengthLimits = NO_LIMITS

    def add(self, outcomes: np.ndarray, kept: int) -> None:
        """Add the outcomes of pairs, integers of shape (pairs,), and the number of pairs kept."""
        tally = np.bincount(outcomes, minlength=_TRUNCATED + 1)
        self.read += len(outcomes)
        self.kept += kept
        self.empty += int(tally[_EMPTY])
        self.too_long += int(tally[_TOO_LONG])
        self.ratio += int(tally[_RATIO])
        self.truncated += int(tally[_TRUNCATED])

    def add_repeated(self, number: int) -> None:
        """Count pairs that were left out before tokenization."""
        self.read += number
        self.repeated += number

    def __str__(self) -> str:
        """Return e.g. `read 29000, kept 28963: 12 empty, 25 longer than 256`; zero counts are left out."""
        source, target, ratio = self.limits
        longest = f"{source}" if source == target else f"{source} (source) or {target} (target)"
        reasons = [
            (self.repeated, "repeated"),
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
    keep_text: bool = False,
    resample: Resample | None = None,
    prefixes: Prefixes = (),
) -> tuple[datasets.Dataset | TokenizedStream, PairCounts]:
    """Tokenize pairs of strings, and drop or truncate pairs by length.

    Args:
        dataset: Rows with the strings `source` and `target` and optionally `PART_COLUMN` and, if not a stream,
            `ALIGNMENT_COLUMN`.
        tokenizer: Must end both sides with its `eos_token`; `text_target=` selects the target side. If it has
            placeholders, they replace items found on both sides of a pair.
        max_source_length: Maximum length of a source in tokens, including the end token; None for no limit.
        max_target_length: Likewise for the target.
        on_long: Drop a longer pair, or truncate it and keep the end token.
        max_length_ratio: Drop a pair if one side exceeds this many times the other plus `RATIO_SLACK` tokens; None
            for no limit.
        evaluation: Keep every pair, since all are scored, and truncate longer ones.
        num_proc: Number of processes; a fast tokenizer uses threads without it. Ignored for streams.
        keep_text: Keep `source`, `target` and word alignments along with the ids; the texts of a truncated pair become
            None. Ignored for streams.
        resample: Re-tokenizes the rows of a stream from their texts and the epoch.
        prefixes: Source prefix of each part.

    Returns:
        Rows with the int32 lists `input_ids` and `labels`, for aligned pairs also `alignments` (source token, target
        token, ...), and `PART_COLUMN` if there are several parts; and the counts. A stream is tokenized lazily; its
        counts are those of the longest pass so far, and each pass logs its own at its end.

    Raises:
        DataError: No pair is left, a limit is too small, or the tokenizer does not end its sequences.
    """
    limits = LengthLimits(max_source_length, max_target_length, max_length_ratio)
    # Smaller limits would keep no useful pair.
    check_range(Range(ge=2), DataError, max_source_length=limits.source, max_target_length=limits.target)
    check_range(Range(ge=1), DataError, max_length_ratio=limits.ratio)
    counts = PairCounts(limits=limits)
    is_stream = isinstance(dataset, datasets.IterableDataset)
    with_text = resample is not None if is_stream else keep_text
    truncate = evaluation or on_long == "truncate"
    encode = _Encoder(tokenizer, limits, truncate, keep_text=with_text, prefixes=tuple(prefixes))
    if isinstance(dataset, datasets.IterableDataset):
        return TokenizedStream(dataset, encode, counts, evaluation, resample), counts
    kept_names = TEXT_COLUMNS if keep_text else (PART_COLUMN,)
    kept = {name: kind for name, kind in dataset.features.items() if name in kept_names}
    aligned = {"alignments": _IDS} if ALIGNMENT_COLUMN in dataset.column_names else {}
    rows = dataset.map(
        encode,
        batched=True,
        remove_columns=[name for name in dataset.column_names if name not in kept],
        features=datasets.Features({**kept, **_ENCODED, **aligned}),
        num_proc=num_proc,
        desc="Tokenizing",
    )
    outcomes = np.asarray(rows.with_format("numpy")["outcome"][:], dtype=np.int8)
    keep = _kept(outcomes, evaluation)
    counts.add(outcomes, int(keep.sum()))
    if not counts.kept:
        raise DataError(f"no pair is left ({counts}); check the data and the length limits")
    rows = rows.remove_columns("outcome")
    return rows if keep.all() else rows.select(np.flatnonzero(keep)), counts


def within_limits(
    pairs: Mapping[str, list[Any]], tokenizer: PreTrainedTokenizerBase, limits: LengthLimits
) -> list[bool]:
    """Return whether the filters keep each pair of the columns `source` and `target` unchanged."""
    return [outcome == _KEPT for outcome in _Encoder(tokenizer, limits, truncate=False)(pairs)["outcome"]]


def add_alignments(pairs: datasets.Dataset, alignments: Iterable[Iterable[Link]]) -> datasets.Dataset:
    rows = {ALIGNMENT_COLUMN: [list(chain.from_iterable(links)) for links in alignments]}
    column = datasets.Dataset.from_dict(rows, datasets.Features({ALIGNMENT_COLUMN: _IDS}))
    return datasets.concatenate_datasets([pairs, column], axis=1)


def _kept(outcomes: np.ndarray, evaluation: bool) -> np.ndarray:
    """Return a boolean mask of the pairs to keep; evaluation keeps all."""
    return np.full(len(outcomes), True) if evaluation else np.isin(outcomes, (_KEPT, _TRUNCATED))


@dataclass
class _Encoder:
    """Tokenizes a batch of pairs and records the outcome of the filters for each."""

    tokenizer: PreTrainedTokenizerBase
    limits: LengthLimits
    # Truncate long pairs instead of dropping them.
    truncate: bool
    # Except for truncated pairs, whose texts have more tokens than their ids.
    keep_text: bool = False
    prefixes: tuple[SourcePrefix, ...] = ()
    # Part of the cache key of `Dataset.map`, which hashes this object.
    code: str = CODE_FINGERPRINT

    def __call__(self, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        if has_placeholders(self.tokenizer):
            batch = protect_pairs(batch, Features.of(self.tokenizer))
        encoded = encode_pairs(self.tokenizer, batch, self.prefixes)
        pairs = list(zip(encoded["input_ids"], encoded["labels"], strict=True))
        self._check_ends(chain.from_iterable(pairs))
        begins = [len(prefix.ids) for prefix in _prefixes_of_rows(batch, self.prefixes)] or [0] * len(pairs)
        sources = texts_of(batch["source"], Features.of(self.tokenizer))
        rows = zip(sources, batch["target"], pairs, begins, strict=True)
        outcomes = [
            self._outcome(len(ids) - begin, len(labels), begin) if text.strip() and target.strip() else _EMPTY
            for text, target, (ids, labels), begin in rows
        ]
        if self.truncate:
            encoded = _truncated_pairs(encoded, self.limits)
        for name in PAIR_FEATURES if self.keep_text else ():
            texts = zip(batch[name], outcomes, strict=True)
            encoded[name] = [None if outcome == _TRUNCATED else text for text, outcome in texts]
        return {**encoded, "outcome": outcomes}

    def _outcome(self, source_length: int, target_length: int, prefix_length: int) -> int:
        max_source, max_target, max_ratio = self.limits
        shorter, longer = sorted((source_length, target_length))
        if shorter < 2:
            return _EMPTY
        source_length += prefix_length
        too_long = source_length > (max_source or source_length) or target_length > (max_target or target_length)
        if too_long and not self.truncate:
            return _TOO_LONG
        if max_ratio is not None and longer > max_ratio * shorter + RATIO_SLACK:
            return _RATIO
        return _TRUNCATED if too_long else _KEPT

    def _check_ends(self, sequences: Iterable[list[int]]) -> None:
        eos = self.tokenizer.eos_token_id
        if eos is None or any(ids[-1:] != [eos] for ids in sequences):
            raise DataError(
                f"the tokenizer does not end its sequences with eos_token {self.tokenizer.eos_token!r} (id {eos}); "
                "use one with a post-processor that appends it"
            )


def encode_pairs(tokenizer: Any, batch: Mapping[str, list[Any]], prefixes: Prefixes = ()) -> dict[str, list[Any]]:
    """Tokenize pairs.

    Returns the columns `input_ids`, `labels` and, for pairs with `ALIGNMENT_COLUMN`, `alignments`: source token,
    target token, ...
    """
    columns = _encoded(tokenizer, batch)
    for row, (ids, replaced) in enumerate(_prefixes_of_rows(batch, prefixes)):
        columns["input_ids"][row] = [*ids, *columns["input_ids"][row][replaced:]]
        if "alignments" in columns and (shift := len(ids) - replaced):
            links = columns["alignments"][row]
            columns["alignments"][row] = [token + shift * (i % 2 == 0) for i, token in enumerate(links)]
    return columns


def _prefixes_of_rows(batch: Mapping[str, list[Any]], prefixes: Prefixes) -> list[SourcePrefix]:
    """Return the prefix of each row; an empty list without prefixes."""
    parts = batch.get(PART_COLUMN, [0] * len(batch["source"])) if prefixes else []
    return [prefixes[part] for part in parts]


def _encoded(tokenizer: Any, batch: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    if ALIGNMENT_COLUMN not in batch:
        options: dict[str, Any] = {"return_attention_mask": False, "verbose": False}
        with unknown_words(tokenizer, batch["source"], batch["target"]):
            encoded = tokenizer(batch["source"], text_target=batch["target"], **options)
        return {name: encoded[name] for name in ("input_ids", "labels")}
    sources = words_and_ids(tokenizer, batch["source"], is_target=False)
    targets = words_and_ids(tokenizer, batch["target"], is_target=True)
    columns: dict[str, list[Any]] = {"input_ids": [], "labels": [], "alignments": []}
    rows = zip(sources, targets, batch[ALIGNMENT_COLUMN], strict=True)
    for (source_words, source_ids), (target_words, target_ids), links in rows:
        columns["input_ids"].append(source_ids)
        columns["labels"].append(target_ids)
        columns["alignments"].append(_links_of_tokens(source_words, target_words, links))
    return columns


def _links_of_tokens(source_words: list[list[int]], target_words: list[list[int]], links: list[int]) -> list[int]:
    """Turn links of words into links of tokens, both flattened as source, target, source, target, ..."""
    source_tokens, target_tokens = _tokens_of_words(source_words), _tokens_of_words(target_words)
    words = zip(links[::2], links[1::2], strict=True)
    tokens = (product(source_tokens[source], target_tokens[target]) for source, target in words)
    return [*chain.from_iterable(chain.from_iterable(tokens))]


def _tokens_of_words(words: list[list[int]]) -> defaultdict[int, list[int]]:
    tokens: defaultdict[int, list[int]] = defaultdict(list)
    for token, numbers in enumerate(words):
        for number in numbers:
            tokens[number].append(token)
    return tokens


def _truncated_pairs(encoded: Mapping[str, list[Any]], limits: LengthLimits) -> dict[str, list[Any]]:
    """Truncate both sides to their limits, and drop the links of lost tokens."""
    columns = {
        "input_ids": [_truncated(ids, limits.source) for ids in encoded["input_ids"]],
        "labels": [_truncated(ids, limits.target) for ids in encoded["labels"]],
    }
    if "alignments" not in encoded:
        return columns
    # The end token has no links, but the token it replaced may have had some.
    columns["alignments"] = []
    for flat, source, target in zip(encoded["alignments"], columns["input_ids"], columns["labels"], strict=True):
        links = zip(flat[::2], flat[1::2], strict=True)
        kept = [link for link in links if link[0] < len(source) - 1 and link[1] < len(target) - 1]
        columns["alignments"].append([*chain.from_iterable(kept)])
    return columns


def _truncated(ids: list[int], length: int | None) -> list[int]:
    return ids if length is None or len(ids) <= length else ids[: length - 1] + ids[-1:]


class TokenizedStream(torch.utils.data.IterableDataset):
    """Pairs tokenized while they are read; created by `tokenize_pairs`.

    Each pass yields `{"input_ids": list[int], "labels": list[int]}` and ends with a log line of its counts. Workers
    of a DataLoader share the shards of the underlying stream.

    Attributes:
        counts: Counts of the longest pass so far, in this process.
    """

    def __init__(
        self,
        pairs: datasets.IterableDataset,
        encode: _Encoder,
        counts: PairCounts,
        evaluation: bool,
        resample: Resample | None = None,
    ) -> None:
        self.pairs, self.encode, self.counts, self.evaluation = pairs, encode, counts, evaluation
        self.resample, self.epoch = resample, 0

    @property
    def num_shards(self) -> int:
        """Number of DataLoader workers that can share the stream."""
        return self.pairs.num_shards

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch for re-tokenization, and for the underlying stream, which may shuffle by it."""
        self.pairs.set_epoch(epoch)
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        counts = PairCounts(limits=self.counts.limits)
        for rows in chunks(self.pairs, 1000):
            columns = [name for name in (*PAIR_FEATURES, PART_COLUMN) if name in rows[0]]
            encoded = self.encode({name: [row[name] for row in rows] for name in columns})
            outcomes = np.array(encoded["outcome"], dtype=np.int8)
            keep = _kept(outcomes, self.evaluation)
            counts.add(outcomes, int(keep.sum()))
            if counts.read > self.counts.read:
                vars(self.counts).update(vars(counts))
            if self.resample:
                encoded |= {name: [row[name] for row in rows] for name in columns if name == PART_COLUMN}
            names = [name for name in encoded if name != "outcome"]
            kept = [{name: encoded[name][i] for name in names} for i in np.flatnonzero(keep)]
            yield from self.resample(kept, self.epoch) if self.resample and kept else kept
        logger.info(f"end of a pass over the stream: {counts}")


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of `size` items; the last may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
