"""The server under load from many clients."""

import gc
import logging
import signal
import threading
import time

import pytest

from benchmarks.clients import NO_ANSWER, run_load
from servers import running_server
from translators import save_translator

BODIES = [{"text": f"a red house {'no ' * (i % 7)}", "max_new_tokens": 20} for i in range(50)]


@pytest.mark.slow
def test_a_signal_under_load_loses_no_request_that_was_taken(tmp_path):
    save_translator("shared", tmp_path / "tiny")
    with running_server("--model", tmp_path / "tiny") as (process, url):
        route = f"{url}/v1/translations"
        run_load(route, BODIES, 16)
        signalled: list[float] = []
        start = time.perf_counter()

        def end() -> None:
            signalled.append(time.perf_counter() - start)
            process.send_signal(signal.SIGTERM)

        threading.Timer(1.0, end).start()
        load = run_load(route, BODIES, 16, seconds=3.0)
        assert process.wait() == 0
        assert "Traceback" not in process.stderr.read()
    before = [answer for answer in load.answers if answer.sent < signalled[0]]
    after = [answer for answer in load.answers if answer.sent >= signalled[0]]
    assert len(before) >= 16 and {answer.status for answer in before} <= {200, 503}
    # Only the last ones may still have been in transit.
    assert all(answer.status == 200 for answer in before if answer.sent < signalled[0] - 0.2)
    assert {answer.status for answer in after} <= {200, 503, NO_ANSWER}
    assert after[-1].status in (503, NO_ANSWER)


# Requests of all kinds; rejected ones must not leak either.
KINDS = [
    {"text": "a red house", "max_new_tokens": 4},
    {"text": ["a cat", "no"], "num_beams": 2, "num_hypotheses": 2, "scores": True, "max_new_tokens": 4},
    {"text": "a cat", "num_beams": 1, "alignments": True, "max_new_tokens": 4},
    {"text": "a cat", "num_beams": 0},
    {"text": "a cat", "source": "xx"},
]


@pytest.mark.slow
def test_requests_leave_no_objects_behind(client, caplog):
    def send(times: int) -> int:
        for _ in range(times):
            for body in KINDS:
                client.post("/v1/translations", json={"source": "en", "target": "es", **body})
        gc.collect()
        return len(gc.get_objects())

    # pytest would keep warnings about short translations.
    caplog.set_level(logging.ERROR, logger="hf_vanilla_transformer")
    # Fill the caches.
    send(10)
    before = send(1)
    times = 20
    # Fewer than one object per two requests.
    assert send(times) - before < times * len(KINDS) / 2
