"""Batches of pairs with similar lengths and a token budget (section 5.1 of *Attention Is All You Need*)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ..batches import greedy_batches
from ..errors import DataError
from ..model.checks_vanilla_transformer import IGNORE_INDEX
from ..options import POSITIVE, check_range
from .encoding import chunks


def token_lengths(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of all sources and targets in tokens, two int32 arrays of shape (rows,)."""
    # Only an untransformed `datasets.Dataset` has Arrow offsets, which give lengths without decoding ids.
    if not isinstance(dataset, datasets.Dataset) or dataset.format["type"] == "custom":
        rows = (dataset[i] for i in range(len(dataset)))
        pairs = [(len(row["input_ids"]), len(row["labels"])) for row in rows]
        source_lengths, target_lengths = np.array(pairs, dtype=np.int32).reshape(-1, 2).T
        return source_lengths, target_lengths
    lengths: dict[str, list[np.ndarray]] = {"input_ids": [], "labels": []}
    for table in _id_tables(dataset):
        for name, parts in lengths.items():
            parts.append(pc.list_value_length(table[name]).to_numpy().astype(np.int32))
    source_lengths, target_lengths = (np.concatenate(parts or [np.empty(0, np.int32)]) for parts in lengths.values())
    return source_lengths, target_lengths


def check_token_ids(dataset: datasets.Dataset, vocab_size: int, target_vocab_size: int | None = None) -> None:
    """Raise a DataError for an id without an embedding; the model itself would fail far from the cause."""
    sizes = {"input_ids": vocab_size, "labels": vocab_size if target_vocab_size is None else target_vocab_size}
    first_row = 0
    for table in _id_tables(dataset):
        for name, size in sizes.items():
            ids = pc.list_flatten(table[name]).to_numpy()
            wrong = np.flatnonzero((ids < 0) | (ids >= size))
            if len(wrong):
                row = int(pc.list_parent_indices(table[name])[int(wrong[0])].as_py())
                raise DataError(
                    f"row {first_row + row}: id {ids[wrong[0]]} in '{name}' is outside the model's vocabulary of "
                    f"{size}; use the tokenizer that belongs to the model"
                )
        first_row += len(table)


def _id_tables(dataset: datasets.Dataset) -> Iterator[pa.Table]:
    tables = dataset.select_columns(["input_ids", "labels"]).with_format("arrow").iter(100_000)
    return (table.combine_chunks() for table in tables)


