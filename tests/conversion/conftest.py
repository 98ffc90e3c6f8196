"""Fixtures for all tests of conversion."""

import pytest


@pytest.fixture(autouse=True)
def _on_one_thread(one_thread):
    """Models this small are slower on several threads."""
