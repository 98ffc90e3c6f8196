"""A shared translator fixture; modules list the kinds of models that they need in `KINDS`."""

from typing import Any

import pytest

from translators import build


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "translator" in metafunc.fixturenames:
        metafunc.parametrize("translator", metafunc.module.KINDS, indirect=True)


@pytest.fixture
def translator(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A model and its tokenizer; tests may change the model."""
    return build(request.param)
