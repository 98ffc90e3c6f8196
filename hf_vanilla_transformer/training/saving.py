"""A trainer whose checkpoints are written whole or not at all, and that saves one before a signal ends it."""

import pickle
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from transformers import Seq2SeqTrainer
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy, TrainOutput
from transformers.utils import logging

from ..errors import one_line, redacted
from ..files import SCRATCH, clear_scratch, disk_errors
from .checkpoints import best_checkpoint, newest_checkpoint, publish_checkpoint, rotate_checkpoints
from .signals import DeferredSignals

logger = logging.get_logger(__name__)

# On a GPU, steps between two looks at whether another process received a signal: each waits for the device.
STEPS_BETWEEN_SIGNALS = 8

# Of files that torch can read and this run cannot use.
LOADING_ERRORS = (RuntimeError, ValueError, LookupError, TypeError, AttributeError, EOFError)

# Characters of an error of torch in a message.
SHOWN_ERROR = 200


class SavingTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that loses nothing that it saved, whenever it is killed.

    Ctrl-C and SIGTERM take effect after the step, once a checkpoint is saved, in all processes; a second Ctrl-C at
    once, and so does the first without checkpoints (`save_strategy="no"`). A run resumed from that checkpoint ends as
    one that was not interrupted.
    """

    # Whether a checkpoint is being written, and whether at a step of the schedule.
    _is_saving, _is_scheduled = False, True
    # What checkpoints say that they were trained with.
    trained_with: dict[str, Any] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._signals = DeferredSignals()
        # Steps of the last call of `_maybe_log_save_evaluate` and of the last checkpoint of this session.
        self._last_call_step: int | None = None
        self._last_saved_step: int | None = None

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; `resume_from_checkpoint=True` resumes from the newest complete checkpoint.

        Raises:
            ValueError: There is no such checkpoint, or the disk is full.
        """
        output_dir = cast(str, self.args.output_dir)
        if resume_from_checkpoint is True:
            resume_from_checkpoint = newest_checkpoint(output_dir)
            if resume_from_checkpoint is None:
                raise ValueError(f"{output_dir} holds no complete checkpoint to resume from")
        self._begin(resume_from_checkpoint or None)
        self._clear_scratch(output_dir)
        if resume_from_checkpoint and self.args.should_save:
            self._finish_rotation(Path(output_dir), Path(resume_from_checkpoint))
        self._last_call_step = self._last_saved_step = None
        self._is_scheduled = True
        with self._signals if self.args.save_strategy != SaveStrategy.NO else nullcontext():
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def _begin(self, checkpoint: str | None) -> None:
        """Refuse to train, before anything is written, if that is not as the checkpoint asks for."""

    # Signals

    def _maybe_log_save_evaluate(
        self, tr_loss: torch.Tensor, grad_norm: Any, model: torch.nn.Module, trial: Any, *args: Any, **kwargs: Any
    ) -> None:
        """Log, evaluate and save; if a signal asks to stop, save in any case and stop.

        `Trainer` calls this after each step and again after an epoch. The last step of an epoch is saved by the
        second call, which evaluates first: a resumed run starts the next epoch, without that evaluation.
        """
        state, control = self.state, self.control
        is_first_call, self._last_call_step = self._last_call_step != state.global_step, state.global_step
        is_last_step = (
            float(state.epoch or 0).is_integer() or control.should_training_stop or control.should_epoch_stop
        )
        if is_first_call and is_last_step:
            postponed, control.should_save = control.should_save, False
            super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
            self.control.should_save = postponed
            return
        number = self._received_signal(is_last_step)
        # The log in a checkpoint covers all of its steps.
        control.should_log = control.should_log or bool(number)
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, model, trial, *args, **kwargs)
        # After early stopping, the second call may have a checkpoint to save.
        if not number or (is_first_call and self.control.should_training_stop):
            return
        # Only now: with `save_strategy="best"`, the evaluation decides whether this step is saved.
        if self._last_saved_step != state.global_step:
            self._is_scheduled = False
            self._save_checkpoint(model, trial)
            self.control = self.callback_handler.on_save(self.args, self.state, self.control)
        self._signals.deliver(number)

    def _received_signal(self, is_last_step: bool) -> int:
        """Number of a signal that asks this or another process to stop; 0: none."""
        if self.args.world_size == 1:
            return self._signals.pending
        if self.args.device.type != "cpu" and not is_last_step and self.state.global_step % STEPS_BETWEEN_SIGNALS:
            return 0
        return int(self.accelerator.gather(torch.tensor([self._signals.pending], device=self.args.device)).max())

    # Saving

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        """Save a checkpoint, whole or not at all: under a temporary name, which changes once all processes are done.

        Raises:
            ValueError: The disk is full, or training diverged.
        """
        run_dir = Path(self._get_output_dir(trial))
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        partial, checkpoint = run_dir / SCRATCH / name, run_dir / name
        earlier, best = any(run_dir.glob(f"{PREFIX_CHECKPOINT_DIR}-*")), self.state.best_model_checkpoint
        remedy = "continue with `resume_from_checkpoint=last`" if earlier else "start again"
        self._clear_scratch(run_dir)
        self.accelerator.wait_for_everyone()
        self._is_saving = True
        try:
            with disk_errors(checkpoint, f"make room, and {remedy}"):
                super()._save_checkpoint(model, trial)
                if self.state.best_global_step == self.state.global_step:
                    # An unscheduled one is deleted by the next, and a run without interruption has none.
                    self.state.best_model_checkpoint = str(checkpoint) if self._is_scheduled else best
                self.accelerator.wait_for_everyone()
                if self.args.should_save:
                    self.state.save_to_json(str(partial / TRAINER_STATE_NAME))
                    publish_checkpoint(partial, checkpoint, self._is_scheduled, self.trained_with)
                    rotate_checkpoints(checkpoint, self.args.save_total_limit, self.state.best_model_checkpoint)
        finally:
            self._is_saving = False
            self._clear_scratch(run_dir)
        self._last_saved_step = self.state.global_step
        self.accelerator.wait_for_everyone()
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(checkpoint))

    def _finish_rotation(self, run_dir: Path, checkpoint: Path) -> None:
        """Delete what the resumed checkpoint made superfluous: the program may have been killed before it could."""
        saved = run_dir / checkpoint.name
        if saved.is_dir() and saved.samefile(checkpoint):
            rotate_checkpoints(saved, self.args.save_total_limit, best_checkpoint(saved))
            clear_scratch(run_dir)

    def _clear_scratch(self, run_dir: str | Path) -> None:
        if self.args.should_save:
            clear_scratch(run_dir)

    def _get_output_dir(self, trial: Any) -> str:
        """Return the folder of checkpoints; of the one being saved, the temporary one."""
        run_dir = super()._get_output_dir(trial)
        return str(Path(run_dir, SCRATCH)) if self._is_saving else run_dir

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Push a checkpoint once it is complete; a push that fails in the background is reported."""
        if self._is_saving:
            return
        earlier = self._push_jobs()
        super()._push_from_checkpoint(checkpoint_folder)
        for job in self._push_jobs():
            if job not in earlier:
                job.add_done_callback(self._warn_of_failed_push)

    def _push_jobs(self) -> list[Future[Any]]:
        return [] if self.push_in_progress is None else list(self.push_in_progress.jobs)

    def _warn_of_failed_push(self, job: Future[Any]) -> None:
        if not job.cancelled() and (error := job.exception()):
            logger.warning(
                f"a push to the Hub failed: {redacted(one_line(error), self.args.hub_token)}; training goes on"
            )

    # Loading

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        with _loading(resume_from_checkpoint):
            super()._load_from_checkpoint(resume_from_checkpoint, model)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        with _loading(checkpoint):
            super()._load_optimizer_and_scheduler(checkpoint)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        with _loading(checkpoint):
            super()._load_rng_state(checkpoint)


@contextmanager
def _loading(checkpoint: str | None) -> Iterator[None]:
    """Name the checkpoint whose files are readable, but not those of this model and optimizer."""
    try:
        yield
    except pickle.UnpicklingError:
        # The error's own text advises to unpickle anything.
        raise ValueError(
            f"`resume_from_checkpoint` {checkpoint}: a file in it is a pickle that holds more than tensors, which is "
            "never run; resume from a checkpoint of your own"
        ) from None
    except LOADING_ERRORS as error:
        raise ValueError(
            f"`resume_from_checkpoint` {checkpoint} cannot be loaded ({one_line(error)[:SHOWN_ERROR]}); resume from "
            "another checkpoint of this model"
        ) from error


__all__ = ["SavingTrainer"]
