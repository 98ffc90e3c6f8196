"""Infer configuration fields from weights and settings, and require the rest from the caller."""

import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import fields
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor

from ..errors import did_you_mean
from ..marian_fields import HEAD_FIELDS, SHAPE_FIELDS
from ..model.configuration_vanilla_transformer import (
    CHOICES,
    VanillaTransformerConfig,
)
from .recognition import abbreviate
from .rules import EMBEDDING_NAMES, STACKS, Layout
from .settings import cannot_express
from .transformers_folder import transformers_fields
from .transforms import BLOCK_DIAGONAL, unchanged
from .weights import MatchedCheckpoint, shape_text

POSITION_FIELDS = ("position_embedding_type", "sinusoidal_layout")
# Choices that error messages offer; other fields show the layout's default. Weights determine whether there are norms.
_CHOICES = {
    "norm_position": "|".join(name for name in CHOICES["norm_position"] if name != "none"),
    "activation_function": "relu|gelu|silu|...",
    "scale_embedding": "true|false",
    "sinusoidal_layout": "|".join(CHOICES["sinusoidal_layout"]),
}


class Overrides(NamedTuple):
    """The caller's arguments about the original code.

    Attributes:
        fields: Configuration fields.
        first_position: Row of the first token in stored position tables.
        unbiased_norms: Whether norms divide by the unbiased standard deviation.
        renamed: Whether keys were renamed, so that the original code may differ from the layout's.
    """

    fields: Mapping[str, Any]
    first_position: int | None
    unbiased_norms: bool | None
    renamed: bool


@cache
def own_fields() -> tuple[str, ...]:
    """Return the fields that our configuration declares itself, without inherited ones."""
    own = VanillaTransformerConfig.__annotations__
    return tuple(field.name for field in fields(VanillaTransformerConfig) if field.name in own)


def check_field_names(names: Iterable[str]) -> None:
    """Raise a ValueError for a name that is not a field of our configuration."""
    for name in names:
        if name not in own_fields():
            hint = did_you_mean(name, own_fields()) or "; see VanillaTransformerConfig"
            raise ValueError(f"`{name}` is not a field of the configuration{hint}")


def infer_fields(matched: MatchedCheckpoint, renamed: bool) -> dict[str, Any]:
    """Infer fields from shapes, settings and, unless keys were renamed, layout-specific traits of the weights."""
    layout, checkpoint = matched.layout, matched.checkpoint
    values = _from_shapes(matched)
    if layout.config_class is not None:
        values |= transformers_fields(layout.config_class, checkpoint.settings)
    if layout.infer_fields is not None:
        values |= layout.infer_fields({} if renamed else checkpoint.weights, checkpoint.settings)
    values |= _from_settings(matched)
    if renamed:
        values |= {"final_layer_norm": _has_final_norms(matched)}
        values |= {} if matched.norm_names else {"norm_position": "none"}
    return values


def _from_settings(matched: MatchedCheckpoint) -> dict[str, Any]:
    inferred: dict[str, Any] = {}
    known, settings = matched.layout.setting_fields, matched.checkpoint.settings
    for name in known.keys() & settings.keys():
        entry, value = known[name], settings[name]
        inferred |= entry(value) if callable(entry) else dict.fromkeys(entry, value)
    return inferred


def _has_final_norms(matched: MatchedCheckpoint) -> bool:
    """Return whether the stacks end in a norm; a ValueError if only one of them does."""
    has_norm = {stack: f"model.{stack}.layer_norm.weight" in matched.norm_names for stack in STACKS}
    if not matched.encoder_only and len({*has_norm.values()}) > 1:
        normed, other = sorted(STACKS, key=has_norm.__getitem__, reverse=True)
        raise cannot_express(
            f"{matched.checkpoint.path} has a norm at the end of the {normed}, but none at the end of the {other}"
        )
    return has_norm["encoder"]


def _attention_widths(matched: MatchedCheckpoint, d_model: int) -> dict[str, int]:
    """Return the total width of all heads under the field of one head's width, where it differs from `d_model`."""
    first = "model.encoder.layers.0.self_attn"
    names = {f"{first}.q_proj.weight": "head_dim", f"{first}.v_proj.weight": "value_head_dim"}
    widths = {
        names[match.names[0]]: len(matched.checkpoint.weights[match.key])
        for match in matched.matches
        if match.names[0] in names and match.rule.transform is unchanged
    }
    return {name: width for name, width in widths.items() if width != d_model}


