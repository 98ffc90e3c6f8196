"""Checkpoints: complete or absent after a kill at any moment, resuming, and the average of the last ones."""

import json
import os
import shutil
import signal
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch
from transformers import Seq2SeqTrainer, TrainerState
from transformers.utils import PushInProgress

from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.training.callbacks import EarlyStopping
from hf_vanilla_transformer.training.checkpoints import (
    MANIFEST,
    average_checkpoints,
    checkpoint_fault,
    is_scheduled,
    last_checkpoints,
    newest_checkpoint,
)
from hf_vanilla_transformer.training.trainer import VanillaTransformerTrainer
from trainers import (
    EVALUATING,
    SAVING,
    At,
    Killed,
    assert_same_weights,
    id_pairs,
    kill,
    losses,
    save_inside,
    trainable_model,
    trainer_of,
)

pytestmark = pytest.mark.usefixtures("one_thread")


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def ctrl_c(**kwargs):
    os.kill(os.getpid(), signal.SIGINT)


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
        # An earlier checkpoint stays complete.
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
        assert names(tmp_path) == ["checkpoint-2", "checkpoint-3", "checkpoint-4"]

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
        """More are in tests/cli/test_average.py."""
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


class TestSaving:
    def test_a_full_disk(self, tmp_path, small_files):
        """The disk fills up at the first checkpoint; tests/reliability has later ones."""
        trainer = trainer_of(tmp_path, **SAVING)
        save_inside(trainer, 2, small_files(5000))
        with pytest.raises(DataError, match="make room, and start again"):
            trainer.train()
        assert names(tmp_path) == []

    def test_the_best_one_is_where_it_will_stay(self, tmp_path):
        for only_model in (False, True):
            folder = tmp_path / str(only_model)
            trainer = trainer_of(folder, **EVALUATING, eval_dataset=id_pairs(8), save_only_model=only_model)
            trainer.train()
            state = json.loads((folder / "checkpoint-6" / "trainer_state.json").read_text())
            best = folder / f"checkpoint-{state['best_global_step']}"
            assert state["best_model_checkpoint"] == trainer.state.best_model_checkpoint == str(best)

    def test_an_unscheduled_one_is_never_the_best(self, tmp_path):
        # Without learning, the first evaluation is the best.
        options = {**EVALUATING, "eval_steps": 1, "eval_dataset": id_pairs(8), "learning_rate": 0.0}
        interrupted = trainer_of(tmp_path, **options)
        interrupted.add_callback(At(1, ctrl_c))
        with pytest.raises(KeyboardInterrupt):
            interrupted.train()
        assert names(tmp_path) == ["checkpoint-1"]
        resumed = trainer_of(tmp_path, **options)
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.best_global_step == 1 and resumed.state.best_model_checkpoint is None
        assert names(tmp_path) == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]

    def test_a_stop_waits_for_the_checkpoint_after_early_stopping(self, tmp_path):
        """The step ends its epoch and is scheduled."""
        options = {**EVALUATING, "save_strategy": "epoch", "eval_steps": 1, "max_steps": 50}
        options |= {"load_best_model_at_end": False}
        trainer = trainer_of(tmp_path, **options, eval_dataset=id_pairs(8), learning_rate=0.0)
        trainer.add_callback(EarlyStopping(1))
        trainer.add_callback(At(2, ctrl_c))
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert names(tmp_path) == ["checkpoint-2"] and is_scheduled(tmp_path / "checkpoint-2")

    def test_later_steps_of_an_abandoned_continuation_go_first(self, tmp_path):
        trainer_of(tmp_path, **SAVING).train()
        seen, trainer = [], trainer_of(tmp_path, **SAVING, save_total_limit=2)
        trainer.add_callback(At(5, lambda **kwargs: seen.append(names(tmp_path))))
        trainer.train(str(tmp_path / "checkpoint-2"))
        assert seen == [["checkpoint-2", "checkpoint-4"]]

    def test_pushes_what_is_complete(self, tmp_path, monkeypatch):
        pushed = []

        def push(trainer, checkpoint):
            pushed.append((Path(checkpoint).name, checkpoint_fault(checkpoint)))

        monkeypatch.setattr(Seq2SeqTrainer, "_push_from_checkpoint", push)
        trainer = trainer_of(tmp_path, **SAVING)
        trainer.push_in_progress = None
        # Set late, since `Trainer` would make the repository.
        trainer.args.push_to_hub = True
        trainer.train()
        assert pushed == [(f"checkpoint-{step}", None) for step in (2, 4, 6)]

    def test_reports_each_failed_push_once(self, tmp_path, monkeypatch, caplog):
        pushes = []

        def push(trainer, checkpoint):
            pushes.append(Future())
            trainer.push_in_progress = PushInProgress(list(pushes))
            if len(pushes) < 3:
                pushes[-1].set_exception(OSError("403 Forbidden: a-secret"))
            else:
                pushes[-1].set_result(None)

        monkeypatch.setattr(Seq2SeqTrainer, "_push_from_checkpoint", push)
        trainer = trainer_of(tmp_path, **SAVING, hub_token="a-secret")
        trainer.args.push_to_hub = True
        trainer.push_in_progress = None
        trainer.train()
        failures = [text for text in caplog.messages if text.startswith("a push to the Hub failed")]
        assert failures == ["a push to the Hub failed: 403 Forbidden: <secret>; training continues"] * 2


