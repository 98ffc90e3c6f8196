"""Activations that the backward pass of a large batch computes again instead of keeping them.

These are the outputs of layer norms, which cost a pass over memory, and the inner layers of feed-forward networks,
which cost one of six products. Selective activation recomputation, Korthikanti et al. 2022, arXiv:2205.05198.

Everything is kept on accelerators, where something traces or intercepts ops, within other hooks for saved tensors such
as those of gradient checkpointing, and of modules that are more than their weights.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional as F
from transformers.activations import ACT2FN

from .cpu_ops import is_plain_cpu
from .linear import apply_linear, is_hooked, multiply

# Elements of the hidden states: 16 MiB in float32. Smaller batches need little memory anyway.
MIN_ELEMENTS = 2**22

# Instead of `recomputation`.
KEEP_ALL = nullcontext()

# Names of autograd nodes whose output has the values of their input.
CAST, VIEWS = "ToCopyBackward0", ("ViewBackward0", "UnsafeViewBackward0")


def recomputation(hidden_states: Tensor) -> AbstractContextManager[Any]:
    """For a large batch, keep no outputs of `layer_norm` and `inner_layer` for the backward pass."""
    if not torch.is_grad_enabled() or not is_plain_cpu(hidden_states) or hidden_states.numel() < MIN_ELEMENTS:
        return KEEP_ALL
    are_enabled = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]  # not in its stub
    if _saved_tensors_hooks() is not None or not are_enabled:
        return KEEP_ALL
    return saved_tensors_hooks(_Scope().pack, _unpack)


def layer_norm(norm: nn.Module, x: Tensor) -> Tensor:
    """Return `norm(x)`, which the backward pass computes again within `recomputation`."""
    if (scope := _current_scope()) and type(norm) is nn.LayerNorm and _is_function_of(norm, norm.weight, norm.bias):
        return _Recomputed.apply(scope, _normalize(norm), x, norm.weight, norm.bias)
    return norm(x)


def inner_layer(linear: nn.Module, activation: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return `activation(linear(x))`, which the backward pass computes again within `recomputation`.

    `name` is that of the activation in a configuration.
    """
    if (
        (scope := _current_scope())
        and type(linear) is nn.Linear
        and _is_function_of(linear, linear.weight, linear.bias)
        # Any other might draw random numbers.
        and type(activation) is type(ACT2FN[name])
        and _is_function_of(activation)
    ):
        return _Recomputed.apply(scope, _activate(activation), x, linear.weight, linear.bias)
    return activation(apply_linear(linear, x))


def _normalize(norm: nn.LayerNorm) -> Callable[..., Tensor]:
    return lambda x, weight, bias: F.layer_norm(x, norm.normalized_shape, weight, bias, norm.eps)


def _activate(activation: nn.Module) -> Callable[..., Tensor]:
    return lambda x, weight, bias: activation(multiply(x, weight, bias))


def _is_function_of(module: nn.Module, *parameters: Any) -> bool:
    """Whether calling `module` does no more than to apply these, its only parameters, to the input."""
    # Sharded models replace parameters by tensors that live for a moment.
    own = list(module.parameters())
    return not is_hooked(module) and len(own) == len(parameters) and all(type(p) is nn.Parameter for p in parameters)


# Hooks for saved tensors


class _Scope:
    """One forward pass of a stack; its tensors are recomputed for operations within it."""

    def pack(self, saved: Tensor) -> Any:
        """Return what to keep instead of a tensor: its origin, shape and dtype, or itself and its version."""
        node = _origin(saved)
        # Changed in place without autograd's knowledge, by a hook for example, if the version is not 0.
        if isinstance(node, _Recomputed._backward_cls) and node.scope is self and saved.is_cpu and not saved._version:
            return node, saved.shape, saved.dtype
        # An operation's own output would refer to the operation, for ever.
        return saved.detach(), saved._version


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
    if node.call is None:
        # Kept for the node's own backward, which comes after those of all operations that used its output.
        node.call = _call_again(node)
    return node.call[1].detach().to(dtype).reshape(shape)


def _origin(saved: Tensor) -> Any:
    """Return the autograd node whose output is `saved`, in another shape or cast once; None if unknown."""
    node, casts = saved.grad_fn, 0
    while node is not None and node.name() in (CAST, *VIEWS):
        casts += node.name() == CAST
        node = node.next_functions[0][0]
    return node if casts < 2 else None


def _current_scope() -> _Scope | None:
    if torch.compiler.is_compiling() or (hooks := _saved_tensors_hooks()) is None:
        return None
    scope = getattr(hooks[0], "__self__", None)
    return scope if isinstance(scope, _Scope) else None


def _saved_tensors_hooks() -> tuple[Callable, Callable] | None:
    return torch._C._autograd._top_saved_tensors_default_hooks(True)


class _Recomputed(torch.autograd.Function):
    """`function(*inputs)`, of which nothing but the inputs is kept; it draws no random numbers."""

    @staticmethod
    def forward(ctx: Any, scope: _Scope, function: Callable[..., Tensor], *inputs: Tensor | None) -> Tensor:
        ctx.scope, ctx.function, ctx.call = scope, function, None
        ctx.autocast_dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else None
        ctx.save_for_backward(*inputs)
        return _call(ctx, inputs)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (inputs, output), ctx.call = ctx.call or _call_again(ctx), None
        is_needed = ctx.needs_input_grad[2:]
        needed = [x for x, needs in zip(inputs, is_needed, strict=True) if needs]
        grads = iter(torch.autograd.grad(output, needed, grad, create_graph=torch.is_grad_enabled()))
        return None, None, *(next(grads) if needs else None for needs in is_needed)


def _call_again(node: Any) -> tuple[list[Any], Tensor]:
    """Compute the output of a node again, with gradients; return its inputs, too."""
    with torch.enable_grad():
        # Aliases: hooks of the inputs themselves run when the outer backward pass comes to them.
        inputs = [x if x is None else x.view_as(x) for x in node.saved_tensors]
        return inputs, _call(node, inputs)


def _call(node: Any, inputs: Any) -> Tensor:
    """Call the function of a node, with the casts of its forward pass."""
    # Casts of weights are not cached: those made without gradients would have none later.
    enabled = node.autocast_dtype is not None
    with torch.autocast("cpu", node.autocast_dtype, enabled=enabled, cache_enabled=False):
        return node.function(*inputs)
