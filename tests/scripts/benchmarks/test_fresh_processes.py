"""Benchmarks that measure fresh processes."""

import json
from pathlib import Path

import datasets
import numpy as np
import pytest
from torch.nn import functional as F

from benchmarking import results, small_arguments
from benchmarks import loss, memory, peak, startup
from benchmarks.machine import run_python
from benchmarks.measure import Disagreement, measure
from benchmarks.memory import memory_benchmark
from benchmarks.peak import MALLOC
from benchmarks.run import run_benchmarks
from benchmarks.startup import startup_benchmark
from hf_vanilla_transformer.data.arguments import DataArguments

needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux's /proc")


def test_a_failed_process_says_why():
    with pytest.raises(OSError, match="a benchmark process failed: ValueError: no such thing"):
        run_python("raise ValueError('no such thing')")


@pytest.mark.slow
@needs_proc
def test_peaks_of_every_implementation_are_measured(monkeypatch):
    """Runs in this process, so peaks are not those of the step alone."""
    environments = []

    def run(program, arguments, **environment):
        environments.append(environment)
        return str(memory.peak_of_step(**json.loads(arguments)))

    monkeypatch.setattr(peak, "run_python", run)
    (case,) = memory_benchmark(small_arguments(), DataArguments())
    assert case.name == "step, tiny, vocabulary 320, 4 x 6, float32" and case.quantity == "bytes"
    costs = {name: work().cost for name, work in case.implementations.items()}
    assert set(costs) == {"ours", memory.CHECKPOINTED, "marian", "bart"}
    assert all(cost >= 0 for cost in costs.values()) and environments == [MALLOC] * 4


@pytest.mark.slow
@needs_proc
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_losses_agree_and_are_measured(monkeypatch, dtype):
    def run(program, arguments, **environment):
        return str(loss.peak_of_loss(**json.loads(arguments)))

    monkeypatch.setattr(peak, "run_python", run)
    cases = list(loss.loss_benchmark(small_arguments(tokens=64, dtype=[dtype]), DataArguments()))
    assert [case.quantity for case in cases] == ["seconds", "bytes"] * 2
    assert cases[0].name == f"64 x 128, vocabulary 300, {dtype}"
    for case in cases:
        assert {"ours", "logits"} <= set(case.implementations)
        assert ("torch linear_cross_entropy" in case.implementations) == hasattr(F, "linear_cross_entropy")
        for work in case.implementations.values():
            result = work()
            assert result is None if case.quantity == "seconds" else result.cost >= 0


def test_a_loss_that_differs_is_not_timed(monkeypatch):
    monkeypatch.setattr(loss, "with_logits", lambda *inputs: 2 * loss.chunked(*inputs))
    with pytest.raises(Disagreement, match="logits and ours do not agree"):
        list(loss.loss_benchmark(small_arguments(), DataArguments()))


def test_losses_in_triton_need_a_gpu(monkeypatch):
    monkeypatch.setattr(loss, "find_spec", lambda name: True)
    triton = {"liger", "cut_cross_entropy"}
    assert triton <= set(loss.available_losses("cuda")) and not triton & set(loss.available_losses("cpu"))


def test_memory_on_a_cpu_needs_linux(monkeypatch):
    def refuse(*args, **kwargs):
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(Path, "write_text", refuse)
    with pytest.raises(OSError, match="measuring memory on a CPU needs Linux's /proc .*; set `device` to cuda"):
        peak.reset_peak()


@pytest.fixture
def corpus(monkeypatch):
    pairs = datasets.Dataset.from_dict({"source": ["This is the first sentence."]})
    monkeypatch.setattr(startup, "load_toy_corpus", lambda: {"train": pairs})


def test_starts_are_compared(monkeypatch, corpus):
    programs = []

    def run(program, *arguments, **environment):
        programs.append((program, arguments))
        assert all((Path(folder) / "model.safetensors").is_file() for folder in arguments)
        return "[1, 5, 2]"

    monkeypatch.setattr(startup, "run_python", run)
    importing, translating = startup_benchmark(small_arguments(), DataArguments())
    assert (importing.name, translating.name) == ("import", "first translation, tiny, float32")
    assert [Path(*arguments).name for _, arguments in programs] == ["ours", "marian"]
    assert "AutoModelForSeq2SeqLM" in programs[0][0] and "MarianMTModel" in programs[1][0]


def test_other_first_translations_are_not_timed(monkeypatch, corpus):
    monkeypatch.setattr(startup, "run_python", lambda program, folder, **environment: folder)
    with pytest.raises(Disagreement, match="the first translations differ"):
        list(startup_benchmark(small_arguments(), DataArguments()))


@pytest.mark.slow  # a fresh process that imports torch
@needs_proc
def test_the_peak_of_memory_is_seen():
    program = """
import numpy as np
from benchmarks.machine import resident_bytes
from benchmarks.peak import peak_bytes, reset_peak
np.ones(200_000_000, dtype=np.uint8)
before = resident_bytes()
reset_peak()
np.ones(100_000_000, dtype=np.uint8)
print(peak_bytes() - before)
"""
    assert float(run_python(program, **MALLOC)) == pytest.approx(1e8, rel=0.03)


@pytest.mark.slow  # two fresh processes, each with a training step
@needs_proc
def test_memory_of_a_step_includes_logits(tmp_path):
    args = small_arguments(tmp_path, memory_tokens=2048, length=32, vocab_size=[20_000], baselines=["marian"])
    (case,) = memory_benchmark(args, DataArguments())
    costs = {name: float(np.median(each)) for name, each in measure(case, rounds=1).costs.items()}
    logits = 4 * 2048 * 20_000
    # Marian stores at least the logits and their gradient, ours neither.
    assert costs["marian"] > 2 * logits > costs["ours"] > costs[memory.CHECKPOINTED]


@pytest.mark.slow  # a dozen fresh processes
@needs_proc
def test_memory_and_startup_benchmarks(tmp_path):
    benchmarks = {"memory": memory_benchmark, "startup": startup_benchmark}
    run_benchmarks(benchmarks, small_arguments(tmp_path, rounds=1), DataArguments())
    measured = {each["name"]: each for each in results(tmp_path)["measurements"]}
    step = "step, tiny, vocabulary 320, 4 x 6, float32"
    assert set(measured) == {step, "import", "first translation, tiny, float32"}
    assert set(measured[step]["ratios"]) == {memory.CHECKPOINTED, "marian", "bart"}
