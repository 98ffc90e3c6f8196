"""Benchmarks that measure fresh processes."""

from pathlib import Path

import numpy as np
import pytest

from benchmarking import results, small_arguments
from benchmarks.machine import run_python
from benchmarks.measure import measure
from benchmarks.memory import MALLOC, memory_benchmark
from benchmarks.run import run_benchmarks
from benchmarks.startup import startup_benchmark
from hf_vanilla_transformer.data.arguments import DataArguments

needs_proc = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="memory is read from Linux's /proc")


def test_a_failed_process_says_why():
    with pytest.raises(OSError, match="a benchmark process failed: ValueError: no such thing"):
        run_python("raise ValueError('no such thing')")


@pytest.mark.slow  # a fresh process that imports torch
@needs_proc
def test_the_peak_of_memory_is_seen():
    program = """
import numpy as np
from benchmarks.machine import resident_bytes
from benchmarks.memory import peak_bytes, reset_peak
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
    assert costs["marian"] > 2 * logits > costs["ours"]


@pytest.mark.slow  # a dozen fresh processes
@needs_proc
def test_memory_and_startup_benchmarks(tmp_path):
    benchmarks = {"memory": memory_benchmark, "startup": startup_benchmark}
    run_benchmarks(benchmarks, small_arguments(tmp_path, rounds=1), DataArguments())
    measured = {each["name"]: each for each in results(tmp_path)["measurements"]}
    step = "step, tiny, vocabulary 320, 4 x 6, float32"
    assert set(measured) == {step, "import", "first translation, tiny, float32"}
    assert set(measured[step]["ratios"]) == {"marian", "bart"}
