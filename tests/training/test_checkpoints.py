"""Checkpoints: which are complete after a kill at any moment, and the average of the last ones."""

import os
import shutil

import pytest
import torch
from transformers import Seq2SeqTrainer, TrainerState

from hf_vanilla_transformer.training.checkpoints import (
    average_checkpoints,
    last_checkpoints,
    newest_checkpoint,
)
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer
from trainers import SAVING, At, Killed, assert_same_weights, kill, losses, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A trainer that was not killed."""
    trainer = trainer_of(tmp_path_factory.mktemp("whole"), **SAVING)
    trainer.train()
    return trainer


class TestKilled:
    @pytest.mark.parametrize("again", [False, True], ids=["new", "written before"])
    @pytest.mark.parametrize(
        ("owner", "part"),
        [
            (VanillaTransformerTrainer, "_save"),
            (Seq2SeqTrainer, "_save_optimizer_and_scheduler"),
            (Seq2SeqTrainer, "_save_rng_state"),
            (TrainerState, "save_to_json"),
        ],
        ids=lambda part: part if isinstance(part, str) else "",
    )
    def test_resumes_from_the_last_complete_one(self, whole, tmp_path, monkeypatch, owner, part, again):
        if again:
            trainer_of(tmp_path, **{**SAVING, "max_steps": 4}).train()
        trainer = trainer_of(tmp_path, **SAVING)
        trainer.add_callback(At(4, lambda **kwargs: monkeypatch.setattr(owner, part, kill)))
        with pytest.raises(Killed):
            trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2") if again else None)
        monkeypatch.undo()
        # One that was written before stays whole.
        assert newest_checkpoint(tmp_path) == str(tmp_path / f"checkpoint-{4 if again else 2}")
        assert (tmp_path / "checkpoint-4").exists() == again
        resumed = trainer_of(tmp_path, trainable_model(seed=7), **SAVING)
        resumed.train(resume_from_checkpoint=True)
        assert_same_weights(resumed.model, whole.model)
        assert losses(resumed) == losses(whole)
        assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")

    def test_killed_while_an_old_one_is_deleted(self, tmp_path):
        options = {**SAVING, "save_steps": 1, "average_last_checkpoints": 2}
        trainer_of(tmp_path, **{**options, "max_steps": 3}).train()
        (tmp_path / "checkpoint-1" / "trainer_state.json").unlink()
        for number, name in enumerate(("checkpoint-2", "checkpoint-3", "checkpoint-1")):
            os.utime(tmp_path / name, (10.0 * number, 10.0 * number))
        trainer_of(tmp_path, **{**options, "max_steps": 4}).train(resume_from_checkpoint=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]

    def test_only_weights_are_complete_too(self, tmp_path):
        trainer_of(tmp_path, **SAVING, save_only_model=True).train()
        assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")

    def test_none_is_complete(self, tmp_path):
        (tmp_path / "checkpoint-2").mkdir()
        (tmp_path / "checkpoint-best").mkdir()
        assert newest_checkpoint(tmp_path) is newest_checkpoint(tmp_path / "none") is None
        with pytest.raises(ValueError, match="holds no complete checkpoint to resume from"):
            trainer_of(tmp_path).train(resume_from_checkpoint=True)

    def test_averages_leave_out_what_cannot_be_read(self, whole, tmp_path, caplog):
        for step in (1, 2, 3):
            trainable_model(seed=step).save_pretrained(tmp_path / f"checkpoint-{step}")
        weights = tmp_path / "checkpoint-3" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-9])
        folders = last_checkpoints(tmp_path, 2)
        assert [folder.name for folder in folders] == ["checkpoint-1", "checkpoint-2"]
        assert "checkpoint-3: its model.safetensors is damaged" in caplog.text
        average_checkpoints(folders)


class TestAveraging:
    def test_faults(self, tmp_path):
        """Others are those of tests/cli/test_average.py."""
        with pytest.raises(ValueError, match="no checkpoints to average"):
            average_checkpoints([])
        broken = trainable_model()
        broken.lm_head.weight.data[0, 0] = torch.nan
        broken.save_pretrained(tmp_path / "checkpoint-3")
        with pytest.raises(ValueError, match="checkpoint-3: .* are NaN or infinite"):
            average_checkpoints(last_checkpoints(tmp_path, 2))
        shutil.rmtree(tmp_path / "checkpoint-3")
        large = trainable_model()
        large.lm_head.weight.data[0, 0] = 2e5
        large.save_pretrained(tmp_path / "checkpoint-3")
        trainable_model().half().save_pretrained(tmp_path / "checkpoint-4")
        with pytest.raises(ValueError, match="the average in the dtype of .*checkpoint-4: 1 of .* NaN or infinite"):
            average_checkpoints(last_checkpoints(tmp_path, 2))
