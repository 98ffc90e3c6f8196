"""State across sessions: the best checkpoint, tie-breaking, early stopping, time and loss."""

import math
import os

import pytest
import torch
from safetensors.torch import load_file

from hf_vanilla_transformer.training.callbacks import EarlyStopping, mean_training_loss
from hf_vanilla_transformer.training.checkpoints import checkpoint_fault, newest_checkpoint
from trainers import EVALUATING, SAVING, At, Killed, edited_state, id_pairs, kill, losses, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")


def trainer_with(folder, *evaluations, names=("bleu", "chrf", "exact_match"), **options):
    """A trainer whose evaluations return the given scores; the first one decides."""
    scores = iter(evaluations)

    def scorer(prediction):
        return dict(zip(names, next(scores), strict=True))

    options = {**EVALUATING, "metric_for_best_model": names[0], "max_steps": 2 * len(evaluations), **options}
    options = {"load_best_model_at_end": True, "eval_dataset": id_pairs(8), **options}
    return trainer_of(folder, trainable_model(dropout=0.0), compute_metrics=scorer, **options)


def assert_weights_of(checkpoint, model):
    stored = load_file(checkpoint / "model.safetensors")
    assert all(torch.equal(model.state_dict()[name], weight) for name, weight in stored.items())


class TestBest:
    def resumed(self, folder, stored, **options):
        """A run resumed from its last checkpoint, which records the first as the best, with its original path."""
        options = {**EVALUATING, "load_best_model_at_end": True, "eval_dataset": id_pairs(8), **options}
        with edited_state(folder / "checkpoint-6") as state:
            state.best_model_checkpoint, state.best_global_step, state.best_metric = str(stored), 2, 0.0
        trainer = trainer_of(folder, trainable_model(seed=7), **options)
        trainer.train(resume_from_checkpoint=True)
        return trainer

    @pytest.mark.parametrize("max_steps", [6, 8])
    def test_moves_with_its_run(self, tmp_path, max_steps):
        trainer_of(tmp_path, **EVALUATING, eval_dataset=id_pairs(8)).train()
        model = self.resumed(tmp_path, "a former folder/checkpoint-2", max_steps=max_steps).model
        assert_weights_of(tmp_path / "checkpoint-2", model)

    @pytest.mark.parametrize("damage", [lambda file: os.truncate(file, 100), os.remove], ids=["truncated", "removed"])
    def test_one_that_is_damaged_is_forgotten(self, tmp_path, caplog, damage):
        trainer_of(tmp_path, **EVALUATING, eval_dataset=id_pairs(8)).train()
        damage(tmp_path / "checkpoint-2" / "model.safetensors")
        trainer = self.resumed(tmp_path, tmp_path / "checkpoint-2", max_steps=8)
        assert "checkpoint-2 was the best checkpoint, but it" in caplog.text
        assert trainer.state.best_global_step == 8 and trainer.state.best_metric > 0


