"""Activations that the backward pass of a large batch computes again instead of keeping them.

These are the outputs of layer norms, which cost a pass over memory, and the inner layers of feed-forward networks,
which cost one of six products. Selective activation recomputation, Korthikanti et al. 2022, arXiv:2205.05198.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from .cpu_ops_vanilla_transformer import is_plain_cpu

# Elements of the hidden states: 16 MiB in float32. Smaller batches need little memory anyway.
MIN_ELEMENTS = 2**22

# Instead of `recomputation`.
KEEP_ALL = nullcontext()

# Names of nodes of the autograd graph; conversions give the same values in another dtype or shape.
LAYER_NORM, COPY = "NativeLayerNormBackward0", "ToCopyBackward0"
CONVERSIONS = (COPY, "ViewBackward0", "UnsafeViewBackward0")
# Key of a node's metadata.
SHARED = "vanilla_transformer_shared"


def recomputation(hidden_states: Tensor) -> AbstractContextManager[Any]:
    """For a large batch, keep no outputs of layer norms and of `recomputed` for the backward pass.

    Does nothing without gradients, on accelerators, where something traces or intercepts ops, or within other hooks
    for saved tensors.
    """
    if not torch.is_grad_enabled() or not is_plain_cpu(hidden_states):
        return KEEP_ALL
    if hidden_states.numel() < MIN_ELEMENTS or _saved_tensors_hooks() is not None:
        return KEEP_ALL
    return saved_tensors_hooks(_pack, _unpack)


def is_recomputing() -> bool:
    """Whether `recomputation` is in effect."""
    return not torch.compiler.is_compiling() and (hooks := _saved_tensors_hooks()) is not None and hooks[0] is _pack


def recomputed(function: Callable[[Tensor], Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
    """Return `function(x)`, which the backward pass computes again.

    Args:
        function: Draws no random numbers.
        x: Its input.
        parameters: Other tensors that it uses and that may need gradients.
    """
    return _Recomputed.apply(function, x, *parameters)


def _saved_tensors_hooks() -> tuple[Callable, Callable] | None:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


class _Shared:
    """The value of a node, kept while the operations that saved it need it again."""

    def __init__(self) -> None:
        self.uses = self.uses_left = 0
        self.value: Tensor | None = None

    def take(self, node: Any) -> Tensor:
        if self.value is None:
            self.value, self.uses_left = _compute(node), self.uses
        value, self.uses_left = self.value, self.uses_left - 1
        if not self.uses_left:
            self.value = None
        return value


def _pack(saved: Tensor) -> Any:
    node = _recomputable(saved)
    if node is None:
        return saved, saved._version
    shared = node.metadata.setdefault(SHARED, _Shared())
    shared.uses += 1
    return node, saved.shape, saved.dtype


def _recomputable(saved: Tensor) -> Any:
    """Return the node that can compute `saved` again; None if there is none."""
    node: Any = saved.grad_fn
    copies = 0
    while node is not None and node.name() in CONVERSIONS:
        copies += node.name() == COPY
        node = node.next_functions[0][0]
    # Changed in place without autograd's knowledge, by a hook for example, or rounded more than once.
    if node is None or saved._version or copies > 1:
        return None
    is_norm = node.name() == LAYER_NORM and None not in (node._saved_weight, node._saved_bias)
    return node if is_norm or isinstance(node, _Recomputed._backward_cls) else None


def _unpack(packed: Any) -> Tensor:
    if isinstance(packed[0], Tensor):
        saved, version = packed
        # PyTorch leaves this check to the hooks.
        if saved._version != version:
            raise RuntimeError(
                f"a tensor of shape {tuple(saved.shape)} that the backward pass needs has been modified by an inplace "
                "operation after the forward pass; change weights after `backward()`."
            )
        return saved
    node, shape, dtype = packed
    return node.metadata[SHARED].take(node).to(dtype).view(shape)


def _compute(node: Any) -> Tensor:
    """Compute the output of a node again, without gradients."""
    if isinstance(node, _Recomputed._backward_cls):
        # The node's own backward uses it too.
        node.call = _call_again(node)
        return node.call[1].detach()
    with torch.no_grad():
        x, mean, rstd = node._saved_input, node._saved_result1, node._saved_result2
        return (x - mean).mul_(rstd).mul_(node._saved_weight).add_(node._saved_bias).to(x.dtype)


class _Recomputed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, function: Callable[[Tensor], Tensor], x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.function, ctx.call = function, None
        ctx.autocast_dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        ctx.save_for_backward(x, *parameters)
        return _call(ctx, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        call, ctx.call = ctx.call, None
        inputs, output = call or _call_again(ctx)
        is_needed = ctx.needs_input_grad[1:]
        needed = [x for x, needs in zip(inputs, is_needed, strict=True) if needs]
        grads = iter(torch.autograd.grad(output, needed, grad, create_graph=torch.is_grad_enabled()))
        return None, *(next(grads) if needs else None for needs in is_needed)


def _call_again(node: Any) -> tuple[tuple[Tensor, ...], Tensor]:
    """Return the inputs of a node and its output, computed from them with gradients."""
    inputs = node.saved_tensors
    with torch.enable_grad():
        return inputs, _call(node, inputs[0])


def _call(node: Any, x: Tensor) -> Tensor:
    """Call the function of a node, with the casts of its forward pass."""
    # Casts of weights are not cached: those made without gradients would have none later.
    enabled = node.autocast_dtype is not None
    with torch.autocast("cpu", node.autocast_dtype, enabled=enabled, cache_enabled=False):
        return node.function(x)


__all__ = ["KEEP_ALL", "is_recomputing", "recomputation", "recomputed"]
