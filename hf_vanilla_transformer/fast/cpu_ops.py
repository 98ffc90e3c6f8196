"""Dropout and attention with PyTorch's fastest CPU routines and unchanged results.

The standard routine runs on accelerators, under compilation, export or tracing, and for tensor subclasses (sharded,
quantized, wrapped).

Shapes: B batch, h heads, T queries, S keys, d_k key width, d_v value width.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F

from .routines import this_processor

DENSE_TYPES = (Tensor, nn.Parameter)


def is_plain_cpu(*tensors: Tensor) -> bool:
    """Whether all are dense CPU tensors and nothing traces or intercepts ops."""
    # Runs before every product: a loop takes half the time of a generator.
    for tensor in tensors:
        if type(tensor) not in DENSE_TYPES or not tensor.is_cpu or tensor.layout is not torch.strided:
            return False
    return not (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state()
        or torch._C._len_torch_dispatch_stack()
        or in_function_transform()
    )


def in_function_transform() -> bool:
    """Whether a `torch.func` transform or forward-mode differentiation is active; do not call while compiling."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def autocast_enabled(x: Tensor) -> bool:
    """Whether autocast is enabled for the device of `x`; never for "meta", which it does not support."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Cast `x` as autocast would for a product, so that several products share one cast."""
    # Inlines `autocast_enabled`, as this runs before most products of a decoding step.
    if x.dtype == torch.float32 and not x.is_meta and torch.is_autocast_enabled(x.device.type):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x


# Dropout

# Dropout compares 16 random bits with a threshold, which rounds p to a multiple of 2 ** -16.
DROPOUT_LEVELS = 2**16


def apply_dropout(x: Tensor, p: float) -> Tensor:
    """Zero elements of `x` with probability `p` and divide the others by 1 - p.

    On a CPU `p` is rounded to a multiple of 2 ** -16, and the scale follows the rounded value.
    """
    if p == 0:
        return x
    threshold = round(p * DROPOUT_LEVELS)
    if not 0 < threshold < DROPOUT_LEVELS or not x.is_floating_point() or not is_plain_cpu(x):
        return F.dropout(x, p)
    return _Dropout.apply(x, threshold)


class _Dropout(torch.autograd.Function):
    """Dropout with random numbers at a seventh of the cost of `F.dropout`, and a mask of one byte per element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(2**63), None)
        bits = words.view(torch.int16)[: x.numel()]
        kept = (bits >= threshold - DROPOUT_LEVELS // 2).view(x.shape)
        ctx.scale = DROPOUT_LEVELS / (DROPOUT_LEVELS - threshold)
        ctx.save_for_backward(kept)
        return (x * kept).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        dropped = grad * kept
        return dropped * ctx.scale if torch.is_grad_enabled() else dropped.mul_(ctx.scale), None


# Attention

ATTENTION = this_processor().attention


def use_bmm_attention(query: Tensor, key: Tensor, training: bool) -> bool:
    """Whether `bmm_attention` is fastest on this CPU for queries (B, h, T, d_k) and keys (B, h, S, d_k).

    Independent of whether gradients are enabled: reentrant checkpointing disables them in its first pass, and both
    passes must drop the same weights.
    """
    # A compiler would turn a comparison of sizes into a constraint on them.
    if query.dtype not in ATTENTION or torch.compiler.is_compiling():
        return False
    rule = ATTENTION[query.dtype]
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    sizes = rule.training if training else rule.step if queries == 1 else rule.queries
    return batch * heads >= sizes.heads and keys <= sizes.keys and is_plain_cpu(query, key)


def bmm_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention (section 3.2.1, eq. 1) as two batched matrix products.

    Takes queries (B, h, T, d_k), keys (B, h, S, d_k), values (B, h, S, d_v), and a mask as for SDPA; without a mask,
    `module.is_causal` hides later keys. Returns the output (B, T, h, d_v), and None for the weights.
    """
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    query, key, value = (x.reshape(batch * heads, -1, x.shape[-1]) for x in (query, key, value))
    scores = torch.bmm(query * scaling, key.transpose(1, 2))
    # A query without visible keys outputs 0, as in SDPA; plain softmax is cheaper but gives NaN.
    softmax = torch.softmax if attention_mask is None else torch._safe_softmax
    if attention_mask is None and module.is_causal and queries > 1:
        attention_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    if attention_mask is not None:
        scores = scores.unflatten(0, (batch, heads))
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, -torch.inf)
        else:
            scores = scores + attention_mask
        scores = scores.flatten(0, 1)
    weights = apply_dropout(softmax(scores, -1).to(value.dtype), dropout)
    return torch.bmm(weights, value).view(batch, heads, queries, -1).transpose(1, 2), None
