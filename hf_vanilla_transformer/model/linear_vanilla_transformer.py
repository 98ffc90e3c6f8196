"""Linear layers by the CPU routine that is fastest on this processor, with unchanged results.

The standard routine runs on accelerators, under compilation, export or tracing, for tensors that are more than data
(sharded, quantized, wrapped), and for layers that are more than their weights.

Shapes: N rows, K inputs, M outputs.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import count
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks

from .cpu_ops_vanilla_transformer import is_plain_cpu
from .cpu_routines_vanilla_transformer import Routine, this_processor

PRODUCTS = this_processor().products

# Packing a weight costs as much as it saves in some products.
USES_BEFORE_PACKING = 4


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
    if torch.compiler.is_compiling():
        return layer(x)
    if (products := _fixed_products.get()) is not None and not torch.is_grad_enabled():
        return products(layer, x)
    if not is_bare_linear(layer):
        return layer(x)
    weight, bias = layer.weight, layer.bias
    if _routine(x, weight) is Routine.DEFAULT:
        return F.linear(x, weight, bias)
    return (_OneDNNLinear.apply if torch.is_grad_enabled() else _onednn_linear)(x, weight, bias)


def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return x W^T + b, (N, M) for `x` (N, K), `weight` (M, K) and `bias` (M), without autograd."""
    return (F.linear if _routine(x, weight) is Routine.DEFAULT else _onednn_linear)(x, weight, bias)


def _routine(x: Tensor, weight: Tensor, is_fixed: bool = False) -> Routine:
    """Return the fastest routine for `x` (..., K) and `weight` (M, K), which may be packed if it is fixed."""
    if (dtype := x.dtype) not in PRODUCTS or weight.dtype != dtype or not (size := x.numel()):
        return Routine.DEFAULT
    rows, numbers = size // x.shape[-1], weight.numel()
    for product in PRODUCTS[dtype]:
        if rows <= product.rows and numbers >= product.numbers and (is_fixed or product.routine != Routine.PACKED):
            return product.routine if _is_plain(x, weight) else Routine.DEFAULT
    return Routine.DEFAULT


def _is_plain(x: Tensor, weight: Tensor) -> bool:
    return torch._C._get_mkldnn_enabled() and not torch.is_autocast_enabled("cpu") and is_plain_cpu(x, weight)


# Weights that do not change


Apply = Callable[[Tensor], Tensor]
_NOT_CHOSEN: tuple[Any, ...] = (None, None, None)


class FixedProducts:
    """Products with weights that do not change: a routine is chosen once for each layer and shape of its input.

    Weights that are used again and again with few rows, as in decoding, are packed.
    """

    def __init__(self) -> None:
        self._chosen: dict[nn.Module, tuple[torch.Size, torch.dtype, Apply]] = {}
        self._packed: dict[nn.Module, Tensor] = {}

    def __call__(self, layer: nn.Module, x: Tensor) -> Tensor:
        """Return `layer(x)`, (..., M) for `x` (..., K)."""
        shape, dtype, apply = self._chosen[layer] if layer in self._chosen else _NOT_CHOSEN
        if x.shape == shape and x.dtype is dtype:
            return apply(x)
        return self._use(self._choose(layer, x), layer, x)

    def _use(self, apply: Apply, layer: nn.Module, x: Tensor) -> Tensor:
        self._chosen[layer] = (x.shape, x.dtype, apply)
        return apply(x)

    def _choose(self, layer: nn.Module, x: Tensor) -> Apply:
        if not is_bare_linear(layer):
            return layer
        routine = _routine(x, layer.weight, is_fixed=True)
        if routine is not Routine.PACKED:
            return _bound(routine, layer.weight, layer.bias)
        return self._packed_product(layer) if layer in self._packed else self._packed_later(layer, x)

    def _packed_product(self, layer: nn.Linear) -> Apply:
        return _bound(Routine.ONEDNN, self._packed[layer], layer.bias)

    def _packed_later(self, layer: nn.Linear, x: Tensor) -> Apply:
        """Return a product that packs the weight once it has been used some times."""
        uses, rows = count(), x.numel() // x.shape[-1]
        unpacked = _bound(_routine(x, layer.weight), layer.weight, layer.bias)

        def product(x: Tensor) -> Tensor:
            if next(uses) < USES_BEFORE_PACKING:
                return unpacked(x)
            self._packed[layer] = torch.ops.mkldnn._reorder_linear_weight(layer.weight.detach(), rows)
            return self._use(self._packed_product(layer), layer, x)

        return product


def _bound(routine: Routine, weight: Tensor, bias: Tensor | None) -> Apply:
    """Return the product with a weight (M, K), packed or not."""
    if routine is Routine.DEFAULT:
        return partial(F.linear, weight=weight, bias=bias)
    weight, onednn = weight if weight.is_mkldnn else _with_contiguous_side(weight), _ONEDNN
    return lambda x: onednn(x, weight, bias, "none", [], "")


_fixed_products: ContextVar[FixedProducts | None] = ContextVar("fixed_products", default=None)


@contextmanager
def fixed_weights() -> Iterator[None]:
    """Let `apply_linear` decide once for each layer how to multiply; no weight, hook or setting may change inside.

    Several calls of `generate()` inside share what was decided and packed.
    """
    token = _fixed_products.set(_fixed_products.get() or FixedProducts())
    try:
        yield
    finally:
        _fixed_products.reset(token)


# oneDNN

# Without PyTorch's Python around it.
_ONEDNN: Any = torch.ops.mkldnn._linear_pointwise.default._op if torch.backends.mkldnn.is_available() else None


def _onednn_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return _ONEDNN(x, _with_contiguous_side(weight), bias, "none", [], "")


def _with_contiguous_side(weight: Tensor) -> Tensor:
    """Copy a weight of which neither the matrix nor its transpose is contiguous: oneDNN is slow there."""
    return weight if weight.is_contiguous() or weight.T.is_contiguous() else weight.contiguous()


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


__all__ = ["apply_linear", "fixed_weights", "is_bare_linear", "linear_forward"]
