import sys

import pytest

from benchmarking import results, small_arguments
from benchmarks.clients import Answer, Load
from benchmarks.measure import Case, Disagreement, Sample, measure
from benchmarks.report import format_notes
from benchmarks.run import run_benchmarks
from benchmarks.server import running_server
from benchmarks.serving import ask, check_equal, serve_benchmark, soak_benchmark, soak_cases, translations


def test_answers_in_another_order_disagree():
    check_equal(["a", "b"], ["a", "b"])
    with pytest.raises(Disagreement, match="2 of 3 answers differ .* sentence 2: 'c', offline 'b'"):
        check_equal(["a", "c", "b"], ["a", "b", "c"])
    with pytest.raises(Disagreement, match="1 translations for 2 sentences"):
        check_equal(["a"], ["a", "b"])


def test_translations_of_an_answer_are_the_best_ones():
    sentence = '{"source": "x", "hypotheses": [{"text": "best"}, {"text": "other"}]}'
    body = (
        f'{{"translations": [{{"text": "", "sentences": [{sentence}]}}, {{"text": "", "sentences": [{sentence}]}}]}}'
    )
    assert translations(Answer(200, body, 0.0, 1.0)) == ["best", "best"]


class _Now:
    """Stands in for a process, with fixed results."""

    def __init__(self, *answers):
        self.answers = [Answer(*each, 0.0, 0.1) for each in answers]

    def submit(self, function, *args):
        return self

    def result(self):
        return Load(self.answers, 1.0)


class _Server:
    url = "http://127.0.0.1"

    def __init__(self, *resident):
        self.resident = iter(resident)

    @property
    def resident_bytes(self):
        return next(self.resident)


def test_a_refused_request_is_named():
    assert len(ask(_Server(), ["a"], 1, _Now((200, "{}"))).answers) == 1
    with pytest.raises(OSError, match="request 2 with status 503: busy"):
        ask(_Server(), ["a", "b"], 1, _Now((200, "{}"), (503, "busy")))


def test_percentiles_of_latencies_are_reported():
    latencies = [0.001 * i for i in range(1, 101)]
    case = Case("serve", "8 clients", {"ours": lambda: Sample(2.0, 100, latencies=latencies)}, unit="sentences")
    measurement = measure(case, 1)
    assert measurement.latencies["ours"] == pytest.approx({50: 0.0505, 95: 0.09505, 99: 0.09901})
    assert format_notes(measurement) == "p50 50 ms, p95 95 ms, p99 99 ms"


def test_a_server_that_does_not_start_is_an_error():
    with pytest.raises(OSError, match="did not start"), running_server(command=[sys.executable, "-c", "print('oh')"]):
        pytest.fail("there is no server")


FAILING = (
    "import signal, time; signal.signal(15, lambda *_: exit(3)); print('http://x (y)', flush=True); time.sleep(99)"
)


def test_a_server_that_ends_badly_is_an_error():
    with pytest.raises(OSError, match="status 3"), running_server(command=[sys.executable, "-c", FAILING]) as server:
        assert server.url == "http://x" and server.resident_bytes > 0


@pytest.mark.parametrize(("growth", "grows"), [(0, False), (50, True)])
def test_growing_memory_fails_the_soak(monkeypatch, growth, grows):
    class Context:
        def __init__(self, value):
            self.value = value

        def __enter__(self):
            return self.value

        def __exit__(self, *exception):
            pass

    resident = [1000 + growth * part for part in range(20)]
    monkeypatch.setattr("benchmarks.serving.running_server", lambda *_, **__: Context(_Server(*resident)))
    monkeypatch.setattr("benchmarks.serving.own_process", lambda: Context(_Now((200, "{}"))))
    from benchmarks.serving import Model

    model = Model("tiny", "folder", "transformers", "cpu", None, 6)
    cases = soak_cases(model, ["a"], 400)
    found = [next(cases).implementations["ours"]().cost for _ in range(20)]
    assert found == resident
    if grows:
        with pytest.raises(ValueError, match="grew from 0 to 0 MB: tiny, transformers"):
            next(cases, None)
    else:
        assert next(cases, None) is None


@pytest.mark.slow
def test_served_and_offline_translations_agree(tmp_path, some_pairs):
    pytest.importorskip("ctranslate2", reason="the extra `export` installs it")
    args = small_arguments(tmp_path, rounds=1, seconds=1.0, clients=[1, 4])
    run_benchmarks({"serve": serve_benchmark}, args, some_pairs)
    found = results(tmp_path)["measurements"]
    kinds = ("transformers", "ctranslate2 int8")
    names = [f"{clients}, tiny, {kind}" for kind in kinds for clients in ("1 client", "4 clients")]
    assert [each["name"] for each in found] == names
    for each in found:
        assert set(each["ratios"]) == {"offline"} and each["unit"] == "sentences"
        percentiles = each["latencies"]["ours"]
        assert 0 < percentiles["50"] <= percentiles["95"] <= percentiles["99"] < each["costs"]["ours"][0]
    assert "p50 " in (tmp_path / "table.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_memory_is_flat_over_many_requests(tmp_path, some_pairs):
    # PyTorch's caches and heap would need far more requests to fill up.
    args = small_arguments(tmp_path, requests=2000, backend=["ctranslate2"])
    # Fails if memory grows by more than 5 %.
    run_benchmarks({"soak": soak_benchmark}, args, some_pairs)
    found = results(tmp_path)
    assert found["measurements"][-1]["axis"] == ["requests", 2000] and len(found["measurements"]) == 20
    (fit,) = found["scaling"]
    assert fit["quantity"] == "bytes" and fit["exponent"] < 0.05
