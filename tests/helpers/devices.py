"""The devices that tests run on: the CPU, and a GPU where there is one."""

import os
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

# Where the models of the ordinary tests are: `TEST_DEVICE=cuda`, as `make gpu-check` sets it, or the CPU.
TEST_DEVICE = os.environ.get("TEST_DEVICE", "cpu")

NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none")
DEVICES = ["cpu", pytest.param("cuda", marks=NEEDS_GPU)]


def on(device: str, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch, or a model's dictionary of results, on a device."""
    return {name: value.to(device) if isinstance(value, Tensor) else value for name, value in batch.items()}
