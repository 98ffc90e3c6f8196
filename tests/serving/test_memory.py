"""Memory of a server: routines that are kept, and memory that is returned."""

import asyncio
import os

import pytest

from hf_vanilla_transformer.serving import engine
from hf_vanilla_transformer.serving.engine import ServedModel
from hf_vanilla_transformer.serving.memory import ROUTINES_VARIABLES, limit_routines, release_memory
from translators import build


@pytest.mark.parametrize(("given", "kept"), [(None, "64"), ("1024", "1024")])
@pytest.mark.parametrize("variable", ROUTINES_VARIABLES)
def test_a_number_of_routines_that_is_given_stays(monkeypatch, variable, given, kept):
    for each in ROUTINES_VARIABLES:
        # Set first, so that it is unset again after the test.
        monkeypatch.setenv(each, given or "")
        if given is None:
            monkeypatch.delenv(each)
    limit_routines()
    assert os.environ[variable] == kept


def test_memory_is_released_every_so_many_batches(monkeypatch):
    released = []
    monkeypatch.setattr(engine, "BATCHES_BETWEEN_RELEASES", 3)
    monkeypatch.setattr(engine, "release_memory", lambda: released.append(1))
    served = ServedModel("tiny", *build("shared"), patience=0.0)
    for _ in range(7):
        asyncio.run(served.translate(["a red house"]))
    served.close()
    assert len(released) == 2


def test_releasing_fails_nowhere(monkeypatch):
    release_memory()
    monkeypatch.setattr("sys.platform", "darwin")
    release_memory()
