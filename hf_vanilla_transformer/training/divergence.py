"""A trainer that takes no step with a loss or gradient that is not finite: it stops, or skips the step."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from accelerate.utils import gather_object
from transformers import PreTrainedModel, PreTrainedTokenizerBase, Seq2SeqTrainer
from transformers.utils import logging

from ..inference.loading import check_finite
from .arguments import VanillaTransformerTrainingArguments
from .callbacks import SkippedSteps
from .checkpoints import newest_checkpoint

logger = logging.get_logger(__name__)

# Devices on which reading a loss costs nothing; elsewhere it waits for the device, and steps are checked in groups.
SYNCHRONOUS_DEVICES = ("cpu",)
MAX_UNCHECKED = 64

# Skipped steps in a row that stop the run. Weights do not change meanwhile: even if half of all batches were bad, so
# many in a row would come once in a million steps.
MAX_SKIPPED_IN_A_ROW = 20

# How much of a batch a message shows.
SHOWN_ROWS = 5
SHOWN_CHARACTERS = 60


class MicroBatch(NamedTuple):
    """Loss and source ids (B, S) of a forward pass; of packed sources (1, S) also the edges."""

    loss: torch.Tensor
    input_ids: torch.Tensor | None
    edges: torch.Tensor | None = None

    @property
    def sources(self) -> Sequence[torch.Tensor]:
        """The ids of each source."""
        if self.input_ids is None:
            return []
        if self.edges is None:
            return list(self.input_ids)
        return self.input_ids[0].tensor_split(self.edges[1:-1].cpu().long())


class Step(NamedTuple):
    """A step that is yet to be checked.

    Attributes:
        number: Counted from 1.
        signal: A scalar, the same in all processes, that is finite if and only if losses and gradients are.
        batches: What this process contributes.
    """

    number: int
    signal: torch.Tensor
    batches: list[MicroBatch]


class FiniteTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that neither steps with, nor saves, nor selects by numbers that are NaN or infinite.

    With `args.on_nonfinite` "stop", such a loss or gradient ends training with a ValueError that names step and batch.
    On a CPU this comes before the step; on other devices steps are checked in groups, since every check waits for the
    device, and weights may be lost meanwhile, but nothing is logged, evaluated or saved before its steps are checked.
    With "skip", every step is checked, and a bad one changes neither weights nor optimizer; the learning rate goes on.

    The step is judged by the norm of its gradients, which all processes share. A GradScaler meets infinite gradients
    as it searches for its scale, and skips those steps itself: with one, only losses count.
    """

    args: VanillaTransformerTrainingArguments

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(SkippedSteps)
        self._batches: list[MicroBatch] = []
        self._unchecked: list[Step] = []
        # The sum of losses before the current step, and the steps taken and skipped since it was last logged.
        self._loss_before = torch.tensor(0.0)
        self._taken = self._skipped = 0

    @property
    def skipped_steps(self) -> SkippedSteps:
        """Counts of skipped steps; `restore_callback_states_from_checkpoint` replaces the callback."""
        return next(callback for callback in self.callback_handler.callbacks if isinstance(callback, SkippedSteps))

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train; see `Trainer.train`.

        Raises:
            ValueError: A loss, a gradient or a weight is NaN or infinite.
        """
        self._batches, self._unchecked, self._taken, self._skipped = [], [], 0, 0
        try:
            output = super().train(*args, **kwargs)
        finally:
            # `Trainer` leaves it set where training fails, and an evaluation after that would count as part of it.
            self.is_in_train = False
        self._check_finite()
        return output

    # Finding

    def compute_loss(
        self, model: torch.nn.Module, inputs: dict[str, Any], return_outputs: bool = False, *args: Any, **kwargs: Any
    ) -> Any:
        """Compute the loss of a batch and, in training, remember both until the step is checked."""
        result: Any = super().compute_loss(model, inputs, return_outputs, *args, **kwargs)
        if not (model.training and self.is_in_train):
            return result
        loss, *outputs = result if return_outputs else (result,)
        if not self._batches and self.args.on_nonfinite == "skip":
            self._loss_before = self._tr_loss.clone()
        self._batches.append(
            MicroBatch(loss.detach(), inputs.get("input_ids"), (inputs.get("packing") or {}).get("cu_seq_lens"))
        )
        # 1, or NaN: an infinite loss alone may have finite gradients, and other processes would not see it.
        loss = loss * (1 + 0 * loss.detach())
        return (loss, *outputs) if return_outputs else loss

    def _get_grad_norm(self, model: torch.nn.Module, grad_norm: Any = None) -> Any:
        norm = super()._get_grad_norm(model, grad_norm)
        batches, self._batches = self._batches, []
        self._unchecked.append(Step(self.state.global_step + 1, self._signal(norm, batches), batches))
        if self.args.on_nonfinite == "skip":
            self._check_or_skip(model)
        elif self.args.device.type in SYNCHRONOUS_DEVICES or len(self._unchecked) >= MAX_UNCHECKED:
            self._check_steps()
        return norm

    def _signal(self, norm: Any, batches: Sequence[MicroBatch]) -> torch.Tensor:
        if norm is None or getattr(self.accelerator, "scaler", None) is not None:
            return self.accelerator.reduce(torch.stack([batch.loss.float().sum() for batch in batches]).sum())
        return torch.as_tensor(norm.full_tensor() if hasattr(norm, "full_tensor") else norm)

    def _find_fault(self) -> str | None:
        """Check the steps; describe the first that is not finite."""
        steps, self._unchecked = self._unchecked, []
        if not steps:
            return None
        # All at once: every read waits for the device.
        signals = torch.stack([step.signal.to(self.args.device, torch.float32) for step in steps]).tolist()
        bad = (self._describe(step, value) for step, value in zip(steps, signals, strict=True) if not finite(value))
        return next(bad, None)

    def _check_steps(self) -> None:
        if fault := self._find_fault():
            raise ValueError(fault + self._divergence_advice)

    def _check_finite(self) -> None:
        """Raise a ValueError if a step or a weight is NaN or infinite."""
        self._check_steps()
        try:
            check_finite(cast(PreTrainedModel, self.model), f"step {self.state.global_step}")
        except ValueError as error:
            raise ValueError(f"{error}{self._divergence_advice}") from error

    # Reporting

    def _describe(self, step: Step, signal: float) -> str:
        """Say what of a step is not finite, and in which batch: the same in every process."""
        losses = [batch.loss.float().mean().item() for batch in step.batches]
        first = next((i for i, loss in enumerate(losses) if not finite(loss)), None)
        bad_loss = first is not None
        indices = range(len(losses)) if first is None else [first]
        place = [f"rank {self.args.process_index}"] if self.args.world_size > 1 else []
        if bad_loss and len(losses) > 1:
            place.append(f"micro-batch {indices[0] + 1} of {len(losses)}")
        text = f"loss is {losses[indices[0]]}" if bad_loss else f"gradient norm is {signal}"
        place += self._describe_pairs(step, indices)
        fault = f"{text} ({', '.join(place)})" if place else text
        faults = [(bad_loss, fault)]
        if self.args.world_size > 1:
            faults = gather_object(faults)
        # The process whose loss it is; the gradients are everybody's.
        _, fault = next((each for each in faults if each[0]), faults[0])
        return f"step {step.number}: {fault}"

    def _describe_pairs(self, step: Step, indices: Sequence[int]) -> list[str]:
        sources = [row for i in indices for row in step.batches[i].sources]
        if not sources:
            return []
        described = [f"{len(sources)} pair{'s' * (len(sources) > 1)}"]
        if rows := [row for i in indices for row in self._training_rows(step.number, i)]:
            more = f" and {len(rows) - SHOWN_ROWS} more" if len(rows) > SHOWN_ROWS else ""
            described.append(f"rows {', '.join(map(str, rows[:SHOWN_ROWS]))}{more}")
        tokenizer = self.processing_class
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            longest = max(sources, key=lambda row: int(row.ne(tokenizer.pad_token_id or 0).sum()))
            decode = getattr(tokenizer, "source_tokenizer", tokenizer).decode
            text = str(decode(longest, skip_special_tokens=True))
            described.append(f"longest source {text[:SHOWN_CHARACTERS]!r}{'...' * (len(text) > SHOWN_CHARACTERS)}")
        return described

    def _training_rows(self, step: int, micro_batch: int) -> list[int]:
        """Rows of the training data in a micro-batch of this process, as far as they are known."""
        return []

    @property
    def _divergence_advice(self) -> str:
        rate, clipping = f"{self.args.learning_rate:.3g}", "" if self.args.max_grad_norm else ", or `max_grad_norm=1`"
        kept = newest_checkpoint(cast(str, self.args.output_dir))
        last = f"; the last checkpoint is {kept}" if kept else ""
        return f": training has diverged; start again with a `learning_rate` below {rate}{clipping}{last}"

    # Skipping

    def _check_or_skip(self, model: torch.nn.Module) -> None:
        """Check the step; if it is bad, leave the optimizer nothing to do.

        Raises:
            ValueError: A weight is not finite either, or too many steps in a row were skipped.
        """
        skipped, fault = self.skipped_steps, self._find_fault()
        if fault is None:
            self._taken, skipped.in_a_row = self._taken + 1, 0
            return
        # Otherwise no later step can be better.
        self._check_finite()
        skipped.total, skipped.in_a_row, self._skipped = skipped.total + 1, skipped.in_a_row + 1, self._skipped + 1
        if skipped.in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise ValueError(f"{fault}, after {skipped.in_a_row - 1} skipped steps{self._divergence_advice}")
        logger.warning(f"{fault}: the step is skipped ({skipped.total} so far)")
        # Without gradients an optimizer changes nothing, not even its own state.
        model.zero_grad(set_to_none=True)
        self._tr_loss.copy_(self._loss_before)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log; the loss is the mean of the steps that were taken."""
        self._check_steps()
        if "loss" in logs:
            if self._skipped:
                logs = self._without_skipped_steps(logs)
            self._taken = self._skipped = 0
        super().log(logs, *args, **kwargs)

    def _without_skipped_steps(self, logs: dict[str, float]) -> dict[str, float]:
        logs = {**logs, "skipped_steps": self.skipped_steps.total}
        if not finite(logs.get("grad_norm", 0.0)):
            del logs["grad_norm"]
        loss = logs.pop("loss")
        # `Trainer` divides by all steps.
        return {"loss": loss * (self._taken + self._skipped) / self._taken, **logs} if self._taken else logs

    # Evaluation

    def _check_evaluation_loss(self, name: str, loss: float) -> None:
        """Treat the loss of an evaluation during training as that of a step."""
        if finite(loss) or not self.is_in_train:
            return
        fault = f"step {self.state.global_step}: {name} is {loss}"
        if self.args.on_nonfinite == "stop":
            raise ValueError(fault + self._divergence_advice)
        logger.warning(fault)

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        """Decide whether this model is the best: never by a metric that is NaN or infinite."""
        name = f"eval_{str(self.args.metric_for_best_model).removeprefix('eval_')}"
        if not finite(value := metrics.get(name, 0.0)):
            logger.warning(f"step {self.state.global_step}: {name} is {value}, so this is not the best model")
            return False
        return super()._determine_best_metric(metrics, trial)


def finite(value: float) -> bool:
    return math.isfinite(value)


__all__ = ["FiniteTrainer"]