def _from_shapes(matched: MatchedCheckpoint) -> dict[str, Any]:
    by_name, path = matched.by_name, matched.checkpoint.path
    inferred: dict[str, Any] = {}
    for stack, vocabulary in zip(STACKS, ("vocab_size", "decoder_vocab_size"), strict=True):
        embedding = by_name.get(EMBEDDING_NAMES[stack])
        layers = {int(match[1]) for name in by_name if (match := re.match(rf"model\.{stack}\.layers\.(\d+)\.", name))}
        if stack == "encoder" and (embedding is None or not layers):
            keys = [rule.key for rule in matched.layout.rules if EMBEDDING_NAMES[stack] in rule.names]
            raise ValueError(f"{path} lacks {abbreviate(keys)} or all layers of the encoder; save them too")
        # Missing decoder weights are reported together with all others.
        if embedding is not None:
            _check_embedding(stack, embedding)
            if inferred.get("d_model", embedding.shape[1]) != embedding.shape[1]:
                raise cannot_express(
                    f"{path} has embeddings of width {inferred['d_model']} in the encoder and {embedding.shape[1]} in "
                    "the decoder"
                )
            inferred[vocabulary], inferred["d_model"] = embedding.shape
        if layers:
            # A wrong layer index could make the model too large for memory.
            if max(layers) >= 2 * len(layers):
                gap = next(number for number in range(len(layers) + 1) if number not in layers)
                raise ValueError(
                    f"{path} has layer {max(layers)} of the {stack}, but no layer {gap}; save all layers, "
                    "numbered from 0"
                )
            inferred[f"{stack}_layers"] = max(layers) + 1
            inferred |= _feed_forward_width(stack, by_name, matched.layout)
    inferred |= _heads_of_shared_projections(matched)
    inferred["attention_bias"] = any(re.search(r"attn\.\w+_proj\.bias$", name) for name in by_name)
    inferred["lm_head_bias"] = "lm_head.bias" in by_name
    inferred["embedding_layer_norm"] = any(".layernorm_embedding." in name for name in by_name)
    head = by_name.get("lm_head.weight")
    if "decoder_vocab_size" not in inferred and head is not None and head.dim() == 2:
        inferred["decoder_vocab_size"] = len(head)
    return inferred


def _check_embedding(stack: str, embedding: Tensor) -> None:
    if not embedding.is_floating_point():
        raise ValueError(f"the {stack}'s embeddings are {embedding.dtype}; save the weights as floating-point numbers")
    if embedding.dim() != 2:
        raise ValueError(f"the {stack}'s embeddings have shape {shape_text(embedding.shape)}; they must have two axes")


def _heads_of_shared_projections(matched: MatchedCheckpoint) -> dict[str, int]:
    """Infer how many heads share a projection, unless it is as wide as the output projection."""
    shared = {name for match in matched.matches if match.rule.transform in BLOCK_DIAGONAL for name in match.names}
    heads = {}
    for stack, field_name in zip(STACKS, HEAD_FIELDS, strict=True):
        names = [f"model.{stack}.layers.0.self_attn.{name}.weight" for name in ("q_proj", "out_proj")]
        small, whole = (matched.by_name.get(name) for name in names)
        if names[0] not in shared or small is None or whole is None or not small.dim() == whole.dim() == 2:
            continue
        # A full-width projection is compatible with any number of heads.
        if 0 < len(small) != len(whole):
            heads[field_name] = len(whole) // len(small)
    return heads


def _feed_forward_width(stack: str, by_name: Mapping[str, Tensor], layout: Layout) -> dict[str, int]:
    """Return the feed-forward width: no field if its weights are missing, 0 if the layout has no feed-forward part."""
    first, second = (rf"model\.{stack}\.layers\.\d+\.{name}\.weight" for name in ("fc1", "fc2"))
    for name, tensor in by_name.items():
        for pattern, axis in ((first, 0), (second, 1)):
            if re.fullmatch(pattern, name) and tensor.dim() == 2:
                return {f"{stack}_ffn_dim": tensor.shape[axis]}
    names = (name.replace("{i}", "0") for rule in layout.rules for name in rule.names)
    return {} if any(re.fullmatch(first, name) for name in names) else {f"{stack}_ffn_dim": 0}


def fields_of_code(layout: Layout) -> list[str]:
    """Return the fields that a layout's code determines, but its weights do not."""
    return list(dict.fromkeys(("activation_function", "scale_embedding", *layout.defaults)))


