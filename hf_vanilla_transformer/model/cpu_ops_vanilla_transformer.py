"""Linear layers, dropout and attention by PyTorch's fastest CPU routines, with unchanged results.

The standard routine runs on accelerators, under compilation, export or tracing, for tensors that are more than data
(sharded, quantized, wrapped), and for layers that are more than their weights.

Shapes: N rows, K inputs, M outputs, B batch, h heads, T queries, S keys, d_k key width, d_v value width.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks

DENSE_TYPES = (Tensor, nn.Parameter)


def is_plain_cpu(*tensors: Tensor) -> bool:
    """Whether all are dense CPU tensors and nothing traces or intercepts ops."""
    # Runs before every product: a loop takes half the time of a generator.
    for tensor in tensors:
        if type(tensor) not in DENSE_TYPES or not tensor.is_cpu or tensor.layout is not torch.strided:
            return False
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or in_function_transform()
    )


def in_function_transform() -> bool:
    """Whether a `torch.func` transform or forward-mode differentiation is active; do not call while compiling."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def autocast_enabled(x: Tensor) -> bool:
    """Whether autocast is on for the device of `x`; it does not know the "meta" device."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def to_autocast_dtype(x: Tensor) -> Tensor:
    """Cast `x` as autocast would for a product, so that several products share one cast."""
    if x.dtype == torch.float32 and autocast_enabled(x):
        return x.to(torch.get_autocast_dtype(x.device.type))
    return x


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums over tensors of `dtype`: at least float32."""
    return torch.promote_types(dtype, torch.float32)


# Linear layers


def mkl_is_slow() -> bool:
    """Whether MKL, behind `torch.mm`, multiplies float32 matrices more slowly than oneDNN.

    On AMD processors MKL leaves half of AVX-512 unused: 200 against 450 GFLOP/s on two cores of an EPYC 9005.
    """
    capabilities = torch.cpu.get_capabilities()
    return bool(capabilities.get("avx512_f")) and "AMD" in capabilities.get("cpu_name", "")


ONEDNN_BEATS_MKL = torch.backends.mkldnn.is_available() and mkl_is_slow()
ONEDNN_HAS_BFLOAT16 = torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_bare_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether `layer` computes x W^T + b and nothing else: no adapter, hook or patched `forward`."""
    return type(layer) is nn.Linear and not (
        "forward" in layer.__dict__
        or layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or module_hooks._has_any_global_hook()
    )


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer(x)`, (..., M) for `x` (..., K)."""
    if torch.compiler.is_compiling() or not is_bare_linear(layer):
        return layer(x)
    if (cache := _packed_weights.get()) is not None and gains_from_packing(x, layer.weight):
        return _packed_linear(cache, layer, x)
    if prefers_onednn(x, layer.weight):
        if torch.is_grad_enabled():
            return _OneDNNLinear.apply(x, layer.weight, layer.bias)
        return _onednn_linear(x, layer.weight, layer.bias)
    return layer(x)


# Up to so many rows, reading the weights costs more than multiplying by them.
MAX_PACKED_ROWS = 64
# Packing a weight costs as much as it saves in some products.
USES_BEFORE_PACKING = 4

_packed_weights: ContextVar[dict[nn.Module, Any] | None] = ContextVar("packed_weights", default=None)


@contextmanager
def weight_packing() -> Iterator[None]:
    """Keep copies of frequently used bfloat16 weights in oneDNN's fastest layout; weights must not change inside.

    Pays where few rows meet all weights at every step, as in decoding.
    """
    token = _packed_weights.set({})
    try:
        yield
    finally:
        _packed_weights.reset(token)


def gains_from_packing(x: Tensor, weight: Tensor) -> bool:
    """Whether `x` (..., K) has so few rows that a product with a packed weight is faster."""
    few_rows = x.numel() <= MAX_PACKED_ROWS * x.shape[-1]
    return (
        ONEDNN_HAS_BFLOAT16 and few_rows and not torch.is_grad_enabled() and onednn_supports(x, weight, torch.bfloat16)
    )


