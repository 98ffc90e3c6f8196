"""Clients against a small server in a thread."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.clients import NO_ANSWER, own_process, run_load


class Handler(BaseHTTPRequestHandler):
    """Echoes requests; refuses a repeated text."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(content)
        status = 503 if asked in self.server.seen else 200
        self.server.seen.append(asked)
        self.server.peers.add(self.client_address)
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def echo() -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.seen, server.peers = [], set()
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def url(server: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/"


def test_each_request_is_sent_once_and_answers_have_their_order(echo):
    with own_process() as process:
        load = process.submit(run_load, url(echo), [{"text": str(i)} for i in range(50)], 4).result()
    assert [answer.json()["text"] for answer in load.answers] == [str(i) for i in range(50)]
    assert {answer.status for answer in load.answers} == {200} and len(echo.seen) == 50
    assert 1 <= len(echo.peers) <= 4, "clients keep their connections"
    assert all(0 < answer.seconds <= load.seconds and 0 <= answer.sent <= load.seconds for answer in load.answers)


def test_requests_are_repeated_for_as_long_as_asked(echo):
    load = run_load(url(echo), ["a", "b"], 2, seconds=0.2)
    assert len(load.answers) == len(echo.seen) > 2
    assert [answer.json() for answer in load.answers] == (["a", "b"] * len(load.answers))[: len(load.answers)]
    # The first request of each text succeeds; their order is arbitrary.
    statuses = [answer.status for answer in load.answers]
    assert statuses.count(200) == 2 and statuses.count(503) == len(statuses) - 2
    assert 0.2 <= load.seconds


def test_a_server_that_is_gone_gives_no_answer(echo):
    gone = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    gone.server_close()
    (answer,) = run_load(url(gone), ["a"], 1).answers
    assert answer.status == NO_ANSWER and "refused" in answer.body or "Cannot connect" in answer.body
