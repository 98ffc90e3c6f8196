"""`make mutation`: mutations it skips, and the tests run against a mutant."""

import ast

import pytest

from modules import import_file
from paths import ROOT

SOURCE = """\
__all__ = ["f" + "g"]


def f(x: int | None = 1) -> int | None:
    if x is None:
        raise ValueError("x" * 2)
    logger.warning("x", x + 1)
    return (
        x
        + 1
    )
"""


@pytest.fixture(scope="module")
def mutation():
    return import_file(ROOT / "tests" / "reliability" / "mutation.py", "mutation")


def test_annotations_and_words_for_a_person_are_left_out(mutation):
    left_out = {ast.unparse(node) for node in mutation.uninteresting(ast.parse(SOURCE))}
    assert left_out == {
        "__all__ = ['f' + 'g']",
        "int | None",
        "raise ValueError('x' * 2)",
        "logger.warning('x', x + 1)",
    }


@pytest.mark.parametrize(
    "line, expected",
    [
        (1, (range(1, 2), False)),
        # Importing executes argument defaults; only a test that gets there executes a compound statement's head.
        (4, (range(4, 5), False)),
        (5, (range(5, 6), True)),
        (10, (range(8, 12), True)),
    ],
)
def test_a_mutant_meets_the_tests_of_its_statement(mutation, line, expected):
    assert mutation.statement_lines(SOURCE, line) == expected


def test_numbers_are_by_folder(mutation):
    killers = [("data", "tests/data/test_reading.py::test_pairs"), ("data", ""), ("model", "it never ends")]
    results = [
        (mutation.Mutant(mutation.PACKAGE / room / "a.py", 1, "AddNot", ""), killer) for room, killer in killers
    ]
    table = mutation.table(results)
    assert "| model | 1 | 1 (100.0%) | 0 |\n" in table
    assert "| data | 2 | 1 (50.0%) | 1 |\n" in table
    assert table.endswith("| all | 3 | 2 (66.7%) | 1 |\n")
