"""The devices that tests run on: the CPU, and a GPU if there is one."""

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import pytest
import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

# Device of the ordinary tests; `make gpu-report` sets `TEST_DEVICE=cuda`.
TEST_DEVICE = os.environ.get("TEST_DEVICE", "cpu")

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]

# For tests that expect an error about a value; unchecked, a bad value would end the process's use of the GPU.
CHECKS_VALUES = pytest.mark.skipif(
    TEST_DEVICE != "cpu", reason="values on an accelerator are not checked, to avoid a device sync"
)
DROPS_SENTENCES = pytest.mark.skipif(TEST_DEVICE != "cpu", reason="sentences are dropped on a CPU only")

# Tolerance for log-probabilities across batch sizes: a GPU uses different kernels for different sizes.
ACROSS_BATCHES = 1e-5 if TEST_DEVICE == "cpu" else 1e-4

Parameters = ParamSpec("Parameters")
Made = TypeVar("Made")


def on(device: str | torch.device, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch, or a model's outputs, on a device."""
    return send_to_device(dict(batch), device)


def same_numbers(make: Callable[Parameters, Made]) -> Callable[Parameters, Made]:
    """Make `make` draw weights or ids on the CPU and move them to the default device, whose own draws would differ."""

    def moved(made: Any, device: torch.device) -> Any:
        if isinstance(made, Tensor | nn.Module):
            return made.to(device)
        if isinstance(made, dict):
            return on(device, made)
        return type(made)(moved(each, device) for each in made) if isinstance(made, list | tuple) else made

    @wraps(make)
    def made_on_cpu(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Made:
        device = torch.get_default_device()
        with torch.device("cpu"):
            made = make(*args, **kwargs)
        return moved(made, device)

    return made_on_cpu
