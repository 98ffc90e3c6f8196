import re

import pytest
import torch

from benchmarking import results, small_arguments
from benchmarks.agreement import check_tokens
from benchmarks.baselines import ctranslate2_like, our_model
from benchmarks.generate import cublas_missing, decoding_case, generate_benchmark, generation, own_ways
from benchmarks.run import run_benchmarks
from hf_vanilla_transformer.data.arguments import DataArguments


def test_without_ctranslate2_the_rest_is_measured(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("benchmarks.generate.ctranslate2_missing", lambda: "it is not installed")
    case = decoding_case("tiny", 2, 1, "float32", small_arguments(), tmp_path)
    assert list(case.implementations) == ["ours", "marian"]
    assert capsys.readouterr().err == "ctranslate2: not measured, it is not installed\n"


@pytest.mark.slow
def test_generate_benchmark(tmp_path):
    pytest.importorskip("ctranslate2", reason="the extra `export` installs it")
    args = small_arguments(tmp_path, dtype=["float32", "bfloat16"], rounds=1)
    run_benchmarks({"generate": generate_benchmark}, args, DataArguments())
    measured = {each["name"]: each for each in results(tmp_path)["measurements"]}
    assert len(measured) == 4
    beam = measured["beam 2, tiny, 3 x 6, float32"]
    assert set(beam["ratios"]) == {"marian", "ctranslate2 float32", "ctranslate2 int8"}
    assert beam["notes"].startswith("100.0% of marian's tokens")
    assert 0 < beam["utilization"]["ours"]
    sizes = re.search(r"ctranslate2 float32 takes (.*) MB, ctranslate2 int8 takes (.*) MB$", beam["notes"]).groups()
    assert 0 < float(sizes[1]) < 0.6 * float(sizes[0])
    # The bfloat16 roofline does not apply to float32 implementations.
    assert set(measured["beam 2, tiny, 3 x 6, bfloat16"]["utilization"]) == {"ours", "marian"}
    assert set(beam["utilization"]) == {"ours", "marian", "ctranslate2 float32"}


@pytest.mark.parametrize("num_beams", [1, 4])
def test_steps_over_a_static_cache_are_measured_too(tmp_path, num_beams):
    case = decoding_case(
        "tiny", 2, num_beams, "float32", small_arguments(torch_compile=True, baselines=["marian"]), tmp_path
    )
    assert list(case.implementations) == ["ours", "ours, static cache", "marian"]
    assert case.notes.startswith("100.0% of ours, static cache's tokens are equal")


def test_ways_to_decode_on_a_gpu():
    args = small_arguments(torch_compile=True)
    args.device = "cuda"
    ways = own_ways(args)
    assert list(ways) == ["ours", "ours, without graphs", "ours, static cache"] and not ways["ours"]
    assert ways["ours, static cache"]["compile_config"] is not None


@pytest.mark.parametrize(
    ("libraries", "reason"),
    [
        (["libcublas.so.12"], None),
        ([], "libcublas.so.12 is not found"),
        (["libcublas.so.13"], "libcublas.so.12 is not found; libcublas.so.13 exists: link to it"),
    ],
)
def test_the_library_of_products_on_a_gpu_may_be_missing(monkeypatch, libraries, reason):
    def load(name):
        if name not in libraries:
            raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr("ctypes.CDLL", load)
    found = cublas_missing()
    assert found == reason or found.startswith(reason)


@pytest.mark.parametrize("num_beams", [1, 4])
def test_ctranslate2_decodes_our_tokens(tmp_path, num_beams):
    pytest.importorskip("ctranslate2", reason="the extra `export` installs it")
    ours = our_model("tiny", vocab_size=50).eval()
    ids = torch.randint(4, 50, (5, 7))
    decoder = ctranslate2_like(ours, tmp_path, "cpu")
    expected = generation(ours, ids, num_beams)()
    assert check_tokens(expected, decoder(ids, num_beams, 7)(), "ctranslate2", "float32") == 1
    assert expected.shape == (5, 8)
