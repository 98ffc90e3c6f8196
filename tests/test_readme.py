"""Every command of the README runs as printed, long ones cut short."""

import io
import re
import runpy
import shlex
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

from hf_vanilla_transformer.cli.main import main
from paths import ROOT
from reviewers import save_bert, save_reviews
from source_models import TorchNN
from translators import build

README = (ROOT / "README.md").read_text(encoding="utf-8")

# Added to a command of the README so that it ends in seconds.
TRAINING = (
    "--preset tiny --config_overrides encoder_layers=1,decoder_layers=1,d_model=32 "
    "--vocab_size 300 --max_steps 2 --max_tokens 512 --final_num_beams 1 --use_cpu"
)
CUT_SHORT = {
    "train_translation.py": TRAINING,
    "train": TRAINING,
    "reproduce_tutorials.py": "--seeds 1 --light --preset tiny --max_steps 2 --train_file spa.tsv "
    "--validation_split_size 4",
    "benchmark.py": "--preset tiny --vocab_size 300 --tokens 24 --memory_tokens 24 --rounds 1 --batch_size 2 "
    "--length 6 --steps 1 --max_tokens 256 --text_vocab_size 300 --tutorial_length 40 --roofline_seconds 0 "
    "--baselines marian",
    "imdb_bert_baseline.py": "--model_name_or_path small-bert --dataset_name reviews --bert_num_train_epochs 1 "
    "--scratch_num_train_epochs 1 --max_length 12 --max_train_samples 16 --max_test_samples 16",
}
TEXT_FILES = ("train", "val", "test", "test_2016_flickr")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    return [shlex.split(line) for block in blocks("sh") for line in block.splitlines() if line.strip()]


def run(command: list[str], folder: Path) -> None:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout}\n{done.stderr}"


def run_here(command: list[str]) -> None:
    """Run a program in this process, as Python would; it saves the seconds of its imports."""
    program = command[1:] if command[0] == "python" else command
    name = Path(program[0]).name
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("default")
        added = CUT_SHORT.get(name if command[0] == "python" else program[1], "")
        patch.setattr(sys, "argv", [*program, *added.split()])
        patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        if command[0] == "python":
            runpy.run_path(program[0], run_name="__main__")
        else:
            main()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the README assumes it: the scripts, and text files by the names it uses."""
    path = tmp_path_factory.mktemp("readme")
    (path / "scripts").symlink_to(ROOT / "scripts")
    for name in TEXT_FILES:
        for language, words in (("en", "one two three four"), ("de", "eins zwei drei vier")):
            lines = [" ".join(words.split()[: 1 + i % 4]) + f" {i}" for i in range(40 if name == "train" else 8)]
            (path / f"{name}.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (path / "spa.tsv").write_text("".join(f"number {i}\tnúmero {i}\n" for i in range(40)), encoding="utf-8")
    (path / "small-bert").mkdir()
    save_bert(path / "small-bert")
    save_reviews(path / "reviews")
    save_source_models(path)
    return path


def save_source_models(path: Path) -> None:
    """Save what the README converts: a folder under a name of the Hub, and a tutorial's file with its vocabularies."""
    for each in build("marian"):
        each.save_pretrained(path / "Helsinki-NLP" / "opus-mt-en-de")
    torch.save(TorchNN(width=16, heads=8, batch_first=True).state_dict(), path / "seq2seq.pt")
    for language, size in (("en", 13), ("de", 17)):
        tokens = ["<unk>", "<pad>", "<bos>", "<eos>", *(f"word{n}" for n in range(4, size))]
        (path / f"vocab.{language}").write_text("\n".join(tokens) + "\n", encoding="utf-8")


def test_commands_are_known_to_this_test():
    for command in commands():
        assert command[0] in ("python", "make", "vanilla-transformer"), f"no test runs {shlex.join(command)}"


# Programs whose commands need nothing of what the other commands leave; a test each, to run side by side.
INDEPENDENT = ("scripts/benchmark.py", "scripts/reproduce_tutorials.py", "scripts/imdb_bert_baseline.py")


def test_commands_and_code_run_in_their_order(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    for command in commands():
        if command[0] != "make" and command[1] not in INDEPENDENT:
            run_here(command)
    # In a process where nothing is registered before; each block by itself.
    run([sys.executable, "-c", "\n".join(f"exec({code!r}, {{}})" for code in blocks("python"))], folder)


@pytest.mark.parametrize("command", [each for each in commands() if each[1] in INDEPENDENT], ids=shlex.join)
def test_commands_that_stand_alone(command: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(folder)
    run_here(command)


@pytest.mark.parametrize("command", [command for command in commands() if command[0] == "make"], ids=shlex.join)
def test_make_targets_exist(command: list[str]):
    run([*command, "--dry-run"], ROOT)


@pytest.mark.slow
def test_make_demo_runs(tmp_path: Path):
    output = tmp_path / "demo"
    arguments = f"--output_dir {output} --max_steps 3 --warmup_steps 1 --final_num_beams 1"
    run(["make", "demo", f"ARGS={arguments}"], ROOT)
    assert {"model.safetensors", "training_curve.png", "attention.png", "README.md"} <= {
        path.name for path in output.iterdir()
    }
