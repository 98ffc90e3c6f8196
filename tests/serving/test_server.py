import asyncio
import http.client
import logging
import threading
from types import SimpleNamespace
from urllib.parse import urlsplit

import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from hf_vanilla_transformer.inference.translation import logger, remarks_logger
from hf_vanilla_transformer.serving import server
from hf_vanilla_transformer.serving.server import Server, address, listen


def test_a_page_that_stays_open_is_cut_off(monkeypatch, capsys):
    monkeypatch.setattr(server, "LAST_ANSWERS", 0.1)
    application, engine = FastAPI(), SimpleNamespace(draining=False, is_idle=True)

    @application.get("/")
    async def stream():
        async def forever():
            while True:
                yield b"x"
                await asyncio.sleep(0.05)

        return StreamingResponse(forever())

    with listen("127.0.0.1", 0) as listening:
        running = Server(uvicorn.Config(application, log_level="warning"), engine)
        thread = threading.Thread(target=running.run, kwargs={"sockets": [listening]})
        thread.start()
        connection = http.client.HTTPConnection(urlsplit(address(listening)).netloc)
        while not running.started:
            pass
        connection.request("GET", "/")
        answer = connection.getresponse()
        assert answer.read(1) == b"x"
        running.handle_exit(15, None)
        with pytest.raises((ConnectionError, http.client.IncompleteRead)):
            answer.read()
        thread.join()
        connection.close()
    assert engine.draining
    assert "(routes at /docs)" in capsys.readouterr().out


def test_remarks_on_translations_are_not_logged(monkeypatch):
    before = remarks_logger.level
    monkeypatch.setattr(Server, "run", lambda self, sockets: None)
    try:
        assert remarks_logger.isEnabledFor(logging.WARNING)
        server.serve(FastAPI(), SimpleNamespace(), None)
        assert not remarks_logger.isEnabledFor(logging.WARNING) and logger.isEnabledFor(logging.WARNING)
    finally:
        remarks_logger.setLevel(before)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_addresses(host):
    with listen(host, 0) as listening:
        port = listening.getsockname()[1]
        assert address(listening) == f"http://{'[::1]' if host == '::1' else '127.0.0.1'}:{port}"


@pytest.mark.parametrize(("host", "port"), [("256.1.1.1", 0), ("127.0.0.1", 70_000), ("no such host", 0)])
def test_addresses_that_cannot_be_used(host, port):
    with pytest.raises(ValueError, match=f"`host` {host}, `port` {port} cannot be used: .*; choose others"):
        listen(host, port)
