"""Layouts of source checkpoints, and the rules that map their keys to our parameter names.

A *key* names a tensor of the source checkpoint, a *name* a parameter of our model. In both, `{i}` stands for the index
of a layer.
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
# Names of fields that take the value of a setting, or a function from the value to fields.
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
# The encoder's keys and the decoder's, in that order.
StackKeys = tuple[tuple[str, ...], tuple[str, ...]]
SPECIAL_ID_FIELDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# Keys of position tables that the original computes; no checkpoint has them.
_COMPUTED_POSITIONS = "computed positions of the {stack}"
COMPUTED_POSITION_KEYS = {stack: _COMPUTED_POSITIONS.format(stack=stack) for stack in STACKS}


@dataclass(frozen=True)
class Rule:
    """Where one kind of source tensor goes: its key, and the parameters that it becomes.

    All tensors of an optional kind may be absent (a bias, a position table); zeros replace them where our model needs
    them.
    """

    key: str
    names: tuple[str, ...]
    transform: Transform = unchanged
    optional: bool = False


@dataclass(frozen=True)
class Defect:
    """A computation of the original code that our model cannot express.

    `description` is a clause that follows "its"; `patch` the change to the code that makes its weights convertible.
    """

    stacks: tuple[str, ...]
    description: str
    patch: str


@dataclass(frozen=True)
class Layout:
    """How one code base names and uses its weights.

    Functions of weights and settings take the weights by their keys, and the settings stored beside them (empty if
    there are none).

    Attributes:
        name: The value of `layout` that selects it.
        description: One line on the code base.
        keys: Its keys in all releases and options.
        defaults: Configuration fields that the weights do not determine, as in the original code.
        example: Arguments of an example command.
        own_signature: Keys that identify a checkpoint, where the encoder's embedding and queries do not.
        other_rules: Rules beyond those of the keys.
        setting_fields: Configuration fields by the stored settings that determine them.
        argument_fields: Fields that the original code takes from its training arguments; required, with the first
            position, where a checkpoint has lost them.
        inexpressible: What other releases of the code do, by the field and value that seem to express it.
        ignored_keys: Keys of tensors that are not weights, such as a stored mask.
        fillers: Values of parameters that the original does without, by regular expressions for the ends of names.
        preprocess: Adds weights that the original computes, or leaves out of a file because they equal others.
        infer_fields: Infers fields from weights and settings, beyond those inferred in every layout.
        compute_positions: Computes position tables, by keys of `rules`, that the original does not store.
        first_position: The first token's row of a position table; None for the row after the padding id.
        defects: What must have been patched before training.
        config_class: Of a model of transformers; its `model_type` tells it from others with the same keys, and its
            folder holds settings of generation and a tokenizer.
        generation_settings: Settings that make `generate()` search as the original code does.
        settings_files: Files of settings in the folder of the weights (see `reading.read_settings`).
        vocabulary_settings: Settings that hold the tokens of source and target, or files of them in the folder of the
            weights; used unless the caller gives others.
        nonstandard_sinusoids: Whether its sinusoids differ from the paper's, so that only a stored table shows them.
        notes: Differences between the original and what its weights become, one sentence each.
        needs_name: Whether the caller must name it; its code is then unknown, as after renaming.
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
        """The rules, one for each kind of tensor."""
        return (*dict.fromkeys(rule for keys in self.keys for rule in keys.rules()), *self.other_rules)

    @cached_property
    def signature(self) -> tuple[str, ...]:
        """Keys that no other layout has all of; they identify a checkpoint."""
        return self.own_signature or self.keys[0].signature()


@cache
def key_pattern(key: str) -> re.Pattern[str]:
    """Return the regular expression for a key with `{i}`, which is one index wherever it stands."""
    first, *rest = (re.escape(part) for part in key.split("{i}"))
    index = ["(?P<i>[0-9]{1,6})", *["(?P=i)"] * (len(rest) - 1)]
    return re.compile(first + "".join(map("".join, zip(index, rest, strict=False))))


class ModelKeys(NamedTuple):
    """Keys of an encoder-decoder, part by part; its rules follow from them.

    In each key, `{stack}` stands for "encoder" and "decoder", and `{side}`, or `{side[0]}`, for what `sides` has for
    the stack. An empty key or a shorter tuple leaves out a part. Parts with the same key are one tensor there.

    Attributes:
        embedding: Token embedding.
        attentions: Attentions within a layer.
        projections: Query, key, value and output within an attention; "weight" and "bias" follow a dot, or an
            underscore that ends the key.
        layers: A layer; `{i}` stands for its index. Without it, a stack has one layer.
        norms: Norms within a layer.
        feed_forward: The feed-forward layers within a layer.
        output: Output projection.
        positions: Position tables, all of them optional.
        embedding_norm: Norm after the embeddings.
        final_norm: Norm at the end of a stack.
        sides: What `{side}` stands for.
        norm_parts: Weight and bias within a norm.
        transforms: Transforms by the ends of our names.
        optional: Ends of our names whose weights are optional, besides positions.
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
        """Return the keys of the encoder's embedding and queries, and of our names with other ends."""
        ends = ("embed_tokens.weight", ".self_attn.q_proj.weight", *ends)
        return tuple(key for key, name in self._names() if name.startswith("model.encoder.") and name.endswith(ends))

    def _names(self) -> Iterator[tuple[str, str]]:
        """Yield each key with one of our names."""
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
        """Return the keys of a module's weight and bias, with our names; none for a module that is left out."""
        parts = self.norm_parts if "norm" in name else PARTS
        separator = "" if key.endswith("_") else "."
        keys = [(f"{key}{separator}{part}", f"{name}.{ours}") for part, ours in zip(parts, PARTS, strict=True)]
        return keys if key else []


def numbered_norms(key: str, start: int) -> StackKeys:
    """Return the keys of each stack's norms, with `{n}` counted from `start`."""
    encoder, decoder = (tuple(key.format(n=n) for n, _ in enumerate(NORMS[stack], start)) for stack in STACKS)
    return encoder, decoder


def our_keys(prefix: str = "model.") -> ModelKeys:
    """Return the keys of models whose names are ours, which are also fairseq's."""
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
    """Return the fields of these special tokens; decoding starts with `bos` unless `start` is given."""
    return {
        "pad_token_id": pad,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "decoder_start_token_id": bos if start is None else start,
    }
