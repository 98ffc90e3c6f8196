"""Linear layers, dropout and short attention by the fastest way that PyTorch has on a CPU; elsewhere the plain way.

Nothing here changes what is computed, only by which routine. The plain way is taken on accelerators, wherever a graph
is compiled, exported or traced, for tensors that are more than data (dealt out, quantized, wrapped), and for layers
that are more than their weights.

Shape legend: N rows, K inputs, M outputs, B batch, h heads, T queries, S keys, d_k key width, d_v value width.
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

# Dropout compares 16 random bits with a threshold: p is rounded to a multiple of 2 ** -16.
DROPOUT_LEVELS = 2**16

DENSE_TYPES = (Tensor, nn.Parameter)


def is_plain(*tensors: Tensor) -> bool:
    """Return whether these are dense tensors on the CPU, and only the code at hand sees what is done to them."""
    # Asked for each product: a loop takes half the time of a generator.
    for tensor in tensors:
        if type(tensor) not in DENSE_TYPES or not tensor.is_cpu or tensor.layout is not torch.strided:
            return False
    return not (
        torch.compiler.is_compiling()
        or torch.jit.is_tracing()
        or torch._C._len_torch_dispatch_stack()
        or is_transformed()
    )


def is_transformed() -> bool:
    """Return whether a transform of functions (`torch.func`) or a derivative forward sees what is done.

    Not to be asked while a graph is compiled.
    """
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def in_autocast_dtype(x: Tensor) -> Tensor:
    """Return `x` in the type that autocast gives the factors of a product: cast once for several products."""
    return x.to(torch.get_autocast_dtype(x.device.type)) if x.dtype == torch.float32 and is_autocast(x) else x


def is_autocast(x: Tensor) -> bool:
    """Return whether autocast chooses the type of products of `x`; it does not know the "meta" device."""
    return not x.is_meta and torch.is_autocast_enabled(x.device.type)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype of sums over tensors of `dtype`: at least float32."""
    return torch.promote_types(dtype, torch.float32)


# Linear layers


def mkl_is_slow() -> bool:
    """Return whether MKL, which `torch.mm` calls, multiplies float32 matrices more slowly than oneDNN.

    MKL leaves half of an AMD processor's AVX-512 unused: 200 against 450 billion operations a second on two cores of
    an EPYC 9005.
    """
    facts = torch.cpu.get_capabilities()
    return bool(facts.get("avx512_f")) and "AMD" in facts.get("cpu_name", "")


FAST_PRODUCTS = torch.backends.mkldnn.is_available() and mkl_is_slow()
FAST_BFLOAT16 = torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def is_only_its_weights(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Return whether a linear layer does nothing but x W^T + b: no adapter, no hook, no other forward."""
    return type(layer) is nn.Linear and not (
        "forward" in layer.__dict__
        or layer._forward_hooks
        or layer._forward_pre_hooks
        or layer._backward_hooks
        or layer._backward_pre_hooks
        or module_hooks._has_any_global_hook()
    )


def linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer(x)`, (..., M) for `x` (..., K)."""
    if torch.compiler.is_compiling() or not is_only_its_weights(layer):
        return layer(x)
    if (packed := _packed_weights.get()) is not None and gains_by_packing(x, layer.weight):
        return _packed_linear(packed, layer, x)
    if has_fast_product(x, layer.weight):
        if torch.is_grad_enabled():
            return _Linear.apply(x, layer.weight, layer.bias)
        return _product(x, layer.weight, layer.bias)
    return layer(x)


# Rows up to which reading the weights costs more than multiplying by them.
FEW_ROWS = 64
# Products with a weight before it is packed: packing costs as much as some products save.
USES_BEFORE_PACKING = 4

_packed_weights: ContextVar[dict[nn.Module, Any] | None] = ContextVar("packed_weights", default=None)


@contextmanager
def packing() -> Iterator[None]:
    """Keep a second copy of bfloat16 weights that are used again and again, laid out as oneDNN reads them fastest.

    Inside, weights must not change. It pays where a few rows meet all weights at every step, as in decoding.
    """
    token = _packed_weights.set({})
    try:
        yield
    finally:
        _packed_weights.reset(token)


def gains_by_packing(x: Tensor, weight: Tensor) -> bool:
    """Return whether `x` (..., K) has so few rows that its product with a packed weight is faster."""
    few = x.numel() <= FEW_ROWS * x.shape[-1]
    return FAST_BFLOAT16 and few and not torch.is_grad_enabled() and suits_onednn(x, weight, torch.bfloat16)


def _packed_linear(packed: dict[nn.Module, Any], layer: nn.Linear, x: Tensor) -> Tensor:
    uses_or_weight = packed.get(layer, 0)
    if isinstance(uses_or_weight, Tensor):
        return torch.ops.mkldnn._linear_pointwise(x, uses_or_weight, layer.bias, "none", [], "")
    if uses_or_weight == USES_BEFORE_PACKING:
        packed[layer] = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), FEW_ROWS)
    else:
        packed[layer] = uses_or_weight + 1
    return layer(x)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, (N, M) for `x` (N, K), `weight` (M, K) and `bias` (M); keeps no gradient."""
    if has_fast_product(x, weight):
        return _product(x, weight, bias)
    return F.linear(x, weight, bias)


def has_fast_product(x: Tensor, weight: Tensor) -> bool:
    """Return whether oneDNN multiplies these faster than `torch.mm` would."""
    return FAST_PRODUCTS and not torch.is_autocast_enabled("cpu") and suits_onednn(x, weight, torch.float32)


def suits_onednn(x: Tensor, weight: Tensor, dtype: torch.dtype) -> bool:
    """Return whether oneDNN, unless it is switched off, can multiply these in that type."""
    switched_on = bool(torch.backends.mkldnn.enabled)
    return switched_on and x.dtype == weight.dtype == dtype and x.numel() > 0 and is_plain(x, weight)


def _product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b by oneDNN, which is slow where neither a matrix nor its transpose lies in one piece."""
    if not (weight.is_contiguous() or weight.T.is_contiguous()):
        weight = weight.contiguous()
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


