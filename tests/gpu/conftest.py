"""A `device` for every test: the CPU, so that its logic is tested anywhere, and a GPU.

Tests that are about a GPU alone take `cuda`, and are skipped without one.
"""

from collections.abc import Iterator

import pytest
import torch

from devices import DEVICES


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def cuda() -> str:
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU, and torch finds none")
    return "cuda"


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    yield
    torch._dynamo.reset()


@pytest.fixture(autouse=True)
def _exact_products() -> Iterator[None]:
    """No TF32, whose products keep 10 bits: the tests compare with a CPU's float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
