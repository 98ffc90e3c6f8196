"""The fixture `device` runs a test on a CPU, which checks its logic anywhere, and on a GPU.

GPU-only tests use the fixture `cuda`, and are skipped without a GPU.
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
    """Disable TF32, which rounds to 10 bits: the tests compare with a CPU's float32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    yield
    torch.set_float32_matmul_precision(before)
