"""Layouts of source checkpoints, and the rules that map their keys to our parameter names.

A *key* names a tensor of the source checkpoint, a *name* a parameter of our model. In both, `{i}` stands for a layer
index.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedConfig

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from .settings import Settings
from .transforms import Filler, Transform, position_table, split_in_three, split_in_two, unchanged

Weights = Mapping[str, Tensor]
# Fields that take the value of a setting, or a function from the value to fields.
SettingFields = tuple[str, ...] | Callable[[Any], dict[str, Any]]

STACKS = ("encoder", "decoder")
EMBEDDING_NAMES = {stack: f"model.{stack}.embed_tokens.weight" for stack in STACKS}
POSITION_NAMES = {stack: f"model.{stack}.embed_positions.weight" for stack in STACKS}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
PARTS = ("weight", "bias")
# Our names within a layer, in the order of its sub-layers.
NORMS = {
    "encoder": ("self_attn_layer_norm", "final_layer_norm"),
    "decoder": ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"),
}
ATTENTIONS = {"encoder": ("self_attn",), "decoder": ("self_attn", "encoder_attn")}
# Keys of the encoder, then of the decoder.
StackKeys = tuple[tuple[str, ...], tuple[str, ...]]
SPECIAL_ID_FIELDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# Artificial keys for position tables that the original computes; no checkpoint has them.
_COMPUTED_POSITIONS = "computed positions of the {stack}"
COMPUTED_POSITION_KEYS = {stack: _COMPUTED_POSITIONS.format(stack=stack) for stack in STACKS}


@dataclass(frozen=True)
class Rule:
    """Maps one kind of source tensor to the parameters that it becomes.

    An optional kind, such as a bias or position table, may be absent as a whole; zeros replace it where our model
    needs it.
    """

    key: str
    names: tuple[str, ...]
    transform: Transform = unchanged
    optional: bool = False


@dataclass(frozen=True)
class Defect:
    """A defect of the original code that our model cannot reproduce.

    `description` is a clause that follows "its"; `patch` is the code change that makes the weights convertible.
    """

    stacks: tuple[str, ...]
    description: str
    patch: str


@dataclass(frozen=True)
class Layout:
    """How one code base names and uses its weights.

    Functions of weights and settings take the weights by key and the settings stored beside them (empty if there are
    none).

    Attributes:
        name: The value of `layout` that selects it.
        description: One line on the code base.
        keys: Its keys, for all releases and options.
        defaults: Configuration fields that the weights do not determine, as in the original code.
        example: Arguments of an example command.
        own_signature: Keys that identify a checkpoint, if the encoder's embedding and query projection do not.
        other_rules: Rules in addition to those of `keys`.
        setting_fields: Maps stored settings to the configuration fields that they determine.
        argument_fields: Fields that the original code takes from its training arguments. Without these arguments, the
            caller must pass the fields and, for a table that follows the padding id, the first position.
        inexpressible: Maps a (field, value) pair that seems to fit other releases of the code to what those really do.
        ignored_keys: Keys of tensors that are not weights, such as a stored mask.
        fillers: Values of parameters that the original lacks, by regular expressions for the ends of their names.
        preprocess: Checks settings, renames keys, and adds weights that the original computes or stores only once.
        infer_fields: Infers fields from weights and settings, in addition to those inferred for every layout.
        compute_positions: Computes position tables that the original does not store, by `COMPUTED_POSITION_KEYS`.
        first_position: Row of the first token in a position table; None for the row after the padding id.
        defects: Defects that must have been patched before training.
        config_class: For models of transformers: its `model_type` distinguishes layouts with the same keys, and the
            folder holds generation settings and a tokenizer.
        generation_settings: Returns settings that make `generate()` search as the original code does.
        settings_files: Settings files in the folder of the weights (see `reading.read_settings`).
        vocabulary_settings: Settings that hold the source and target tokens, or files with them in the folder of the
            weights; used unless the caller passes vocabularies.
        nonstandard_sinusoids: Whether its sinusoids differ from the paper's, so that they must be stored.
        notes: Differences between the original and the converted model, one sentence each.
        needs_name: Whether the caller must name the layout; the code is then unknown, as after renaming.
        source_prefix: Roles of the special tokens before a source text.
        source_suffix: Roles of the special tokens after it.
    """

    name: str
    description: str
    keys: tuple["ModelKeys", ...]
    defaults: Settings
    example: str = ""
    own_signature: tuple[str, ...] = ()
    other_rules: tuple[Rule, ...] = ()
    setting_fields: Mapping[str, SettingFields] = field(default_factory=dict)
    argument_fields: tuple[str, ...] = ()
    inexpressible: Mapping[tuple[str, str], str] = field(default_factory=dict)
    ignored_keys: tuple[str, ...] = ()
    fillers: Mapping[str, Filler] = field(default_factory=dict)
    preprocess: Callable[[Weights, Settings], dict[str, Tensor]] | None = None
    infer_fields: Callable[[Weights, Settings], dict[str, Any]] | None = None
    compute_positions: Callable[[Weights, Settings], dict[str, Tensor]] | None = None
    first_position: int | None = 0
    defects: tuple[Defect, ...] = ()
    config_class: type[PreTrainedConfig] | None = None
    generation_settings: Callable[[VanillaTransformerConfig], dict[str, Any]] | None = None
    settings_files: tuple[str, ...] = ()
    vocabulary_settings: tuple[str, ...] = ()
    nonstandard_sinusoids: bool = False
    notes: tuple[str, ...] = ()
    needs_name: bool = False
    source_prefix: tuple[str, ...] = ()
    source_suffix: tuple[str, ...] = ("eos",)

    @cached_property
    def rules(self) -> tuple[Rule, ...]:
        """One rule for each kind of tensor."""
        return (*dict.fromkeys(rule for keys in self.keys for rule in keys.rules()), *self.other_rules)

    @cached_property
    def signature(self) -> tuple[str, ...]:
        """Keys that identify a checkpoint: no other layout has all of them."""
        return self.own_signature or self.keys[0].signature()


@cache
def key_pattern(key: str) -> re.Pattern[str]:
    """Return the regular expression for a key, in which every `{i}` is the same index."""
    first, *rest = (re.escape(part) for part in key.split("{i}"))
    index = ["(?P<i>[0-9]{1,6})", *["(?P=i)"] * (len(rest) - 1)]
    return re.compile(first + "".join(map("".join, zip(index, rest, strict=False))))


class ModelKeys(NamedTuple):
    """Keys of an encoder-decoder, part by part, from which its rules follow.

    In each key, `{stack}` stands for "encoder" or "decoder", and `{side}` or `{side[0]}` for the entry of `sides` for
    that stack. An empty key or a shorter tuple leaves out a part. Parts with the same key share one tensor.

    Attributes:
        embedding: Token embedding.
        attentions: Attentions within a layer.
        projections: Query, key, value and output projection within an attention; "weight" and "bias" follow after a
            dot, or directly after a key that ends in an underscore.
        layers: A layer; without `{i}`, each stack has one layer.
        norms: Norms within a layer.
        feed_forward: Linear layers of the feed-forward part within a layer.
        output: Output projection.
        positions: Position tables, all of them optional.
        embedding_norm: Norm after the embeddings.
        final_norm: Norm at the end of a stack.
        sides: Values of `{side}` for encoder and decoder.
        norm_parts: Weight and bias within a norm.
        transforms: Transforms by the ends of our names.
        optional: Ends of our names that are optional, besides positions.
    """

    embedding: str
    attentions: StackKeys
    projections: tuple[str, ...]
    layers: str = "{stack}.layers.{i}"
    norms: StackKeys = ((), ())
    feed_forward: tuple[str, ...] = ()
    output: str = ""
    positions: tuple[str, ...] = ()
    embedding_norm: str = ""
    final_norm: str = ""
    sides: tuple[Any, Any] = STACKS
    norm_parts: tuple[str, str] = PARTS
    transforms: Mapping[str, Transform] = {}
    optional: tuple[str, ...] = ()

    def rules(self) -> Iterator[Rule]:
        """Yield a rule for each key."""
        names: dict[str, list[str]] = {}
        for key, name in self._names():
            names.setdefault(key, []).append(name)
        transforms = {"embed_positions.weight": position_table, **self.transforms}
        optional = ("embed_positions.weight", *self.optional)
        for key, ours in names.items():
            transform = next((transforms[end] for end in transforms if ours[0].endswith(end)), unchanged)
            if "_proj." in ours[0] and len(ours) > 1:
                transform = split_in_two if len(ours) == 2 else split_in_three
            yield Rule(key, tuple(ours), transform, ours[0].endswith(optional))

    def signature(self, *ends: str) -> tuple[str, ...]:
        """Return the keys of the encoder's embedding, query projection, and parameters with other ends."""
        ends = ("embed_tokens.weight", ".self_attn.q_proj.weight", *ends)
        return tuple(key for key, name in self._names() if name.startswith("model.encoder.") and name.endswith(ends))

    def _names(self) -> Iterator[tuple[str, str]]:
        """Yield pairs of a key and one of our names."""
        index = "{i}" if "{i}" in self.layers else "0"
        for stack, side, norms, attentions in zip(STACKS, self.sides, self.norms, self.attentions, strict=True):
            in_layer = [
                *zip(norms, NORMS[stack], strict=False),
                *zip(self.feed_forward, ("fc1", "fc2"), strict=False),
                *(
                    (f"{attention}.{key}", f"{name}.{projection}")
                    for attention, name in zip(attentions, ATTENTIONS[stack], strict=False)
                    for key, projection in zip(self.projections, PROJECTIONS, strict=False)
                    if attention
                ),
            ]
            modules = [
                (self.embedding_norm, "layernorm_embedding"),
                *((f"{self.layers}.{key}", f"layers.{index}.{name}") for key, name in in_layer),
                (self.final_norm, "layer_norm"),
            ]
            keys = [(f"{self.embedding}.weight", "embed_tokens.weight")]
            keys += [(table, "embed_positions.weight") for table in self.positions]
            for module, name in modules:
                keys += self._parts(module, name)
            for key, name in keys:
                yield key.format(stack=stack, side=side, i="{i}"), f"model.{stack}.{name}"
        yield from self._parts(self.output, "lm_head")

    def _parts(self, key: str, name: str) -> list[tuple[str, str]]:
        """Return the keys of a module's weight and bias with our names; none for a part that is left out."""
        parts = self.norm_parts if "norm" in name else PARTS
        separator = "" if key.endswith("_") else "."
        keys = [(f"{key}{separator}{part}", f"{name}.{ours}") for part, ours in zip(parts, PARTS, strict=True)]
        return keys if key else []