class _Linear(torch.autograd.Function):
    """x W^T + b and its gradients by oneDNN."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        for_x, for_weight, for_bias = ctx.needs_input_grad
        rows, grads = x.reshape(-1, x.shape[-1]), grad.reshape(-1, grad.shape[-1])
        # A gradient that is differentiated again must be made of operations that are.
        product = F.linear if torch.is_grad_enabled() else _product
        d_x = product(grads, weight.T, None).view_as(x) if for_x else None
        d_bias = grads.sum(0) if for_bias else None
        if not for_weight:
            return d_x, None, d_bias
        # oneDNN is faster where the result has fewer rows than columns.
        wide = weight.shape[0] <= weight.shape[1]
        d_weight = product(grads.T, rows.T, None) if wide else product(rows.T, grads.T, None).T
        return d_x, d_weight, d_bias


# Dropout


def drop_out(x: Tensor, p: float, training: bool) -> Tensor:
    """Return `x` with elements set to zero at random with probability `p`, the others divided by 1 - p.

    On a CPU, `p` is rounded to a multiple of 2 ** -16, and what is kept divided accordingly.
    """
    if not training or p == 0:
        return x
    threshold = round(p * DROPOUT_LEVELS)
    if not 0 < threshold < DROPOUT_LEVELS or not x.is_floating_point() or not is_plain(x):
        return F.dropout(x, p)
    return _Dropout.apply(x, threshold)


class _Dropout(torch.autograd.Function):
    """Dropout whose random numbers cost a seventh of `F.dropout`'s, and whose mask is one byte an element."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, threshold: int) -> Tensor:
        bits = (
            torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
            .random_(-(2**63), None)
            .view(torch.int16)
        )
        kept = (bits[: x.numel()] >= threshold - DROPOUT_LEVELS // 2).view(x.shape)
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

# Keys up to which two products and a softmax beat PyTorch's flash attention for bfloat16 on a CPU.
SHORT_ATTENTION = 512
# Products of so many heads or fewer cost more in the call than flash attention does in all.
FEW_HEADS = 64


def attends_by_products(query: Tensor, key: Tensor) -> bool:
    """Return whether `short_attention` is the fastest for these (B, h, T, d_k) and (B, h, S, d_k).

    On a CPU it is for bfloat16, and for the single query of each row that decoding asks.
    """
    if not is_plain(query, key):
        return False
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    if batch * heads <= FEW_HEADS:
        return False
    if query.dtype == torch.bfloat16:
        return queries == 1 or keys <= SHORT_ATTENTION
    return query.dtype == torch.float32 and queries == 1 and not torch.is_grad_enabled()


def short_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention (section 3.2.1, eq. 1) by batched products, with all weights stored.

    Takes query (B, h, T, d_k), key (B, h, S, d_k), value (B, h, S, d_v) and the mask that SDPA takes: None, or
    true where a query may look; returns the output (B, T, h, d_v).
    """
    (batch, heads, queries, _), keys = query.shape, key.shape[2]
    query, key, value = (x.reshape(batch * heads, -1, x.shape[-1]) for x in (query, key, value))
    scores = torch.bmm(query * scaling, key.transpose(1, 2))
    may_look_somewhere = attention_mask is None
    if attention_mask is None and module.is_causal and queries > 1:
        attention_mask = torch.ones(queries, keys, dtype=torch.bool, device=query.device).tril(keys - queries)
    if attention_mask is not None:
        scores = scores.unflatten(0, (batch, heads))
        if attention_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attention_mask, -torch.inf)
        else:
            scores = scores + attention_mask
        scores = scores.flatten(0, 1)
    # A query that may look nowhere gets 0, as from SDPA; softmax, which costs less, would give NaN.
    softmax = torch.softmax if may_look_somewhere else torch._safe_softmax
    weights = softmax(scores, -1).to(value.dtype)
    weights = drop_out(weights, dropout, training=True)
    return torch.bmm(weights, value).view(batch, heads, queries, -1).transpose(1, 2), None
