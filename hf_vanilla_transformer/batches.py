"""Batches of sorted items."""

from collections.abc import Callable, Iterator


def greedy_batches(count: int, size_at: Callable[[int], int]) -> Iterator[slice]:
    """Cut sorted items into consecutive batches, each as large as possible.

    Args:
        count: Number of items.
        size_at: Returns the most items of a batch that starts at an index; a batch has at least one.
    """
    start = 0
    while start < count:
        end = min(count, start + max(1, size_at(start)))
        yield slice(start, end)
        start = end
