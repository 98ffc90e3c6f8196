"""Exponential moving average of the weights."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import torch
from torch.optim.swa_utils import get_ema_multi_avg_fn

# File of a checkpoint with the weights that training resumes from; its model has the average.
TRAINED_WEIGHTS = "trained_weights.safetensors"

# After n steps, the decay is at most (1 + n) / (WARM_UP + n), so that random initial weights are forgotten.
WARM_UP = 10


class MovingAverage:
    """Exponential moving average of parameters, in float32, initialized with their values."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter], decay: float) -> None:
        self.decay = decay
        self.parameters = [weight for weight in parameters if weight.requires_grad and weight.is_floating_point()]
        self.averages = [weight.detach().to(torch.float32, copy=True) for weight in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the averages after a step, counted from 0."""
        decay = min(self.decay, (1 + step) / (WARM_UP + step))
        values: Any = [weight.detach().float() for weight in self.parameters]
        get_ema_multi_avg_fn(decay)(cast(Any, self.averages), values, step)

    def copy_to_parameters(self) -> None:
        self._set(self.averages)

    @torch.no_grad()
    def _set(self, values: Iterable[torch.Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    @contextmanager
    def applied(self) -> Iterator[list[torch.Tensor]]:
        """Temporarily replace parameters with their averages, yielding the originals."""
        trained = [weight.detach().clone() for weight in self.parameters]
        self._set(self.averages)
        try:
            yield trained
        finally:
            self._set(trained)
