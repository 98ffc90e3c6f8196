"""The devices that tests run on: the CPU, and a GPU where there is one."""

import os
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import pytest
import torch
from accelerate.utils import send_to_device
from torch import Tensor, nn

# Where the models of the ordinary tests are: `TEST_DEVICE=cuda`, as `make gpu-report` sets it, or the CPU.
TEST_DEVICE = os.environ.get("TEST_DEVICE", "cpu")

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]

# Of tests that expect an error about a value. One that nothing checks would end the process's use of a GPU.
CHECKS_VALUES = pytest.mark.skipif(
    TEST_DEVICE != "cpu", reason="values on an accelerator are not checked, which would wait for it"
)
DROPS_SENTENCES = pytest.mark.skipif(TEST_DEVICE != "cpu", reason="sentences are dropped on a CPU only")

# How far equal log-probabilities of batches of other sizes may differ: a GPU takes another kernel for each size.
ACROSS_BATCHES = 1e-5 if TEST_DEVICE == "cpu" else 1e-4

Parameters = ParamSpec("Parameters")
Made = TypeVar("Made")


def on(device: str | torch.device, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch, or a model's dictionary of results, on a device."""
    return send_to_device(dict(batch), device)


def same_numbers(make: Callable[Parameters, Made]) -> Callable[Parameters, Made]:
    """Let `make` draw weights or ids on the CPU, then move them to the default device, which would draw others."""

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
