"""The trainer's optimizer: Muon, handling of NaN and infinite numbers, and the moving average of the weights."""

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from accelerate.utils import gather_object
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainerCallback
from transformers.utils import logging

from ..pretrained.loading import check_finite
from .callbacks import RunRecord
from .checkpoints import newest_checkpoint
from .moving_average import TRAINED_WEIGHTS, MovingAverage
from .muon import muon_with_adam
from .trainer_loss import ItemCount, LossTrainer

logger = logging.get_logger(__name__)

# Devices on which reading a loss costs nothing; on others it waits for the device, so steps are checked in groups.
SYNCHRONOUS_DEVICES = ("cpu",)
MAX_UNCHECKED = 64

# Consecutive skipped steps that stop the run. Weights do not change meanwhile: even if half of all batches were bad,
# so many in a row would occur once in a million steps.
MAX_SKIPPED_IN_A_ROW = 20

# Rows and characters of a batch that a message shows.
SHOWN_ROWS = 5
SHOWN_CHARACTERS = 60


class MicroBatch(NamedTuple):
    """Loss and source ids (B, S) of a forward pass; for packed sources (1, S), also their edges."""

    loss: torch.Tensor
    input_ids: torch.Tensor | None
    edges: torch.Tensor | None = None

    @property
    def sources(self) -> Sequence[torch.Tensor]:
        if self.input_ids is None:
            return []
        if self.edges is None:
            return list(self.input_ids)
        return self.input_ids[0].tensor_split(self.edges[1:-1].cpu().long())


class Step(NamedTuple):
    """A step to be checked, with its number, counted from 1, and this process's micro-batches.

    The signal is a scalar, equal in all processes, that is finite if and only if losses and gradients are.
    """

    number: int
    signal: torch.Tensor
    batches: list[MicroBatch]


