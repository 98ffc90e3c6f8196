"""The same results in less time and memory: `accelerate` a plain model, `restore` it.

With this package installed every model is accelerated when it is built or loaded. The plain model does without:
nothing outside of this folder depends on it.
"""

from functools import cache
from inspect import isfunction
from typing import Any, TypeVar

from torch import nn

from ..model.generation_vanilla_transformer import VanillaTransformerGenerationMixin
from ..model.modeling_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerDecoder,
    VanillaTransformerEncoder,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerLayer,
)
from .generation import FastGeneration
from .modules import FastAttention, FastDecoder, FastEncoder, FastForConditionalGeneration, FastLayer
from .recorded_search import forget_searches

Model = TypeVar("Model", bound=nn.Module)

# What replaces each plain class; the first that a module's class comes from.
FAST: dict[type, type] = {
    VanillaTransformerAttention: FastAttention,
    VanillaTransformerLayer: FastLayer,
    VanillaTransformerEncoder: FastEncoder,
    VanillaTransformerDecoder: FastDecoder,
    VanillaTransformerForConditionalGeneration: FastForConditionalGeneration,
    # An ensemble, say.
    VanillaTransformerGenerationMixin: FastGeneration,
}


def accelerate(model: Model) -> Model:
    """Make all modules of a model fast, in place; weights, names and results stay."""
    for module in model.modules():
        kind: Any = _fast_class(type(module))  # type: ignore[arg-type]  # classes are hashable
        if kind is not None:
            module.__class__ = kind
    return model


def restore(model: Model) -> Model:
    """Undo `accelerate`, in place, and free what was kept for later calls of `generate()`."""
    for module in model.modules():
        if isinstance(module, Accelerated):
            module.__class__ = module.plain_class
        forget_searches(module)
    return model


class Accelerated:
    """A module whose class was replaced. It keeps the name of its class, and is copied and pickled as that one."""

    plain_class: type

    def __reduce_ex__(self, protocol: Any) -> Any:
        parts: Any = super().__reduce_ex__(max(protocol, 2))
        return _rebuild, (self.plain_class, *parts[1][1:]), *parts[2:]


def _rebuild(plain_class: type, *arguments: Any) -> Any:
    kind: Any = _fast_class(plain_class)
    return kind.__new__(kind, *arguments)


@cache
def _fast_class(kind: type) -> type | None:
    """Return the fast class of a plain one or of a user's subclass of it.

    None if there is none, or if the subclass has its own version of a method that would be replaced.
    """
    plain = next((plain for plain in FAST if issubclass(kind, plain)), None)
    if plain is None or issubclass(kind, Accelerated):
        return None
    fast, own = FAST[plain], kind.__mro__[: kind.__mro__.index(plain)]
    if any(name in vars(each) for each in own for name in _replaced(fast, plain)):
        return None
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    made: Any = type(kind.__name__, (Accelerated, fast, kind), {**names, "plain_class": kind})
    if "forward" in vars(made):
        # `GradientCheckpointingLayer` wraps that of every subclass once more.
        del made.forward
    return made


def _replaced(fast: type, plain: type) -> set[str]:
    """Return the methods of a fast class that do not call those of the plain one, or of its subclass, by `super()`."""
    methods = [vars(each) for each in fast.__mro__ if not issubclass(plain, each)]
    return {
        name
        for each in methods
        for name, value in each.items()
        if isfunction(value) and "__class__" not in value.__code__.co_freevars
    }


__all__ = ["accelerate", "restore"]
