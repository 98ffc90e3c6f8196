"""What every reliability test records, and the settings of hypothesis."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from hf_vanilla_transformer.cli.main import main
from reliability import cases

# The same cases in every run, however long each takes.
settings.register_profile(
    "reliability", derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("reliability")


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Record a row of docs/reliability.md: `tried("kill -9 while saving", 20)`, or with `lost="..."` if anything is.

    A test may record several rows; equal rows of several tests, such as those of a parametrized one, are added up.
    """

    def record(what: str, count: int, lost: str = "nothing") -> None:
        record_property("tried", f"{count}|{what}|{lost}")

    return record


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, str, str]]:
    """Run a command as a program would; return its status and what it printed, and what of that is errors."""

    def start(*words: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["vanilla-transformer", *map(str, words)])
        # What was printed before.
        capfd.readouterr()
        status: Any = 0
        try:
            main()
        except SystemExit as stop:
            status = stop.code
        printed = capfd.readouterr()
        return status, printed.out + printed.err, printed.err

    return start


@pytest.fixture
def fuzz(tried: Callable[..., None]) -> Callable[..., Any]:
    """Run the property below it at once, for a few or all of its cases, and record the row.

    `@fuzz("files of any bytes", 30, 1500)` stands above `@given(...)`.
    """

    def decorate(what: str, few: int, all_of_them: int) -> Callable[[Callable[[], None]], None]:
        def run(check: Callable[[], None]) -> None:
            number = cases(few, all_of_them)
            settings(max_examples=number)(check)()
            tried(what, number)

        return run

    return decorate
