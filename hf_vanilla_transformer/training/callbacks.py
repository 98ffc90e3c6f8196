"""Trainer callbacks: best checkpoint, tie-breaking, early stopping, and statistics that survive resuming."""

import math
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from transformers import EarlyStoppingCallback, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, has_length
from transformers.utils import logging

from .checkpoints import best_checkpoint, weights_fault
from .options import LOWER_IS_BETTER

logger = logging.get_logger(__name__)

# Evaluation metrics besides the loss.
METRICS = ("bleu", "chrf", "exact_match", "wer", "ser")

# Tie-breakers, in order.
TIE_BREAKERS = ("chrf", "ser", "exact_match", "bleu")


def metric_name(args: TrainingArguments) -> str:
    return f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"


def gain(metric: str, scores: Mapping[str, float], prefix: str = "") -> float:
    """Return a score so that higher is better and 0 means that nothing is right; 0 if there is no such score."""
    value = scores.get(f"{prefix}{metric}")
    return 0.0 if value is None else max(0.0, 100 - value) if metric in LOWER_IS_BETTER else value


def breaks_tie(args: TrainingArguments, state: TrainerState, metrics: Mapping[str, float]) -> bool:
    """Whether this step's evaluation ties with the best one and wins by the tie-breaking metrics."""
    name = metric_name(args)
    value = metrics.get(name)
    if value is None or value != state.best_metric:
        return False
    tied = [entry for entry in state.log_history if entry.get(name) == value and entry["step"] != state.global_step]
    return bool(tied) and all(_rank(metrics, name) > _rank(entry, name) for entry in tied)


def _rank(evaluation: Mapping[str, float], name: str) -> tuple[float, ...]:
    """Sort key that breaks ties in the metric of this name; higher is better."""
    known = next((metric for metric in (*METRICS, "loss") if name.endswith(f"_{metric}")), None)
    prefix = name.removesuffix(known) if known else "eval_"
    scores = [gain(metric, evaluation, prefix) for metric in TIE_BREAKERS]
    own = gain(known, evaluation, prefix) if known in METRICS else evaluation[name]
    loss = evaluation.get(f"{prefix}loss", math.inf)
    # The loss decides only among evaluations in which nothing is right; otherwise equal scores are not an improvement.
    return (*scores, -loss if math.isfinite(loss) and not any((own, *scores)) else -math.inf)


class SamplerEpoch(TrainerCallback):
    """Sets the epoch of sampler and collator: when resuming mid-epoch, accelerate misses a sharded sampler."""

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
            # After a change of batch size, `state.epoch` still counts by the old number of batches per epoch.
            epoch = state.global_step // max(1, -(-len(train_dataloader) // args.gradient_accumulation_steps))
        seeded: Any
        for seeded in (train_dataloader, getattr(train_dataloader, "collate_fn", None)):
            if hasattr(seeded, "set_epoch"):
                seeded.set_epoch(epoch)


class ResumedState(TrainerCallback):
    """Corrects the state of a resumed run: changed intervals and the path of the best checkpoint."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Apply the current intervals; find the best checkpoint in a moved folder, or forget it if it is damaged."""
        # `Trainer` would keep the checkpoint's intervals.
        state.compute_steps(args, state.max_steps)
        # `Trainer` forgets a path that does not exist. The best step would not do: it may never have been saved.
        best = best_checkpoint(Path(str(args.output_dir), f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"))
        if best and not weights_fault(best):
            state.best_model_checkpoint = str(best)
        elif state.best_model_checkpoint and (fault := weights_fault(Path(state.best_model_checkpoint))):
            logger.warning(
                f"{state.best_model_checkpoint} was the best checkpoint, but {fault}; later evaluations choose another"
            )
            state.best_model_checkpoint = state.best_metric = state.best_global_step = None


# Checkpoints store the state of the following callbacks by class name. `Trainer` updates existing entries, but adds
# none.


class EarlyStopping(EarlyStoppingCallback):
    """Early stopping whose count survives resuming, so that a stopped run stays stopped.

    A NaN or infinite metric is never an improvement, not even the first one; a tie is one if other metrics break it.
    """

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metrics: Any = None, **kwargs: Any
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
        stored = cast(Any, state.stateful_callbacks).setdefault(type(self).__name__, self.state())
        self.early_stopping_patience_counter = stored["attributes"]["early_stopping_patience_counter"]
        if state.global_step and self.early_stopping_patience_counter >= self.early_stopping_patience:
            control.should_training_stop = True


@dataclass(eq=False)
class RunRecord(TrainerCallback, ExportableState):
    """Statistics of a run, which checkpoints carry from session to session.

    The loss is logged before every checkpoint, so that the log in a checkpoint covers all of its steps.

    Attributes:
        seconds: Training time before this session.
        since_epoch: First epoch whose time is recorded: 0, or later if an earlier release began the run.
        train_pairs: Pairs kept from a stream, as of the last checkpoint.
        skipped_steps: Steps skipped for a non-finite loss or gradient.
        skipped_in_a_row: Steps skipped since the last one taken.
        first_step: Steps before this session; not stored.
    """

    seconds: float = 0.0
    since_epoch: Any = None
    train_pairs: int | None = None
    skipped_steps: int = 0
    skipped_in_a_row: int = 0

    def __post_init__(self) -> None:
        self._start, self.first_step = time.perf_counter(), 0

    def state(self) -> dict[str, Any]:
        seconds = self.seconds + time.perf_counter() - self._start
        return {"args": {}, "attributes": {**asdict(self), "seconds": seconds}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._start, self.first_step = time.perf_counter(), state.global_step
        states, name = cast(dict[str, Any], state.stateful_callbacks), type(self).__name__
        stored = states.get(name, {}) if state.global_step else {}
        vars(self).update(asdict(RunRecord()) | stored.get("attributes", {}))
        states[name] = self.state()
        if self.since_epoch is None:
            self.since_epoch = state.epoch or 0.0

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Log before a checkpoint and at the end."""
        last_or_saved = control.should_save or control.should_evaluate or control.should_training_stop
        if last_or_saved and args.logging_strategy != "no":
            control.should_log = True

    on_epoch_end = on_step_end


def mean_training_loss(history: list[dict[str, float]]) -> float | None:
    """Mean loss of all steps, from a log in which each loss is the mean since the previous one; None without any."""
    logged = [(entry["step"], entry["loss"]) for entry in history if "loss" in entry]
    steps = [0, *(step for step, _ in logged)]
    weighted = [(step - before) * loss for before, (step, loss) in zip(steps, logged, strict=False)]
    return math.fsum(weighted) / steps[-1] if logged else None
