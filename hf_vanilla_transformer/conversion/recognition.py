"""Rename key prefixes, strip those of wrappers, and recognize a checkpoint's layout by its keys."""

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import NamedTuple

from torch import Tensor

from ..errors import did_you_mean, shorten
from ..files import read_lines
from .layouts import LAYOUTS
from .reading import SourceCheckpoint
from .rules import Layout, key_pattern
from .settings import cannot_express

INDEX = "{i}"
# Key prefixes of wrapped models: DataParallel, torch.compile, Lightning modules.
WRAPPERS = ("module.", "_orig_mod.", "model.", "net.", "network.")
# Limits of a message: listed names, and characters of each.
MAX_LISTED, MAX_NAME = 8, 100
# Properties that our configuration cannot express, by regular expressions for keys that reveal them.
INEXPRESSIBLE = {
    r"(?:.*\.)?(?:en|de)coder\.block\.\d+\.layer\.0\.\w+\.q\.weight":
        "is a T5 model, with relative position biases and RMS norms",
    r"(?:.*\.)?adaptive_softmax\..*|(?:.*\.)?tail\.\d+\.\d+\.weight":
        "has an adaptive softmax, with narrower projections for rare tokens",
    r"(?:.*\.)?embed_tokens\.embeddings\.\d+\..*":
        "has adaptive embeddings, with narrower ones for rare tokens",
}  # fmt: skip  # a table, not an expression
RENAME_HINT = "; if only the names differ, pass `rename` with old=new pairs"


class Rename(NamedTuple):
    """A key prefix and its replacement; every `{i}` stands for the same index.

    `where` identifies the pair in messages: its text, or file and line.
    """

    old: str
    new: str
    where: str

    def apply(self, key: str) -> str | None:
        """Return the renamed key, or None if it has another prefix."""
        match = key_pattern(self.old).match(key)
        return match and self.new.replace(INDEX, match.groupdict().get("i", "")) + key[match.end() :]


def read_renames(values: Iterable[str | os.PathLike[str]]) -> Iterator[Rename]:
    """Yield the `old=new` pairs, which may be in files with one per line, blank lines and # comments aside."""
    for value in values:
        if isinstance(value, str) and not os.path.isfile(value):
            if "=" not in value:
                raise ValueError(
                    f"`rename` {value} is neither old=new nor a file; give a key prefix and its replacement"
                )
            yield _parse_rename(value, f"`rename` {value}")
            continue
        for number, line in enumerate(read_lines(value), start=1):
            if (text := line.strip()) and not text.startswith("#"):
                yield _parse_rename(text, f"{os.fspath(value)}, line {number}: {text}")


def _parse_rename(text: str, where: str) -> Rename:
    old, separator, new = (part.strip() for part in text.partition("="))
    if not separator:
        raise ValueError(f"{where} is not old=new; give a key prefix and its replacement")
    if INDEX in new and INDEX not in old:
        raise ValueError(f"{where}: {INDEX} occurs only in the replacement; use it in the prefix too")
    return Rename(old, new, where)


def rename_keys(weights: Mapping[str, Tensor], renames: list[Rename]) -> dict[str, Tensor]:
    """Replace key prefixes; a key with several new names gets all of them."""
    for rename in renames:
        if not any(rename.apply(key) is not None for key in weights):
            raise ValueError(f"{rename.where}: no key begins with {rename.old!r}; the keys are {abbreviate(weights)}")
    ignored = "|".join(re.escape(key) for layout in LAYOUTS.values() for key in layout.ignored_keys)
    is_ignored = re.compile(f"(?:{ignored})$".replace(re.escape(INDEX), r"\d+")).search
    renamed: dict[str, Tensor] = {}
    for key, tensor in weights.items():
        for new_key in [new for rename in renames if (new := rename.apply(key)) is not None] or [key]:
            if new_key in renamed:
                raise ValueError(f"`rename` gives two weights the name {new_key}; rename one of them differently")
            if is_ignored(new_key) and not is_ignored(key):
                raise ValueError(
                    f"`rename` gives {key} the name {new_key}, which is not a weight and would be ignored"
                )
            renamed[new_key] = tensor
    return renamed


