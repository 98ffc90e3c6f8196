"""Transforms of source tensors, and values of parameters that an original does without.

Shape legend: d model width [d_model], d_k key width, L positions.
"""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

# From a source tensor and d_model to our tensors in the order of `Rule.names`, or to one for all names. An arithmetic,
# index, runtime or value error means that the shape of the tensor does not fit.
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
    """Rescale the weight (d) or (1) of a norm that divides by the unbiased standard deviation for torch's `LayerNorm`.

    The unbiased deviation is sqrt(d / (d - 1)) times the biased one, so the weight takes the inverse. What remains is
    an epsilon e that is added to the deviation s there, and to its square here. With the same e, s + e and
    sqrt(s^2 + e) are equal at s = 1/2, and differ by less than a fraction e / s wherever s > 1/4: below rounding for
    all but tiny states.
    """
    return tensor.expand(d_model) * math.sqrt((d_model - 1) / d_model)


def expand_scalar(tensor: Tensor, d_model: int) -> Tensor:
    """Expand a scalar (1) to the model's width (d), which a vector (d) already has."""
    return tensor.expand(d_model).clone()


def block_diagonal(tensor: Tensor, d_model: int) -> Tensor:
    """Copy one small projection (d_k, d_k) for each of the d / d_k heads onto the diagonal of (d, d)."""
    return torch.block_diag(*[tensor] * (d_model // tensor.shape[0]))


def block_diagonal_query(tensor: Tensor, d_model: int) -> Tensor:
    """Copy a small projection (d_k, d_k) of queries likewise, where scores are divided by sqrt(d), not sqrt(d_k)."""
    if tensor.shape[0] == d_model:
        raise ValueError("a projection of the whole width does not show d_k")
    return block_diagonal(tensor, d_model) * math.sqrt(tensor.shape[0] / d_model)


BLOCK_DIAGONAL = (block_diagonal, block_diagonal_query)


def position_table(tensor: Tensor, d_model: int) -> Tensor:
    """Drop the batch axis of a position table (1, L, d) or (L, 1, d)."""
    if tensor.shape[-1] != d_model or math.prod(tensor.shape[:-1]) != max(tensor.shape[:-1]):
        raise ValueError(f"positions of shape {tuple(tensor.shape)}")
    return tensor.reshape(-1, d_model)


def identity(shape: Sequence[int]) -> Tensor:
    """Return the projection (d, d) that changes nothing."""
    return torch.eye(*shape)
