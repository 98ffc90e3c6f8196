from types import SimpleNamespace

from torch.autograd import DeviceType

from benchmarking import results, small_arguments
from benchmarks.profile import profile_benchmark, summary, tables
from benchmarks.run import run_benchmarks
from hf_vanilla_transformer.data.arguments import DataArguments


def test_profile_benchmark(tmp_path, capsys):
    args = small_arguments(tmp_path, rounds=1)
    run_benchmarks({"profile": profile_benchmark}, args, DataArguments())
    printed = capsys.readouterr().out
    step, beams = results(tmp_path)["measurements"]
    assert step["name"] == "step, tiny, vocabulary 320, 4 x 6, float32" and step["unit"] == "steps"
    assert beams["name"] == "beams 2, tiny, 3 x 6, float32" and beams["rates"]["ours"] > 0
    assert printed.count("on the host") == 2 and "  aten::" in printed


def test_kernels_of_a_gpu_come_first():
    def event(name, device, count, host, gpu):
        times = {"self_cpu_time_total": host, "self_device_time_total": gpu}
        return SimpleNamespace(key=name, device_type=device, count=count, **times)

    averages = [
        event("aten::mm", DeviceType.CPU, 10, 4000.0, 9000.0),
        event("gemm", DeviceType.CUDA, 20, 0.0, 9000.0),
        event("copy", DeviceType.CUDA, 10, 0.0, 11000.0),
    ]
    assert [line.split() for line in tables(averages, "cuda")] == [
        ["ms", "a", "call", "times", "on", "the", "GPU"],
        ["1.100", "1.0", "copy"],
        ["0.900", "2.0", "gemm"],
        ["ms", "a", "call", "times", "on", "the", "host"],
        ["0.400", "1.0", "aten::mm"],
    ]
    assert summary(averages) == "the GPU is busy for 2.0 ms a call, with 3 kernels and copies"
    assert summary(averages[:1]) == ""
