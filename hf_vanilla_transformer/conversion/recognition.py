"""Whose weights these are: the keys of a checkpoint, renamed and unwrapped, against the tables of the layouts."""

import difflib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial

from torch import Tensor

from .layouts.translation import TRANSLATION_LAYOUTS
from .layouts.tutorials import TUTORIAL_LAYOUTS
from .reading import ForeignCheckpoint
from .rules import (
    Layout,
    Rule,
    Transform,
    block_diagonal,
    split_in_three,
    spread,
    spread_and_fold_unbiased_std,
)

LAYOUTS = {layout.name: layout for layout in (*TUTORIAL_LAYOUTS, *TRANSLATION_LAYOUTS)}

# What wraps a model in PyTorch puts its name before every key: DataParallel, torch.compile, Lightning modules.
WRAPPERS = ("module.", "_orig_mod.", "model.", "net.", "network.")
# How many names a message lists before it counts the rest.
LISTED = 8
RENAME_HINT = "; if only names differ, use --rename old=new"

# How long an axis is: one, the width of the model, or anything else.
_ONE, _WIDTH, _OTHER = "1", "d", "x"
# Axes of what our names end in; all else has one axis of the width: a norm, a bias.
_AXES = {
    r"embed_\w+\.weight|lm_head\.weight|fc1\.weight": (_OTHER, _WIDTH),
    r"fc2\.weight": (_WIDTH, _OTHER),
    r"_proj\.weight": (_WIDTH, _WIDTH),
    r"lm_head\.bias|fc1\.bias": (_OTHER,),
}
# Axes of a source tensor that its transform gives others.
_AXES_BEFORE: dict[Transform, Callable[[tuple[str, ...]], tuple[str, ...]]] = {
    spread: lambda axes: (_ONE,),
    spread_and_fold_unbiased_std: lambda axes: (_ONE,),
    split_in_three: lambda axes: (_OTHER, *axes[1:]),
    block_diagonal: lambda axes: (_OTHER, _OTHER),
}


def renamed(weights: Mapping[str, Tensor], rename: Iterable[str]) -> dict[str, Tensor]:
    """Return the weights with beginnings of keys replaced; a key that no pair fits keeps its name.

    Raises:
        ValueError: A pair is no `old=new` or fits no key, two weights get one name, or one a name that is ignored.
    """
    pairs = []
    for text in rename:
        old, separator, new = text.partition("=")
        if not separator:
            raise ValueError(f"--rename {text} is not old=new; give the beginning of a key and what to replace it by")
        if not any(key.startswith(old) for key in weights):
            raise ValueError(f"--rename {text}: no key begins with {old!r}; the keys are {listed(weights)}")
        pairs.append((old, new))
    ignored = "|".join(re.escape(key) for layout in LAYOUTS.values() for key in layout.ignored)
    no_weight = re.compile(f"(?:{ignored})$".replace(re.escape("{i}"), r"\d+"))
    result: dict[str, Tensor] = {}
    for key, tensor in weights.items():
        names = [new + key.removeprefix(old) for old, new in pairs if key.startswith(old)] or [key]
        for name in names:
            if name in result:
                raise ValueError(f"--rename gives two weights the name {name}; name one of them otherwise")
            if no_weight.search(name) and not no_weight.search(key):
                raise ValueError(f"--rename gives {key} the name {name}, which is no weight and would be ignored")
            result[name] = tensor
    return result


