"""Callbacks of the trainer."""

import math
import time
from pathlib import Path
from typing import Any, ClassVar, cast

from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length
from transformers.utils import logging

from .best_model import breaks_tie
from .checkpoints import best_checkpoint, weights_fault

logger = logging.get_logger(__name__)


class SamplerEpoch(TrainerCallback):
    """Sets the epoch of sampler and collator: resuming in mid-epoch, accelerate does not reach a sharded sampler."""

    def on_epoch_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        train_dataloader: Any = None,
        **kwargs: Any,
    ) -> None:
        epoch = int(state.epoch or 0)
        if has_length(train_dataloader):
            # Batches of another size have another number an epoch: the state still counts the epochs of earlier ones.
            epoch = state.global_step // max(1, -(-len(train_dataloader) // args.gradient_accumulation_steps))
        each: Any
        for each in (train_dataloader, getattr(train_dataloader, "collate_fn", None)):
            if hasattr(each, "set_epoch"):
                each.set_epoch(epoch)


class BestCheckpointLocation(TrainerCallback):
    """Restores the best checkpoint of earlier sessions, whose recorded path is stale once the run's folder moves."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Correct the path, or forget a damaged checkpoint, which `Trainer` would notice only at the end."""
        # `Trainer` forgets a path that does not exist. The best step says less: it may be one that is not saved.
        best = best_checkpoint(Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"))
        if best and not weights_fault(best):
            state.best_model_checkpoint = str(best)
        elif state.best_model_checkpoint and (fault := weights_fault(Path(state.best_model_checkpoint))):
            logger.warning(
                f"{state.best_model_checkpoint} was the best, but {fault}; later evaluations choose another"
            )
            state.best_model_checkpoint = state.best_metric = state.best_global_step = None


def _stored_states(state: TrainerState) -> dict[str, Any]:
    """States of the callbacks in a checkpoint; `Trainer` updates those that have an entry and adds none."""
    return cast(dict[str, Any], state.stateful_callbacks)


# Checkpoints store the state of the following callbacks under the names of their classes.


class EarlyStopping(EarlyStoppingCallback):
    """Early stopping whose count survives resuming, so that a stopped run stays stopped.

    A metric that is NaN or infinite is no improvement, not even as the first; a tie is one if other metrics break it.
    """

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Any = None,
        **kwargs: Any,
    ) -> None:
        if breaks_tie(args, state, metrics):
            self.early_stopping_patience_counter = 0
        else:
            super().on_evaluate(args, state, control, metrics, **kwargs)

    def check_metric_value(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metric_value: float
    ) -> None:
        if math.isfinite(metric_value):
            super().check_metric_value(args, state, control, metric_value)
        else:
            self.early_stopping_patience_counter += 1

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        stored = _stored_states(state).setdefault(type(self).__name__, self.state())
        self.early_stopping_patience_counter = stored["attributes"]["early_stopping_patience_counter"]
        if state.global_step and self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True


class RunRecord(TrainerCallback, ExportableState):
    """What the sessions of a run pass on: attributes in its checkpoints, by their first values.

    The loss is logged before every checkpoint, so that the log in a checkpoint covers all of its steps.

    Attributes:
        seconds: Training time before this session.
        since_epoch: First epoch whose time is recorded: 0, or later if an earlier release began the run.
        train_pairs: Pairs kept of a stream, at the last checkpoint; None if the training data are no stream.
        skipped_steps: Steps skipped for a loss or gradient that was not finite.
        skipped_in_a_row: Those since a step was taken.
        first_step: Steps before this session; not stored.
    """

    initial: ClassVar[dict[str, Any]] = {
        "seconds": 0.0, "since_epoch": None, "train_pairs": None, "skipped_steps": 0, "skipped_in_a_row": 0,
    }  # fmt: skip  # one line says it
    seconds: float
    since_epoch: float
    train_pairs: int | None
    skipped_steps: int
    skipped_in_a_row: int

    def __init__(self) -> None:
        vars(self).update(self.initial)
        self._start, self.first_step = time.perf_counter(), 0

    def state(self) -> dict[str, Any]:
        attributes = {name: getattr(self, name) for name in self.initial}
        attributes["seconds"] += time.perf_counter() - self._start
        return {"args": {}, "attributes": attributes}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._start, self.first_step = time.perf_counter(), state.global_step
        states, name = _stored_states(state), type(self).__name__
        stored = states.get(name, {}) if state.global_step else {}
        vars(self).update(self.initial | stored.get("attributes", {}))
        states[name] = self.state()
        if self.since_epoch is None:
            self.since_epoch = state.epoch or 0.0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log before a checkpoint, and at the end."""
        last_or_saved = control.should_save or control.should_evaluate or control.should_training_stop
        if last_or_saved and args.logging_strategy != "no":
            control.should_log = True

    on_epoch_end = on_step_end


def mean_training_loss(history: list[dict[str, float]]) -> float | None:
    """Mean loss of the logged steps, whatever the logging intervals; None if no loss was logged.

    Args:
        history: `TrainerState.log_history`; each loss is the mean since the previous one.
    """
    logged = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    steps = [0, *(step for step, _ in logged)]
    weighted = [(step - before) * loss for before, (step, loss) in zip(steps, logged, strict=False)]
    return math.fsum(weighted) / steps[-1] if logged else None
