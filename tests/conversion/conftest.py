"""What all tests of conversion have in common."""

import pytest


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread):
    """Models this small are slower on several."""
