"""Attention of a decoding step on a GPU, in Triton: one query per hypothesis and head.

PyTorch's kernels are made for many queries: they read the keys of all positions, filled or not, and need those of a
hypothesis in one row.

Shapes: N hypotheses, h heads, L most target tokens, d_k and d_v widths of a head.
"""

from typing import Any

import torch
from torch import Tensor

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

# Keys that a program reads at a time.
BLOCK = 32


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

    The step's key (N, h, 1, d_k) and value (N, h, 1, d_v) become number `length`, a tensor (), of all keys (N, h, L,
    d_k) and values (N, h, L, d_v). `rows` (N, L) says whose each hypothesis has at each position; None: its own.
    Returns softmax(query keys^T * scaling) values, (N, 1, h, d_v).
    """
    count, heads, longest, width = keys.shape
    value_width = values.shape[3]
    out = torch.empty(count, 1, heads, value_width, dtype=query.dtype, device=query.device)
    launch: Any = _kernel[(count, heads)]
    # Triton launches on the current device.
    with torch.cuda.device_of(keys):
        launch(
            query.contiguous(), key.contiguous(), value.contiguous(), keys, values, out, length,
            length if rows is None else rows, scaling, longest, width, value_width, triton.next_power_of_2(width),
            triton.next_power_of_2(value_width), BLOCK, rows is not None, num_warps=2,
        )  # fmt: skip  # one argument a line would hide that they are passed on
    return out


if triton is not None:

    @triton.jit
    def _kernel(
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
            weights, kept = tl.exp(scores - highest), tl.exp(before - highest)
            v = tl.load(values + places[:, None] * V + v_columns, mask=seen[:, None] & in_v, other=0.0).to(tl.float32)
            mean = mean * kept + tl.sum(weights[:, None] * v, 0)
            total = total * kept + tl.sum(weights)
        tl.store(out + place * V + v_columns, (mean / total).to(out.dtype.element_ty), mask=in_v)
