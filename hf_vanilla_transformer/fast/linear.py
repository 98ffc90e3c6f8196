"""Linear layers with the fastest CPU routine for this processor and unchanged results.

The standard routine runs on accelerators, under compilation, export or tracing, for tensor subclasses (sharded,
quantized, wrapped), and for layers with adapters or hooks.

Shapes: N rows, K inputs, M outputs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeGuard
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks

from .cpu_ops import DENSE_TYPES, autocast_enabled, is_plain_cpu
from .routines import Routine, this_processor

PRODUCTS = this_processor().products

# Packing a weight costs as much as it saves in several products.
USES_BEFORE_PACKING = 4


def is_bare_linear(layer: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether `layer` computes x W^T + b and nothing else: no adapter, hook or patched `forward`."""
    return type(layer) is nn.Linear and not is_hooked(layer)


def is_hooked(module: nn.Module) -> bool:
    """Whether calling `module` runs more than its class's `forward`."""
    return bool(
        "forward" in module.__dict__
        or module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or module_hooks._has_any_global_hook()
    )


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """Return `layer(x)`, (..., M) for `x` (..., K)."""
    if torch.compiler.is_compiling():
        return layer(x)
    if (products := _decoding_products.get()) is not None:
        return products(layer, x)
    # A tracer would record comparisons of sizes.
    if torch._C._get_tracing_state() or not is_bare_linear(layer):
        return layer(x)
    return multiply(x, layer.weight, layer.bias)