class TestTies:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("evaluations", "best"),
        [
            ([(0, 10, 0), (0, 30, 1), (0, 20, 2)], 4),
            ([(0, 10, 0), (0, 30, 1), (0, 30, 2)], 6),
            ([(5, 10, 0), (5, 30, 1), (4, 40, 2)], 4),
            ([(0, 40, 9), (0, 30, 1), (1, 10, 0)], 6),
            ([(0, 30, 1), (0, 20, 0), (0, 25, 0)], 2),
            # Equal scores: the first stays the best.
            ([(100, 100, 100), (100, 100, 100), (100, 100, 100)], 2),
        ],
    )
    def test_other_scores_decide(self, tmp_path, evaluations, best):
        # With an average, the trained weights are not those of the best model.
        trainer = trainer_with(tmp_path, *evaluations, save_total_limit=1, ema_decay=0.9 if best == 4 else 0.0)
        trainer.train()
        assert trainer.state.best_global_step == best and trainer.state.best_metric == evaluations[best // 2 - 1][0]
        assert_weights_of(tmp_path / f"checkpoint-{best}", trainer.model)

    @pytest.mark.parametrize("rate", [0.01, 0.0])
    def test_the_loss_decides_where_nothing_scores(self, tmp_path, rate):
        trainer = trainer_with(tmp_path, *[(0, 0, 0)] * 3, learning_rate=rate, lr_scheduler_type="constant")
        trainer.train()
        losses = {entry["step"]: entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry}
        assert len(losses) == 3 and trainer.state.best_global_step == min(losses, key=losses.get)
        assert (trainer.state.best_global_step == 6) == (rate > 0)

    @pytest.mark.parametrize(
        ("evaluations", "best"),
        [
            ([(90, 50), (80, 60), (85, 10)], 4),
            ([(90, 50), (90, 40), (90, 45)], 4),
            ([(90, 50), (90, 50), (95, 40)], 2),
            # Nothing is right, as before the first outputs.
            ([(100, 100), (100, 100), (100, 100)], 6),
            ([(100, 540), (100, 540), (100, 960)], 6),
        ],
    )
    def test_error_rates_are_better_if_lower(self, tmp_path, evaluations, best):
        options = {"learning_rate": 0.01, "lr_scheduler_type": "constant"}
        trainer = trainer_with(tmp_path, *evaluations, names=("wer", "ser"), **options)
        trainer.train()
        assert trainer.state.best_global_step == best

    def test_one_line_says_so(self, tmp_path, caplog):
        trainer_with(tmp_path, (0, 10, 0), (0, 20, 0), (0, 30, 0)).train()
        assert caplog.text.count("step 4: eval_bleu is 0 as before and cannot tell which model is better; chrF") == 1
        assert "as before" not in caplog.text.replace("step 4: eval_bleu is 0 as before", "")

    @pytest.mark.slow
    def test_of_several_evaluation_sets(self, tmp_path):
        evaluations = [(0, near, 0) for near in (10, 90, 20, 80, 15, 95)]
        sets = {"near": id_pairs(8), "far": id_pairs(8, seed=1)}
        options = {"eval_dataset": sets, "metric_for_best_model": "near_bleu", "max_steps": 6}
        trainer = trainer_with(tmp_path, *evaluations, **options)
        trainer.train()
        assert trainer.state.best_global_step == 4

    @pytest.mark.slow
    def test_with_earlier_sessions(self, tmp_path):
        trainer_with(tmp_path, (0, 10, 0), (0, 30, 0)).train()
        resumed = trainer_with(tmp_path, (0, 20, 0), (0, 40, 0), max_steps=8)
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.best_global_step == 8
        again = trainer_with(tmp_path, (0, 35, 0), max_steps=10)
        again.train(resume_from_checkpoint=True)
        assert again.state.best_global_step == 8


class TestEarlyStopping:
    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("evaluations", "last"),
        [
            ([(0, 10, 0), (0, 20, 0), (0, 30, 0), (0, 40, 0)], 8),
            ([(0, 10, 0), (0, 10, 1), (0, 10, 1), (0, 40, 0)], 6),
            ([(5, 50, 5), (5, 50, 5), (5, 50, 5), (5, 50, 5)], 4),
        ],
    )
    @pytest.mark.parametrize("save_strategy", ["steps", "no"])
    def test_a_tie_that_is_broken_is_an_improvement(self, tmp_path, evaluations, last, save_strategy):
        options = {"save_strategy": save_strategy, "load_best_model_at_end": save_strategy != "no"}
        trainer = trainer_with(tmp_path, *evaluations, **options)
        trainer.add_callback(EarlyStopping(1))
        trainer.train()
        assert trainer.state.global_step == last

    def steps_of(self, folder, patience, max_steps, resume=None):
        """How far a run gets that does not learn, so that only its first evaluation is an improvement."""
        options = {**EVALUATING, "max_steps": max_steps, "eval_dataset": id_pairs(8), "learning_rate": 0.0}
        trainer = trainer_of(folder, trainable_model(dropout=0.0), **options)
        if patience:
            trainer.add_callback(EarlyStopping(patience))
        trainer.train(resume_from_checkpoint=resume)
        return trainer.state.global_step

    def test_goes_on_counting(self, tmp_path):
        assert self.steps_of(tmp_path, 3, 4) == 4
        assert [self.steps_of(tmp_path, patience, 100, True) for patience in (3, 3, 4)] == [8, 8, 10]

    def test_of_a_run_that_began_without(self, tmp_path):
        assert (self.steps_of(tmp_path, None, 4), self.steps_of(tmp_path, 1, 100, True)) == (4, 6)
        assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")


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
            # The first session up to its checkpoint, plus this one.
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
