"""What a run remembers between sessions: the best checkpoint, early stopping, time and loss."""

import math
import os

import pytest
import torch
from safetensors.torch import load_file

from hf_vanilla_transformer.training.callbacks import EarlyStopping, mean_training_loss
from hf_vanilla_transformer.training.checkpoints import checkpoint_fault, newest_checkpoint
from trainers import SAVING, At, Killed, edited_state, id_pairs, kill, losses, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")


class TestBest:
    OPTIONS = {**SAVING, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}

    def resumed(self, folder, stored, **options):
        """A run resumed from its last checkpoint, which says that the first is the best one and where it was."""
        with edited_state(folder / "checkpoint-6") as state:
            state.best_model_checkpoint, state.best_global_step, state.best_metric = str(stored), 2, 0.0
        options = {**self.OPTIONS, "load_best_model_at_end": True, "eval_dataset": id_pairs(8), **options}
        trainer = trainer_of(folder, trainable_model(seed=7), **options)
        trainer.train(resume_from_checkpoint=True)
        return trainer

    @pytest.mark.parametrize("max_steps", [6, 8])
    def test_moves_with_its_run(self, tmp_path, max_steps):
        trainer_of(tmp_path, **self.OPTIONS, eval_dataset=id_pairs(8)).train()
        best = load_file(tmp_path / "checkpoint-2" / "model.safetensors")
        model = self.resumed(tmp_path, "a former folder/checkpoint-2", max_steps=max_steps).model
        assert best.keys() <= model.state_dict().keys()
        assert all(torch.equal(model.state_dict()[name], weight) for name, weight in best.items())

    @pytest.mark.parametrize("damage", [lambda file: os.truncate(file, 100), os.remove], ids=["truncated", "removed"])
    def test_one_that_is_damaged_is_forgotten(self, tmp_path, caplog, damage):
        trainer_of(tmp_path, **self.OPTIONS, eval_dataset=id_pairs(8)).train()
        damage(tmp_path / "checkpoint-2" / "model.safetensors")
        trainer = self.resumed(tmp_path, tmp_path / "checkpoint-2", max_steps=8)
        assert "checkpoint-2 was the best, but it" in caplog.text
        assert trainer.state.best_global_step == 8 and trainer.state.best_metric > 0


class TestEarlyStopping:
    def test_early_stopping_goes_on_counting(self, tmp_path):
        def trainer(patience, max_steps):
            options = {**SAVING, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}
            options |= {"max_steps": max_steps, "eval_dataset": id_pairs(8), "learning_rate": 0.0}
            made = trainer_of(tmp_path, trainable_model(dropout=0.0), **options)
            # Without learning, only the first evaluation is better than those before it.
            made.add_callback(EarlyStopping(patience))
            return made

        trainer(3, 4).train()
        going_on = trainer(3, 100)
        going_on.train(resume_from_checkpoint=True)
        assert going_on.state.global_step == 8
        again = trainer(3, 100)
        again.train(resume_from_checkpoint=True)
        assert again.state.global_step == 8
        more_patience = trainer(4, 100)
        more_patience.train(resume_from_checkpoint=True)
        assert more_patience.state.global_step == 10

    def test_early_stopping_of_a_run_that_began_without(self, tmp_path):
        options = {**SAVING, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}
        options |= {"eval_dataset": id_pairs(8), "learning_rate": 0.0, "max_steps": 4}
        trainer_of(tmp_path, trainable_model(dropout=0.0), **options).train()
        resumed = trainer_of(tmp_path, trainable_model(dropout=0.0), **{**options, "max_steps": 100})
        resumed.add_callback(EarlyStopping(1))
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.global_step == 6 and newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")


class TestRunRecord:
    def test_the_loss_of_all_steps(self, tmp_path):
        options = {"save_strategy": "steps", "save_steps": 4, "max_steps": 11}
        whole = trainer_of(tmp_path / "whole", **options, logging_steps=1)
        expected = whole.train().training_loss
        assert expected == pytest.approx(sum(losses(whole)) / 11)
        for interval in (3, 1000):
            part = trainer_of(tmp_path / str(interval), **options, logging_steps=interval)
            part.add_callback(At(6, kill))
            with pytest.raises(Killed):
                part.train()
            resumed = trainer_of(tmp_path / str(interval), **options, logging_steps=interval)
            output = resumed.train(resume_from_checkpoint=True)
            assert output.training_loss == pytest.approx(expected, abs=1e-6)
            assert output.training_loss == pytest.approx(mean_training_loss(resumed.state.log_history))
            # The first session's, as far as its checkpoint, and this one's.
            seconds, final = resumed.run_record.seconds, resumed.state.log_history[-1]
            assert 0 < seconds < output.metrics["train_runtime"] and resumed.run_record.since_epoch == 0
            assert final["train_loss"] == output.training_loss
            assert final["train_steps_per_second"] == pytest.approx(11 / final["train_runtime"], rel=1e-2)

    def test_the_record_survives_restored_callbacks(self, tmp_path):
        trainer_of(tmp_path, **SAVING).train()
        resumed = trainer_of(tmp_path, **{**SAVING, "max_steps": 8}, restore_callback_states_from_checkpoint=True)
        resumed.train(resume_from_checkpoint=True)
        assert resumed.run_record.seconds > 0

    def test_a_run_that_kept_no_record(self, tmp_path):
        options = {**SAVING, "max_steps": 4}
        trainer_of(tmp_path, **options).train()
        with edited_state(tmp_path / "checkpoint-4") as state:
            del state.stateful_callbacks["RunRecord"]
        resumed = trainer_of(tmp_path, **{**options, "max_steps": 6})
        resumed.train(resume_from_checkpoint=True)
        assert resumed.run_record.seconds == 0 and resumed.run_record.since_epoch == state.epoch
        assert checkpoint_fault(tmp_path / "checkpoint-6") is None

    def test_no_loss_is_logged_where_none_is_wanted(self, tmp_path):
        trainer = trainer_of(tmp_path, **{**SAVING, "logging_strategy": "no"}, logging_first_step=False)
        assert math.isfinite(trainer.train().training_loss)
        assert losses(trainer) == [] and mean_training_loss(trainer.state.log_history) is None