class OptimizerTrainer(LossTrainer):
    """Muon, weight averaging, and protection against NaN and infinite numbers in `VanillaTransformerTrainer`.

    With `args.on_nonfinite` "stop", a NaN or infinite loss or gradient ends training with a ValueError that names step
    and batch. On a CPU, this happens before the step. On other devices, steps are checked in groups, since every check
    waits for the device; weights may be lost meanwhile, but nothing is logged, evaluated or saved unchecked. With
    "skip", every step is checked, and a bad one changes neither weights nor optimizer; the schedule continues.

    Steps are judged by the norm of their gradients, which all processes share. A GradScaler produces infinite
    gradients while searching for its scale, and skips those steps itself; with one, only losses are checked.

    With `args.ema_decay`, it evaluates, saves and ends with the average of the weights. The model in a checkpoint is
    the average; the weights that training resumes from are in a separate file.
    """

    _average: MovingAverage | None = None

    def prepare_checks(self) -> None:
        """Complete the constructor: average, statistics and checks of steps."""
        if self.args.ema_decay:
            if self.is_fsdp_enabled or self.is_deepspeed_enabled:
                raise ValueError(
                    "`ema_decay` needs whole weights in each process; leave it out with FSDP and DeepSpeed"
                )
            self.add_callback(_AverageAfterStep(self))
        self.add_callback(RunRecord)
        self._forget_steps()
        # Sum of losses before the current step.
        self._loss_before = torch.tensor(0.0)

    def _forget_steps(self) -> None:
        self._batches: list[MicroBatch] = []
        self._unchecked: list[Step] = []
        # Steps taken and skipped since the loss was last logged.
        self._taken = self._skipped = 0
        self._average = None

    @property
    def run_record(self) -> RunRecord:
        """The callback with statistics across sessions; `restore_callback_states_from_checkpoint` replaces it."""
        return next(callback for callback in self.callback_handler.callbacks if isinstance(callback, RunRecord))

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        if self.optimizer is not None or not self.args.muon:
            return super().create_optimizer(model)
        model = cast(nn.Module, self.model if model is None else model)
        self.optimizer = muon_with_adam(model, self.get_decay_parameter_names(model), self.args)
        return self.optimizer

    # Detection

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: ItemCount = None,
    ) -> Any:
        """Compute the loss of a batch and, in training, remember both until the step is checked."""
        result = self.batch_loss(model, inputs, return_outputs, num_items_in_batch)
        if not (model.training and self.is_in_train):
            return result
        loss, *outputs = result if return_outputs else (result,)
        if not self._batches and self.args.on_nonfinite == "skip":
            self._loss_before = self._tr_loss.clone()
        self._batches.append(
            MicroBatch(loss.detach(), inputs.get("input_ids"), (inputs.get("packing") or {}).get("cu_seq_lens"))
        )
        # Times 1 or NaN: an infinite loss may have finite gradients, and other processes would not notice it.
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
        signalled = zip(steps, signals, strict=True)
        return next((self._describe(step, value) for step, value in signalled if not math.isfinite(value)), None)

    def _check_steps(self) -> None:
        if fault := self._find_fault():
            raise ValueError(fault + self._divergence_advice)

    def _check_finite(self) -> None:
        self._check_steps()
        try:
            check_finite(cast(PreTrainedModel, self.model), f"step {self.state.global_step}")
        except ValueError as error:
            raise ValueError(f"{error}{self._divergence_advice}") from error

    # Reporting

    def _describe(self, step: Step, signal: float) -> str:
        """Describe what in a step is not finite, and in which batch; the same in every process."""
        losses = [batch.loss.float().mean().item() for batch in step.batches]
        bad = [i for i, loss in enumerate(losses) if not math.isfinite(loss)][:1]
        place = [f"rank {self.args.process_index}"] if self.args.world_size > 1 else []
        if bad and len(losses) > 1:
            place.append(f"micro-batch {bad[0] + 1} of {len(losses)}")
        place += self._describe_pairs(step, bad or range(len(losses)))
        text = f"loss is {losses[bad[0]]}" if bad else f"gradient norm is {signal}"
        faults = [(bool(bad), f"{text} ({', '.join(place)})" if place else text)]
        if self.args.world_size > 1:
            faults = gather_object(faults)
        # Prefer the process with the bad loss; gradients are shared.
        _, fault = next((fault for fault in faults if fault[0]), faults[0])
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

    @property
    def _divergence_advice(self) -> str:
        rate, clipping = f"{self.args.learning_rate:.3g}", "" if self.args.max_grad_norm else ", or `max_grad_norm=1`"
        newest = newest_checkpoint(cast(str, self.args.output_dir))
        last = f"; the last checkpoint is {newest}" if newest else ""
        return f": training has diverged; start again with a `learning_rate` below {rate}{clipping}{last}"

    # Skipping

    def _check_or_skip(self, model: torch.nn.Module) -> None:
        """Check the step; if it is bad, remove its gradients and its loss."""
        record, fault = self.run_record, self._find_fault()
        if fault is None:
            self._taken, record.skipped_in_a_row = self._taken + 1, 0
            return
        # With bad weights, no later step can be better.
        self._check_finite()
        record.skipped_steps, self._skipped = record.skipped_steps + 1, self._skipped + 1
        record.skipped_in_a_row += 1
        if record.skipped_in_a_row >= MAX_SKIPPED_IN_A_ROW:
            raise ValueError(f"{fault}, after {record.skipped_in_a_row - 1} skipped steps{self._divergence_advice}")
        logger.warning(f"{fault}: the step is skipped ({record.skipped_steps} so far)")
        # Without gradients an optimizer changes nothing, not even its own state.
        model.zero_grad(set_to_none=True)
        self._tr_loss.copy_(self._loss_before)

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log, with the mean loss of the steps that were taken."""
        self._check_steps()
        if "loss" in logs:
            if self._skipped:
                logs = self._without_skipped_steps(logs)
            self._taken = self._skipped = 0
        super().log(logs, *args, **kwargs)

    def _without_skipped_steps(self, logs: dict[str, float]) -> dict[str, float]:
        logs = {**logs, "skipped_steps": self.run_record.skipped_steps}
        if not math.isfinite(logs.get("grad_norm", 0.0)):
            del logs["grad_norm"]
        loss = logs.pop("loss")
        # `Trainer` divides by all steps.
        return {"loss": loss * (self._taken + self._skipped) / self._taken, **logs} if self._taken else logs

    def check_evaluation(self, metrics: Mapping[str, float], prefix: str) -> None:
        """In training, treat a NaN or infinite loss like that of a step."""
        loss = metrics.get(f"{prefix}_loss", 0.0)
        if self.is_in_train and not math.isfinite(loss):
            fault = f"step {self.state.global_step}: {prefix}_loss is {loss}"
            if self.args.on_nonfinite == "stop":
                raise ValueError(fault + self._divergence_advice)
            logger.warning(fault)

    # The average

    def started_average(self) -> MovingAverage:
        """Return the average, which starts as a copy of the weights on the first call."""
        self._average = self._average or MovingAverage(cast(nn.Module, self.model).parameters(), self.args.ema_decay)
        return self._average

    def _with_average(self) -> Any:
        """Temporarily replace the weights with their average, if there is one."""
        return self._average.applied() if self._average else nullcontext()

    def save_trained_weights(self, folder: Path) -> None:
        """Save the weights beside their average, which is the checkpoint's model."""
        if self._average and self.args.should_save and not self.args.save_only_model:
            named = cast(nn.Module, self.model).named_parameters()
            weights = {name: weight.detach().contiguous() for name, weight in named if weight.requires_grad}
            save_file(weights, folder / TRAINED_WEIGHTS)

    def load_trained_weights(self, checkpoint: str, model: nn.Module | None) -> None:
        """Load the weights that belong to the average, which is loaded as the model."""
        file = Path(checkpoint, TRAINED_WEIGHTS)
        if self.args.ema_decay:
            self.started_average()
        if file.is_file():
            cast(nn.Module, self.model if model is None else model).load_state_dict(load_file(file), strict=False)


class _AverageAfterStep(TrainerCallback):
    def __init__(self, trainer: OptimizerTrainer) -> None:
        self.trainer = trainer

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.started_average().update(self.trainer.state.global_step)
