"""Which pairs of several corpora an epoch has."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np

from .corpora import Part


def rows_per_epoch(sizes: Sequence[int], parts: Sequence[Part], temperature: float = 1.0) -> list[int]:
    """Return how many pairs of each part an epoch has.

    A direction with a share s of all pairs gets one in proportion to s^(1/T) (Arivazhagan et al. 2019), and divides
    it among its corpora by their sizes; weights then multiply. At a temperature of 1 an epoch has each pair as often
    as its weight says.

    Args:
        sizes: Pairs of each part.
        parts: The parts.
        temperature: T, at least 1.
    """
    directions: Counter[object] = Counter()
    for size, part in zip(sizes, parts, strict=True):
        directions[part.direction] += size
    powers = {direction: size ** (1 / temperature) for direction, size in directions.items() if size}
    scale = sum(sizes) / sum(powers.values())
    wanted = (
        scale * powers[part.direction] * size / directions[part.direction] * part.weight if size else 0.0
        for size, part in zip(sizes, parts, strict=True)
    )
    return [
        max(round(number), bool(size and part.weight)) for number, size, part in zip(wanted, sizes, parts, strict=True)
    ]


class EpochRows:
    """Rows of each epoch: every part goes through permutations of its rows, one after another, at its own pace.

    Over the epochs all pairs of a part therefore occur equally often. The rows depend on the seed and the epoch alone.

    Args:
        parts: The part of each row.
        numbers: Rows of each part in an epoch.
        seed: Seed of the permutations.
    """

    def __init__(self, parts: np.ndarray, numbers: Sequence[int], seed: int) -> None:
        self.rows = [np.flatnonzero(parts == part) for part in range(len(numbers))]
        self.numbers, self.seed = numbers, seed

    def __call__(self, epoch: int) -> np.ndarray:
        """Return the rows of an epoch, counted from 0; some may occur several times."""
        return np.concatenate([self._rows_of_part(part, epoch) for part in range(len(self.numbers))])

    def mean_sum(self, values: np.ndarray) -> float:
        """Return the sum over an epoch of a value of each row, in the mean of many epochs."""
        pairs = zip(self.rows, self.numbers, strict=True)
        return sum(float(values[rows].mean()) * number for rows, number in pairs if number)

    def _rows_of_part(self, part: int, epoch: int) -> np.ndarray:
        rows, number = self.rows[part], self.numbers[part]
        if not number:
            return rows[:0]
        begin, end = epoch * number, (epoch + 1) * number
        first, last = begin // len(rows), -(-end // len(rows))
        passes = [np.random.default_rng([self.seed, part, each]).permutation(rows) for each in range(first, last)]
        return np.concatenate(passes)[begin - first * len(rows) : end - first * len(rows)]