class TestResuming:
    def test_finishes_a_rotation(self, tmp_path):
        """The program may have been killed between saving the last checkpoint and deleting an old one."""
        trainer_of(tmp_path, **SAVING).train()
        elsewhere = trainer_of(tmp_path / "elsewhere", **SAVING, save_total_limit=1)
        elsewhere.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
        assert names(tmp_path)[:3] == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
        trainer_of(tmp_path, **SAVING, save_total_limit=2).train(resume_from_checkpoint=True)
        assert names(tmp_path) == ["checkpoint-4", "checkpoint-6", "elsewhere"]

    @pytest.mark.slow
    def test_keeps_the_best_checkpoint_where_a_later_best_step_is_not_saved(self, tmp_path):
        scores, seen = [0.0, 0.1, 0.5, 0.9, 0.2, 0.1, 0.1], []
        options = {**EVALUATING, "eval_steps": 1, "metric_for_best_model": "score", "save_total_limit": 1}
        options["eval_dataset"] = id_pairs(8)

        def trainer(action):
            made = trainer_of(tmp_path, **options)
            made.compute_metrics = lambda prediction: {"score": scores[made.state.global_step]}
            made.add_callback(At(5, action))
            return made

        with pytest.raises(Killed):
            trainer(kill).train()
        trainer(lambda **kwargs: seen.extend(names(tmp_path))).train(resume_from_checkpoint=True)
        assert seen == ["checkpoint-2", "checkpoint-4"]

    @pytest.mark.slow
    @pytest.mark.parametrize("file", ["optimizer.pt", "scheduler.pt", "rng_state.pth"])
    def test_what_is_not_of_this_run(self, tmp_path, file):
        trainer_of(tmp_path, **SAVING).train()
        checkpoint = tmp_path / "checkpoint-6"
        (checkpoint / MANIFEST).unlink()
        for content, reason in (
            ({}, " cannot be loaded"),
            ([1], " cannot be loaded"),
            (At, ": a file in it is a pickle"),
        ):
            torch.save(content, checkpoint / file)
            with pytest.raises(ValueError, match=f"`resume_from_checkpoint` .*checkpoint-6{reason}") as stop:
                trainer_of(tmp_path, **{**SAVING, "max_steps": 8}).train(resume_from_checkpoint=True)
            assert "\n" not in str(stop.value) and len(str(stop.value)) < 500

    @pytest.mark.parametrize("state", ["{}", "[]", "null", '{"epoch": 1}'])
    def test_a_state_of_no_step(self, tmp_path, state):
        trainer_of(tmp_path, **SAVING).train()
        (tmp_path / "checkpoint-6" / MANIFEST).unlink()
        (tmp_path / "checkpoint-6" / "trainer_state.json").write_text(state)
        assert checkpoint_fault(tmp_path / "checkpoint-6") == "its trainer_state.json holds no global_step"
        assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-4")
