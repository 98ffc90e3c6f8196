"""Code of a folder runs only with --trust_remote_code, and nothing that is piped in can allow it."""

import io
import sys

import pytest

from canaries import CANARIES, model_of_another_repository, model_of_code, save_canary, tokenizer_alone
from hf_vanilla_transformer.cli.main import main
from parallel_text import write
from reliability import FULL

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # torch.load warns of the protocol before it refuses the pickle.
    pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning"),
]

TEXT = "a red house\na cat\n"
TRAIN = "train --preset tiny --max_steps 1 --train_source_file {text} --train_target_file {text} --output_dir {output}"

# Commands that load a folder of a stranger, and can be told to run its code.
TRUSTING = {
    "train the model": TRAIN.replace("--preset tiny", "--model_name_or_path {folder}"),
    "train with its tokenizer": f"{TRAIN} --tokenizer_name_or_path {{folder}}",
    "translate": "translate --model {folder} --input {text}",
    "score": "score --model {folder} --source {text} --target {text}",
    "average": "average --checkpoints {folder} --output_dir {output}",
    "export": "export --model {folder} --to marian --output_dir {output}",
}
COMMANDS = {
    **TRUSTING,
    "convert": "convert --source {folder} --output_dir {output}",
    "publish": "publish --model {folder} --repo_id me/model --dry_run",
}
# Of another family: conversion has no layout for a model of this package.
KINDS = {"convert": "marian"}
# The short form tries each command once, and each kind of code with one command.
CASES = [
    pytest.param(name, canary, id=f"{name}, {canary.__name__}")
    for name in COMMANDS
    for canary in CANARIES
    if FULL or name == "translate" or canary is model_of_code
]


class Yes(io.StringIO):
    """Standard input that answers every question with yes, and remembers that one was asked."""

    asked = False

    def readline(self, *_):
        self.asked = True
        return "y\n"


@pytest.fixture
def attempt(tmp_path, monkeypatch, capsys):
    """Run a command on a canary; return its error, if any, and whether code of the folder ran."""
    text, trace = write(tmp_path / "text", TEXT), tmp_path / "trace"

    def run(name, canary, *options):
        folder = save_canary(tmp_path / "stranger", trace, canary, KINDS.get(name, "shared"))
        monkeypatch.setattr(sys, "stdin", stdin := Yes())
        words = COMMANDS[name].format(folder=folder, text=text, output=tmp_path / "output").split()
        capsys.readouterr()
        error = ""
        try:
            main([*words, *options])
        except SystemExit as stop:
            assert stop.code == 2
            error = capsys.readouterr().err
        assert not stdin.asked
        return error, trace.exists()

    return run


@pytest.mark.parametrize(("name", "canary"), CASES)
def test_no_command_runs_code_or_asks_whether_to(name, canary, attempt, tried):
    error, ran = attempt(name, canary)
    assert not ran
    assert error.count("\n") <= 1 and len(error) < 500, error
    if canary in (model_of_code, model_of_another_repository) and name in TRUSTING and "tokenizer" not in name:
        assert error.endswith("if you trust it, pass --trust_remote_code to run it\n")
    if "pickle" in canary.__name__ and name in ("translate", "score", "export", "train the model"):
        assert error.endswith(
            "its pickled file holds more than tensors, which is never run; save the model as safetensors\n"
        )
    tried("a folder with code of its own or a pickle that runs code, and `y` on standard input: commands", 1)


@pytest.mark.parametrize("name", TRUSTING)
def test_code_runs_once_it_is_trusted(name, attempt, tried):
    canary = tokenizer_alone if "tokenizer" in name else model_of_code
    assert attempt(name, canary, "--trust_remote_code")[1]
    tried("the same with --trust_remote_code: the code runs", 1)
