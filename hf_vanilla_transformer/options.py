"""Options that commands, library and server share, each declared once: type, default, help and range."""

import operator
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cache, partial
from math import inf
from typing import Annotated, Any, get_args, get_type_hints

_COMPARISONS = {
    "gt": (operator.gt, "above"),
    "ge": (operator.ge, "at least"),
    "lt": (operator.lt, "below"),
    "le": (operator.le, "at most"),
}


@dataclass(frozen=True)
class Range:
    """Finite numbers within bounds, in the type of a field: `Annotated[int, Range(ge=2)]`."""

    gt: float | None = None
    ge: float | None = None
    lt: float | None = None
    le: float | None = None

    def __contains__(self, value: float) -> bool:
        return -inf < value < inf and all(_COMPARISONS[name][0](value, bound) for name, bound in self._bounds())

    def __str__(self) -> str:
        words = [f"{_COMPARISONS[name][1]} {bound:,}" for name, bound in self._bounds()]
        return " and ".join(words).replace("above 0", "positive")

    def _bounds(self) -> Iterator[tuple[str, float]]:
        return ((name, bound) for name in _COMPARISONS if (bound := getattr(self, name)) is not None)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        schema = handler(source)
        finite = {"allow_inf_nan": False} if schema["type"] == "float" else {}
        return {**schema, **dict(self._bounds()), **finite}


POSITIVE, NOT_NEGATIVE = Range(gt=0), Range(ge=0)
Positive = Annotated[int, POSITIVE]
PositiveFloat = Annotated[float, POSITIVE]
NotNegative = Annotated[int, NOT_NEGATIVE]
NotNegativeFloat = Annotated[float, NOT_NEGATIVE]
# A probability of less than 1, or a decay.
Fraction = Annotated[float, Range(ge=0, lt=1)]
# Lengths with room for a token and the end token.
Length = Annotated[int, Range(ge=2)]

# Python's integers have no bound; those of a search have 64 bits.
MAX_COUNT = 2**31 - 1
# More beams are no search, but a loop without end or memory.
MAX_BEAMS = 10_000
# An integer power of a length must fit in 64 bits.
MAX_LENGTH_PENALTY = 5

Beams = Annotated[int, Range(gt=0, le=MAX_BEAMS)]
Count = Annotated[int, Range(gt=0, le=MAX_COUNT)]


def check_range(wanted: Range, error: type[ValueError] = ValueError, /, **values: float | None) -> None:
    """Raise an error that names the first of these arguments that is out of range; None passes."""
    for name, value in values.items():
        if value is not None and value not in wanted:
            shown = f"{value:g}" if isinstance(value, float) else value
            finite = "finite and " if value == inf else ""
            raise error(f"`{name}` is {shown}; it must be {finite}{wanted}")


def check_choice(wanted: Any, error: type[ValueError] = ValueError, /, **values: str) -> None:
    """Raise an error that names the first value that is none of a `Literal`."""
    for name, value in values.items():
        if value not in get_args(wanted):
            raise error(f"`{name}` {value!r} is not one of {', '.join(get_args(wanted))}")


def check_ranges(arguments: Any, error: type[ValueError] = ValueError) -> None:
    """Raise an error for a field of a dataclass that is out of its range, or an item of a list that is."""
    kind: Any = type(arguments)
    for name, wanted in ranges(kind).items():
        value = getattr(arguments, name)
        for each in value if isinstance(value, list) else [value]:
            check_range(wanted, error, **{name: each})


@cache
def ranges(kind: Any) -> dict[str, Range]:
    """Ranges in the types of a dataclass's fields, by name."""
    hints = get_type_hints(kind, include_extras=True)
    return {each.name: found for each in fields(kind) if (found := _range_in(hints[each.name]))}


def _range_in(hint: Any) -> Range | None:
    return hint if isinstance(hint, Range) else next(filter(None, map(_range_in, get_args(hint))), None)


def option(default: Any, text: str, key: str = "help", **metadata: Any) -> Any:
    """Field of a dataclass with its help, for `transformers.HfArgumentParser` and `cli.options.add_options`.

    The help is the metadata's `key`: pydantic reads "description". Other metadata are `aliases` for the former parser,
    `advanced` for the latter. Each object gets its own copy of a list.
    """
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={key: text, **metadata})
    return field(default=default, metadata={key: text, **metadata})


_described = partial(option, key="description")


@dataclass(frozen=True)
class SearchOptions:
    """How to search for translations; None means the model's own setting."""

    num_beams: Beams | None = _described(None, "Beams; 1: greedy. Default: the model's setting.")
    num_hypotheses: Beams = _described(1, "Translations of each sentence, best first.")
    length_penalty: Annotated[float, Range(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] | None = _described(
        None, "Above 0 favours long translations. Default: the model's setting."
    )
    do_sample: bool = _described(False, "Draw tokens at random.")
    temperature: Annotated[float, Range(ge=0.01, le=100)] | None = _described(
        None, "Of sampling; below 1 favours likely tokens."
    )
    top_k: Count | None = _described(None, "Sample from this many tokens.")
    top_p: Annotated[float, Range(gt=0, le=1)] | None = _described(
        None, "Sample from the likeliest tokens of this probability."
    )
    max_new_tokens: Count | None = _described(
        None, "Most tokens of a translated sentence. Default: 50 more than its source has."
    )


@dataclass(frozen=True)
class BatchOptions:
    """How much to read and compute at a time."""

    max_tokens: Positive = option(4096, "Source tokens x beams decoded at once; lower it if memory runs out.")
    chunk_size: Positive = option(8192, "Lines to read and sort at a time; 1 answers each at once.", advanced=True)
