"""Find ops that would sync with an accelerator, on a machine without one."""

import traceback
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Ops whose results, or their shapes, the host needs at once.
READS = {
    torch.ops.aten._local_scalar_dense.default: "reads a number",
    torch.ops.aten.is_nonzero.default: "reads a condition",
    torch.ops.aten.equal.default: "compares tensors",
    torch.ops.aten.nonzero.default: "counts nonzero elements",
    torch.ops.aten.masked_select.default: "counts selected elements",
    torch.ops.aten.unique_consecutive.default: "counts distinct values",
    torch.ops.aten._unique2.default: "counts distinct values",
}


class Waits(TorchDispatchMode):
    """Collects in `found` the places in our code that would sync with an accelerator.

    Within it, CPU tensors take an accelerator's code path, since `is_plain_cpu` is false.
    """

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        what = READS.get(func)
        if func is torch.ops.aten.index.Tensor and any(i is not None and i.dtype == torch.bool for i in args[1]):
            what = "indexes by a mask"
        if what:
            frames = [frame for frame in traceback.extract_stack() if "site-packages/torch/" not in frame.filename]
            place = frames[-2]
            self.found.append(f"{what}: {place.filename.rpartition('/')[2]} {place.name}")
        return func(*args, **(kwargs or {}))
