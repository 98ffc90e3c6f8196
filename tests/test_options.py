from dataclasses import dataclass
from math import inf, nan
from typing import Annotated

import pytest

from hf_vanilla_transformer.cli.options import OneLineParser, add_options
from hf_vanilla_transformer.options import (
    NOT_NEGATIVE,
    POSITIVE,
    Fraction,
    Positive,
    Range,
    check_range,
    check_ranges,
    option,
)
from tables import looped


@dataclass
class Options:
    beams: Positive | None = option(None, "Beams.")
    rate: Fraction = option(0.5, "A rate.", key="description")
    name: str = option("a", "A name.")


@looped(
    ("wanted", "value", "words"),
    [
        (POSITIVE, 0, "is 0; it must be positive"),
        (POSITIVE, -(10**400), "; it must be positive"),
        (NOT_NEGATIVE, -1.5, "is -1.5; it must be at least 0"),
        (NOT_NEGATIVE, inf, "is inf; it must be finite and at least 0"),
        (NOT_NEGATIVE, nan, "is nan; it must be at least 0"),
        (Range(gt=0, le=1), 2, "is 2; it must be positive and at most 1"),
        (Range(ge=2, lt=10_000), 10_000, "is 10000; it must be at least 2 and below 10,000"),
    ],
)
def test_a_number_out_of_range(wanted, value, words):
    with pytest.raises(ValueError, match=f"`number` .*{words}"):
        check_range(wanted, number=value)


def test_numbers_in_range():
    check_range(POSITIVE, one=1, other=10**400, missing=None)
    check_ranges(Options())
    with pytest.raises(ValueError, match="`rate` is 1; it must be at least 0 and below 1"):
        check_ranges(Options(rate=1.0))


@dataclass
class Request(Options):
    sizes: Annotated[int, Range(ge=2)] = 2


def test_pydantic_has_the_same_ranges():
    pydantic = pytest.importorskip("pydantic")
    requests = pydantic.TypeAdapter(Request)
    assert requests.validate_python({"beams": 3, "rate": 0.0}) == Request(3, 0.0)
    for wrong in ({"beams": 0}, {"rate": 1}, {"rate": nan}, {"sizes": 1}):
        with pytest.raises(pydantic.ValidationError):
            requests.validate_python(wrong)
    assert requests.json_schema()["properties"]["rate"]["description"] == "A rate."


def test_the_command_line_has_the_same_ranges(capsys):
    parser = OneLineParser("program")
    add_options(parser, parser.add_argument_group("numbers"), Options, "beams", "rate", rate={"help": "Its rate."})
    assert vars(parser.parse_args([])) == {"beams": None, "rate": 0.5}
    assert parser.parse_args(["--beams", "3"]).beams == 3
    with pytest.raises(ValueError, match="`rate` is 1; it must be"):
        parser.parse_args(["--rate", "1"])
    assert "Its rate (default: 0.5)." in parser.format_help()
