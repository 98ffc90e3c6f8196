"""Options shared by commands, library and server, each declared once: type, default, help and range."""

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
    """Bounds of a finite number, as part of a field's type: `Annotated[int, Range(ge=2)]`."""

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
# A probability below 1, or a decay.
Fraction = Annotated[float, Range(ge=0, lt=1)]
# A length with room for a token and the end token.
Length = Annotated[int, Range(ge=2)]

# Python integers are unbounded, but search uses 64-bit ones.
MAX_COUNT = 2**31 - 1
# More beams would run out of time or memory.
MAX_BEAMS = 10_000
# A length to this power must fit in 64 bits.
MAX_LENGTH_PENALTY = 5

NumBeams = Annotated[int, Range(gt=0, le=MAX_BEAMS)]
NumTokens = Annotated[int, Range(gt=0, le=MAX_COUNT)]


def check_range(wanted: Range, error: type[ValueError] = ValueError, /, **values: float | None) -> None:
    """Raise an error that names the first argument out of range; None passes."""
    for name, value in values.items():
        if value is not None and value not in wanted:
            shown = f"{value:g}" if isinstance(value, float) else value
            finite = "finite and " if value == inf else ""
            raise error(f"`{name}` is {shown}; it must be {finite}{wanted}")


def check_choice(wanted: Any, error: type[ValueError] = ValueError, /, **values: str) -> None:
    """Raise an error that names the first argument that is not a value of the `Literal` type `wanted`."""
    for name, value in values.items():
        if value not in get_args(wanted):
            raise error(f"`{name}` {value!r} is not one of {', '.join(get_args(wanted))}")


def check_ranges(arguments: Any, error: type[ValueError] = ValueError) -> None:
    """Raise an error if a dataclass field, or an item of a list field, is out of range."""
    kind: Any = type(arguments)
    for name, wanted in ranges(kind).items():
        value = getattr(arguments, name)
        for item in value if isinstance(value, list) else [value]:
            check_range(wanted, error, **{name: item})


@cache
def ranges(kind: Any) -> dict[str, Range]:
    """Return the ranges in the field types of a dataclass, by field name."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: wanted for field in fields(kind) if (wanted := _range_in(hints[field.name]))}


def _range_in(hint: Any) -> Range | None:
    return hint if isinstance(hint, Range) else next(filter(None, map(_range_in, get_args(hint))), None)


def option(default: Any, text: str, key: str = "help", **metadata: Any) -> Any:
    """Dataclass field with help text, for `transformers.HfArgumentParser` and `cli.options.add_options`.

    The text is stored under `key` in the metadata; pydantic reads "description". Other metadata: `aliases`, for the
    former, and `advanced`, for the latter. A list default is copied for each object.
    """
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={key: text, **metadata})
    return field(default=default, metadata={key: text, **metadata})


_described = partial(option, key="description")


@dataclass(frozen=True)
class SearchOptions:
    """Search settings; None means the model's own setting."""

    num_beams: NumBeams | None = _described(None, "Beams; 1: greedy. Default: the model's setting.")
    num_hypotheses: NumBeams = _described(1, "Translations per sentence, best first.")
    length_penalty: Annotated[float, Range(ge=-MAX_LENGTH_PENALTY, le=MAX_LENGTH_PENALTY)] | None = _described(
        None, "Above 0 favors long translations. Default: the model's setting."
    )
    no_repeat_ngram_size: NotNegative | None = _described(
        None, "Allow no sequence of this many tokens twice in a translation; 0: any. Default: the model's."
    )
    do_sample: bool = _described(False, "Sample tokens instead of searching.")
    temperature: Annotated[float, Range(ge=0.01, le=100)] | None = _described(
        None, "Sampling temperature; below 1 favors likely tokens."
    )
    top_k: NumTokens | None = _described(None, "Sample from this many likeliest tokens.")
    top_p: Annotated[float, Range(gt=0, le=1)] | None = _described(
        None, "Sample from the likeliest tokens with this total probability."
    )
    max_new_tokens: NumTokens | None = _described(
        None, "Maximum tokens per translated sentence. Default: 50 more than its source has."
    )


@dataclass(frozen=True)
class BatchOptions:
    """How much to read and compute at a time."""

    max_tokens: Positive = option(4096, "Source tokens x beams decoded at once; lower it if memory runs out.")
    chunk_size: Positive = option(8192, "Lines read and sorted at a time; 1: translate each at once.", advanced=True)