def recognize_layout(checkpoint: SourceCheckpoint, name: str | None) -> tuple[SourceCheckpoint, Layout]:
    """Return the checkpoint without wrapper prefixes, and its layout, which must be the one called `name` if given."""
    for pattern, property_ in INEXPRESSIBLE.items():
        if key := next((key for key in checkpoint.weights if re.fullmatch(pattern, key)), None):
            raise cannot_express(f"{checkpoint.path} {property_} ({shorten(key, MAX_NAME)})")
    if name is not None and name not in LAYOUTS:
        raise ValueError(f"`layout` {name} is not one of {', '.join(LAYOUTS)}{did_you_mean(name, LAYOUTS)}")
    kind = checkpoint.settings.get("model_type")
    known = [layout for layout in LAYOUTS.values() if not layout.needs_name]
    candidates = [layout for layout in known if layout.config_class is None or layout.config_class.model_type == kind]
    if name:
        known = candidates = [LAYOUTS[name]]
    for weights in _unwrapped(checkpoint):
        for layout in candidates:
            if _has_signature(weights, layout):
                return checkpoint._replace(weights=weights), layout
    others = [layout for layout in known if layout not in candidates]
    raise ValueError(_why_unknown(checkpoint, candidates, others, name))


def _unwrapped(checkpoint: SourceCheckpoint) -> Iterator[dict[str, Tensor]]:
    """Yield the weights as they are, then with one wrapper prefix after another removed."""
    weights = checkpoint.weights
    kinds = [layout.config_class.model_type for layout in LAYOUTS.values() if layout.config_class]
    is_base = all(key.startswith(("shared.", "encoder.", "decoder.")) for key in weights)
    if is_base and checkpoint.settings.get("model_type") in kinds:
        # A transformers checkpoint of the stacks alone.
        weights = {f"model.{key}": tensor for key, tensor in weights.items()}
    yield weights
    while wrapper := next((text for text in WRAPPERS if all(key.startswith(text) for key in weights)), None):
        weights = {key.removeprefix(wrapper): tensor for key, tensor in weights.items()}
        yield weights


def _why_unknown(
    checkpoint: SourceCheckpoint, candidates: Iterable[Layout], others: Iterable[Layout], name: str | None
) -> str:
    """Explain why no layout fits: the model type, or keys of the nearest layout."""
    path, weights = checkpoint.path, checkpoint.weights
    for layout in others:
        if _has_signature(weights, layout):
            kind = checkpoint.settings.get("model_type")
            reason = f"its config.json has model_type {kind!r}" if kind else "there is no config.json beside them"
            return (
                f"{path} has no known layout: its keys are those of {layout.name}, but {reason}; give a folder with "
                "the config.json of such a model"
            )
    nearest = max(candidates, key=partial(_similarity, {_end(key) for key in weights}))
    missing = [key for key in nearest.signature if not _has_key(weights, key)]
    return (f"{path} does not have the layout {name}" if name else f"{path} has no known layout") + (
        f": its keys are {abbreviate(weights)}. The nearest is {nearest.name}, but there is no {abbreviate(missing)}"
        f"{RENAME_HINT}"
    )


def _has_key(weights: Iterable[str], key: str) -> bool:
    return any(key_pattern(key).fullmatch(name) for name in weights)


def _has_signature(weights: Iterable[str], layout: Layout) -> bool:
    return all(_has_key(weights, key) for key in layout.signature)


def _similarity(ends: set[tuple[str, ...]], layout: Layout) -> float:
    """Return the fraction of a layout's keys whose endings are among `ends`."""
    return sum(_end(rule.key) in ends for rule in layout.rules) / len(layout.rules)


def _end(key: str) -> tuple[str, ...]:
    return tuple(re.sub(r"\d+", "{i}", key).split(".")[-2:])


def abbreviate(names: Iterable[str]) -> str:
    """Join the first names, and count the others, for a message."""
    names = list(names)
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(shorten(name, MAX_NAME) for name in names[:MAX_LISTED]) + more
