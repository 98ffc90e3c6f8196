"""Memory of a server is returned."""

import asyncio

from hf_vanilla_transformer.serving import engine
from hf_vanilla_transformer.serving.engine import ServedModel, release_memory
from translators import build


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
