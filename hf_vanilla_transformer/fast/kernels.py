"""GPU kernels in Triton, which PyTorch's CUDA wheels for Linux include.

The softmax of the loss makes two passes over each row of logits, PyTorch's own operations seven, some over float32
copies. Attention of a decoding step has one query per hypothesis and head. PyTorch's kernels are designed for many
queries: they read the keys of all positions, filled or not, and need those of a hypothesis in one row.

Shapes: N rows or hypotheses, V target vocabulary, h heads, L maximum target length, d_k key width, d_v value width.
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

# Logits (softmax) and keys (attention) that a program reads at a time.
SOFTMAX_BLOCK, KEYS_BLOCK = 4096, 32
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@cache
def can_launch() -> bool:
    """Whether Triton can compile kernels here; it builds their launchers with a C compiler."""
    return triton is not None and any(map(shutil.which, (environ.get("CC") or "cc", "gcc", "clang")))


def suits(x: Tensor) -> bool:
    """Whether the Triton kernels can run on tensors like `x`."""
    return x.is_cuda and x.dtype in DTYPES and can_launch()


def replace_by_gradients(logits: Tensor, labels: Tensor, eps: float, differentiate: bool) -> Tensor:
    """Return the label-smoothed cross-entropy of each row (N), without the uniform part of the target.

    If `differentiate`, contiguous logits (N, V) are overwritten with their gradients,
    softmax(logits) - (1 - eps) one-hot. A row with a negative label has a loss and gradients of 0.
    """
    losses = torch.empty_like(labels, dtype=torch.float32)
    if len(logits):
        launch: Any = _softmax[(len(logits),)]
        # Triton launches on the current device.
        with torch.cuda.device_of(logits):
            launch(logits, labels, losses, eps, logits.shape[1], SOFTMAX_BLOCK, differentiate, num_warps=8)
    return losses


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    keys: Tensor,
    values: Tensor,
    length: Tensor,
    rows: Tensor | None,
    scaling: float,
) -> Tensor:
    """Store the keys and values of a step, and attend from its queries to all so far.

    The step's `key` (N, h, 1, d_k) and `value` (N, h, 1, d_v) are stored at position `length`, a 0-d tensor, of `keys`
    (N, h, L, d_k) and `values` (N, h, L, d_v). `rows` (N, L) is the row that holds those of each hypothesis at each
    position; None means its own row. Returns softmax(query keys^T * scaling) values, (N, 1, h, d_v).
    """
    count, heads, longest, width = keys.shape
    value_width = values.shape[3]
    out = torch.empty(count, 1, heads, value_width, dtype=query.dtype, device=query.device)
    launch: Any = _attention[(count, heads)]
    with torch.cuda.device_of(keys):
        launch(
            query.contiguous(), key.contiguous(), value.contiguous(), keys, values, out, length,
            length if rows is None else rows, scaling, longest, width, value_width, triton.next_power_of_2(width),
            triton.next_power_of_2(value_width), KEYS_BLOCK, rows is not None, num_warps=2,
        )  # fmt: skip  # one argument a line would hide that they are passed on
    return out


if triton is not None:

    @triton.jit
    def _softmax(logits, labels, losses, eps, V: tl.constexpr, BLOCK: tl.constexpr, differentiate: tl.constexpr):
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

    @triton.jit
    def _attention(
        query, key, value, keys, values, out, length, rows, scaling, L,
        K: tl.constexpr, V: tl.constexpr, K_BLOCK: tl.constexpr, V_BLOCK: tl.constexpr, BLOCK: tl.constexpr,
        has_rows: tl.constexpr,
    ):  # fmt: skip  # as above
        row, heads = tl.program_id(0).to(tl.int64), tl.num_programs(1)
        place = row * heads + tl.program_id(1)
        past = tl.load(length)
        k_columns, v_columns = tl.arange(0, K_BLOCK), tl.arange(0, V_BLOCK)
        in_k, in_v = k_columns < K, v_columns < V
        q = tl.load(query + place * K + k_columns, mask=in_k, other=0.0).to(tl.float32) * scaling
        new_key = tl.load(key + place * K + k_columns, mask=in_k, other=0.0)
        new_value = tl.load(value + place * V + v_columns, mask=in_v, other=0.0)
        # Other programs read earlier positions only.
        tl.store(keys + (place * L + past) * K + k_columns, new_key, mask=in_k)
        tl.store(values + (place * L + past) * V + v_columns, new_value, mask=in_v)
        highest = tl.sum(q * new_key.to(tl.float32))
        total, mean = 1.0, new_value.to(tl.float32)
        for start in range(0, past, BLOCK):
            positions = start + tl.arange(0, BLOCK)
            seen = positions < past
            source = row
            if has_rows:
                source = tl.load(rows + row * L + positions, mask=seen, other=0)
            places = (source * heads + tl.program_id(1)) * L + positions
            k = tl.load(keys + places[:, None] * K + k_columns, mask=seen[:, None] & in_k, other=0.0).to(tl.float32)
            scores = tl.where(seen, tl.sum(k * q[None, :], 1), -float("inf"))
            before, highest = highest, tl.maximum(highest, tl.max(scores))
            weights, rescale = tl.exp(scores - highest), tl.exp(before - highest)
            v = tl.load(values + places[:, None] * V + v_columns, mask=seen[:, None] & in_v, other=0.0).to(tl.float32)
            mean = mean * rescale + tl.sum(weights[:, None] * v, 0)
            total = total * rescale + tl.sum(weights)
        tl.store(out + place * V + v_columns, (mean / total).to(out.dtype.element_ty), mask=in_v)
