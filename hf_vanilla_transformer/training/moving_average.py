"""A trainer that evaluates and saves an exponential moving average of the weights it trains."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, cast

import torch
from safetensors.torch import load_file, save_file
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import Seq2SeqTrainer, TrainerCallback
from transformers.trainer_utils import TrainOutput

from .arguments import VanillaTransformerTrainingArguments

# In a checkpoint, the weights that training resumes with; those of the model are the average.
TRAINED_WEIGHTS = "trained_weights.safetensors"

# After n steps the decay is at most (1 + n) / (WARM_UP + n), so that the first weights, random ones, are forgotten.
WARM_UP = 10


class MovingAverage:
    """Exponential moving average of parameters, in float32.

    Args:
        parameters: What is averaged; the average starts with their values.
        decay: Weight of the average so far in the next.
    """

    def __init__(self, parameters: Iterable[torch.nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.parameters = [each for each in parameters if each.requires_grad and each.is_floating_point()]
        self.averages = [each.detach().to(torch.float32, copy=True) for each in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Average the parameters in, after a step; steps are counted from 0."""
        decay = min(self.decay, (1 + step) / (WARM_UP + step))
        values: Any = [each.detach().float() for each in self.parameters]
        get_ema_multi_avg_fn(decay)(cast(Any, self.averages), values, step)

    @torch.no_grad()
    def copy_to_parameters(self) -> None:
        """Replace the parameters by their averages."""
        for parameter, average in zip(self.parameters, self.averages, strict=True):
            parameter.copy_(average)

    @contextmanager
    def applied(self) -> Iterator[list[torch.Tensor]]:
        """Replace the parameters by their averages meanwhile; yields the replaced values."""
        trained = [each.detach().clone() for each in self.parameters]
        self.copy_to_parameters()
        try:
            yield trained
        finally:
            with torch.no_grad():
                for parameter, value in zip(self.parameters, trained, strict=True):
                    parameter.copy_(value)


class AveragingTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that with `args.ema_decay` evaluates, saves and ends with the average of the weights.

    A checkpoint's model is the average, like any other model; the weights that training resumes with lie beside it.
    """

    args: VanillaTransformerTrainingArguments
    _average: MovingAverage | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Set up as `Seq2SeqTrainer`.

        Raises:
            ValueError: The weights are sharded.
        """
        super().__init__(*args, **kwargs)
        if self._ema_decay and (self.is_fsdp_enabled or self.is_deepspeed_enabled):
            raise ValueError("`ema_decay` needs whole weights in each process; leave it out with FSDP and DeepSpeed")
        if self._ema_decay:
            self.add_callback(_AverageAfterStep(self))

    @property
    def _ema_decay(self) -> float:
        return getattr(self.args, "ema_decay", 0.0)

    def train(self, *args: Any, **kwargs: Any) -> TrainOutput:
        """Train; the model ends as the best checkpoint, or else as the average."""
        self._average = None
        try:
            output = super().train(*args, **kwargs)
            loaded_best = self.args.load_best_model_at_end and self.state.best_model_checkpoint is not None
            if self._average and not loaded_best:
                self._average.copy_to_parameters()
            return output
        finally:
            self._average = None

    def update_average(self) -> None:
        """Average the weights in, after a step of the optimizer."""
        self._started_average().update(self.state.global_step)

    def _started_average(self) -> MovingAverage:
        if self._average is None:
            self._average = MovingAverage(self._trained_model.parameters(), self._ema_decay)
        return self._average

    @property
    def _trained_model(self) -> torch.nn.Module:
        return cast(torch.nn.Module, self.model)

    def _with_average(self) -> Any:
        """Replace the weights by their average meanwhile, if there is one."""
        return self._average.applied() if self._average else nullcontext()

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Evaluate the average."""
        with self._with_average():
            return super().evaluation_loop(*args, **kwargs)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the average."""
        with self._with_average():
            super().save_model(output_dir, _internal_call)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        super()._save_optimizer_and_scheduler(output_dir)
        if self._average and self.args.should_save:
            save_file(self._trained_weights(), Path(output_dir, TRAINED_WEIGHTS))

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: torch.nn.Module | None = None) -> None:
        super()._load_from_checkpoint(resume_from_checkpoint, model)
        file = Path(resume_from_checkpoint, TRAINED_WEIGHTS)
        if self._ema_decay:
            self._started_average()
        if file.is_file():
            (self._trained_model if model is None else model).load_state_dict(load_file(file), strict=False)

    def _trained_weights(self) -> dict[str, torch.Tensor]:
        named = self._trained_model.named_parameters()
        return {name: each.detach().contiguous() for name, each in named if each.requires_grad}


class _AverageAfterStep(TrainerCallback):
    def __init__(self, trainer: AveragingTrainer) -> None:
        self.trainer = trainer

    def on_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        self.trainer.update_average()


__all__ = ["AveragingTrainer"]
