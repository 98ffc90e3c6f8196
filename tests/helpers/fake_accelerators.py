"""An accelerator on a machine that has none: tensors have shapes and no values, and nothing may wait for it."""

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

# Without a GPU, autograd's engine runs on "meta" alone: on "cuda" it asks the driver for the device.
WITH_BACKWARD = "meta"
NEEDS_CUDA_BUILD = pytest.mark.skipif(not torch.backends.cuda.is_built(), reason="needs a build of torch for CUDA")
FAKE_DEVICES = [WITH_BACKWARD, pytest.param("cuda", marks=NEEDS_CUDA_BUILD)]

READ = torch.ops.aten._local_scalar_dense.default
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)
COPIES_LISTS = torch.ops.aten._foreach_copy_.default


class MixedDevicesError(RuntimeError):
    pass


class FakeAccelerator(TorchDispatchMode):
    """Refuses ops between the CPU and an accelerator, copies included, which `FakeTensorMode` alone lets pass.

    A number on the CPU is no such tensor: kernels take it along. `answers` are what reads of the accelerator find, in
    turn; those beyond them raise.
    """

    def __init__(self, device: str, answers: Iterable[int] = ()) -> None:
        super().__init__()
        self.device, self.answers, self.may_copy_in = device, list(answers), False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is READ and args[0].is_cpu:
            # The steps that an optimizer counts.
            return 1
        if func is READ and self.answers:
            return self.answers.pop(0)
        result = func(*args, **(kwargs or {}))
        if func is COPIES_LISTS:
            # As the kernel of a GPU does; the versions of single tensors are raised before any kernel.
            increment_version(args[0])
        is_copy = func in COPIES
        tensors = (x for x in tree_leaves((args, kwargs, result)) if isinstance(x, Tensor))
        # The copy of a number waits, too.
        devices = {x.device.type for x in tensors if x.numel() and (x.dim() or is_copy)}
        if len(devices) > 1 and not (is_copy and self.may_copy_in and result.device.type == self.device):
            raise MixedDevicesError(f"{func} has tensors on {' and '.join(sorted(devices))}")
        return result

    def copying_in(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Let `function` copy from the CPU, as batches are."""

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
    """Let all tensors be fake meanwhile; takes the arguments of `FakeAccelerator`."""
    # `from_numpy` makes real tensors, as does `torch.tensor` on the meta device.
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    with functorch_config.patch(fake_tensor_allow_meta=True), fake, FakeAccelerator(device, answers) as accelerator:
        yield accelerator
