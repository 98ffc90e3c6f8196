"""Checkpoints: which are complete after a kill at any moment, how a run resumes, and what is never saved."""

import math
import os

import pytest
import torch
from safetensors.torch import load_file
from transformers import Seq2SeqTrainer, TrainerCallback, TrainerState

from hf_vanilla_transformer.data.encoding import tokenize_pairs
from hf_vanilla_transformer.training import trainer as training
from hf_vanilla_transformer.training.callbacks import EarlyStopping, mean_training_loss
from hf_vanilla_transformer.training.checkpoints import (
    average_checkpoints,
    checkpoint_fault,
    last_checkpoints,
    newest_checkpoint,
)
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer
from trainers import TOKENIZER, assert_same_weights, id_pairs, losses, text_pairs, tiny_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "logging_steps": 1}


class Killed(BaseException):
    """Ends a program as a kill does."""


def kill(*args, **kwargs):
    raise Killed


class At(TrainerCallback):
    """Calls a function at the end of a step, before anything is saved."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action(**kwargs)


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
    def test_resumes_from_the_last_complete_one(self, whole, tmp_path, monkeypatch, caplog, owner, part, again):
        if again:
            trainer_of(tmp_path, **{**SAVING, "max_steps": 4}).train()
        trainer = trainer_of(tmp_path, **SAVING)
        trainer.add_callback(At(4, lambda **kwargs: monkeypatch.setattr(owner, part, kill)))
        with pytest.raises(Killed):
            trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2") if again else None)
        monkeypatch.undo()
        assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
        if (tmp_path / "checkpoint-4").exists():
            assert f"skipping {tmp_path / 'checkpoint-4'}: it holds no trainer_state.json" in caplog.text
        resumed = trainer_of(tmp_path, tiny_model(seed=7), **SAVING)
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
            tiny_model(seed=step).save_pretrained(tmp_path / f"checkpoint-{step}")
        weights = tmp_path / "checkpoint-3" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-9])
        folders = last_checkpoints(tmp_path, 2)
        assert [folder.name for folder in folders] == ["checkpoint-1", "checkpoint-2"]
        assert "checkpoint-3: its model.safetensors is damaged" in caplog.text
        average_checkpoints(folders)


class TestBest:
    OPTIONS = {**SAVING, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}

    def resumed(self, folder, stored, **options):
        """A run resumed from its last checkpoint, which says that the first is the best one and where it was."""
        path = folder / "checkpoint-6" / "trainer_state.json"
        state = TrainerState.load_from_json(str(path))
        state.best_model_checkpoint, state.best_global_step, state.best_metric = str(stored), 2, 0.0
        state.save_to_json(str(path))
        options = {**self.OPTIONS, "load_best_model_at_end": True, "eval_dataset": id_pairs(8), **options}
        trainer = trainer_of(folder, tiny_model(seed=7), **options)
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


class TestFinished:
    @pytest.mark.parametrize(
        ("options", "stream"),
        [
            ({"max_steps": 5}, False),
            ({"max_steps": 5}, True),
            ({"num_train_epochs": 1.5}, False),
            ({"num_train_epochs": 2}, False),
        ],
        ids=["steps", "stream", "part of an epoch", "epochs"],
    )
    def test_resuming_takes_no_step(self, tmp_path, options, stream):
        data = tokenize_pairs(text_pairs().to_iterable_dataset(), TOKENIZER)[0] if stream else id_pairs()
        options = {**options, "save_strategy": "steps", "save_steps": 3}
        first = trainer_of(tmp_path, train=data, **options)
        first.train()
        second = trainer_of(tmp_path, tiny_model(seed=7), data, **options)
        second.train(resume_from_checkpoint=True)
        assert first.state.global_step == second.state.global_step
        assert losses(first) == losses(second)
        assert_same_weights(first.model, second.model)

    def test_early_stopping_goes_on_counting(self, tmp_path):
        def trainer(patience, max_steps):
            options = {**SAVING, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}
            options |= {"max_steps": max_steps, "eval_dataset": id_pairs(8), "learning_rate": 0.0}
            made = trainer_of(tmp_path, tiny_model(dropout=0.0), **options)
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
        trainer_of(tmp_path, tiny_model(dropout=0.0), **options).train()
        resumed = trainer_of(tmp_path, tiny_model(dropout=0.0), **{**options, "max_steps": 100})
        resumed.add_callback(EarlyStopping(1))
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.global_step == 6 and newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-6")

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
            resumed.train(resume_from_checkpoint=True)
            assert mean_training_loss(resumed.state.log_history) == pytest.approx(expected, abs=1e-6)
            # The first session's, as far as its checkpoint, and this one's.
            assert resumed.run_record.seconds > 0 and resumed.run_record.since_epoch == 0

    def test_the_record_survives_restored_callbacks(self, tmp_path):
        trainer_of(tmp_path, **SAVING).train()
        resumed = trainer_of(tmp_path, **{**SAVING, "max_steps": 8}, restore_callback_states_from_checkpoint=True)
        resumed.train(resume_from_checkpoint=True)
        assert resumed.run_record.seconds > 0

    def test_a_run_that_kept_no_record(self, tmp_path):
        options = {**SAVING, "max_steps": 4}
        trainer_of(tmp_path, **options).train()
        path = tmp_path / "checkpoint-4" / "trainer_state.json"
        state = TrainerState.load_from_json(str(path))
        del state.stateful_callbacks["RunRecord"]
        state.save_to_json(str(path))
        resumed = trainer_of(tmp_path, **{**options, "max_steps": 6})
        resumed.train(resume_from_checkpoint=True)
        assert resumed.run_record.seconds == 0 and resumed.run_record.since_epoch == state.epoch
        assert checkpoint_fault(tmp_path / "checkpoint-6") is None

    def test_no_loss_is_logged_where_none_is_wanted(self, tmp_path):
        trainer = trainer_of(tmp_path, **{**SAVING, "logging_strategy": "no"}, logging_first_step=False)
        assert math.isfinite(trainer.train().training_loss)
        assert losses(trainer) == [] and mean_training_loss(trainer.state.log_history) is None


class TestDivergence:
    # With such a rate the first step is finite, and what it leads to is not.
    DIVERGING = {**SAVING, "save_steps": 1, "optim": "sgd", "learning_rate": 1e30, "lr_scheduler_type": "constant"}

    def test_stops_at_the_step(self, tmp_path):
        trainer = trainer_of(tmp_path, **self.DIVERGING)
        with pytest.raises(ValueError, match=r"^step 2: (loss|gradient norm) is (nan|inf): training") as stop:
            trainer.train()
        remedy = "start again with a --learning_rate below 1e+30, or --max_grad_norm 1"
        assert f"; {remedy}; the last checkpoint is {tmp_path / 'checkpoint-1'}" in str(stop.value)
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
        assert all(weight.isfinite().all() for weight in trainer.model.parameters())

    @pytest.mark.parametrize("limit", [3, 1000])
    def test_steps_may_be_checked_later(self, tmp_path, monkeypatch, limit):
        """As on an accelerator: nothing is saved before the check, and the message names the step."""
        monkeypatch.setattr(training, "READ_AT_ONCE", ())
        monkeypatch.setattr(training, "UNREAD_LIMIT", limit)
        trainer = trainer_of(tmp_path, **{**self.DIVERGING, "save_steps": 5})
        with pytest.raises(ValueError, match=r"^step 2: "):
            trainer.train()
        assert trainer.state.global_step == (1 if limit == 3 else 5)
        assert not list(tmp_path.glob("checkpoint-*"))
        # Without checkpoints, at the end.
        last = trainer_of(tmp_path, **{**self.DIVERGING, "save_strategy": "no"})
        with pytest.raises(ValueError, match=r"^step 2: "):
            last.train()

    def test_weights_that_are_not_finite_are_not_saved(self, tmp_path):
        def poison(model, **kwargs):
            model.model.encoder.layers[0].fc1.weight.data[0, 0] = math.nan

        trainer = trainer_of(tmp_path, **SAVING)
        trainer.add_callback(At(4, poison))
        with pytest.raises(ValueError, match=r"^step 4: .*1 of 512 numbers in model\.encoder\.layers\.0\.fc1\.weight"):
            trainer.train()
        with pytest.raises(ValueError, match="fc1"):
            trainer.save_model(tmp_path / "final")
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
        assert all(
            weight.isfinite().all() for weight in load_file(tmp_path / "checkpoint-2/model.safetensors").values()
        )

    def test_a_scaler_leaves_steps_out(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Seq2SeqTrainer, "_get_grad_norm", lambda *args, **kwargs: torch.tensor(math.inf))
        trainer = trainer_of(tmp_path, max_steps=3)
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", enabled=False)
        assert trainer.train().global_step == 3
        trainer.accelerator.scaler = None
        with pytest.raises(ValueError, match="step 1: gradient norm is inf"):
            trainer.train()