def operands(layer: nn.Linear, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return `x`, weight and bias in the dtype that `layer(x)` would compute in."""
    dtype = torch.get_autocast_dtype(x.device.type) if autocast_enabled(x) else layer.weight.dtype
    return x.to(dtype), layer.weight.to(dtype), None if layer.bias is None else layer.bias.to(dtype)


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, (N, M) for `x` (N, K), `weight` (M, K) and `bias` (M), without autograd."""
    return (_onednn_linear if _uses_onednn(x, weight) else F.linear)(x, weight, bias)


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x W^T + b, (..., M) for `x` (..., K), `weight` (M, K) and `bias` (M)."""
    if not _uses_onednn(x, weight):
        return F.linear(x, weight, bias)
    return (_OneDNNLinear.apply if torch.is_grad_enabled() else _onednn_linear)(x, weight, bias)


def _uses_onednn(x: Tensor, weight: Tensor) -> bool:
    return _routine(x, weight) is Routine.ONEDNN and _is_standard() and is_plain_cpu(x, weight)


def _routine(x: Tensor, weight: Tensor, may_pack: bool = False) -> Routine:
    """Return the routine that this processor's rules choose for `x` (..., K) and `weight` (M, K)."""
    if (dtype := x.dtype) not in PRODUCTS or weight.dtype != dtype or not (size := x.numel()):
        return Routine.DEFAULT
    rows, numbers = size // x.shape[-1], weight.numel()
    for product in PRODUCTS[dtype]:
        if rows <= product.rows and numbers >= product.numbers and (may_pack or product.routine != Routine.PACKED):
            return product.routine
    return Routine.DEFAULT


def _is_standard() -> bool:
    """Whether oneDNN is enabled and autocast is not."""
    return bool(torch._C._get_mkldnn_enabled()) and not torch.is_autocast_enabled("cpu")


# Decoding

Apply = Callable[[Tensor, Tensor, Tensor | None], Tensor]


class DecodingProducts:
    """Linear layers over many decoding steps: the routine is chosen once per layer and input shape.

    Weights that are used repeatedly with few rows are packed until they change.
    """

    def __init__(self, is_shared: bool = False) -> None:
        self.is_shared = is_shared
        # Whether nothing in this forward pass requires the standard routine.
        self.is_plain = False
        self._chosen: dict[nn.Module, tuple[torch.Size | None, torch.dtype | None, Apply]] = {}
        # Weights and how often they were used unpacked.
        self._uses: dict[nn.Module, tuple[ref[Tensor], int]] = {}
        # Weights, their versions, and packed copies.
        self._packed: dict[nn.Module, tuple[ref[Tensor], int, Tensor]] = {}

    def __call__(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Return `layer(x)`, (..., M) for `x` (..., K)."""
        if not self.is_plain or layer._forward_hooks or layer._forward_pre_hooks or "forward" in layer.__dict__:
            return layer(x)
        shape, dtype, apply = self._chosen[layer] if layer in self._chosen else (None, None, F.linear)
        if x.shape != shape or x.dtype is not dtype:
            if not is_bare_linear(layer):
                return layer(x)
            apply = self._choose(layer, x)
            self._chosen[layer] = (x.shape, x.dtype, apply)
        # Looked up on each use: offloading replaces them.
        parameters = layer._parameters
        return apply(x, parameters["weight"], parameters["bias"])  # type: ignore[arg-type]  # a linear layer has one

    def clear(self) -> None:
        """Free the packed weights."""
        for cache in (self._chosen, self._uses, self._packed):
            cache.clear()

    def _choose(self, layer: nn.Linear, x: Tensor) -> Apply:
        if type(layer.weight) not in DENSE_TYPES or not is_plain_cpu(x, layer.weight):
            return F.linear
        routine = _routine(x, layer.weight, may_pack=not layer.weight.is_inference())
        if routine is Routine.PACKED:
            return partial(self._packed_linear, layer)
        if routine is Routine.DEFAULT:
            return F.linear
        return _onednn_product if layer.weight.is_contiguous() else _onednn_linear

    def _packed_linear(self, layer: nn.Linear, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if layer in self._packed:
            source, version, packed = self._packed[layer]
            if source() is weight and weight._version == version:
                return _ONEDNN(x, packed, bias, "none", [], "")
        source, uses = self._uses.get(layer, (ref(weight), 0))
        if source() is not weight or uses < USES_BEFORE_PACKING:
            self._uses[layer] = (ref(weight), uses + 1 if source() is weight else 1)
            return linear_forward(x, weight, bias)
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), x.numel() // x.shape[-1])
        self._packed[layer] = (ref(weight), weight._version, packed)
        return _ONEDNN(x, packed, bias, "none", [], "")


_decoding_products: ContextVar[DecodingProducts | None] = ContextVar("decoding_products", default=None)


@contextmanager
def decoding_products(shared: bool = False) -> Iterator[None]:
    """Let `apply_linear` choose routines once for many decoding steps; if `shared`, for all calls of `generate()`."""
    outer = _decoding_products.get()
    if outer is not None and outer.is_shared:
        yield
        return
    products = DecodingProducts(shared)
    token = _decoding_products.set(products)
    try:
        yield
    finally:
        _decoding_products.reset(token)
        products.clear()


def begin_forward_pass(x: Tensor) -> None:
    """Check once, for all products of a forward pass that starts from `x`, whether fast routines apply."""
    if not torch.compiler.is_compiling() and (products := _decoding_products.get()) is not None:
        products.is_plain = (
            _is_standard()
            and is_plain_cpu(x)
            and not torch.is_grad_enabled()
            and not module_hooks._has_any_global_hook()
        )


# oneDNN

# The op without PyTorch's Python wrapper.
_ONEDNN: Any = torch.ops.mkldnn._linear_pointwise.default._op if torch.backends.mkldnn.is_available() else None


def _onednn_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _ONEDNN(x, weight, bias, "none", [], "")


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    # oneDNN is slow if neither the matrix nor its transpose is contiguous.
    if not (weight.is_contiguous() or weight.T.is_contiguous()):
        weight = weight.contiguous()
    return _onednn_product(x, weight, bias)


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
        # oneDNN is faster if the result has fewer rows than columns.
        is_wide = weight.shape[0] <= weight.shape[1]
        d_weight = product(grads.T, rows.T, None) if is_wide else product(rows.T, grads.T, None).T
        return d_x, d_weight, d_bias