def numbered_norms(key: str, start: int) -> StackKeys:
    """Return the keys of each stack's norms, with `{n}` counted from `start`."""
    encoder, decoder = (tuple(key.format(n=n) for n, _ in enumerate(NORMS[stack], start)) for stack in STACKS)
    return encoder, decoder


def our_keys(prefix: str = "model.") -> ModelKeys:
    """Return the keys of models that use our names, which are also fairseq's."""
    return ModelKeys(
        embedding=f"{prefix}{{stack}}.embed_tokens",
        layers=f"{prefix}{{stack}}.layers.{{i}}",
        attentions=(ATTENTIONS["encoder"], ATTENTIONS["decoder"]),
        projections=PROJECTIONS,
        norms=(NORMS["encoder"], NORMS["decoder"]),
        feed_forward=("fc1", "fc2"),
        positions=(f"{prefix}{{stack}}.embed_positions.weight", _COMPUTED_POSITIONS),
        embedding_norm=f"{prefix}{{stack}}.layernorm_embedding",
        final_norm=f"{prefix}{{stack}}.layer_norm",
    )


def special_ids(pad: int | None, bos: int | None, eos: int | None, start: int | None = None) -> dict[str, int | None]:
    """Return the configuration fields of special tokens; decoding starts with `bos` unless `start` is given."""
    return {
        "pad_token_id": pad,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "decoder_start_token_id": bos if start is None else start,
    }
