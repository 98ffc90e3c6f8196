"""Checkpoints: which are complete after a kill at any moment, and the average of the last ones."""

import os
import shutil

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM, Seq2SeqTrainer, TrainerState

from hf_vanilla_transformer.training.checkpoints import (
    average_checkpoints,
    checkpoint_fault,
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

    def test_truncated_files(self, whole, tmp_path):
        (source,) = last_checkpoints(whole.args.output_dir, 1)
        assert checkpoint_fault(source) is None
        for name in ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json"):
            folder = tmp_path / name
            folder.mkdir()
            for file in source.iterdir():
                os.link(file, folder / file.name)
            content = (folder / name).read_bytes()
            (folder / name).unlink()
            assert name.split(".")[0] in checkpoint_fault(folder) or "no weights" in checkpoint_fault(folder)
            (folder / name).write_bytes(content[: len(content) // 2])
            assert name in checkpoint_fault(folder)
            (folder / name).unlink()
            (folder / name).symlink_to(tmp_path / "gone")
            assert name.split(".")[0] in checkpoint_fault(folder)

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
    def save(self, folder, step, **options):
        trainable_model(seed=step, **options).save_pretrained(folder / f"checkpoint-{step}")

    @pytest.mark.parametrize(
        "options", [{}, {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}]
    )
    def test_the_mean_of_the_last_ones(self, tmp_path, options):
        for step in (9, 100, 20):
            self.save(tmp_path, step, **options)
        (tmp_path / "checkpoint-best").mkdir()
        folders = last_checkpoints(tmp_path, 2)
        assert [folder.name for folder in folders] == ["checkpoint-20", "checkpoint-100"]
        averaged = average_checkpoints(folders).state_dict()
        states = [AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict() for folder in folders]
        for name, weight in averaged.items():
            torch.testing.assert_close(weight, (states[0][name] + states[1][name]) / 2, rtol=1e-6, atol=1e-7)
        assert len(last_checkpoints(tmp_path, 5)) == 3

    def test_faults(self, tmp_path):
        with pytest.raises(ValueError, match=r"holds no checkpoint-<step> folders"):
            last_checkpoints(tmp_path, 2)
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
        for name in ("checkpoint-3", "checkpoint-4"):
            shutil.rmtree(tmp_path / name)
        self.save(tmp_path, 1, d_model=32)
        self.save(tmp_path, 2)
        with pytest.raises(ValueError, match=r"checkpoint-1 has no weight .* of shape .*belongs to another model"):
            average_checkpoints(last_checkpoints(tmp_path, 2))
