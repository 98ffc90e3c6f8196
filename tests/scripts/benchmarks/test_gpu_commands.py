"""What `make gpu-check` and `make gpu-benchmark` run, as far as a machine without a GPU can tell."""

import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarking import small_arguments
from benchmarks.arguments import BenchmarkArguments
from benchmarks.products import products_benchmark
from hf_vanilla_transformer.cli import train
from hf_vanilla_transformer.cli.options import OneLineParser, dataclass_parser, parse_dataclasses
from hf_vanilla_transformer.data.arguments import DataArguments
from paths import ROOT

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def commands(*words: str) -> list[list[str]]:
    """What make would run."""
    done = subprocess.run(["make", "-n", *words], cwd=ROOT, capture_output=True, text=True, check=True)
    return [shlex.split(line) for line in done.stdout.replace("\\\n", " ").splitlines() if "PYTHONPATH=" in line]


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    for name in ("train", "val", "test_2016_flickr"):
        for side in ("en", "de.gz"):
            (tmp_path / f"{name}.{side}").touch()
    return f"MULTI30K={tmp_path}"


def test_no_environment_is_made_for_a_python_that_is_named():
    printed = subprocess.run(["make", "-n", "gpu-check", "PYTHON=python3"], cwd=ROOT, capture_output=True, text=True)
    assert printed.returncode == 0 and "venv" not in printed.stdout and "pip" not in printed.stdout
    (check,) = commands("gpu-check", "PYTHON=python3")
    assert check[0] == "TEST_DEVICE=cuda" and "python3" in check
    for path in (word for word in check if word.startswith("tests/")):
        assert (ROOT / path).exists()


@pytest.mark.parametrize("part", ["train", "generate", "memory"])
def test_a_part_has_options_that_there_are(part, corpus, monkeypatch):
    (command,) = commands("gpu-benchmark", f"PART={part}", "PYTHON=python3", corpus)
    words = command[command.index("scripts/benchmark.py") + 1 :]
    kinds = (BenchmarkArguments, DataArguments)
    parser = dataclass_parser(kinds, "")
    parser.add_argument("benchmarks", nargs="+")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    chosen = parser.parse_args(words)
    args, data_args = parse_dataclasses(kinds, chosen)
    assert chosen.benchmarks == [part] and (args.device, args.dtype, args.preset) == ("cuda", ["bfloat16"], ["base"])
    assert args.vocab_size == [37000] and args.output_dir == f"runs/gpu/{part}"
    if part == "train":
        assert [Path(name).name for name in data_args.files("train")] == ["train.en", "train.de.gz"]
        assert args.packing and args.torch_compile


def test_multi30k_is_trained_by_its_recipe(corpus, monkeypatch):
    (command,) = commands("gpu-benchmark", "PART=multi30k", "PYTHON=python3", corpus)
    words = command[command.index("scripts/train_translation.py") + 1 :]
    assert words[0] == "scripts/recipes/multi30k_narrow.yaml" and "--resume_from_checkpoint" not in words
    monkeypatch.chdir(ROOT)
    parser = OneLineParser()
    parser.shows_all = True
    train.add_arguments(parser)
    arguments = train.parse(parser, words)
    assert arguments.output_dir == "runs/gpu/multi30k"
    assert Path(arguments.test_source_file).name == "test_2016_flickr.en"


def test_all_parts_by_default(corpus):
    programs = [
        next(word for word in each if word.startswith("scripts/")) for each in commands("gpu-benchmark", corpus)
    ]
    assert programs == ["scripts/benchmark.py"] * 3 + ["scripts/train_translation.py"]


def test_multi30k_must_be_named():
    done = subprocess.run(["make", "-s", "gpu-multi30k", "PYTHON=python3"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode and "MULTI30K is not set; name the folder of the corpus" in done.stderr


def test_routines_of_a_cpu_are_not_those_of_a_gpu():
    args = small_arguments()
    args.device = "cuda"
    with pytest.raises(
        ValueError, match="^the routines are those of a CPU, but `device` is cuda; leave this benchmark"
    ):
        next(products_benchmark(args, DataArguments()))
