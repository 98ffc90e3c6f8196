"""Records of the reliability tests, and hypothesis settings."""

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from hf_vanilla_transformer.cli.main import main
from reliability import cases

# The same cases in every run, without time limits.
settings.register_profile(
    "reliability", derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck)
)
settings.load_profile("reliability")


@pytest.fixture
def tried(record_property: Callable[[str, object], None]) -> Callable[..., None]:
    """Record a row of docs/reliability.md: `tried("kill -9 while saving", 20)`, with `lost="..."` if anything was.

    A test may record several rows. Counts of equal rows, as from parametrized tests, are added up.
    """

    def record(what: str, count: int, lost: str = "nothing") -> None:
        record_property("tried", f"{count}|{what}|{lost}")

    return record


@pytest.fixture
def run(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Any, str, str]]:
    """Run a command in this process; return its exit status, its output, and the part on standard error."""

    def start(*words: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["vanilla-transformer", *map(str, words)])
        # Discard earlier output.
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
    """Run the decorated property at once, with few or all cases, and record the row.

    Goes above `@given(...)`: `@fuzz("files of any bytes", 30, 1500)`.
    """

    def decorate(what: str, few: int, all_of_them: int) -> Callable[[Callable[[], None]], None]:
        def run(check: Callable[[], None]) -> None:
            number = cases(few, all_of_them)
            settings(max_examples=number)(check)()
            tried(what, number)

        return run

    return decorate
