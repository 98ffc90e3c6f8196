"""Ctrl-C and SIGTERM in training: a checkpoint is saved, and resuming from it changes nothing."""

import multiprocessing
import os
import signal
import threading

import pytest
import torch

from hf_vanilla_transformer.training.checkpoints import complete_checkpoints, is_scheduled, newest_checkpoint
from hf_vanilla_transformer.training.signals import DeferredSignals
from trainers import At, id_pairs, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")


class Terminated(Exception):
    pass


@pytest.fixture
def handlers():
    """Handlers that raise an exception; they must be restored afterwards."""

    def terminate(number, frame):
        raise Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    yield
    assert signal.getsignal(signal.SIGTERM) is terminate
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGTERM, before)


def make(folder, **options):
    pairs = {"train": id_pairs(30), "eval_dataset": id_pairs(8, seed=1)}
    defaults = {"metric_for_best_model": "loss", "average_last_checkpoints": 2}
    defaults |= {"save_strategy": "steps", "save_steps": 3, "eval_strategy": "steps", "eval_steps": 3}
    return trainer_of(folder, **pairs, **{**defaults, **options})


def interrupt(trainer, step, number=signal.SIGINT, expected=KeyboardInterrupt, **options):
    trainer.add_callback(At(step, lambda **kwargs: os.kill(os.getpid(), number)))
    with pytest.raises(expected):
        trainer.train(**options)


def kept(trainer):
    return [path.name for path in complete_checkpoints(trainer.args.output_dir)]


@pytest.mark.usefixtures("handlers")
class TestInterruptedRun:
    def test_sigterm(self, tmp_path):
        interrupt(make(tmp_path), 2, signal.SIGTERM, Terminated)
        assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")
        assert not is_scheduled(tmp_path / "checkpoint-2")

    # Step 4 is the last of the first epoch.
    @pytest.mark.parametrize(("step", "best"), [(2, 0), (2, 2), (4, 2), (4, 4)])
    def test_where_only_the_best_are_saved(self, tmp_path, monkeypatch, step, best):
        """The evaluation, not the signal, decides whether a step is scheduled."""
        options = {"save_strategy": "best", "eval_steps": 2, "load_best_model_at_end": False}
        trainer = make(tmp_path, **options)
        monkeypatch.setattr(trainer, "_determine_best_metric", lambda **kwargs: trainer.state.global_step == best)
        interrupt(trainer, step)
        assert newest_checkpoint(tmp_path) == str(tmp_path / f"checkpoint-{step}")
        assert kept(trainer) == ([f"checkpoint-{best}"] if best else [])

    def test_interrupted_again_and_again(self, tmp_path):
        """An unscheduled checkpoint is deleted as soon as there is another."""
        interrupt(make(tmp_path), 1)
        for step in (2, 4):
            interrupt(make(tmp_path, resume_from_checkpoint="last"), step, resume_from_checkpoint=True)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-4"]

    @pytest.mark.parametrize(("options", "times"), [({}, 2), ({"save_strategy": "no"}, 1)], ids=["twice", "no saving"])
    def test_it_ends_at_once(self, tmp_path, options, times):
        trainer = make(tmp_path, **options)
        trainer.add_callback(At(3, lambda **kwargs: [os.kill(os.getpid(), signal.SIGINT) for _ in range(times)]))
        trainer.add_callback(At(3, lambda **kwargs: pytest.fail("went on")))
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert not list(tmp_path.iterdir())

    def test_twice_while_saving(self, tmp_path, monkeypatch):
        trainer = make(tmp_path)

        def press_again(*arguments):
            monkeypatch.undo()
            os.kill(os.getpid(), signal.SIGINT)

        trainer.add_callback(At(4, lambda **kwargs: monkeypatch.setattr(torch, "save", press_again)))
        interrupt(trainer, 4)
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-3"]

    def test_workers_go_on_reading(self, tmp_path):
        """Ctrl-C reaches the whole process group."""
        trainer = make(tmp_path, dataloader_num_workers=1)

        def press(**kwargs):
            for process in multiprocessing.active_children():
                os.kill(process.pid, signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)

        trainer.add_callback(At(2, press))
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
        assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-2")


class TestDeferredSignals:
    def test_at_the_end_of_the_block(self):
        done = []
        with pytest.raises(KeyboardInterrupt), DeferredSignals():
            os.kill(os.getpid(), signal.SIGINT)
            done.append(True)
        assert done

    def test_an_error_comes_first(self):
        with pytest.raises(ValueError, match="first"), DeferredSignals():
            os.kill(os.getpid(), signal.SIGINT)
            raise ValueError("first")

    def test_what_is_ignored_stays_ignored(self):
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        with DeferredSignals() as signals:
            os.kill(os.getpid(), signal.SIGINT)
            assert not signals.pending
        assert signal.signal(signal.SIGINT, before) is signal.SIG_IGN

    def test_in_another_thread_nothing_changes(self):
        seen = []

        def run():
            with DeferredSignals():
                seen.append(signal.getsignal(signal.SIGINT))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        assert seen == [signal.default_int_handler]

    def test_launched_with_others_the_second_is_the_launchers(self, monkeypatch):
        monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
        with pytest.raises(KeyboardInterrupt), DeferredSignals() as signals:
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            assert signals.pending == signal.SIGINT