class TokenBudgetBatchSampler(torch.utils.data.Sampler[list[int]]):
    """Sampler of batches of pairs with similar lengths, padded to at most `max_tokens` tokens.

    A batch of n pairs costs n * (longest source + longest target). Pairs are sorted by source length, then target
    length (alternately ascending and descending, so that it does not jump where the source length changes), cut
    greedily, and the batches are shuffled. Each epoch also shuffles pairs with equal lengths. The cuts, and with them
    the number of batches, are therefore the same in every epoch: `len()` is exact, and learning-rate schedules may
    rely on it. With `epoch_rows`, batches are cut anew in each epoch, and some are dropped or split in two to match
    the number in the first epoch.

    With several processes, the sampler yields the batches of all, and sharding gives process r every
    `num_replicas`-th batch, starting at r. Batches come in groups of `num_replicas` with similar lengths, so that the
    processes have equal work. A few batches are split in two to make their number a multiple of `num_replicas`, so
    that every pair still occurs once per epoch. Only if too few batches can be split, those with the longest pairs
    are repeated.

    The order depends only on `seed` and the epoch. `batch_size` is None, as accelerate expects for batches of varying
    size (with `even_batches=False`).

    Args:
        source_lengths: Tokens of each source, shape (rows,).
        target_lengths: Tokens of each target, shape (rows,).
        max_tokens: Maximum number of tokens in a batch of one process, including both sides and padding.
        shuffle: Shuffle the batches; otherwise they go from short to long, the same in every epoch.
        seed: Non-negative seed of the order.
        num_replicas: Number of processes that share the batches.
        epoch_rows: Returns the rows of an epoch, counted from 0, as `EpochRows` does; by default each row occurs
            once.

    Raises:
        DataError: There are no pairs, a pair is longer than `max_tokens`, or a number is below 1.
    """

    batch_size: None = None
    drop_last = False

    def __init__(
        self,
        source_lengths: Any,
        target_lengths: Any,
        max_tokens: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        num_replicas: int = 1,
        epoch_rows: Callable[[int], np.ndarray] | None = None,
    ) -> None:
        check_range(POSITIVE, DataError, max_tokens=max_tokens, num_replicas=num_replicas)
        source = np.asarray(source_lengths, dtype=np.int32)
        target = np.asarray(target_lengths, dtype=np.int32)
        if source.ndim != 1 or source.shape != target.shape or not len(source):
            raise DataError(
                f"lengths of shapes {source.shape} and {target.shape} cannot be cut into batches; give one source and "
                "one target length per pair"
            )
        _check_budget(source, target, max_tokens)
        self.shuffle, self.seed, self.num_replicas, self.epoch = shuffle, seed, num_replicas, 0
        self._source, self._target, self.max_tokens, self._epoch_rows = source, target, max_tokens, epoch_rows
        self._keys = _length_keys(source, target)
        self._edges = self._cut(self._sorted(self._rows(0)))
        self._number = -(-(len(self._edges) - 1) // num_replicas) * num_replicas

    @property
    def sampler(self) -> TokenBudgetBatchSampler:
        """The sampler itself: accelerate calls `set_epoch` on this attribute of a wrapped sampler."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Select the order of an epoch, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches in an epoch, all processes together."""
        return self._number

    def __iter__(self) -> Iterator[list[int]]:
        """Yield batches as lists of row indices."""
        rng = np.random.default_rng([self.seed, self.epoch])
        rows = self._rows(self.epoch)
        if self.shuffle:
            rng.shuffle(rows)
        order = self._sorted(rows)
        edges = self._edges if self._epoch_rows is None else _split_into(self._cut(order), self._number)
        batches = np.arange(len(edges) - 1)
        filled = max(self._number, -(-len(batches) // self.num_replicas) * self.num_replicas)
        repeated = np.resize(batches[::-1], filled - len(batches))
        groups = np.concatenate([batches, repeated]).reshape(-1, self.num_replicas)
        if self.shuffle:
            rng.shuffle(groups)
        for batch in groups.ravel()[: self._number]:
            yield order[edges[batch] : edges[batch + 1]].tolist()

    def _rows(self, epoch: int) -> np.ndarray:
        rows = np.arange(len(self._keys)) if self._epoch_rows is None else self._epoch_rows(epoch)
        return rows.astype(np.int32)

    def _sorted(self, rows: np.ndarray) -> np.ndarray:
        return rows[np.argsort(self._keys[rows], kind="stable")]

    def _cut(self, rows: np.ndarray) -> np.ndarray:
        """Cut sorted rows into batches, a multiple of `num_replicas` if possible; return their edges."""
        edges = _greedy_edges(self._source[rows], self._target[rows], self.max_tokens)
        return _split_into(edges, -(-(len(edges) - 1) // self.num_replicas) * self.num_replicas)


def _check_budget(source: np.ndarray, target: np.ndarray, max_tokens: int, first_row: int = 0) -> None:
    lengths = source.astype(np.int64) + target
    row = int(lengths.argmax())
    if lengths[row] > max_tokens:
        raise DataError(
            f"row {first_row + row}: its {lengths[row]} tokens (source and target) exceed `max_tokens` {max_tokens}; "
            "raise it, or lower `max_source_length` and `max_target_length`"
        )


def _length_keys(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Map pairs of lengths to sort keys of the sampler's order; equal keys mean equal lengths."""
    width = int(target.max()) + 1
    kind = np.int32 if (int(source.max()) + 1) * width < 2**31 else np.int64
    return source.astype(kind) * width + np.where(source % 2, target, width - 1 - target).astype(kind)


def _greedy_edges(source: np.ndarray, target: np.ndarray, max_tokens: int) -> np.ndarray:
    """Cut rows of ascending source length greedily: batch b spans `edges[b]` to `edges[b + 1]`."""
    counter = np.arange(1, len(source) + 1, dtype=np.int64)

    def size_at(start: int) -> int:
        # Upper bound on the batch: later sources are at least as long.
        window = slice(start, start + max_tokens // max(1, int(source[start])))
        longest = source[window] + np.maximum.accumulate(target[window])
        # The cost of the first n pairs grows with n, so binary search finds the batch.
        return int(np.searchsorted(counter[: len(longest)] * longest, max_tokens, side="right"))

    return np.array([0, *(batch.stop for batch in greedy_batches(len(source), size_at))])


def _split_into(edges: np.ndarray, number: int) -> np.ndarray:
    """Split the batches with the most pairs in two until there are at least `number`, if possible."""
    while len(edges) - 1 < number:
        sizes = np.diff(edges)
        widest = int(sizes.argmax())
        if sizes[widest] < 2:
            break
        edges = np.insert(edges, widest + 1, edges[widest] + sizes[widest] // 2)
    return edges


class EpochRows:
    """Rows of each epoch: every part cycles through new permutations of its rows at its own rate.

    In the long run, all pairs of a part therefore occur equally often. The rows depend only on the seed and the epoch.

    Args:
        parts: Part index of each row, shape (rows,).
        numbers: Rows per epoch of each part.
        seed: Seed of the permutations.
    """

    def __init__(self, parts: np.ndarray, numbers: Sequence[int], seed: int) -> None:
        self.rows = [np.flatnonzero(parts == part) for part in range(len(numbers))]
        self.numbers, self.seed = numbers, seed

    def __call__(self, epoch: int) -> np.ndarray:
        """Return the rows of an epoch, counted from 0; some may occur several times."""
        return np.concatenate([self._rows_of_part(part, epoch) for part in range(len(self.numbers))])

    def mean_sum(self, values: np.ndarray) -> float:
        """Return the sum of `values`, shape (rows,), over the rows of an epoch, averaged over many epochs."""
        pairs = zip(self.rows, self.numbers, strict=True)
        return sum(float(values[rows].mean()) * number for rows, number in pairs if number)

    def _rows_of_part(self, part: int, epoch: int) -> np.ndarray:
        rows, number = self.rows[part], self.numbers[part]
        if not number:
            return rows[:0]
        begin, end = epoch * number, (epoch + 1) * number
        first, last = begin // len(rows), -(-end // len(rows))
        passes = [np.random.default_rng([self.seed, part, i]).permutation(rows) for i in range(first, last)]
        return np.concatenate(passes)[begin - first * len(rows) : end - first * len(rows)]


class TokenBudgetStream(torch.utils.data.IterableDataset):
    """Batches of `TokenBudgetBatchSampler` from a stream of pairs.

    Pairs are sorted, cut and shuffled within a buffer, which bounds memory. Every process reads the whole stream and
    keeps its share of the batches, so that all have the same number. Use it in a
    `DataLoader(stream, batch_size=None, collate_fn=...)`: workers share an `IterableDataset` by its own sharding, and
    any other iterable by taking items in turn.

    Args:
        features: Mappings with `input_ids` and `labels`; iterated over once per epoch.
        max_tokens: Maximum number of tokens in a batch of one process, including both sides and padding.
        buffer_size: Pairs to sort at a time; more means less padding and better mixing.
        shuffle: Shuffle the batches of a buffer.
        seed: Non-negative seed of the order.
        num_replicas: Number of processes that share the stream.
        rank: Index of this process.

    Raises:
        DataError: `max_tokens`, `buffer_size`, `num_replicas` or `rank` is out of range.
    """

    def __init__(
        self,
        features: Iterable[Mapping[str, Any]],
        max_tokens: int,
        *,
        buffer_size: int = 20_000,
        shuffle: bool = True,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        check_range(POSITIVE, DataError, max_tokens=max_tokens, buffer_size=buffer_size, num_replicas=num_replicas)
        if not 0 <= rank < num_replicas:
            raise DataError(f"`rank` is {rank}; it must be from 0 to {num_replicas - 1}")
        self.features, self.max_tokens, self.buffer_size = features, max_tokens, buffer_size
        self.shuffle, self.seed, self.num_replicas, self.rank = shuffle, seed, num_replicas, rank
        # In shared memory, so that persistent workers see a new epoch too.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Select the order of an epoch, here and in the underlying stream."""
        self._epoch.fill_(epoch)
        if hasattr(self.features, "set_epoch"):
            self.features.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yield batches as lists of features.

        Raises:
            DataError: A pair is longer than `max_tokens`; names its index in the stream.
        """
        worker = torch.utils.data.get_worker_info()
        features, worker_id = self.features, worker.id if worker else 0
        if worker and not isinstance(features, torch.utils.data.IterableDataset):
            features = islice(features, worker.id, None, worker.num_workers)
        rng = np.random.default_rng([self.seed, int(self._epoch), worker_id])
        first_row = 0
        for buffer in chunks(features, self.buffer_size):
            source, target = token_lengths(buffer)
            _check_budget(source, target, self.max_tokens, first_row)
            first_row += len(buffer)
            sampler = TokenBudgetBatchSampler(
                source,
                target,
                self.max_tokens,
                shuffle=self.shuffle,
                seed=int(rng.integers(2**32)),
                num_replicas=self.num_replicas,
            )
            for batch in islice(sampler, self.rank, None, self.num_replicas):
                yield [buffer[i] for i in batch]


def dense_alignments(
    alignments: Sequence[Sequence[int]], labels: torch.Tensor, attention_mask: torch.Tensor
) -> torch.Tensor:
    """Return each label's alignment distribution over source tokens, (B, T, S); all zeros for a label without links.

    `alignments` are the token links of each pair without padding, flattened as source, target, source, target, ...
    At padding, `labels` (B, T) are -100 and `attention_mask` (B, S) is 0.
    """
    links = torch.zeros(*labels.shape, attention_mask.shape[1])
    # Padding may be on the left.
    firsts = zip(labels.ne(IGNORE_INDEX).int().argmax(1), attention_mask.ne(0).int().argmax(1), strict=True)
    for row, links_of_row, (first_label, first_source) in zip(links, alignments, firsts, strict=True):
        pairs = torch.as_tensor(links_of_row, dtype=torch.long).view(-1, 2)
        row[pairs[:, 1] + first_label, pairs[:, 0] + first_source] = 1
    return links / links.sum(-1, keepdim=True).clamp(min=1)


def collate_packed(features: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Pack pairs into a batch without padding: all sources concatenated into one row, all targets into another.

    Tokens masked by an `attention_mask`, and -100 before the first label, are dropped. Returns `input_ids` and
    `labels` of shape (1, tokens) and, as the model's argument `packing`, the sequence edges and maximum lengths:
    `cu_seq_lens`, `max_length`, `decoder_cu_seq_lens`, `decoder_max_length`.
    """
    batch: dict[str, Any] = {}
    packing: dict[str, Any] = {}
    for name, prefix in (("input_ids", ""), ("labels", "decoder_")):
        sequences = [_without_padding(feature, name) for feature in features]
        edges = np.cumsum([0, *map(len, sequences)], dtype=np.int32)
        lengths = np.diff(edges)
        if not lengths.all():
            raise DataError(f"a pair has no token in '{name}'; packing needs one on each side, so drop such pairs")
        batch[name] = torch.from_numpy(np.concatenate(sequences)[None])
        # Pass a Python int, to avoid a device sync.
        packing |= {f"{prefix}cu_seq_lens": torch.from_numpy(edges), f"{prefix}max_length": int(lengths.max())}
    return {**batch, "packing": packing}


def _without_padding(feature: Mapping[str, Any], name: str) -> np.ndarray:
    ids = np.asarray(feature.get(name, []))
    if ids.ndim != 1 or (len(ids) and ids.dtype.kind not in "iu"):
        raise DataError(f"'{name}' of a pair has shape {ids.shape} and dtype {ids.dtype}; use a list of integers")
    ids = ids.astype(np.int64)
    if name == "input_ids":
        mask = feature.get("attention_mask")
        return ids if mask is None else ids[np.asarray(mask, dtype=bool)]
    return ids[np.argmax(ids != IGNORE_INDEX) :] if len(ids) else ids
