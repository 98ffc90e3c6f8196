"""Tiny models behind the application."""

import threading
import time

import pytest
import torch
import uvicorn
from fastapi.testclient import TestClient

from hf_vanilla_transformer.serving.application import create_application
from hf_vanilla_transformer.serving.engine import Engine, ServedModel
from hf_vanilla_transformer.serving.server import address, listen
from translators import build


def concise(kind):
    """Return a model whose outputs end before the length limit, which depends on the batch, and its tokenizer."""
    model, tokenizer = build(kind)
    with torch.no_grad():
        model.lm_head.bias[model.config.eos_token_id] += 3
    return model, tokenizer


@pytest.fixture(scope="package")
def engine():
    engine = Engine(
        [
            ServedModel("en-es", *concise("shared"), [("en", "es")], patience=0.0),
            ServedModel("de-fr", *concise("pair"), [("de", "fr")], patience=0.0),
        ]
    )
    yield engine
    engine.close()


@pytest.fixture(scope="package")
def two_sources():
    """An engine whose model translates from two languages into a third."""
    engine = Engine([ServedModel("both", *concise("shared"), [("en", "es"), ("de", "es")], patience=0.0)])
    yield engine
    engine.close()


@pytest.fixture(scope="package")
def application(engine):
    return create_application(engine)


@pytest.fixture(scope="package")
def url(application):
    """URL of the running application."""
    listening = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application, lifespan="off", log_level="warning"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield address(listening)
    server.should_exit = True
    thread.join()


@pytest.fixture
def client(application):
    # Without the lifespan, whose end would close the shared engine.
    return TestClient(application, raise_server_exceptions=False)
