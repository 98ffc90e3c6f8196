"""Code in a model folder runs only with --trust_remote_code; no answer on standard input can allow it."""

import io
import pickle
import shutil
import sys

import pytest
import torch

from canaries import CANARIES, Bomb, model_of_another_repository, model_of_code, save_canary, tokenizer_alone
from experiments import train, write_splits
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.training.checkpoints import MANIFEST
from parallel_text import write
from reliability import FULL

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    # `torch.load` warns of the protocol before it refuses the pickle.
    pytest.mark.filterwarnings("ignore:Detected pickle protocol:UserWarning"),
]

TEXT = "a red house\na cat\n"
TRAIN = "train --preset tiny --max_steps 1 --train_source_file {text} --train_target_file {text} --output_dir {output}"

# Commands that load an untrusted folder, and have the option --trust_remote_code.
TRUSTING = {
    "train the model": TRAIN.replace("--preset tiny", "--model_name_or_path {folder}"),
    "train with its tokenizer": f"{TRAIN} --tokenizer_name_or_path {{folder}}",
    "distill": "distill --model {folder} --train_source_file {text} --train_target_file {text} --output_dir {output}",
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
# Conversion has no layout for this package's own models.
KINDS = {"convert": "marian"}
# By default only each command once, and each kind of code with one command.
CASES = [
    pytest.param(name, canary, id=f"{name}, {canary.__name__}")
    for name in COMMANDS
    for canary in CANARIES
    if FULL or name == "translate" or canary is model_of_code
]


class Yes(io.StringIO):
    """Standard input that answers yes to every question, and records that there was one."""

    asked = False

    def readline(self, *_):
        self.asked = True
        return "y\n"


@pytest.fixture
def attempt(tmp_path, monkeypatch, run):
    """Run a command on a canary; return its error, if any, and whether code from the folder ran."""
    text, trace = write(tmp_path / "text", TEXT), tmp_path / "trace"

    def start(name, canary, *options):
        folder = save_canary(tmp_path / "stranger", trace, canary, KINDS.get(name, "shared"))
        monkeypatch.setattr(sys, "stdin", stdin := Yes())
        words = COMMANDS[name].format(folder=folder, text=text, output=tmp_path / "output").split()
        status, _, error = run(*words, *options)
        assert status in (0, 2) and not stdin.asked
        return error if status else "", trace.exists()

    return start


@pytest.mark.parametrize(("name", "canary"), CASES)
def test_no_command_runs_code_or_asks_whether_to(name, canary, attempt, tried, caplog):
    error, ran = attempt(name, canary)
    assert not ran and "a model of type" not in caplog.text
    assert error.count("\n") <= 1 and len(error) < 500, error
    if canary in (model_of_code, model_of_another_repository) and name in TRUSTING and "tokenizer" not in name:
        assert error.endswith("if you trust it, pass --trust_remote_code to run it\n")
    if "pickle" in canary.__name__ and name in ("translate", "score", "export", "train the model"):
        assert "which is not run" in error or "not a checkpoint that can be loaded safely" in error
    tried("a folder with code of its own or a pickle that runs code, and `y` on standard input: commands", 1)


@pytest.mark.slow
@pytest.mark.parametrize("name", TRUSTING)
def test_code_runs_once_it_is_trusted(name, attempt, tried):
    canary = tokenizer_alone if "tokenizer" in name else model_of_code
    assert attempt(name, canary, "--trust_remote_code")[1]
    tried("the same with --trust_remote_code: the code runs", 1)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A checkpoint of a short run, and the options to resume it."""
    folder = tmp_path_factory.mktemp("run")
    options = write_splits(folder / "data") | {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "no"}
    options |= {"average_last_checkpoints": 0}
    train(folder / "run", **options, max_steps=2)
    (saved,) = (folder / "run").glob("checkpoint-*")
    return saved, options


# Files of a checkpoint, and whether training reads them.
PICKLES = {"optimizer.pt": True, "scheduler.pt": True, "rng_state.pth": True, "training_args.bin": False}


@pytest.mark.slow
@pytest.mark.parametrize("name", PICKLES)
def test_resuming_runs_no_pickle(name, checkpoint, tmp_path, tried):
    saved, options = checkpoint
    folder = shutil.copytree(saved, tmp_path / "run" / saved.name)
    # An attacker could replace the manifest too.
    (folder / MANIFEST).unlink()
    torch.save({"state": Bomb(tmp_path / "trace")}, folder / name)
    resumed = {**options, "max_steps": 3, "resume_from_checkpoint": str(folder)}
    if PICKLES[name]:
        with pytest.raises(ValueError, match="is a pickle that holds more than tensors, which is never run"):
            train(tmp_path / "run", **resumed)
    else:
        train(tmp_path / "run", **resumed)
    assert not (tmp_path / "trace").exists()
    tried("checkpoints with a pickle that runs code, resumed", 1)


def test_a_bomb_goes_off_where_it_is_unpickled(tmp_path, tried):
    pickle.loads(pickle.dumps(Bomb(tmp_path / "trace")))
    assert (tmp_path / "trace").read_text() == "unpickled"


def test_a_data_set_runs_no_script(tmp_path, tried):
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "set.py").write_text(f"open({str(tmp_path / 'trace')!r}, 'w').close()")
    with pytest.raises(ValueError, match="cannot be loaded"):
        train(tmp_path / "run", dataset_name=str(tmp_path / "set"))
    assert not (tmp_path / "trace").exists()
    tried("data sets with a loading script", 1)


def test_an_argument_file_makes_no_objects(tmp_path, capsys, tried):
    trace = tmp_path / "trace"
    for tag in ("!!python/object/apply:os.system", "!!python/object/new:os.system"):
        write(tmp_path / "run.yaml", f"run_name: {tag} ['touch {trace}']\ntrain_file: {tmp_path / 'none.tsv'}\n")
        with pytest.raises(SystemExit):
            main(["train", str(tmp_path / "run.yaml")])
        assert capsys.readouterr().err.count("\n") == 1 and not trace.exists()
    tried("argument files with tags that make objects", 2)
