import pytest

from benchmarking import results, small_arguments
from benchmarks.run import run_benchmarks
from benchmarks.scaling import scaling_benchmark, stream_cases
from hf_vanilla_transformer.data.arguments import DataArguments


@pytest.mark.slow  # a dozen models; the cases come from the builders of the other benchmarks
def test_scaling_benchmark(tmp_path):
    run_benchmarks({"scaling": scaling_benchmark}, small_arguments(tmp_path, baselines=["marian"]), DataArguments())
    fits = {each["axis"]: each for each in results(tmp_path)["scaling"]}
    assert set(fits) == {"source length", "vocabulary", "layers", "batch", "beams", "pairs streamed"}
    assert fits["source length"]["sizes"] == [32, 64] and set(fits["batch"]["baselines"]) == {"marian"}
    assert len(fits["pairs streamed"]["sizes"]) == 7 and fits["pairs streamed"]["sizes"][-1] == 2000


def test_each_cost_is_measured_over_its_size():
    cases = list(scaling_benchmark(small_arguments(scales=[1], baselines=["marian"]), DataArguments()))
    axes = [case.axis for case in cases[:5]]
    assert axes == [("source length", 32), ("vocabulary", 1000), ("layers", 1), ("batch", 1), ("beams", 1)]
    for case in cases[:5]:
        assert set(case.implementations) == {"ours", "marian"} and case.flops
    cases[0].implementations["marian"]()


def test_memory_is_read_along_a_stream():
    cases = list(stream_cases(small_arguments()))
    assert len(cases) == 7 and cases[-1].axis == ("pairs streamed", 2000)
    assert cases[-1].implementations["ours"]().cost >= 0
