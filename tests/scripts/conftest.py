"""One thread for the small models of the programs."""

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass
