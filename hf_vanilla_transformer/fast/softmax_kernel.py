"""The softmax of the loss on a GPU, in Triton: loss and gradient of each row of logits in two passes.

PyTorch's own operations take seven passes, some over float32 copies. PyTorch's wheels for CUDA on Linux carry Triton.

Shapes: N rows, V target vocabulary.
"""

import shutil
from functools import cache
from os import environ
from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# Logits that a program reads at a time.
BLOCK = 4096
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@cache
def can_launch() -> bool:
    """Whether Triton can compile kernels here; it builds their launchers with a C compiler."""
    return triton is not None and any(map(shutil.which, (environ.get("CC") or "cc", "gcc", "clang")))


def suits(x: Tensor) -> bool:
    """Whether kernels in Triton can run on tensors such as this one."""
    return x.is_cuda and x.dtype in DTYPES and can_launch()


def replace_by_gradients(logits: Tensor, labels: Tensor, eps: float, differentiate: bool) -> Tensor:
    """Return the label-smoothed cross-entropy of each row (N), without the uniform part of the target.

    Contiguous logits (N, V) are replaced by their gradients, softmax(logits) - (1 - eps) one-hot, if `differentiate`.
    A row with a negative label has no loss and gradients of 0.
    """
    losses = torch.empty_like(labels, dtype=torch.float32)
    if len(logits):
        launch: Any = _kernel[(len(logits),)]
        # Triton launches on the current device.
        with torch.cuda.device_of(logits):
            launch(logits, labels, losses, eps, logits.shape[1], BLOCK, differentiate, num_warps=8)
    return losses


if triton is not None:

    @triton.jit
    def _kernel(logits, labels, losses, eps, V: tl.constexpr, BLOCK: tl.constexpr, differentiate: tl.constexpr):
        row = tl.program_id(0).to(tl.int64)
        logits += row * V
        label = tl.load(labels + row)
        counts = label >= 0
        highest, total = -float("inf"), 0.0
        for start in range(0, V, BLOCK):
            columns = start + tl.arange(0, BLOCK)
            x = tl.load(logits + columns, mask=columns < V, other=-float("inf")).to(tl.float32)
            before, highest = highest, tl.maximum(highest, tl.max(x))
            total = total * tl.exp(before - highest) + tl.sum(tl.exp(x - highest))
        log_total = highest + tl.log(total)
        of_label = tl.load(logits + tl.where(counts, label, 0)).to(tl.float32)
        tl.store(losses + row, tl.where(counts, log_total - (1 - eps) * of_label, 0.0))
        if differentiate:
            # Every thread must have read the label's logit before one replaces it.
            tl.debug_barrier()
            for start in range(0, V, BLOCK):
                columns = start + tl.arange(0, BLOCK)
                x = tl.load(logits + columns, mask=columns < V, other=-float("inf")).to(tl.float32)
                gradient = tl.exp(x - log_total) - tl.where(columns == label, 1 - eps, 0.0)
                gradient = tl.where(counts, gradient, 0.0)
                tl.store(logits + columns, gradient.to(logits.dtype.element_ty), mask=columns < V)
