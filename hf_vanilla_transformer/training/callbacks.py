"""Callbacks of the trainer: what a run remembers beyond its checkpoints."""

import math
import time
from pathlib import Path
from typing import Any, cast

from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import logging

from .checkpoints import weights_fault

logger = logging.get_logger(__name__)


class EpochOfSampler(TrainerCallback):
    """Tells the sampler the epoch: resuming in mid-epoch, accelerate loses sight of one that it shares out."""

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        """Pass on the epoch, counted from 0."""
        if hasattr(train_dataloader, "set_epoch"):
            train_dataloader.set_epoch(int(state.epoch or 0))


def _stored_callbacks(state: TrainerState) -> dict[str, Any]:
    """Return what a checkpoint holds of the callbacks; `Trainer` saves no callback without an entry."""
    return cast(dict[str, Any], state.stateful_callbacks)


class EarlyStopping(EarlyStoppingCallback):
    """Early stopping whose count survives resuming, so that a run it has stopped stays stopped."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the count from the checkpoint."""
        super().on_train_begin(args, state, control, **kwargs)
        stored = _stored_callbacks(state).setdefault(type(self).__name__, self.state())
        self.early_stopping_patience_counter = stored["attributes"]["early_stopping_patience_counter"]
        if state.global_step and self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True


class FindBestCheckpoint(TrainerCallback):
    """Finds the best checkpoint of earlier sessions again, by a path that the folder of the run may have left."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Correct the path, or forget a damaged checkpoint, which `Trainer` would notice only at the end."""
        if not state.best_global_step:
            return
        best = Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.best_global_step}")
        if not weights_fault(best):
            state.best_model_checkpoint = str(best)
        elif state.best_model_checkpoint and (fault := weights_fault(Path(state.best_model_checkpoint))):
            logger.warning(f"{state.best_model_checkpoint} was the best, but {fault}: the best is sought anew")
            state.best_model_checkpoint = state.best_metric = state.best_global_step = None


class RunRecord(TrainerCallback, ExportableState):
    """Training time and loss over all sessions of a run.

    The loss is logged before every checkpoint, so that the log in a checkpoint covers all of its steps.

    Attributes:
        seconds: Training time before this session.
        since_epoch: Epoch from which time is recorded: 0, or later in a run that an earlier release began.
    """

    def __init__(self) -> None:
        """Start with no time."""
        self.seconds, self.since_epoch, self._start = 0.0, 0.0, time.perf_counter()

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint holds."""
        seconds = self.seconds + time.perf_counter() - self._start
        return {"args": {}, "attributes": {"seconds": seconds, "since_epoch": self.since_epoch}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Restore the record from the checkpoint."""
        callbacks, name = _stored_callbacks(state), type(self).__name__
        stored = callbacks.get(name) if state.global_step else None
        record = stored["attributes"] if stored else {"seconds": 0.0, "since_epoch": state.epoch or 0.0}
        self.seconds, self.since_epoch, self._start = record["seconds"], record["since_epoch"], time.perf_counter()
        callbacks[name] = self.state()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log before a checkpoint, and at the end."""
        if (control.should_save or control.should_evaluate or control.should_training_stop) and (
            args.logging_strategy != "no"
        ):
            control.should_log = True

    on_epoch_end = on_step_end


def mean_training_loss(history: list[dict[str, float]]) -> float | None:
    """Return the mean loss of the steps that a log covers, whatever its intervals; None without a loss in it."""
    logged = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    steps = [0, *(step for step, _ in logged)]
    weighted = [(step - before) * loss for before, (step, loss) in zip(steps, logged, strict=False)]
    return math.fsum(weighted) / steps[-1] if logged else None


__all__ = ["EarlyStopping", "EpochOfSampler", "FindBestCheckpoint", "RunRecord", "mean_training_loss"]
