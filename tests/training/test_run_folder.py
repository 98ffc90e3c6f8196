"""The folder of a run: the checkpoint to resume from, and what would mix two runs up."""

import json

import pytest

from hf_vanilla_transformer.training.arguments import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.checkpoints import complete_checkpoints
from hf_vanilla_transformer.training.run_folder import check_same_run, find_checkpoint, make_folder
from parallel_text import write


def find(folder, checkpoint=None):
    args = VanillaTransformerTrainingArguments(str(folder), use_cpu=True, resume_from_checkpoint=checkpoint)
    return find_checkpoint(args)


class TestFindCheckpoint:
    @pytest.mark.parametrize("newest", ["last", "true", "True"])
    def test_the_newest(self, finished, newest):
        assert find(finished, newest) == str(complete_checkpoints(finished)[-1])

    def test_a_new_folder(self, tmp_path):
        assert find(tmp_path) is None
        with pytest.raises(ValueError, match="holds no complete checkpoint; leave `resume_from_checkpoint` out"):
            find(tmp_path, "last")

    def test_a_folder_with_a_run(self, finished):
        with pytest.raises(ValueError, match="already holds a run; continue it with `resume_from_checkpoint=last`"):
            find(finished)

    def test_a_folder_with_a_model(self, tmp_path):
        write(tmp_path / "config.json", "{}")
        with pytest.raises(ValueError, match="already holds a model; choose another folder"):
            find(tmp_path)

    def test_what_is_no_checkpoint(self, tmp_path):
        message = "it holds no trainer_state.json; name a complete checkpoint-<step> folder"
        with pytest.raises(ValueError, match=message):
            find(tmp_path, str(tmp_path))

    def test_an_older_checkpoint(self, finished, tmp_path):
        """Going on from it where newer ones lie would average two runs."""
        older, newer = complete_checkpoints(finished)[-2:]
        with pytest.raises(ValueError, match=f"already holds {newer.name}; resume from last, or choose another"):
            find(finished, str(older))
        assert find(tmp_path, str(older)) == str(older)


class TestMakeFolder:
    def test_where_there_is_a_file(self, tmp_path):
        with pytest.raises(ValueError, match="`output_dir` .*a-file cannot be made: File exists"):
            make_folder(tmp_path / write(tmp_path / "a-file", ""))

    def test_parents_are_made(self, tmp_path):
        for _ in range(2):
            make_folder(tmp_path / "a" / "b")
        assert (tmp_path / "a" / "b").is_dir()


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
        with pytest.raises(ValueError, match=r"\(`seed` was 1, is 2, `old` was 3, is None\); use those, or choose"):
            check_same_run(tmp_path, {"seed": 2, "same": 0})
