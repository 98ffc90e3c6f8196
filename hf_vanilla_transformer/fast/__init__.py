"""Optimized modules with unchanged results: `accelerate` a plain model, or `restore` it.

With this package installed, every model is accelerated when it is built or loaded. The plain model works without this
folder.
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

# Replacement of each plain class; the first entry that a module's class derives from applies.
FAST: dict[type, type] = {
    VanillaTransformerAttention: FastAttention,
    VanillaTransformerLayer: FastLayer,
    VanillaTransformerEncoder: FastEncoder,
    VanillaTransformerDecoder: FastDecoder,
    VanillaTransformerForConditionalGeneration: FastForConditionalGeneration,
    # Other generating models, such as ensembles.
    VanillaTransformerGenerationMixin: FastGeneration,
}


def accelerate(model: Model) -> Model:
    """Replace the modules' classes with fast ones, in place; weights, names and results are unchanged."""
    for module in model.modules():
        kind: Any = _fast_class(type(module))  # type: ignore[arg-type]  # classes are hashable
        if kind is not None:
            module.__class__ = kind
    return model


def restore(model: Model) -> Model:
    """Undo `accelerate`, in place, and free the searches recorded for later calls of `generate()`."""
    for module in model.modules():
        if isinstance(module, Accelerated):
            module.__class__ = module.plain_class
        forget_searches(module)
    return model


class Accelerated:
    """A module whose class was replaced; it keeps the plain class's name, and is copied and pickled as that class."""

    plain_class: type

    def __reduce_ex__(self, protocol: Any) -> Any:
        parts: Any = super().__reduce_ex__(max(protocol, 2))
        return _rebuild, (self.plain_class, *parts[1][1:]), *parts[2:]


def _rebuild(plain_class: type, *arguments: Any) -> Any:
    kind: Any = _fast_class(plain_class)
    return kind.__new__(kind, *arguments)


@cache
def _fast_class(kind: type) -> type | None:
    """Return the fast version of a plain class or of a user's subclass of it.

    None if there is none, or if the subclass overrides a method that would be replaced.
    """
    plain = next((plain for plain in FAST if issubclass(kind, plain)), None)
    if plain is None or issubclass(kind, Accelerated):
        return None
    fast, own = FAST[plain], kind.__mro__[: kind.__mro__.index(plain)]
    if any(name in vars(base) for base in own for name in _replaced(fast, plain)):
        return None
    names = {name: getattr(kind, name) for name in ("__module__", "__qualname__", "__doc__")}
    accelerated: Any = type(kind.__name__, (Accelerated, fast, kind), {**names, "plain_class": kind})
    if "forward" in vars(accelerated):
        # `GradientCheckpointingLayer` wraps `forward` again in every subclass.
        del accelerated.forward
    return accelerated


def _replaced(fast: type, plain: type) -> set[str]:
    """Return the methods of a fast class that do not call the plain class's, or its subclass's, via `super()`."""
    namespaces = [vars(base) for base in fast.__mro__ if not issubclass(plain, base)]
    return {
        name
        for namespace in namespaces
        for name, value in namespace.items()
        if isfunction(value) and "__class__" not in value.__code__.co_freevars
    }


__all__ = ["accelerate", "restore"]