def check_required(matched: MatchedCheckpoint, inferred: Mapping[str, Any], overrides: Overrides) -> None:
    """Check that the caller passes what weights, settings and the layout's code do not determine.

    One ValueError lists all missing arguments; others name an argument that does not apply.
    """
    layout, tables = matched.layout, matched.stored_position_keys
    for (name, value), reason in layout.inexpressible.items():
        if not overrides.renamed and overrides.fields.get(name) == value:
            raise cannot_express(f"`{name}={value}` does not describe the code of {layout.name}: {reason}")
    if overrides.first_position is not None and not tables:
        raise ValueError("`first_position` is set, but the weights have no position table; leave it out")
    known = {*inferred, *overrides.fields}
    # One number of heads serves both stacks.
    required = [] if {*HEAD_FIELDS} & {*known, *layout.defaults} else [*HEAD_FIELDS]
    if overrides.renamed:
        # Stored tables determine the position type; absent learned ones are reported as missing weights.
        required += [name for name in fields_of_code(layout) if name not in POSITION_FIELDS]
        required += [] if tables else ["sinusoidal_layout"]
        needs_position, needs_norms = bool(tables), bool(matched.norm_names)
    else:
        required += layout.argument_fields
        lost = any(name not in inferred for name in layout.argument_fields)
        needs_position, needs_norms = lost and bool(tables) and layout.first_position is None, False
    arguments = {"first_position": "0"} if needs_position and overrides.first_position is None else {}
    arguments |= {"unbiased_norms": "true|false"} if needs_norms and overrides.unbiased_norms is None else {}
    for name in dict.fromkeys(required):
        if name not in known:
            arguments[name] = _CHOICES.get(name) or json.dumps(layout.defaults.get(name, 8))
    if arguments:
        renamed = "renamed " if overrides.renamed and not layout.needs_name else ""
        enough = " (one number of heads is enough if both are equal)" if {*HEAD_FIELDS} <= arguments.keys() else ""
        raise ValueError(
            f"the {renamed}weights of {layout.name} do not determine how they are used{enough}; pass the values "
            "of the original code: " + " ".join(f"`{name}={value}`" for name, value in arguments.items())
        )


def merge_fields(
    matched: MatchedCheckpoint, inferred: Mapping[str, Any], overrides: Mapping[str, Any]
) -> dict[str, Any]:
    """Merge fields: overrides win over inferred ones, except those that shapes fix, and both over defaults."""
    # Numbers of heads that are not in the settings were inferred from shapes.
    in_settings = {*_from_settings(matched), *matched.checkpoint.settings}
    heads_of_shapes = [name for name in HEAD_FIELDS if name not in in_settings]
    for name in (*SHAPE_FIELDS, "attention_bias", "lm_head_bias", "embedding_layer_norm", *heads_of_shapes):
        if name in overrides and name in inferred and overrides[name] != inferred[name]:
            raise ValueError(f"`{name}={overrides[name]!r}`, but the weights imply {inferred[name]!r}; leave it out")
    merged = {**matched.layout.defaults, **inferred, **overrides}
    known_heads = [merged[name] for name in HEAD_FIELDS if name in merged]
    merged |= {name: merged.get(name, known_heads[0]) for name in HEAD_FIELDS}
    heads = merged["encoder_attention_heads"]
    head_widths = {
        name: width // heads
        for name, width in _attention_widths(matched, merged["d_model"]).items()
        if isinstance(heads, int) and heads and width % heads == 0
    }
    return {**head_widths, **merged}


def assumed_fields(layout: Layout, config: VanillaTransformerConfig, known: Collection[str]) -> list[str]:
    """Return a note on fields whose values only the layout's code suggests."""
    assumed = [f"{name}={json.dumps(getattr(config, name))}" for name in fields_of_code(layout) if name not in known]
    return [f"assumed, as in the code of {layout.name}: {' '.join(assumed)}"] if assumed else []


def unread_settings(matched: MatchedCheckpoint) -> list[str]:
    """Return a note on settings that the layout does not read."""
    layout = matched.layout
    unread = {name: value for name, value in matched.checkpoint.settings.items() if name not in layout.setting_fields}
    if not unread or layout.config_class or layout.argument_fields:
        return []
    shown = abbreviate(f"{name}={value!r}" for name, value in unread.items())
    return [f"settings beside the weights were not read; check that the configuration agrees: {shown}"]
