"""Inputs of attention in a decoding step, and a reference implementation, row by row."""

from typing import Any

import torch
from torch import Tensor

ROWS, HEADS, LENGTH = 3, 2, 80


def random_step(past: int, widths: tuple[int, int], moved: bool, **options: Any) -> tuple[Any, ...]:
    """Random arguments of `kernels.attend` after `past` positions."""
    new = [torch.randn(ROWS, HEADS, 1, width, **options) for width in (widths[0], *widths)]
    kept = [torch.randn(ROWS, HEADS, LENGTH, width, **options) for width in widths]
    length = torch.tensor(past, device=options.get("device"))
    rows = torch.randint(ROWS, (ROWS, LENGTH), device=options.get("device"))
    rows[:, past:] = torch.arange(ROWS, device=options.get("device"))[:, None]
    return *new, *kept, length, rows if moved else None, 0.3


def attended(
    query: Tensor, key: Tensor, value: Tensor, keys: Tensor, values: Tensor, length: Tensor, rows: Any, scaling: float
) -> Tensor:
    """Attend to all positions so far, for each row and head separately, in float32."""
    past, out = int(length), query.new_zeros(ROWS, 1, HEADS, value.shape[3], dtype=torch.float32)
    for row in range(ROWS):
        for head in range(HEADS):
            sources = [row] * past if rows is None else rows[row, :past].tolist()
            k = torch.stack([*(keys[s, head, i] for i, s in enumerate(sources)), key[row, head, 0]]).float()
            v = torch.stack([*(values[s, head, i] for i, s in enumerate(sources)), value[row, head, 0]]).float()
            out[row, 0, head] = (k @ query[row, head, 0].float() * scaling).softmax(0) @ v
    return out