def recognise(checkpoint: ForeignCheckpoint, name: str | None) -> tuple[dict[str, Tensor], Layout]:
    """Return the weights without the names of wrappers, and their layout.

    Raises:
        ValueError: They are of none, or not of the one that is named.
    """
    path, weights = checkpoint.path, checkpoint.weights
    if name is not None and name not in LAYOUTS:
        close = difflib.get_close_matches(name, LAYOUTS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise ValueError(f"--layout {name} is not one of {', '.join(LAYOUTS)}{hint}")
    kind = checkpoint.config.get("model_type")
    fitting = [layout for layout in LAYOUTS.values() if not layout.model_types or kind in layout.model_types]
    candidates = [LAYOUTS[name]] if name else fitting
    unwrapped = weights
    while True:
        for layout in candidates:
            if _has_signature(unwrapped, layout):
                return unwrapped, layout
        wrapper = next((text for text in WRAPPERS if all(key.startswith(text) for key in unwrapped)), None)
        if wrapper is None:
            break
        unwrapped = {key.removeprefix(wrapper): tensor for key, tensor in unwrapped.items()}
    for layout in () if name else LAYOUTS.values():
        if layout not in fitting and _has_signature(weights, layout):
            said = f"its config.json says {kind!r}" if kind else "there is no config.json beside them"
            raise ValueError(
                f"{path} is of no known layout: its keys are those of {layout.name}, but {said}; give a folder with "
                "the config.json of such a model"
            )
    nearest = max(candidates, key=partial(_nearness, weights))
    missing = [theirs for theirs in nearest.signature if not any(pattern(theirs).fullmatch(key) for key in weights)]
    raise ValueError(
        f"{path} is of no known layout{'' if name is None else f' {name}'}: its keys are {listed(weights)}. The "
        f"nearest is {nearest.name}, but there is no {listed(missing)}"
        + (RENAME_HINT if has_shapes(weights, nearest) else "; its shapes are of another model, which needs a layout")
    )


def _has_signature(weights: Iterable[str], layout: Layout) -> bool:
    return all(any(pattern(theirs).fullmatch(key) for key in weights) for theirs in layout.signature)


def _nearness(weights: Mapping[str, Tensor], layout: Layout) -> tuple[bool, float]:
    """Return whether the shapes are a layout's, and which part of its keys ends like one of these."""
    ends = {tuple(re.sub(r"\d+", "{i}", key).split(".")[-2:]) for key in weights}
    found = [tuple(re.sub(r"\d+", "{i}", rule.theirs).split(".")[-2:]) in ends for rule in layout.rules]
    return has_shapes(weights, layout), sum(found) / len(found)


def has_shapes(weights: Mapping[str, Tensor], layout: Layout) -> bool:
    """Return whether other names could make these the weights of a layout: as many of each shape, in all layers."""
    sizes = Counter(size for tensor in weights.values() if tensor.dim() == 2 for size in tensor.shape)
    if not sizes:
        return False
    ((width, _),) = sizes.most_common(1)
    # Layers have one shape each; a number that is none of a layer's stays in the name.
    shapes = {re.sub(r"\.\d+\.", ".{i}.", key, count=1): _axes_of(tensor, width) for key, tensor in weights.items()}
    found = Counter(shapes.values())
    # Where several rules give one of ours, they are names of different releases.
    rules = {rule.ours: rule for rule in reversed(layout.rules)}.values()
    required = Counter(_axes_before(rule) for rule in rules if not rule.optional)
    possible = required + Counter(_axes_before(rule) for rule in rules if rule.optional)
    # Embeddings and the projection to the vocabulary may be one.
    required[_OTHER, _WIDTH] -= 2
    return required <= found <= possible


def _axes_of(tensor: Tensor, width: int) -> tuple[str, ...]:
    # Tables of positions have an axis for the batch, which says nothing.
    shape = [size for size in tensor.shape if size > 1] if tensor.dim() > 1 else tensor.shape
    return tuple({width: _WIDTH, 1: _ONE}.get(size, _OTHER) for size in shape)


def _axes_before(rule: Rule) -> tuple[str, ...]:
    """Return the axes of the tensor that a rule takes."""
    axes = next((axes for end, axes in _AXES.items() if re.search(f"(?:{end})$", rule.ours[0])), (_WIDTH,))
    return _AXES_BEFORE.get(rule.transform, lambda axes: axes)(axes)


@cache
def pattern(theirs: str) -> re.Pattern[str]:
    """Return what a key of a table matches; `{i}` is a number, the same wherever it stands."""
    first, *rest = (re.escape(part) for part in theirs.split("{i}"))
    return re.compile(first + "".join((r"(?P<i>\d+)" if n == 0 else r"(?P=i)") + part for n, part in enumerate(rest)))


def listed(names: Iterable[str]) -> str:
    """Return names for a message: the first few, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return ", ".join(names[:LISTED]) + more


__all__ = ["LAYOUTS", "has_shapes", "listed", "pattern", "recognise", "renamed"]
