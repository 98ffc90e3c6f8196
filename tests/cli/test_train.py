"""`vanilla-transformer train`; training itself is tested in tests/training."""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from unittest.mock import Mock

import pytest
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, TrainerState

from experiments import TINY, sentences, write_splits
from hf_vanilla_transformer.cli import train
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.cli.options import OneLineParser
from hf_vanilla_transformer.inference.translation import translate
from hf_vanilla_transformer.training import experiment
from parallel_text import lines, write
from paths import SCRIPTS
from processes import surroundings
from tables import looped


def read_trackio(folder):
    """Return logged values by name, and the database file."""
    file = folder / "home" / "trackio" / "tests.db"
    with closing(sqlite3.connect(file)) as database:
        rows = database.execute("SELECT metrics FROM metrics WHERE run_name = 'tiny' ORDER BY step").fetchall()
    values: dict[str, list[float]] = {}
    for (content,) in rows:
        for name, value in json.loads(content).items():
            values.setdefault(name, []).append(value)
    return values, file


def parser(shows_all):
    made = OneLineParser("train", shows_all=shows_all)
    train.add_arguments(made)
    return made


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

    @looped(
        ("content", "message"),
        [
            ("seed: 1\nhub_token: hf_abc: 1\n", "x.yaml cannot be read: line 2: mapping values are not allowed here"),
            ("sed: 1\n", "x.yaml, line 1: unknown argument sed; did you mean seed?"),
            ("[a]: 1\n", "x.yaml, line 1: key is not a name"),
            ("seed: 1\n\nseed: 2\n", "x.yaml, line 3: seed is given twice"),
            ("seed: [[1]]\n", "x.yaml, line 1: seed is a list with an item that is not a value"),
            ("seed: &a [*a]\n", "x.yaml, line 1: seed is a list with an item that is not a value"),
            ("seed: [1, --hub_token]\n", "x.yaml, line 1: seed is a list with an item that is not a value"),
            ("[" * 5000, "x.yaml cannot be read: it is nested too deeply"),
            ("accelerator_config: {a: 1}\n", "accelerator_config is a mapping; write it as a JSON string in quotes"),
            ("- seed\n", "x.yaml, line 1: not a mapping of keys to values"),
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


@pytest.mark.usefixtures("one_thread")
class TestRun:
    MODEL = ["--preset", "tiny", "--config_overrides", TINY, "--tokenizer_algorithm", "word", "--min_frequency", "1"]
    SCHEDULE = ["--max_tokens", "400", "--num_train_epochs", "2", "--warmup_steps", "10", "--use_cpu"]

    @pytest.fixture
    def words(self, tmp_path):
        """The command line without model options."""
        files = [word for name, path in write_splits(tmp_path).items() for word in (f"--{name}", path)]
        return [*files, *self.SCHEDULE, "--output_dir", str(tmp_path / "model")]

    def interrupted(self, words, capsys):
        """Run an interrupted training and return its last line."""
        with pytest.raises(SystemExit) as stop:
            main(["train", *words])
        assert stop.value.code == 130
        return capsys.readouterr().err.splitlines()[-1]

    def test_as_a_program(self, words, tmp_path):
        """The run is quiet, and the saved model reproduces its translations."""
        folder = tmp_path / "model"
        command = [sys.executable, str(SCRIPTS / "train_translation.py"), *words, *self.MODEL, "--seed", "3"]
        command += ["--final_num_beams", "1", "--average_last_checkpoints", "0"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        assert done.returncode == 0, done.stderr
        # Checkpoints are saved so fast that their mtimes can be equal.
        noise = [line for line in done.stderr.split("\n") if line and "mtime may not be reliable" not in line]
        assert noise == []
        for part in ("train        read 80, kept 80", "learning     up to 0.00791 after 10 steps", "test BLEU"):
            assert part in done.stdout
        results = json.loads((folder / "all_results.json").read_text())
        assert (results["train_pairs"], results["validation_pairs"], results["test_pairs"]) == (80, 12, 9)
        assert "| `seed` | 3 |" in (folder / "README.md").read_text()
        model, tokenizer = AutoModelForSeq2SeqLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
        outputs = [row[0].text for row in translate(model, tokenizer, [source for source, _ in sentences(9, 2)])]
        assert lines(outputs) == (folder / "test_translations.txt").read_text()

    @pytest.mark.slow
    def test_reports_to_trackio(self, words, tmp_path):
        """In a separate process, as Trackio looks up its folder once; no token is logged."""
        pytest.importorskip("trackio", reason="installed by the extra `trackio`")
        command = [sys.executable, "-m", "hf_vanilla_transformer", "train", *words, *self.MODEL, "--logging_steps=5"]
        command += ["--report_to", "trackio", "--hub_token", "hf_secret", "--project", "tests", "--run_name", "tiny"]
        done = subprocess.run(
            command, capture_output=True, text=True, env={**surroundings(), "HF_HOME": str(tmp_path / "home")}
        )
        assert done.returncode == 0, done.stderr
        state = TrainerState.load_from_json(tmp_path / "model" / "trainer_state.json")
        losses = [entry["loss"] for entry in state.log_history if "loss" in entry]
        scores = [entry["eval_bleu"] for entry in state.log_history if "eval_bleu" in entry]
        values, file = read_trackio(tmp_path)
        assert values["train/loss"] == pytest.approx(losses) and values["eval/bleu"] == pytest.approx(scores)
        assert len(losses) > 1 and b"hf_secret" not in file.read_bytes()

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            (["--vocab_size", "many"], "invalid int value: 'many'"),
            (["--warmup_steps", "0"], "--warmup_steps 0 gives no learning rate"),
            (["--extend_vocab", "9"], "--extend_vocab extends the vocabulary of --model_name_or_path; set that"),
        ],
    )
    def test_faults(self, words, refusal, given, message):
        assert message in refusal("train", *words, *self.MODEL, *given)

    @pytest.mark.slow
    @pytest.mark.parametrize("as_file", [False, True])
    def test_continuing_from_a_model_with_new_tokens(self, words, tmp_path, as_file):
        """With the alias of `--model_name_or_path`, also in argument files."""
        model = [*self.MODEL[:4], "--vocab_size", "270", "--max_steps", "1"]
        main(["train", *words, *model])
        options = {"init_from": tmp_path / "model", "extend_vocab": 9, "output_dir": tmp_path / "second"}
        write(tmp_path / "x.yaml", "".join(f"{name}: {value}\n" for name, value in options.items()))
        given = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        main(["train", str(tmp_path / "x.yaml"), *words[:-2]] if as_file else ["train", *words, *given])
        first, second = (AutoTokenizer.from_pretrained(tmp_path / name) for name in ("model", "second"))
        assert len(second) == len(first) + 9
        assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "second").config.vocab_size == len(second)

    def test_interrupted_before_the_first_checkpoint(self, words, capsys, monkeypatch):
        monkeypatch.setattr(TrainerState, "save_to_json", Mock(side_effect=KeyboardInterrupt))
        message = "interrupted; there is no checkpoint yet, so the same command starts again"
        assert self.interrupted([*words, *self.MODEL], capsys) == message

    def test_interrupted_in_the_evaluation_of_a_run_without_checkpoints(self, words, tmp_path, capsys, monkeypatch):
        monkeypatch.setattr(experiment.Evaluation, "choose_model", Mock(side_effect=KeyboardInterrupt))
        message = self.interrupted([*words, *self.MODEL, "--save_strategy", "no"], capsys)
        assert message == f"interrupted; {tmp_path / 'model'} holds the trained model, not evaluated yet"
        AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
