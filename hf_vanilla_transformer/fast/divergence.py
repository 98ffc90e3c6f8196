"""The divergence of R-Drop (Wu et al. 2021, eq. 2) that never stores all logits.

Shapes: B batch, T target length, N labels, d model width, V target vocabulary.
"""

from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..model.loss_vanilla_transformer import accumulation_dtype, at_labels
from .chunked_loss import ACCELERATOR_CHUNK_ELEMENTS, CHUNK_ELEMENTS, MIN_CHUNK_ROWS
from .linear import linear_forward, operands


def summed_divergence_without_logits(head: nn.Linear, states: Tensor, present: Tensor) -> Tensor:
    """Sum the divergence of two passes, from states (2 B, T, d) and where there are labels (B, T)."""
    pairs = torch.stack([at_labels(half, present) for half in states.chunk(2)], 1)
    return cast(Tensor, _DivergenceByChunks.apply(*operands(head, pairs)))


class _DivergenceByChunks(torch.autograd.Function):
    """Summed divergence of pairs of states (N, 2, d); its gradients are taken while a chunk of logits is stored."""

    @staticmethod
    def forward(ctx: Any, pairs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        (vocab_size, width), dtype = weight.shape, accumulation_dtype(weight.dtype)
        elements = CHUNK_ELEMENTS if pairs.is_cpu else ACCELERATOR_CHUNK_ELEMENTS
        total, d_pairs = weight.new_zeros((), dtype=dtype), torch.empty_like(pairs)
        d_weight, d_bias = weight.new_zeros(vocab_size, width, dtype=dtype), weight.new_zeros(vocab_size, dtype=dtype)
        rows = max(MIN_CHUNK_ROWS, elements // (2 * vocab_size))
        for chunk, d_chunk in zip(pairs.split(rows), d_pairs.split(rows), strict=True):
            states = chunk.flatten(0, 1)
            logits = linear_forward(states, weight, bias).view(*chunk.shape[:2], vocab_size)
            divergence, d_logits = _divergence(logits.log_softmax(-1, dtype=dtype))
            total += divergence
            if bias is not None:
                d_bias += d_logits.sum((0, 1))
            flat = d_logits.flatten(0, 1).to(weight.dtype)
            d_chunk.copy_(linear_forward(flat, weight.T).view_as(d_chunk))
            d_weight += linear_forward(flat.T, states.T)
        ctx.save_for_backward(d_pairs, d_weight, None if bias is None else d_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        dtype = ctx.saved_tensors[0].dtype
        return tuple(None if saved is None else (saved * grad).to(dtype) for saved in ctx.saved_tensors)


def _divergence(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed divergence of log-probabilities (N, 2, V), and its gradient for their logits (N, 2, V)."""
    probs, gap = log_probs.exp(), log_probs[:, 0] - log_probs[:, 1]
    # log p - log q for the first pass, log q - log p for the second.
    gaps = torch.stack([gap, -gap], 1)
    divergences = (probs * gaps).sum(-1, keepdim=True)
    gradient = gaps.sub_(divergences).mul_(probs).add_(probs).sub_(probs.flip(1))
    return divergences.sum() / 2, gradient / 2
