"""What every reliability test records, and the settings of hypothesis."""

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

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
