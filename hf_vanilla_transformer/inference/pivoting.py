"""Translation in two legs, through a language that training had pairs with."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from ..pretrained.languages import Direction
from ..text.protection import Link
from .decoding import Hypothesis


@dataclass
class Leg:
    """Lines to translate together.

    Attributes:
        lines: The lines; on a second leg, translations of the first.
        directions: Source and target language of each line; None for the tokenizer's current ones.
        firsts: The first leg of each line that had one, with its `pivot`.
        is_last: Whether translations are results.
        best: On a first leg, to be filled with the best translation of each line.
    """

    lines: list[str]
    directions: list[Direction | None]
    firsts: list[Hypothesis | None]
    is_last: bool = True
    best: list[Hypothesis] = field(default_factory=list)


def legs(
    lines: Iterator[str],
    directions: Iterator[Direction | None],
    chunk_size: int,
    pivot_for: Callable[[Direction | None], str | None],
) -> Iterator[Leg]:
    """Yield for each chunk of lines the first leg of those that go through another language, if any, then all lines.

    The first leg's `best` must be filled before the iteration goes on.
    """
    while chunk := list(islice(lines, chunk_size)):
        # Only as many as there are lines; `directions` may be infinite.
        last = Leg(chunk, list(islice(directions, len(chunk))), [None] * len(chunk))
        # Row, languages of both legs.
        routes = [
            (i, direction[0], pivot, direction[1])
            for i, direction in enumerate(last.directions)
            if (pivot := pivot_for(direction)) and direction
        ]
        if routes:
            sources: list[Direction | None] = [(source, pivot) for _, source, pivot, _ in routes]
            first = Leg([chunk[i] for i, *_ in routes], sources, [None] * len(routes), is_last=False)
            yield first
            for (i, _, pivot, target), best in zip(routes, first.best, strict=True):
                last.lines[i], last.directions[i] = best.text, (pivot, target)
                last.firsts[i] = replace(best, pivot=pivot)
        yield last


def after(first: Hypothesis | None, hypotheses: Sequence[Hypothesis]) -> list[Hypothesis]:
    """Return translations of the first leg as translations of its source; scores are those of the second leg."""
    if first is None:
        return list(hypotheses)
    return [
        replace(
            each,
            pivot=first.pivot,
            alignment=None if each.alignment is None else composed(first.alignment or [], each.alignment),
            remarks=list(dict.fromkeys([*(first.remarks or ()), *(each.remarks or ())])) or None,
        )
        for each in hypotheses
    ]


def composed(first: Sequence[Link], second: Sequence[Link]) -> list[Link]:
    """Return the links between words that are linked to the same word in between."""
    return sorted({(source, target) for source, middle in first for start, target in second if start == middle})
