"""`vanilla-transformer train`; what training itself does is tested in tests/training."""

import argparse
import json
import subprocess

import pytest

from hf_vanilla_transformer.cli import train
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.cli.options import OneLineParser
from processes import ACCELERATE_LAUNCH, surroundings

SMALL = (
    "--config_overrides", "d_model=16,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,"
    "decoder_attention_heads=2,encoder_ffn_dim=32,decoder_ffn_dim=32",
    "--preset", "tiny", "--tokenizer_algorithm", "word", "--vocab_size", "20", "--max_steps", "2", "--use_cpu",
    "--max_tokens", "32", "--warmup_steps", "1", "--eval_strategy", "no", "--final_num_beams", "1",
)  # fmt: skip  # a command line


def parser(shows_all):
    made = OneLineParser("train", shows_all=shows_all)
    train.add_arguments(made)
    return made


@pytest.fixture
def text(tmp_path):
    pairs = [f"{'a b c d'[: 1 + 2 * (i % 4)]}\t{'x y z w'[: 1 + 2 * (i % 4)]}" for i in range(24)]
    (tmp_path / "train.tsv").write_text("\n".join(pairs) + "\n")
    return tmp_path / "train.tsv"


def test_main_options_are_options_of_the_full_parser():
    every = {action.dest: action for action in parser(True)._actions}
    for action in parser(False)._actions:
        full = every[action.dest]
        assert set(action.option_strings) <= set(full.option_strings)
        assert (full.nargs == "?") == (action.metavar == ""), f"{action.dest} is a switch in one of them"


def test_every_field_has_one_option_in_a_group(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["train", "--help-all"])
    printed = capsys.readouterr().out
    assert stop.value.code == 0
    headings = [line for line in printed.splitlines() if line.endswith(":") and not line.startswith(" ")][-6:]
    assert headings == ["text:", "model:", "tokenizer:", "training:", f"{train.INHERITED}:", "help:"]
    training, inherited = printed.index("\ntraining:"), printed.index(train.INHERITED)
    assert training < printed.index("\n  --max_tokens ") < inherited < printed.index("\n  --weight_decay ")
    assert printed.count("\n  --seed ") == 1 and "--max-tokens" not in printed


def test_no_data_is_said_before_a_folder_is_made(tmp_path, monkeypatch, refusal):
    monkeypatch.chdir(tmp_path)
    assert "no data is named; give --train_source_file" in refusal("train", "--preset", "tiny")
    assert not list(tmp_path.iterdir())


class TestArgumentFile:
    @pytest.mark.parametrize(
        ("content", "words"),
        [
            ("seed: 1\nbf16: null\n", ["--seed=1"]),
            ("include_for_metrics: [inputs, loss]\n", ["--include_for_metrics", "inputs", "loss"]),
            ('{"seed": 1, "project": "a: b"}', ["--seed=1", "--project=a: b"]),
        ],
    )
    def test_read(self, content, words, tmp_path):
        (tmp_path / "x.yaml").write_text(content)
        known = ["seed", "bf16", "include_for_metrics", "project"]
        assert train.read_argument_file(str(tmp_path / "x.yaml"), known) == words

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ("seed: 1\nhub_token: hf_abc: 1\n", "x.yaml cannot be read: line 2: mapping values are not allowed here"),
            ("sed: 1\n", "x.yaml: unknown argument sed; did you mean seed?"),
            ("accelerator_config: {a: 1}\n", "accelerator_config is a mapping; write it as a JSON string in quotes"),
            ("- seed\n", "x.yaml holds no mapping of argument names to values"),
            ("\x07", "x.yaml cannot be read: "),
            (None, "x.yaml cannot be read: "),
        ],
    )
    def test_refused_without_quoting_a_line(self, content, message, tmp_path, refusal):
        if content is not None:
            (tmp_path / "x.yaml").write_text(content)
        shown = refusal("train", tmp_path / "x.yaml")
        assert message in shown and "abc" not in shown

    def test_the_command_line_overrides_it(self, tmp_path):
        (tmp_path / "x.json").write_text(json.dumps({"seed": 1, "num_train_epochs": 2}))
        arguments = train.parse(parser(True), [str(tmp_path / "x.json"), "--seed", "3"])
        assert (arguments.seed, arguments.num_train_epochs) == (3, 2)


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, None),
        ({"do_train": True, "do_eval": True}, None),
        ({"do_eval": True}, "--do_eval without --do_train: this command always trains"),
        ({"do_train": False}, "--do_train false: this command always trains"),
    ],
)
def test_switches_that_leave_training_out(given, refused):
    unset = {"do_train": None, "do_eval": None, "do_predict": False, "eval_strategy": "no"}
    args = argparse.Namespace(**{**unset, **given})
    if refused:
        with pytest.raises(ValueError, match=refused):
            train._check_training_is_wanted(args)
        return
    train._check_training_is_wanted(args)
    assert args.do_train is True and args.do_eval is False


@pytest.mark.slow  # two processes that import PyTorch
def test_accelerate_launches_it_on_two_processes(text, tmp_path):
    command = [*ACCELERATE_LAUNCH, "-m", "hf_vanilla_transformer", "train", "--train_file", str(text), *SMALL]
    done = subprocess.run(
        [*command, "--output_dir", "model"], cwd=tmp_path, env=surroundings(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("output       model") == 1, "the first process prints the summary"
    assert (tmp_path / "model" / "model.safetensors").is_file() and (tmp_path / "model" / "README.md").is_file()
