from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

from benchmarking import results, small_arguments
from benchmarks.profile import profile_benchmark, summary
from benchmarks.run import run_benchmarks
from hf_vanilla_transformer.data.arguments import DataArguments


@pytest.mark.slow
def test_profile_benchmark(tmp_path, capsys):
    args = small_arguments(tmp_path, rounds=1)
    run_benchmarks({"profile": profile_benchmark}, args, DataArguments())
    printed = capsys.readouterr().out
    step, beams = results(tmp_path)["measurements"]
    assert step["name"] == "step, tiny, vocabulary 320, 4 x 6, float32" and step["unit"] == "steps"
    assert beams["name"] == "beams 2, tiny, 3 x 6, float32" and beams["rates"]["ours"] > 0
    assert printed.count("Self CPU time total") == 2 and " aten::" in printed


def test_the_summary_counts_kernels_and_copies():
    def event(device, count, gpu, annotation=False):
        return SimpleNamespace(
            device_type=device, count=count, self_device_time_total=gpu, is_user_annotation=annotation
        )

    averages = [
        event(DeviceType.CPU, 10, 9000.0),
        event(DeviceType.CUDA, 20, 9000.0),
        event(DeviceType.CUDA, 10, 11000.0),
        event(DeviceType.CUDA, 10, 20000.0, annotation=True),
    ]
    assert summary(averages) == "GPU busy for 2.0 ms per call, with 3 kernels and copies"
    assert summary(averages[:1]) == ""
