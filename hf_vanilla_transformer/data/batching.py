"""Token ids to batches: pairs of similar length together, so many that a batch holds a given number of tokens.

Section 5.1 of *Attention Is All You Need*. What is wrong with the data is a `DataError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from ..errors import DataError
from .encoding import chunks


def token_lengths(dataset: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return the lengths of all sources and targets in tokens.

    Args:
        dataset: Rows with `input_ids` and `labels`; for a `datasets.Dataset` the lengths come from the Arrow offsets
            without touching the ids, unless a transform makes the rows.

    Returns:
        Two int32 arrays of shape (rows,).
    """
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
    """Make sure that every id has a row in the embeddings, since the model would fail far from the cause.

    Args:
        dataset: Rows with `input_ids` and `labels`.
        vocab_size: Size of the source vocabulary.
        target_vocab_size: Size of the target vocabulary; the same if None.

    Raises:
        DataError: An id is negative or not below its vocabulary's size; names the first row, the id and the field.
    """
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
    """Batches of pairs with similar lengths whose padded size stays within a number of tokens.

    A batch of n pairs costs n * (longest source + longest target). Pairs are sorted by source length, then target
    length (ascending and descending in turn, so that the target length does not jump where the source length
    changes), cut greedily, and the batches are visited in random order. Each epoch, pairs with the same two lengths
    trade places at random. The sequence of lengths that is cut is therefore the same in every epoch, and so is the
    number of batches: `len()` is exact, and a learning-rate schedule may rely on it.

    For several processes the sampler yields the batches of all of them, and whatever shards it gives process r
    every `num_replicas`-th batch from r on. Batches come in groups of `num_replicas` that are neighbours in length,
    so the processes have equal work; a few batches are split in two to make the number a multiple, and every pair
    still comes exactly once an epoch.

    The order depends on `seed` and the epoch only. `batch_size` is None, as accelerate expects of batches that vary
    in size (with `even_batches=False`).
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
    ) -> None:
        """Sort and cut.

        Args:
            source_lengths: Tokens of each source, shape (rows,).
            target_lengths: Tokens of each target, shape (rows,).
            max_tokens: Most tokens in a batch of one process, padding included, both sides together.
            shuffle: Visit the batches in random order; otherwise from short to long, the same in every epoch.
            seed: Non-negative seed of the order.
            num_replicas: Processes that share the batches.

        Raises:
            DataError: There are no pairs, one is longer than `max_tokens`, or there are fewer than processes.
        """
        source = np.asarray(source_lengths, dtype=np.int32)
        target = np.asarray(target_lengths, dtype=np.int32)
        if source.ndim != 1 or source.shape != target.shape or not len(source):
            raise DataError(
                f"lengths of shapes {source.shape} and {target.shape} cannot be cut into batches; give one source and "
                "one target length a pair"
            )
        _check_budget(source, target, max_tokens)
        self.shuffle, self.seed, self.num_replicas, self.epoch = shuffle, seed, num_replicas, 0
        self._keys = _length_keys(source, target)
        order = np.argsort(self._keys, kind="stable")
        self._edges = _split_to_multiple(_greedy_edges(source[order], target[order], max_tokens), num_replicas)

    @property
    def sampler(self) -> TokenBudgetBatchSampler:
        """The sampler itself: accelerate looks for `set_epoch` at this name once the sampler is wrapped."""
        return self

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the epoch, counted from 0."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of batches in an epoch, those of all processes together."""
        return len(self._edges) - 1

    def __iter__(self) -> Iterator[list[int]]:
        """Yield lists of row numbers."""
        groups = np.arange(len(self)).reshape(-1, self.num_replicas)
        if self.shuffle:
            rng = np.random.default_rng([self.seed, self.epoch])
            order = np.arange(len(self._keys), dtype=np.int32)
            rng.shuffle(order)
            order = order[np.argsort(self._keys[order], kind="stable")]
            rng.shuffle(groups)
        else:
            order = np.argsort(self._keys, kind="stable").astype(np.int32)
        for batch in groups.ravel():
            yield order[self._edges[batch] : self._edges[batch + 1]].tolist()


def _check_budget(source: np.ndarray, target: np.ndarray, max_tokens: int, first_row: int = 0) -> None:
    lengths = source.astype(np.int64) + target
    row = int(lengths.argmax())
    if lengths[row] > max_tokens:
        raise DataError(
            f"row {first_row + row}: its {lengths[row]} tokens (source and target) exceed max_tokens {max_tokens}; "
            "raise --max_tokens or lower --max_source_length and --max_target_length"
        )