def _packed_linear(cache: dict[nn.Module, Any], layer: nn.Linear, x: Tensor) -> Tensor:
    uses_or_weight = cache.get(layer, 0)
    if isinstance(uses_or_weight, Tensor):
        return torch.ops.mkldnn._linear_pointwise(x, uses_or_weight, layer.bias, "none", [], "")
    if uses_or_weight == USES_BEFORE_PACKING:
        cache[layer] = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), MAX_PACKED_ROWS)
    else:
        cache[layer] = uses_or_weight + 1
    return layer(x)


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, (N, M) for `x` (N, K), `weight` (M, K) and `bias` (M), without autograd."""
    if prefers_onednn(x, weight):
        return _onednn_linear(x, weight, bias)
    return F.linear(x, weight, bias)


def prefers_onednn(x: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN multiplies these faster than `torch.mm`."""
    return ONEDNN_BEATS_MKL and not torch.is_autocast_enabled("cpu") and onednn_supports(x, weight, torch.float32)


def onednn_supports(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether oneDNN is enabled and can multiply these in `dtype`."""
    enabled = bool(torch.backends.mkldnn.enabled)
    return enabled and x.dtype == weight.dtype == dtype and x.numel() > 0 and is_plain_cpu(x, weight)


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # oneDNN is slow where neither the matrix nor its transpose is contiguous.
    if not (weight.is_contiguous() or weight.T.is_contiguous()):
        weight = weight.contiguous()
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _OneDNNLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        # A second derivative needs differentiable ops.
        product = F.linear if torch.is_grad_enabled() else _onednn_linear
        d_x = product(grads, weight.T, None).view_as(x) if needs_x else None
        d_bias = grads.sum(0) if needs_bias else None
        if not needs_weight:
            return d_x, None, d_bias
        # oneDNN is faster where the result has fewer rows than columns.
        is_wide = weight.shape[0] <= weight.shape[1]
        d_weight = product(grads.T, rows.T, None) if is_wide else product(rows.T, grads.T, None).T
        return d_x, d_weight, d_bias


# Dropout

# Dropout compares 16 random bits with a threshold, which rounds p to a multiple of 2 ** -16.
DROPOUT_LEVELS = 2**16


def apply_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Zero elements of `x` with probability `p` and divide the others by 1 - p.

    On a CPU `p` is rounded to a multiple of 2 ** -16, and the scale follows the rounded value.
    """
    if not training or p == 0:
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
        return torch.ops.aten.native_dropout_backward(x, kept, ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (kept,) = ctx.saved_tensors
        if torch.is_grad_enabled():
            return grad * kept * ctx.scale, None
        return torch.ops.aten.native_dropout_backward(grad, kept, ctx.scale), None


# Attention

# Up to so many keys, two products and a softmax beat PyTorch's bfloat16 flash attention on a CPU.
MAX_BMM_KEYS = 512
# Up to so many heads of a batch, calling bmm costs more than all of flash attention.
MAX_FLASH_HEADS = 64


def use_bmm_attention(query: Tensor, key: Tensor) -> bool:
    """Whether `bmm_attention` is the fastest for these (B, h, T, d_k) and (B, h, S, d_k).

    On a CPU it is for bfloat16, and for the single query per row of a decoding step.
    """
    if not is_plain_cpu(query, key):
        return False
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    if batch * heads <= MAX_FLASH_HEADS:
        return False
    if query.dtype == torch.bfloat16:
        return queries == 1 or keys <= MAX_BMM_KEYS
    return query.dtype == torch.float32 and queries == 1 and not torch.is_grad_enabled()


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

    Args:
        module: Its `is_causal` hides later keys where there is no mask.
        query: (B, h, T, d_k).
        key: (B, h, S, d_k).
        value: (B, h, S, d_v).
        attention_mask: As for SDPA: additive, or boolean and true at visible keys.
        scaling: Factor of the scores.
        dropout: Probability of dropping an attention weight.
        **kwargs: Ignored; other implementations take more.

    Returns:
        The output (B, T, h, d_v), and None for the weights.
    """
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    query, key, value = (x.reshape(batch * heads, -1, x.shape[-1]) for x in (query, key, value))
    scores = torch.bmm(query * scaling, key.transpose(1, 2))
    # A query without visible keys gets 0, as from SDPA; plain softmax costs less but gives NaN.
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
    weights = apply_dropout(softmax(scores, -1).to(value.dtype), dropout, training=True)
    return torch.bmm(weights, value).view(batch, heads, queries, -1).transpose(1, 2), None
