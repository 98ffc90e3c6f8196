"""How others name the weights of a Transformer: one table of keys a layout, and the algebra between theirs and ours.

A layout is data: patterns of their keys, the names that our model has for them, and what happens to a tensor on the
way. In a pattern `{i}` stands for the number of a layer. Shape legend: d model width [d_model], d_k key width, L
positions.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig

# From a foreign tensor and our configuration to our tensors, in the order of `Rule.ours`. An arithmetic, index,
# runtime or value error says that the tensor has another shape than it must have.
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
    epsilon e that is added to the deviation s there, and to its square here. With the same e, s + e and sqrt(s^2 + e)
    are equal where s = 1/2, and less than a part e / s apart wherever s > 1/4: below rounding for all but tiny states.
    """
    return (tensor * math.sqrt((config.d_model - 1) / config.d_model),)


def spread(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Repeat a number that all of the width shares, (1) to (d)."""
    return (tensor.reshape(1).expand(config.d_model).clone(),)


def spread_and_fold_unbiased_std(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Do both: the weight (1) of a norm by the unbiased standard deviation, for one (d) that divides by the other."""
    return fold_unbiased_std(spread(tensor, config)[0], config)


# A transform of a norm's weight, and that for the same norm by the unbiased standard deviation.
UNBIASED: dict[Transform, Transform] = {unchanged: fold_unbiased_std, spread: spread_and_fold_unbiased_std}


def block_diagonal(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Give each of the d / d_k heads its own copy of one small projection (d_k, d_k), on the diagonal of (d, d)."""
    return (torch.block_diag(*[tensor] * (config.d_model // tensor.shape[0])),)


def table_of_positions(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Drop the batch axis, wherever it is, of a table of positions (1, L, d), (L, 1, d) or (L, d)."""
    if tensor.shape[-1] != config.d_model or math.prod(tensor.shape[:-1]) != max(tensor.shape[:-1]):
        raise ValueError(f"positions of the shape {tuple(tensor.shape)}")
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
        settings: Fields that settings beside the weights tell, by the name of the setting; takes its value.
        options: Fields that its code takes from the arguments of the training: the user must tell them where a
            checkpoint has lost its arguments, and the first position with them.
        ignored: Keys of what is no weight, such as a stored mask.
        fills: Endings of our names, and what fills them where the original has nothing: a linear layer less, say.
        complete: Adds, to the weights by their keys, what the original computes or leaves out of a file because it is
            another weight; takes also the foreign configuration, empty where there is none.
        read_fields: Fields that the shapes tell, beyond those that they tell in every layout; takes the foreign
            weights by their keys, and the foreign configuration, empty where there is none.
        compute_positions: Gives the tables of positions, by keys of `rules`, that the original computes and does not
            store; takes the same.
        after_padding: Whether a table of positions begins with those up to the id of padding, which no token has.
        defects: What cannot be converted unless it was patched.
        model_types: What the config.json beside the weights may call the model, where the keys alone would not tell it
            from others; empty for any or none.
        decoding: Settings of `generate()` by which it decodes as the original code does; takes our configuration.
        finish: What else is to be taken over from the folder, as its tokenizer; takes the folder and the `Conversion`,
            to change its `tokenizer`, `generation` or `notes`.
        own_sinusoids: Whether its sinusoids differ from the paper's, so that only a stored table tells them.
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
    settings: Mapping[str, Callable[[Any], dict[str, Any]]] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    fills: Mapping[str, Filler] = field(default_factory=dict)
    complete: Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Tensor]] | None = None
    read_fields: Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Any]] | None = None
    compute_positions: Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Tensor]] | None = None
    after_padding: bool = False
    defects: tuple[Defect, ...] = ()
    model_types: tuple[str, ...] = ()
    decoding: Callable[[VanillaTransformerConfig], dict[str, Any]] | None = None
    finish: Callable[[Path, Any], None] | None = None
    own_sinusoids: bool = False
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


def stacked_inputs(theirs: str, ours: str, optional_bias: bool = False) -> Iterator[Rule]:
    """Yield the rules of an attention's projections of queries, keys and values that are stored as one."""
    for part, optional in (("weight", False), ("bias", optional_bias)):
        names = tuple(f"{ours}.{name}.{part}" for name in PROJECTIONS[:3])
        yield Rule(f"{theirs}.in_proj_{part}", names, split_in_three, optional)


def positions(**keys: str) -> Iterator[Rule]:
    """Yield the rules of stored tables of positions: side and key, or `both` and the key of the only one."""
    for side, key in keys.items():
        ours = tuple(POSITIONS.values()) if side == "both" else (POSITIONS[side],)
        yield Rule(key, ours, table_of_positions, optional=True)


def sublayers(side: str) -> tuple[tuple[str, str], ...]:
    """Return our names of a layer's norms, in the order of its sub-layers, and the attention each belongs to."""
    cross = (("encoder_attn_layer_norm", "encoder_attn"),) if side == "decoder" else ()
    return (("self_attn_layer_norm", "self_attn"), *cross, ("final_layer_norm", ""))


def switch(name: str, value: Any) -> bool:
    """Return the value of a setting that is either true or false.

    Raises:
        ValueError: It is neither, such as the text "False", which counts as true in Python.
    """
    if value not in (True, False):
        raise ValueError(f"the setting {name} beside the weights is {value!r}; it must be true or false")
    return bool(value)


def special_ids(pad: int, bos: int | None, eos: int | None, start: int | None = None) -> dict[str, int | None]:
    """Return the fields of these special tokens; decoding starts with `bos` unless `start` says otherwise."""
    return {
        "pad_token_id": pad,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "decoder_start_token_id": bos if start is None else start,
    }


__all__ = ["Defect", "Layout", "Rule", "Transform"]
