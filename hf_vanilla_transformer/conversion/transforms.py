"""Transforms of source tensors, and values for parameters that the original lacks.

Shape legend: d model width [d_model], d_k key width, L positions.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# From a source tensor and d_model to our tensors in the order of `Rule.names`, or to one tensor for all names. An
# ArithmeticError, IndexError, RuntimeError or ValueError means that the tensor's shape does not fit.
Transform = Callable[[Tensor, int], Tensor | tuple[Tensor, ...]]
# From the shape of one of our parameters to its values.
Filler = Callable[[Sequence[int]], Tensor]


def unchanged(tensor: Tensor, d_model: int) -> Tensor:
    return tensor


def split_in_three(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Split stacked queries, keys and values (3d, ...)."""
    return tensor.chunk(3)


def split_in_two(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Split stacked keys and values (2d, ...)."""
    return tensor.chunk(2)


def fold_unbiased_std(tensor: Tensor, d_model: int) -> Tensor:
    """Rescale the weight (d) or (1) of a norm with unbiased standard deviation, for use in `torch.nn.LayerNorm`.

    The unbiased deviation is sqrt(d / (d - 1)) times the biased one, so the weight is multiplied by the inverse. The
    epsilons e still differ: the original adds e to the deviation s, `LayerNorm` to its square. With the same e, s + e
    and sqrt(s^2 + e) are equal at s = 1/2 and differ by less than a fraction e / s wherever s > 1/4: below rounding
    for all but tiny states.
    """
    return tensor.expand(d_model) * math.sqrt((d_model - 1) / d_model)


def expand_scalar(tensor: Tensor, d_model: int) -> Tensor:
    """Expand a scalar (1) to the model's width (d); a vector (d) stays as it is."""
    return tensor.expand(d_model).clone()


def block_diagonal(tensor: Tensor, d_model: int) -> Tensor:
    """Repeat a projection (d_k, d_k), shared by all d / d_k heads, along the diagonal of (d, d)."""
    return torch.block_diag(*[tensor] * (d_model // tensor.shape[0]))


def block_diagonal_query(tensor: Tensor, d_model: int) -> Tensor:
    """Like `block_diagonal`, for queries whose scores are divided by sqrt(d), not sqrt(d_k)."""
    if tensor.shape[0] == d_model:
        raise ValueError("a full-width projection does not determine d_k")
    return block_diagonal(tensor, d_model) * math.sqrt(tensor.shape[0] / d_model)


BLOCK_DIAGONAL = (block_diagonal, block_diagonal_query)


def position_table(tensor: Tensor, d_model: int) -> Tensor:
    """Drop the batch axis of a position table (1, L, d) or (L, 1, d)."""
    if tensor.shape[-1] != d_model or math.prod(tensor.shape[:-1]) != max(tensor.shape[:-1]):
        raise ValueError(f"positions of shape {tuple(tensor.shape)}")
    return tensor.reshape(-1, d_model)


def identity(shape: Sequence[int]) -> Tensor:
    """Return the identity projection (d, d)."""
    return torch.eye(*shape)
