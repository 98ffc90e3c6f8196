"""The folder of a run: the checkpoint to resume from, and protection against mixing up two runs."""

import json
from pathlib import Path

import pytest

from hf_vanilla_transformer.training import run_folder
from hf_vanilla_transformer.training.arguments import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.checkpoints import complete_checkpoints
from hf_vanilla_transformer.training.run_folder import (
    LOCK_FILE,
    check_same_run,
    find_checkpoint,
    make_folder,
    run_lock,
    save_final,
)
from parallel_text import write
from trainers import Killed, kill, trainable_model


def find(folder, checkpoint=None):
    args = VanillaTransformerTrainingArguments(str(folder), use_cpu=True, resume_from_checkpoint=checkpoint)
    return find_checkpoint(args)


class TestFindCheckpoint:
    @pytest.mark.parametrize("newest", ["last", "true", "True"])
    def test_the_newest(self, finished, newest):
        assert find(finished, newest) == str(complete_checkpoints(finished)[-1])

    def test_a_new_folder(self, tmp_path):
        assert find(tmp_path) is None

    def test_the_command_that_a_scheduler_repeats(self, tmp_path, caplog):
        assert find(tmp_path, "last") is None
        assert "holds no checkpoint to resume from yet: training starts from the beginning" in caplog.text

    @pytest.mark.parametrize(
        ("made", "checkpoint", "message"),
        [
            # A new run would delete them.
            ("checkpoint-2/", "last", "holds no complete checkpoint; leave `resume_from_checkpoint` out"),
            ("config.json", None, "already holds a model; choose another folder"),
            ("config.json", "last", "already holds a model; choose another folder"),
            ("a/", "a", "it holds no trainer_state.json; name a complete checkpoint-<step> folder"),
        ],
    )
    def test_faults(self, tmp_path, monkeypatch, made, checkpoint, message):
        monkeypatch.chdir(tmp_path)
        Path(made).mkdir() if made.endswith("/") else Path(made).touch()
        with pytest.raises(ValueError, match=message):
            find(tmp_path, checkpoint)

    def test_a_folder_with_a_run(self, finished):
        with pytest.raises(ValueError, match="already holds a run; continue it with `resume_from_checkpoint=last`"):
            find(finished)

    def test_an_older_checkpoint(self, finished, tmp_path):
        """Resuming from an older checkpoint beside newer ones would average two runs."""
        older, newer = complete_checkpoints(finished)[-2:]
        with pytest.raises(ValueError, match=f"already holds {newer.name}; resume from last, or choose another"):
            find(finished, str(older))
        assert find(tmp_path, str(older)) == str(older)


class TestRunLock:
    @pytest.fixture
    def args(self, tmp_path, monkeypatch):
        monkeypatch.setattr(run_folder, "LOCK_TIMEOUT", 0.1)
        return VanillaTransformerTrainingArguments(str(tmp_path / "run"), use_cpu=True)

    def test_one_run_at_a_time(self, args):
        message = "another program is training in `output_dir` .*run; wait until it ends, or choose another folder"
        with run_lock(args):
            with pytest.raises(ValueError, match=message), run_lock(args):
                pytest.fail("two runs in one folder")
        with run_lock(args):
            pass
        assert not list(Path(args.output_dir).iterdir())

    def test_a_folder_that_cannot_be_written(self, args):
        Path(args.output_dir, LOCK_FILE).mkdir(parents=True)
        with pytest.raises(ValueError, match="`output_dir` .*run cannot be written"), run_lock(args):
            pytest.fail("ran without the lock")

    def test_the_other_processes_of_a_run(self, args, monkeypatch):
        with run_lock(args):
            monkeypatch.setattr(type(args), "process_index", property(lambda self: 1))
            with run_lock(args):
                pass

    def test_a_lock_that_is_left_is_no_run(self, args):
        """A killed program leaves the file, but the operating system releases the lock."""
        with run_lock(args):
            Path(args.output_dir, "copy").write_bytes(Path(args.output_dir, LOCK_FILE).read_bytes())
        Path(args.output_dir, "copy").rename(Path(args.output_dir, LOCK_FILE))
        assert find_checkpoint(args) is None
        with run_lock(args):
            pass


class TestSave:
    def test_a_mixture_of_two_models_never_loads(self, tmp_path, monkeypatch):
        save_final(trainable_model(seed=1), tmp_path)
        monkeypatch.setattr(Path, "replace", kill)
        with pytest.raises(Killed):
            save_final(trainable_model(seed=2), tmp_path)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["generation_config.json", "model.safetensors"]


class TestMakeFolder:
    def test_where_there_is_a_file(self, tmp_path):
        with pytest.raises(ValueError, match="`output_dir` .*a-file cannot be created: File exists"):
            make_folder(tmp_path / write(tmp_path / "a-file", ""))


class TestSameRun:
    def test_arguments_are_recorded(self, tmp_path):
        check_same_run(tmp_path / "run", {"seed": 1, "sizes": (1, 2)})
        assert json.loads((tmp_path / "run" / "arguments.json").read_text()) == {"seed": 1, "sizes": [1, 2]}
        # Nothing has been trained yet.
        check_same_run(tmp_path / "run", {"seed": 2, "sizes": (1, 2)})
        (tmp_path / "run" / "model").mkdir()
        check_same_run(tmp_path / "run", {"seed": 2, "sizes": (1, 2)})

    def test_other_arguments(self, tmp_path):
        check_same_run(tmp_path, {"seed": 1, "old": 3, "same": 0})
        (tmp_path / "model").mkdir()
        with pytest.raises(ValueError, match=r"\(`seed` was 1, is 2, `old` was 3, is None\); repeat them, or choose"):
            check_same_run(tmp_path, {"seed": 2, "same": 0})
