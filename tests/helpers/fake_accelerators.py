"""A simulated accelerator: tensors have shapes but no values, and device syncs fail."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch import config as functorch_config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd.graph import increment_version
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Without a GPU, backward works only on "meta": on "cuda", autograd's engine asks the driver for the device.
WITH_BACKWARD = "meta"
NEEDS_CUDA_BUILD = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="needs a build of torch for CUDA")
FAKE_DEVICES = [WITH_BACKWARD, pytest.param("cuda", marks=NEEDS_CUDA_BUILD)]

READ = torch.ops.aten._local_scalar_dense.default
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
COPIES_LISTS = torch.ops.aten._foreach_copy_.default


class MixedDevicesError(RuntimeError):
    pass


class FakeAccelerator(TorchDispatchMode):
    """Refuses ops that mix the CPU and an accelerator, including copies, which `FakeTensorMode` alone allows.

    Zero-dimensional CPU tensors are allowed, since kernels take them as arguments. `answers` are the values of
    successive reads from the accelerator; further reads raise.
    """

    def __init__(self, device: str, answers: Iterable[int] = ()) -> None:
        super().__init__()
        self.device, self.answers, self.may_copy_in = device, list(answers), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is READ and args[0].is_cpu:
            # The step counter of an optimizer.
            return 1
        if func is READ and self.answers:
            return self.answers.pop(0)
        result = func(*args, **(kwargs or {}))
        if func is COPIES_LISTS:
            # As the GPU's kernel does; other ops increment versions before their kernel runs.
            increment_version(args[0])
        is_copy = func in COPIES
        tensors = (x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor))
        # Copying a single number syncs too.
        devices = {x.device.type for x in tensors if x.numel() and (x.dim() or is_copy)}
        if len(devices) > 1 and not (is_copy and self.may_copy_in and result.device.type == self.device):
            raise MixedDevicesError(f"{func} has tensors on {' and '.join(sorted(devices))}")
        return result

    def copying_in(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Allow `function` to copy from the CPU, as batches are."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            before, self.may_copy_in = self.may_copy_in, True
            try:
                return function(*args, **kwargs)
            finally:
                self.may_copy_in = before

        return call


@contextmanager
def fake_accelerator(device: str, answers: Iterable[int] = ()) -> Iterator[FakeAccelerator]:
    """Make all new tensors fake within the context; takes the arguments of `FakeAccelerator`."""
    # `from_numpy`, and `torch.tensor` on the meta device, make real tensors.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with functorch_config.patch(fake_tensor_allow_meta=True), fake, FakeAccelerator(device, answers) as accelerator:
        yield accelerator
