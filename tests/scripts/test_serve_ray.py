"""Two replicas on this machine."""

import os
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator

import psutil
import pytest

from benchmarks.clients import NO_ANSWER, run_load
from benchmarks.server import Server, running_server
from hf_vanilla_transformer.inference.translation import load, translate
from paths import SCRIPTS
from processes import surroundings
from servers import ask
from translators import save_translator

pytest.importorskip("ray", reason="the extra `ray` installs it")

SENTENCES = [f"a red house{' no' * (i % 5)}" for i in range(40)]
OPTIONS = {"split_sentences": False, "max_new_tokens": 20}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray") / "tiny"
    save_translator("shared", folder)
    return str(folder)


@pytest.fixture
def replicated(folder) -> Iterator[Server]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # Paths of Ray's sockets may have at most 107 characters.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as temporary:
        environment = {**surroundings(), "RAY_TMPDIR": temporary, "RAY_AUTH_MODE": "disabled"}
        command = [sys.executable, str(SCRIPTS / "serve_ray.py"), "--model", folder, "--port", str(port)]
        with running_server(command=command, environment=environment) as server:
            yield server


def replicas(server: Server) -> dict[int, psutil.Process]:
    children = psutil.Process(server.process.pid).children(recursive=True)
    return {child.pid: child for child in children if ":Replica" in " ".join(child.cmdline())}


@pytest.mark.slow
def test_an_answer_outlives_its_replica_and_a_signal_ends_all(replicated, folder):
    route = f"{replicated.url}/v1/translations"
    bodies = [{"text": sentence, **OPTIONS} for sentence in SENTENCES]
    offline = [best.text for best, *_ in translate(*load(folder, device="cpu"), SENTENCES, max_new_tokens=20)]
    before = replicas(replicated)
    assert len(before) == 2

    # One replica dies with requests in flight.
    victim = next(iter(before.values()))
    threading.Timer(1.0, victim.kill).start()
    answered = run_load(route, bodies * 10, 16)
    assert not victim.is_running()
    assert Counter(answer.status for answer in answered.answers) == {200: 400}
    texts = [answer.json()["translations"][0]["sentences"][0]["hypotheses"][0]["text"] for answer in answered.answers]
    assert texts == offline * 10

    # Ray starts a new one.
    while len(now := replicas(replicated)) < 2:
        time.sleep(0.5)
    assert now.keys() - before.keys()
    assert ask(f"{replicated.url}/health") == (200, {"status": "ok"})
    assert ask(route, {"text": 3})[0] == 422

    # After SIGTERM under load, accepted requests are answered.
    signalled: list[float] = []
    start = time.perf_counter()

    def end() -> None:
        signalled.append(time.perf_counter() - start)
        os.kill(replicated.process.pid, signal.SIGTERM)

    threading.Timer(1.0, end).start()
    answered = run_load(route, bodies * 100, 8, seconds=4)
    early = [answer.status for answer in answered.answers if answer.sent < signalled[0]]
    assert early and set(early) == {200}
    late = {answer.status for answer in answered.answers[-8:]}
    assert late <= {503, NO_ANSWER}
