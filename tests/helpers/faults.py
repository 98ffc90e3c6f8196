"""Injection of non-finite numbers into training."""

from collections.abc import Collection
from itertools import count

import pytest
import torch
from transformers import Seq2SeqTrainer

NUMBERS = (float("nan"), float("inf"), float("-inf"))


def spoil_losses(monkeypatch: pytest.MonkeyPatch, passes: Collection[int], value: float) -> None:
    """Add a value to the loss in these training forward passes, counted from 0; gradients stay finite."""
    compute, number = Seq2SeqTrainer.compute_loss, count()

    def spoiled(self, model, *args, **kwargs):
        loss = compute(self, model, *args, **kwargs)
        return loss + value if model.training and next(number) in passes else loss

    monkeypatch.setattr(Seq2SeqTrainer, "compute_loss", spoiled)


def spoil_gradients(parameter: torch.nn.Parameter, passes: Collection[int], value: float, element: int = 0) -> None:
    """Set an element of a parameter's gradient to a value in these backward passes, counted from 0."""
    number = count()

    def spoiled(gradient: torch.Tensor) -> torch.Tensor:
        if next(number) not in passes:
            return gradient
        flat = gradient.flatten()
        return flat.index_fill(0, torch.tensor([element]), value).view(gradient.shape)

    parameter.register_hook(spoiled)
