"""Recognition of a checkpoint's layout by its keys, after renaming and unwrapping."""

import re
from collections.abc import Iterable
from functools import partial

from ..errors import did_you_mean, shorten
from .layouts import LAYOUTS
from .reading import SourceCheckpoint
from .rules import Layout, cannot_express, key_pattern

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
RENAME_HINT = "; if only names differ from it, pass `rename` with old=new pairs"


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
    of_this_type = [
        layout for layout in known if layout.config_class is None or layout.config_class.model_type == kind
    ]
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
    kinds = [layout.config_class.model_type for layout in LAYOUTS.values() if layout.config_class]
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
    nearest = max(candidates, key=partial(_similarity, {_end(key) for key in weights}))
    missing = [key for key in nearest.signature if not _has_key(weights, key)]
    return (f"{path} does not have the layout {name}" if name else f"{path} has no known layout") + (
        f": its keys are {abbreviate(weights)}. The nearest is {nearest.name}, but there is no {abbreviate(missing)}"
        f"{RENAME_HINT}"
    )


def _has_key(weights: Iterable[str], key: str) -> bool:
    return any(key_pattern(key).fullmatch(found) for found in weights)


def _has_signature(weights: Iterable[str], layout: Layout) -> bool:
    return all(_has_key(weights, key) for key in layout.signature)


def _similarity(ends: set[tuple[str, ...]], layout: Layout) -> float:
    """Return the fraction of a layout's keys whose ends occur here."""
    return sum(_end(rule.key) in ends for rule in layout.rules) / len(layout.rules)


def _end(key: str) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "{i}", key).split(".")[-2:])


def abbreviate(names: Iterable[str]) -> str:
    """Return the first names and the number of the others, for a message."""
    names = list(names)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(shorten(name, MAX_NAME) for name in names[:MAX_LISTED]) + more
