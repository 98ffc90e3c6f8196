"""A stand-in for CUDA graphs on a CPU: replays recorded ops on the same tensors."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from synchronization import READS

# The op behind `torch.tensor`, whose copy from the host to a GPU cannot be recorded.
FROM_HOST = torch.ops.aten.lift_fresh.default


class _Tape(TorchDispatchMode):
    """Records ops with their tensors, and the old values of tensors changed in place."""

    def __init__(self) -> None:
        super().__init__()
        self.ops: list[tuple[Any, Any, Any, list[Tensor]]] = []
        self.before: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in READS:
            raise RuntimeError(f"recording: an op {READS[func]}, which would sync with the host")
        if func is FROM_HOST:
            raise RuntimeError("recording: a tensor is created from host values")
        for place, argument in enumerate(func._schema.arguments):
            if argument.alias_info and argument.alias_info.is_write:
                changed = args[place] if place < len(args) else kwargs[argument.name]
                self.before.append((changed, changed.clone()))
        out = func(*args, **kwargs)
        self.ops.append((func, args, kwargs, _tensors(out)))
        return out

    def undo(self) -> None:
        """Restore all tensors, since recording on a GPU executes nothing."""
        for changed, before in reversed(self.before):
            changed.copy_(before)

    def replay(self) -> None:
        for func, args, kwargs, outputs in self.ops:
            for kept, new in zip(outputs, _tensors(func(*args, **kwargs)), strict=True):
                if kept.untyped_storage().data_ptr() != new.untyped_storage().data_ptr():
                    kept.copy_(new)


def _tensors(out: Any) -> list[Tensor]:
    return [x for x in tree_leaves(out) if isinstance(x, Tensor)]


class Recorder:
    """Replacement for `record` that counts recordings and replays."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0
        # Called before each replay.
        self.before_replay: Callable[[], None] = lambda: None

    def __call__(self, step: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
        self.recorded += 1
        with torch.no_grad(), _Tape() as tape:
            outputs = step()
        tape.undo()

        def replay() -> None:
            self.replayed += 1
            self.before_replay()
            tape.replay()

        return replay, outputs
