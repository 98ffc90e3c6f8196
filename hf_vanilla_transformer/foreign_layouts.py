"""How others name the weights of a Transformer: one table of keys a layout, and the algebra between theirs and ours.

A layout is data: patterns of their keys, the names that our model has for them, and what happens to a tensor on the
way. In a pattern `{i}` stands for the number of a layer. Shape legend: d model width [d_model], d_k key width, L
positions.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from .configuration_vanilla_transformer import VanillaTransformerConfig

# From a foreign tensor and our configuration to our tensors, in the order of `Rule.ours`.
Transform = Callable[[Tensor, VanillaTransformerConfig], tuple[Tensor, ...]]
# From the shape of our tensor to its values, where the foreign code has nothing in its place.
Filler = Callable[[Sequence[int]], Tensor]

SIDES = ("encoder", "decoder")
EMBEDDINGS = {side: f"model.{side}.embed_tokens.weight" for side in SIDES}
POSITIONS = {side: f"model.{side}.embed_positions.weight" for side in SIDES}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
HEADS = ("encoder_attention_heads", "decoder_attention_heads")


def unchanged(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Return the tensor as it is; where a rule names several of ours, all of them are this one."""
    return (tensor,)


def split_in_three(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Cut queries, keys and values, stacked (3d, ...), apart."""
    return tensor.chunk(3)


def fold_unbiased_std(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Return the weight (d) of a norm that divides by the unbiased standard deviation, for one that does not.

    The unbiased deviation is sqrt(d / (d - 1)) times the other, so the weight takes the inverse. What remains is an
    epsilon that is added to the deviation s there and to its square here: s + e and sqrt(s^2 + 2e) are equal at s = 1
    up to e^2, and e/s |1 - 1/s| of each other away elsewhere.
    """
    return (tensor * math.sqrt((config.d_model - 1) / config.d_model),)


def spread(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Repeat a number that all of the width shares, (1) to (d)."""
    return (tensor.reshape(1).expand(config.d_model).clone(),)


def spread_and_fold_unbiased_std(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Do both: the weight (1) of a norm by the unbiased standard deviation, for one (d) that divides by the other."""
    return fold_unbiased_std(spread(tensor, config)[0], config)


def block_diagonal(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Give each of the d / d_k heads its own copy of one small projection (d_k, d_k), on the diagonal of (d, d)."""
    return (torch.block_diag(*[tensor] * (config.d_model // tensor.shape[0])),)


def table_of_positions(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Drop the batch axis, wherever it is, of a table of positions (1, L, d), (L, 1, d) or (L, d)."""
    return (tensor.reshape(-1, config.d_model),)


def identity(shape: Sequence[int]) -> Tensor:
    """Return a projection (d, d) that changes nothing."""
    return torch.eye(*shape)


@dataclass(frozen=True)
class Rule:
    """Where one kind of foreign tensor goes.

    Attributes:
        theirs: Its key; `{i}` stands for the number of a layer.
        ours: The names of what becomes of it.
        transform: What happens on the way.
        optional: Whether all of its kind may be absent (a bias, a table of positions); zeros take the place of those
            that our model needs.
    """

    theirs: str
    ours: tuple[str, ...]
    transform: Transform = unchanged
    optional: bool = False


@dataclass(frozen=True)
class Defect:
    """What the original code of a layout computes, and no Transformer of ours can.

    Attributes:
        parts: The halves of the model that it spoils.
        what: The property, as a clause that follows "its".
        repair: What the code must do instead for the same weights to be converted.
    """

    parts: tuple[str, ...]
    what: str
    repair: str


@dataclass(frozen=True)
class Layout:
    """How one code base names and uses its weights.

    Attributes:
        name: What `--layout` calls it.
        description: One line on what it is.
        signature: Keys that no other layout has all of; a checkpoint that has them is taken for this one.
        rules: The table of keys.
        defaults: Fields of our configuration that the weights do not tell, as the original code has them.
        example: Fields for the example of `--help`.
        asked: Fields that neither weights nor defaults tell, and the user must.
        ignored: Keys of what is no weight, such as a stored mask.
        fills: Endings of our names, and what fills them where the original has nothing: a linear layer less, say.
        read_fields: Fields that the shapes tell, beyond those that they tell in every layout; takes the foreign
            weights by their keys, and the foreign configuration, empty where there is none.
        defects: What cannot be converted unless it was repaired.
        source_prefix: Special tokens that the original puts before a source text, by their roles.
        source_suffix: Those that it puts after it.
    """

    name: str
    description: str
    signature: tuple[str, ...]
    rules: tuple[Rule, ...]
    defaults: Mapping[str, Any]
    example: str = ""
    asked: tuple[str, ...] = HEADS
    ignored: tuple[str, ...] = ()
    fills: Mapping[str, Filler] = field(default_factory=dict)
    read_fields: Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Any]] | None = None
    defects: tuple[Defect, ...] = ()
    source_prefix: tuple[str, ...] = ()
    source_suffix: tuple[str, ...] = ("eos",)


def linear(theirs: str, ours: str, optional_bias: bool = False) -> Iterator[Rule]:
    """Yield the rules of a linear layer, or of a layer normalization with PyTorch's names."""
    yield Rule(f"{theirs}.weight", (f"{ours}.weight",))
    yield Rule(f"{theirs}.bias", (f"{ours}.bias",), optional=optional_bias)


def norm(theirs: str, ours: str, names: tuple[str, str], transforms: tuple[Transform, Transform]) -> Iterator[Rule]:
    """Yield the rules of a layer normalization of one's own: names and transforms of its weight and of its bias."""
    for name, transform, part in zip(names, transforms, ("weight", "bias"), strict=True):
        yield Rule(f"{theirs}.{name}", (f"{ours}.{part}",), transform)


def attention(theirs: str, ours: str, names: Sequence[str]) -> Iterator[Rule]:
    """Yield the rules of an attention whose projections of queries, keys, values and outputs have these names."""
    for name, projection in zip(names, PROJECTIONS, strict=False):
        yield from linear(f"{theirs}.{name}", f"{ours}.{projection}")


def positions(**keys: str) -> Iterator[Rule]:
    """Yield the rules of stored tables of positions: side and key, or `both` and the key of the only one."""
    for side, key in keys.items():
        ours = tuple(POSITIONS.values()) if side == "both" else (POSITIONS[side],)
        yield Rule(key, ours, table_of_positions, optional=True)


def _sublayers(side: str) -> tuple[tuple[str, str], ...]:
    """Return our names of a layer's norms, in the order of its sub-layers, and the attention each belongs to."""
    cross = (("encoder_attn_layer_norm", "encoder_attn"),) if side == "decoder" else ()
    return (("self_attn_layer_norm", "self_attn"), *cross, ("final_layer_norm", ""))


def _annotated(embedding: str, norm_names: tuple[str, str]) -> tuple[Rule, ...]:
    """Return the table of the Annotated Transformer, or of a copy that renames its embeddings and norms."""
    transforms: tuple[Transform, Transform] = (fold_unbiased_std, unchanged)
    theirs = {"self_attn": "self_attn", "encoder_attn": "src_attn"}
    rules: list[Rule] = []
    for side, short in zip(SIDES, ("src", "tgt"), strict=True):
        rules.append(Rule(f"{short}_embed.0.{embedding}.weight", (EMBEDDINGS[side],)))
        rules += positions(**{side: f"{short}_embed.1.pe"})
        layer, our_layer = f"{side}.layers.{{i}}", f"model.{side}.layers.{{i}}"
        for number, (our_norm, our_attention) in enumerate(_sublayers(side)):
            rules += norm(f"{layer}.sublayer.{number}.norm", f"{our_layer}.{our_norm}", norm_names, transforms)
            if our_attention:
                names = [f"linears.{n}" for n in range(4)]
                rules += attention(f"{layer}.{theirs[our_attention]}", f"{our_layer}.{our_attention}", names)
        for n in (1, 2):
            rules += linear(f"{layer}.feed_forward.w_{n}", f"{our_layer}.fc{n}")
        rules += norm(f"{side}.norm", f"model.{side}.layer_norm", norm_names, transforms)
    return (*rules, *linear("generator.proj", "lm_head"))


def special_ids(pad: int, bos: int | None, eos: int | None, start: int | None = None) -> dict[str, int | None]:
    """Return the fields of these special tokens; decoding starts with `bos` unless `start` says otherwise."""
    return {
        "pad_token_id": pad,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "decoder_start_token_id": bos if start is None else start,
    }


# Twice the 1e-6 that the original adds to the standard deviation: see `fold_unbiased_std`.
_STD_EPS = 2e-6
_ANNOTATED_FIELDS = {"norm_position": "pre", "activation_function": "relu", "layer_norm_eps": _STD_EPS}

_LAYOUTS = (
    Layout(
        name="annotated-transformer",
        description="EncoderDecoder of The Annotated Transformer (Harvard NLP), 2018 or 2022",
        signature=("src_embed.0.lut.weight", "encoder.layers.{i}.self_attn.linears.0.weight", "encoder.norm.a_2"),
        rules=_annotated("lut", ("a_2", "b_2")),
        # `<s>` 0, `</s>` 1, `<blank>` 2, `<unk>` 3: the order of its vocabularies' special tokens.
        defaults={**_ANNOTATED_FIELDS, **special_ids(pad=2, bos=0, eos=1)},
        example="multi30k_model_final.pt --config encoder_attention_heads=8",
        source_prefix=("bos",),
    ),
)


def _by_name(layouts: Iterable[Layout]) -> dict[str, Layout]:
    return {layout.name: layout for layout in layouts}


LAYOUTS = _by_name(_LAYOUTS)

__all__ = ["LAYOUTS", "Defect", "Layout", "Rule", "Transform"]
