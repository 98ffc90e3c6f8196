"""Selective activation recomputation (Korthikanti et al. 2022, arXiv:2205.05198) for large batches.

The backward pass recomputes outputs of layer norms, which cost a pass over memory, and inner layers of feed-forward
networks, which cost one of six products, so that they need not be stored.

Everything is stored on accelerators, if ops are traced or intercepted, within other saved-tensor hooks such as those
of gradient checkpointing, and for modules with adapters or hooks.
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

# Hidden-state elements, 16 MiB in float32, below which everything is stored: smaller batches need little memory.
MIN_ELEMENTS = 2**22

# In place of `recomputation`.
KEEP_ALL = nullcontext()

# Names of autograd nodes whose output has the values of their input.
CAST, VIEWS = "ToCopyBackward0", ("ViewBackward0", "UnsafeViewBackward0")


def recomputation(hidden_states: Tensor) -> AbstractContextManager[Any]:
    """For a large batch, do not store the outputs of `layer_norm` and `inner_layer` for the backward pass."""
    if not torch.is_grad_enabled() or not is_plain_cpu(hidden_states) or hidden_states.numel() < MIN_ELEMENTS:
        return KEEP_ALL
    are_enabled = torch._C._autograd._saved_tensors_hooks_is_enabled()  # type: ignore[attr-defined]  # not in its stub
    if _saved_tensors_hooks() is not None or not are_enabled:
        return KEEP_ALL
    return saved_tensors_hooks(_Scope().pack, _unpack)


def layer_norm(norm: nn.Module, x: Tensor) -> Tensor:
    """Return `norm(x)`, which the backward pass recomputes within `recomputation`."""
    if (scope := _current_scope()) and type(norm) is nn.LayerNorm and _is_function_of(norm, norm.weight, norm.bias):
        return _Recomputed.apply(scope, _normalize(norm), x, norm.weight, norm.bias)
    return norm(x)


def inner_layer(linear: nn.Module, activation: nn.Module, name: str, x: Tensor) -> Tensor:
    """Return `activation(linear(x))`, which the backward pass recomputes within `recomputation`.

    `name` is the activation's name in a configuration.
    """
    if (
        (scope := _current_scope())
        and type(linear) is nn.Linear
        and _is_function_of(linear, linear.weight, linear.bias)
        # Other activations might draw random numbers.
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
    """Whether calling `module` does no more than apply `parameters`, all that it has, to the input."""
    # Sharded models replace parameters with short-lived tensors.
    own = list(module.parameters())
    return not is_hooked(module) and len(own) == len(parameters) and all(type(p) is nn.Parameter for p in parameters)


# Hooks for saved tensors


class _Scope:
    """One forward pass of a stack; its tensors are recomputed for operations within it."""

    def pack(self, saved: Tensor) -> Any:
        """Return what to store for a tensor: its origin, shape and dtype, or itself and its version."""
        node = _origin(saved)
        # A version other than 0 is an in-place change that autograd did not record, for example by a hook.
        if isinstance(node, _Recomputed._backward_cls) and node.scope is self and saved.is_cpu and not saved._version:
            return node, saved.shape, saved.dtype
        # Detached: an operation that stores its own output would be in a reference cycle.
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
        # Kept for the node's own backward, which runs after those of all operations that used its output.
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
    """`function(*inputs)`, storing only the inputs; the function must not draw random numbers."""

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
    """Recompute the output of a node, with gradients; return its inputs and the output."""
    with torch.enable_grad():
        # Aliases: hooks of the inputs themselves run when the outer backward pass reaches them.
        inputs = [x if x is None else x.view_as(x) for x in node.saved_tensors]
        return inputs, _call(node, inputs)


def _call(node: Any, inputs: Any) -> Tensor:
    """Call the function of a node, with the casts of its forward pass."""
    # Weight casts are not cached: a cast made without gradients would have none later.
    enabled = node.autocast_dtype is not None
    with torch.autocast("cpu", node.autocast_dtype, enabled=enabled, cache_enabled=False):
        return node.function(*inputs)
