"""Recognition of a checkpoint's layout by its keys, after renaming and unwrapping."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from ..errors import did_you_mean, shorten
from .layouts import LAYOUTS
from .reading import SourceCheckpoint
from .rules import Layout, Rule, cannot_express, key_pattern

# Prefixes of keys in wrapped models: DataParallel, torch.compile, Lightning modules.
WRAPPERS = ("module.", "_orig_mod.", "model.", "net.", "network.")
# Names that a message lists, and the characters of each.
MAX_LISTED, MAX_NAME = 8, 100
# Properties that our configuration lacks, by regular expressions for keys that show them.
INEXPRESSIBLE = {
    r"(?:.*\.)?(?:en|de)coder\.block\.\d+\.layer\.0\.\w+\.q\.weight":
        "is a T5 model, with relative position biases in its attention, and norms by the root mean square (RMS norms)",
    r"(?:.*\.)?adaptive_softmax\..*|(?:.*\.)?tail\.\d+\.\d+\.weight":
        "has an adaptive softmax, with narrower projections of rare tokens",
    r"(?:.*\.)?embed_tokens\.embeddings\.\d+\..*":
        "has adaptive embeddings, with narrower ones of rare tokens",
}  # fmt: skip  # a table, not an expression
RENAME_HINT = "; if only names differ, pass `rename` with old=new pairs"

# The first index in a key; of layers, if there are any.
_INDEXED = re.compile(r"(.*?)\.(\d+)\.(.*)")
# Ends of our names of matrices; all others, norms and biases, are vectors.
_MATRICES = (
    "embed_tokens.weight", "embed_positions.weight", "_proj.weight", "lm_head.weight", "fc1.weight", "fc2.weight",
)  # fmt: skip  # a table, not an expression


def recognize_layout(checkpoint: SourceCheckpoint, name: str | None) -> tuple[SourceCheckpoint, Layout]:
    """Return the checkpoint without the prefixes of wrappers, and its layout.

    Args:
        checkpoint: A checkpoint.
        name: The only layout to consider.

    Raises:
        ValueError: There is no layout of this name, or none fits, or the model cannot be expressed.
    """
    _refuse_inexpressible(checkpoint)
    if name is not None and name not in LAYOUTS:
        raise ValueError(f"`layout` {name} is not one of {', '.join(LAYOUTS)}{did_you_mean(name, LAYOUTS)}")
    kind = checkpoint.settings.get("model_type")
    known = [layout for layout in LAYOUTS.values() if not layout.needs_name]
    of_this_type = [layout for layout in known if not layout.model_types or kind in layout.model_types]
    candidates = [LAYOUTS[name]] if name else of_this_type
    unwrapped = _whole_model(checkpoint)
    while True:
        for layout in candidates:
            if _has_signature(unwrapped.weights, layout):
                return unwrapped, layout
        wrapper = next((text for text in WRAPPERS if all(key.startswith(text) for key in unwrapped.weights)), None)
        if wrapper is None:
            break
        weights = {key.removeprefix(wrapper): tensor for key, tensor in unwrapped.weights.items()}
        unwrapped = unwrapped._replace(weights=weights)
    others = [] if name else [layout for layout in known if layout not in of_this_type]
    raise ValueError(_why_unknown(checkpoint, candidates, others, name))


def _refuse_inexpressible(checkpoint: SourceCheckpoint) -> None:
    for key, property_ in INEXPRESSIBLE.items():
        if found := next((name for name in checkpoint.weights if re.fullmatch(key, name)), None):
            raise cannot_express(f"{checkpoint.path} {property_} ({shorten(found, MAX_NAME)})")


def _whole_model(checkpoint: SourceCheckpoint) -> SourceCheckpoint:
    """Prefix the keys of a transformers checkpoint that holds only the stacks."""
    kinds = [kind for layout in LAYOUTS.values() for kind in layout.model_types]
    is_base = all(key.startswith(("shared.", "encoder.", "decoder.")) for key in checkpoint.weights)
    if checkpoint.settings.get("model_type") not in kinds or not is_base:
        return checkpoint
    return checkpoint._replace(weights={f"model.{key}": tensor for key, tensor in checkpoint.weights.items()})


def _why_unknown(
    checkpoint: SourceCheckpoint, candidates: Iterable[Layout], others: Iterable[Layout], name: str | None
) -> str:
    """Explain why no layout fits: the model type, or keys of the nearest layout."""
    path, weights = checkpoint.path, checkpoint.weights
    for layout in others:
        if _has_signature(weights, layout):
            kind = checkpoint.settings.get("model_type")
            found = f"its config.json says {kind!r}" if kind else "there is no config.json beside them"
            return (
                f"{path} has no known layout: its keys are those of {layout.name}, but {found}; give a folder with "
                "the config.json of such a model"
            )
    nearest = max(candidates, key=partial(_similarity, weights))
    missing = [key for key in nearest.signature if not _has_key(weights, key)]
    other_shapes = "; its shapes are of another model, which needs a layout of its own"
    return (f"{path} does not have the layout {name}: " if name else f"{path} has no known layout: ") + (
        f"its keys are {abbreviate(weights)}. The nearest is {nearest.name}, but there is no {abbreviate(missing)}"
        + (RENAME_HINT if has_shapes(weights, nearest) else other_shapes)
    )


def _has_key(weights: Iterable[str], key: str) -> bool:
    return any(key_pattern(key).fullmatch(found) for found in weights)


def _has_signature(weights: Iterable[str], layout: Layout) -> bool:
    return all(_has_key(weights, key) for key in layout.signature)


def _similarity(weights: Mapping[str, Tensor], layout: Layout) -> tuple[bool, float]:
    """Return whether a layout has these shapes, and the fraction of its keys whose ends occur here."""
    ends = {_end(key) for key in weights}
    found = [_end(rule.key) in ends for rule in layout.rules]
    return has_shapes(weights, layout), sum(found) / len(found)


def _end(key: str) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "{i}", key).split(".")[-2:])


def has_shapes(weights: Mapping[str, Tensor], layout: Layout) -> bool:
    """Whether renaming alone could turn these into weights of a layout: there are as many matrices and vectors."""
    shapes = _shapes_of_one_layer(weights)
    # A vector belongs to some matrix.
    sizes = {1, *(size for shape in shapes if len(shape) > 1 for size in shape)}
    vectors = {shape[0] for shape in shapes if len(shape) == 1}
    if not vectors <= sizes or not all(tensor.is_floating_point() for tensor in weights.values()):
        return False
    # Without the batch axis of position tables.
    found = Counter(max(1, sum(size > 1 for size in shape)) for shape in shapes)
    # Several rules for the same names are keys of different releases.
    rules = {rule.names: rule for rule in reversed(layout.rules)}.values()
    required = Counter(_num_axes(rule) for rule in rules if not rule.optional)
    possible = required + Counter(_num_axes(rule) for rule in rules if rule.optional)
    # Both embeddings and the output projection may be one.
    required[2] -= 2
    return required <= found <= possible


def _num_axes(rule: Rule) -> int:
    return 2 if rule.names[0].endswith(_MATRICES) else 1


def _shapes_of_one_layer(weights: Mapping[str, Tensor]) -> list[torch.Size]:
    """Return the shapes of one layer of each list and of all other tensors, or nothing where layers differ."""
    lists: dict[str, dict[str, dict[str, torch.Size]]] = {}
    for key, tensor in weights.items():
        prefix, index, rest = found.groups() if (found := _INDEXED.fullmatch(key)) else ("", "", key)
        lists.setdefault(prefix, {}).setdefault(index, {})[rest] = tensor.shape
    shapes: list[torch.Size] = []
    for first, *others in (list(layers.values()) for layers in lists.values()):
        if all(layer == first for layer in others):
            shapes += first.values()
        elif any(layer.keys() & first.keys() for layer in others):
            return []
        else:
            # Different modules in a sequence.
            shapes += (shape for module in (first, *others) for shape in module.values())
    return shapes


def abbreviate(names: Iterable[str]) -> str:
    """Return the first names and the number of the others, for a message."""
    names = list(names)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(shorten(name, MAX_NAME) for name in names[:MAX_LISTED]) + more


__all__ = ["RENAME_HINT", "abbreviate", "has_shapes", "recognize_layout"]