def _length_keys(source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Number the pairs of lengths in the order of the sampler; equal keys mean equal lengths."""
    width = int(target.max()) + 1
    kind = np.int32 if (int(source.max()) + 1) * width < 2**31 else np.int64
    return source.astype(kind) * width + np.where(source % 2, target, width - 1 - target).astype(kind)


def _greedy_edges(source: np.ndarray, target: np.ndarray, max_tokens: int) -> np.ndarray:
    """Cut a sequence with ascending source lengths into the longest batches that fit, from the front.

    Returns:
        Positions of shape (batches + 1,): batch b is `edges[b]` to `edges[b + 1]`.
    """
    edges = [0]
    counter = np.arange(1, max_tokens + 1, dtype=np.int64)
    while (start := edges[-1]) < len(source):
        # No batch can hold more: sources only grow from here on.
        window = slice(start, start + max_tokens // max(1, int(source[start])))
        longest = source[window] + np.maximum.accumulate(target[window])
        # The cost of the first n pairs grows with n, so the fitting ones are a prefix.
        edges.append(start + int(np.searchsorted(counter[: len(longest)] * longest, max_tokens, side="right")))
    return np.array(edges)


def _split_to_multiple(edges: np.ndarray, num_replicas: int) -> np.ndarray:
    """Split the batches with the most pairs in two until their number is a multiple of `num_replicas`."""
    while (len(edges) - 1) % num_replicas:
        sizes = np.diff(edges)
        widest = int(sizes.argmax())
        if sizes[widest] < 2:
            raise DataError(f"{edges[-1]} pairs are too few for {num_replicas} processes; use fewer processes")
        edges = np.insert(edges, widest + 1, edges[widest] + sizes[widest] // 2)
    return edges


class TokenBudgetStream(torch.utils.data.IterableDataset):
    """The batches of `TokenBudgetBatchSampler` for pairs that arrive one by one.

    Pairs are gathered in a buffer, which is sorted, cut and shuffled by itself; memory is bounded by it. Every process
    reads the whole stream and keeps its share of the batches, so all have the same number of them. For a
    `DataLoader(stream, batch_size=None, collate_fn=...)`; several workers share a stream that divides itself (an
    `IterableDataset`) as it does, and any other iterable by turns. Should fewer pairs than processes be left for the
    last buffer, those pairs repeat.
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
        """Wrap tokenized pairs.

        Args:
            features: Mappings with `input_ids` and `labels`; iterated over once an epoch.
            max_tokens: Most tokens in a batch of one process, padding included, both sides together.
            buffer_size: Pairs to sort at a time; more means less padding and better mixing.
            shuffle: Visit the batches of a buffer in random order.
            seed: Non-negative seed of the order.
            num_replicas: Processes that share the stream.
            rank: Number of this process, from 0.

        Raises:
            DataError: `rank` or `buffer_size` is out of range.
        """
        if not 0 <= rank < num_replicas:
            raise DataError(f"rank {rank} is not one of {num_replicas} processes; count ranks from 0")
        if buffer_size < num_replicas:
            raise DataError(f"buffer_size {buffer_size} is below the {num_replicas} processes; raise it")
        self.features, self.max_tokens, self.buffer_size = features, max_tokens, buffer_size
        self.shuffle, self.seed, self.num_replicas, self.rank = shuffle, seed, num_replicas, rank
        # Shared memory, so that workers which live on see a new epoch too.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the epoch, here and in the stream below."""
        self._epoch.fill_(epoch)
        if hasattr(self.features, "set_epoch"):
            self.features.set_epoch(epoch)

    def __iter__(self) -> Iterator[list[Mapping[str, Any]]]:
        """Yield batches as lists of features.

        Raises:
            DataError: A pair is longer than `max_tokens`; names its number in the stream.
        """
        worker = torch.utils.data.get_worker_info()
        features, turn = self.features, worker.id if worker else 0
        if worker and not isinstance(features, torch.utils.data.IterableDataset):
            features = islice(features, worker.id, None, worker.num_workers)
        rng = np.random.default_rng([self.seed, int(self._epoch), turn])
        first_row = 0
        for buffer in chunks(features, self.buffer_size):
            source, target = token_lengths(buffer)
            _check_budget(source, target, self.max_tokens, first_row)
            first_row += len(buffer)
            repeats = -(-self.num_replicas // len(buffer))
            sampler = TokenBudgetBatchSampler(
                np.tile(source, repeats),
                np.tile(target, repeats),
                self.max_tokens,
                shuffle=self.shuffle,
                seed=int(rng.integers(2**32)),
                num_replicas=self.num_replicas,
            )
            for batch in islice(sampler, self.rank, None, self.num_replicas):
                yield [buffer[i % len(buffer)] for i in batch]


__all__ = ["TokenBudgetBatchSampler", "TokenBudgetStream", "check_token_ids", "token_lengths"]
