"""Layouts of source checkpoints, and the rules that map their keys to our parameter names.

A *key* names a tensor of the source checkpoint, a *name* a parameter of our model. In both, `{i}` stands for the index
of a layer. Shape legend: d model width [d_model], d_k key width, L positions.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..marian_fields import HEAD_FIELDS
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig

Weights = Mapping[str, Tensor]
Settings = Mapping[str, Any]
# From a source tensor and d_model to our tensors, in the order of `Rule.names`. An arithmetic, index, runtime or value
# error means that the shape of the tensor does not fit.
Transform = Callable[[Tensor, int], tuple[Tensor, ...]]
# From the shape of one of our parameters to its values.
Filler = Callable[[Sequence[int]], Tensor]

STACKS = ("encoder", "decoder")
EMBEDDING_NAMES = {stack: f"model.{stack}.embed_tokens.weight" for stack in STACKS}
POSITION_NAMES = {stack: f"model.{stack}.embed_positions.weight" for stack in STACKS}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "out_proj")
SPECIAL_ID_FIELDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
# Keys of position tables that the original computes; no checkpoint has them.
COMPUTED_POSITION_KEYS = {stack: f"computed positions of the {stack}" for stack in STACKS}


def unchanged(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Return the tensor itself, for every name of the rule."""
    return (tensor,)


def split_in_three(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Split stacked queries, keys and values (3d, ...)."""
    return tensor.chunk(3)


def split_in_two(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Split stacked keys and values (2d, ...)."""
    return tensor.chunk(2)


def fold_unbiased_std(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Rescale the weight (d) of a norm that divides by the unbiased standard deviation for `torch.nn.LayerNorm`.

    The unbiased deviation is sqrt(d / (d - 1)) times the biased one, so the weight takes the inverse. What remains is
    an epsilon e that is added to the deviation s there, and to its square here. With the same e, s + e and
    sqrt(s^2 + e) are equal at s = 1/2, and differ by less than a fraction e / s wherever s > 1/4: below rounding for
    all but tiny states.
    """
    return (tensor * math.sqrt((d_model - 1) / d_model),)


def expand_scalar(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Expand a scalar (1) to the model's width (d), which a vector (d) already has."""
    return (tensor.expand(d_model).clone(),)


def expand_and_fold_unbiased_std(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Expand the weight (1) or (d) of a norm that divides by the unbiased standard deviation, and rescale it."""
    return fold_unbiased_std(expand_scalar(tensor, d_model)[0], d_model)


# Transforms of a norm's weight, by the transform for the same norm with the biased standard deviation.
UNBIASED_TRANSFORMS: dict[Transform, Transform] = {
    unchanged: fold_unbiased_std,
    expand_scalar: expand_and_fold_unbiased_std,
}


def block_diagonal(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Copy one small projection (d_k, d_k) for each of the d / d_k heads onto the diagonal of (d, d)."""
    return (torch.block_diag(*[tensor] * (d_model // tensor.shape[0])),)


def block_diagonal_query(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Copy a small projection (d_k, d_k) of queries likewise, where scores are divided by sqrt(d), not sqrt(d_k)."""
    if tensor.shape[0] == d_model:
        raise ValueError("a projection of the whole width does not show d_k")
    return (block_diagonal(tensor, d_model)[0] * math.sqrt(tensor.shape[0] / d_model),)


def position_table(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Drop the batch axis, wherever it is, of a position table (1, L, d), (L, 1, d) or (L, d)."""
    if tensor.shape[-1] != d_model or math.prod(tensor.shape[:-1]) != max(tensor.shape[:-1]):
        raise ValueError(f"positions of shape {tuple(tensor.shape)}")
    return (tensor.reshape(-1, d_model),)


def identity(shape: Sequence[int]) -> Tensor:
    """Return the projection (d, d) that changes nothing."""
    return torch.eye(*shape)


@dataclass(frozen=True)
class Rule:
    """Where one kind of source tensor goes.

    Attributes:
        key: Its key.
        names: The parameters that it becomes.
        transform: How it becomes them.
        optional: Whether all tensors of this kind may be absent (a bias, a position table); zeros replace them where
            our model needs them.
    """

    key: str
    names: tuple[str, ...]
    transform: Transform = unchanged
    optional: bool = False


@dataclass(frozen=True)
class Defect:
    """A computation of the original code that our model cannot express.

    Attributes:
        stacks: The affected stacks.
        description: The defect, as a clause that follows "its".
        patch: The change to the code that makes its weights convertible.
    """

    stacks: tuple[str, ...]
    description: str
    patch: str


@dataclass(frozen=True)
class FolderContents:
    """What a source folder holds besides weights and configuration.

    Attributes:
        generation: Settings of `generate()`.
        tokenizer: The tokenizer, if there is one and it was wanted.
        notes: What was left out, one sentence each.
    """

    generation: Settings = field(default_factory=dict)
    tokenizer: PreTrainedTokenizerBase | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layout:
    """How one code base names and uses its weights.

    Functions of weights and settings take the weights by their keys, and the settings stored beside them (empty if
    there are none).

    Attributes:
        name: The value of `layout` that selects it.
        description: One line on the code base.
        signature: Keys that no other layout has all of; they identify a checkpoint.
        rules: The rules, one for each kind of tensor.
        defaults: Configuration fields that the weights do not determine, as in the original code.
        example: Arguments of an example command.
        required_fields: Fields that neither weights nor defaults determine; one of them is enough if all are equal.
        setting_fields: Functions from the value of a stored setting to configuration fields, by the setting's name.
        argument_fields: Fields that the original code takes from its training arguments; required, with the first
            position, where a checkpoint has lost them.
        inexpressible: What other releases of the code do, by the field and value that seem to express it.
        ignored_keys: Keys of tensors that are not weights, such as a stored mask.
        fillers: Values of parameters that the original does without, by regular expressions for the ends of names.
        preprocess: Adds weights that the original computes, or leaves out of a file because they equal others.
        infer_fields: Infers fields from weights and settings, beyond those inferred in every layout.
        compute_positions: Computes position tables, by keys of `rules`, that the original does not store.
        first_position: Row of a position table that the first token has.
        positions_follow_padding: Whether that is instead the row after the padding id.
        defects: What must have been patched before training.
        model_types: Possible values of `model_type` in config.json, where keys alone are ambiguous; empty for any or
            none.
        generation_settings: Settings that make `generate()` search as the original code does.
        read_folder: Reads a folder of the original; the flag says whether to load the tokenizer too.
        read_settings: Reads settings from the folder of the weights, beyond those in config.json.
        vocabulary_settings: Settings that hold the tokens of source and target; used unless the caller gives others.
        nonstandard_sinusoids: Whether its sinusoids differ from the paper's, so that only a stored table shows them.
        notes: Differences between the original and what its weights become, one sentence each.
        needs_name: Whether it is considered only by its name, and its code is unknown, as after renaming.
        source_prefix: Roles of the special tokens before a source text.
        source_suffix: Roles of the special tokens after it.
    """

    name: str
    description: str
    signature: tuple[str, ...]
    rules: tuple[Rule, ...]
    defaults: Settings
    example: str = ""
    required_fields: tuple[str, ...] = HEAD_FIELDS
    setting_fields: Mapping[str, Callable[[Any], dict[str, Any]]] = field(default_factory=dict)
    argument_fields: tuple[str, ...] = ()
    inexpressible: Mapping[tuple[str, str], str] = field(default_factory=dict)
    ignored_keys: tuple[str, ...] = ()
    fillers: Mapping[str, Filler] = field(default_factory=dict)
    preprocess: Callable[[Weights, Settings], dict[str, Tensor]] | None = None
    infer_fields: Callable[[Weights, Settings], dict[str, Any]] | None = None
    compute_positions: Callable[[Weights, Settings], dict[str, Tensor]] | None = None
    first_position: int = 0
    positions_follow_padding: bool = False
    defects: tuple[Defect, ...] = ()
    model_types: tuple[str, ...] = ()
    generation_settings: Callable[[VanillaTransformerConfig], dict[str, Any]] | None = None
    read_folder: Callable[[Path, bool], FolderContents] | None = None
    read_settings: Callable[[Path], dict[str, Any]] | None = None
    vocabulary_settings: tuple[str, str] | None = None
    nonstandard_sinusoids: bool = False
    notes: tuple[str, ...] = ()
    needs_name: bool = False
    source_prefix: tuple[str, ...] = ()
    source_suffix: tuple[str, ...] = ("eos",)


@cache
def key_pattern(key: str) -> re.Pattern[str]:
    """Return the regular expression for a key with `{i}`, which is one index wherever it stands."""
    first, *rest = (re.escape(part) for part in key.split("{i}"))
    index = ["(?P<i>[0-9]{1,6})", *["(?P=i)"] * (len(rest) - 1)]
    return re.compile(first + "".join(map("".join, zip(index, rest, strict=False))))


def linear_rules(key: str, name: str, optional_bias: bool = False) -> Iterator[Rule]:
    """Yield the rules of a linear layer, or of a layer normalization with PyTorch's names."""
    yield Rule(f"{key}.weight", (f"{name}.weight",))
    yield Rule(f"{key}.bias", (f"{name}.bias",), optional=optional_bias)


def attention_rules(key: str, name: str, projections: Sequence[str], optional_bias: bool = False) -> Iterator[Rule]:
    """Yield the rules of an attention whose query, key, value and output projections are called `projections`."""
    for theirs, ours in zip(projections, PROJECTIONS, strict=True):
        yield from linear_rules(f"{key}.{theirs}", f"{name}.{ours}", optional_bias)


def stacked_attention_rules(key: str, name: str, optional_bias: bool = False) -> Iterator[Rule]:
    """Yield the rules of an attention whose query, key and value projections are stored as one."""
    for part, optional in (("weight", False), ("bias", optional_bias)):
        names = tuple(f"{name}.{projection}.{part}" for projection in PROJECTIONS[:3])
        yield Rule(f"{key}.in_proj_{part}", names, split_in_three, optional)


def position_rules(keys: Mapping[str, str]) -> Iterator[Rule]:
    """Yield the rules of stored position tables, from keys by stack."""
    for stack, key in keys.items():
        yield Rule(key, (POSITION_NAMES[stack],), position_table, optional=True)


def sublayer_names(stack: str) -> tuple[tuple[str, str], ...]:
    """Return our names of a layer's norms, in the order of its sub-layers, each with its attention ("" for none)."""
    cross = (("encoder_attn_layer_norm", "encoder_attn"),) if stack == "decoder" else ()
    return (("self_attn_layer_norm", "self_attn"), *cross, ("final_layer_norm", ""))


def layers_with_our_names(prefix: str = "") -> Iterator[Rule]:
    """Yield the rules of embeddings and layers in fairseq's names, which are also ours."""
    for stack in STACKS:
        yield Rule(f"{prefix}{stack}.embed_tokens.weight", (EMBEDDING_NAMES[stack],))
    for stack in STACKS:
        key, name = f"{prefix}{stack}.layers.{{i}}", f"model.{stack}.layers.{{i}}"
        for norm, attention in sublayer_names(stack):
            yield from linear_rules(f"{key}.{norm}", f"{name}.{norm}")
            if attention:
                yield from attention_rules(f"{key}.{attention}", f"{name}.{attention}", PROJECTIONS)
        for linear in ("fc1", "fc2"):
            yield from linear_rules(f"{key}.{linear}", f"{name}.{linear}")


def embedding_norm_rules(prefix: str = "") -> Iterator[Rule]:
    """Yield the rules of norms after the embeddings in fairseq's names, which are also ours."""
    for stack in STACKS:
        yield from linear_rules(f"{prefix}{stack}.layernorm_embedding", f"model.{stack}.layernorm_embedding")


def final_norm_rules(prefix: str = "") -> Iterator[Rule]:
    """Yield the rules of norms that end the stacks in fairseq's names, which are also ours."""
    for stack in STACKS:
        yield from linear_rules(f"{prefix}{stack}.layer_norm", f"model.{stack}.layer_norm")


def boolean_setting(name: str, value: Any) -> bool:
    """Return the value of a boolean setting.

    Raises:
        ValueError: It is no boolean, such as the text "False", which is true in Python.
    """
    if value not in (True, False):
        raise ValueError(f"the setting {name} beside the weights is {value!r}; it must be true or false")
    return bool(value)


def same_in_both(name: str, found: Mapping[str, Any], show: Callable[[Any], str] = repr) -> Any:
    """Return the setting that both stacks have, from its values by stack.

    Raises:
        ValueError: They have different ones, which `show` formats.
    """
    encoder, decoder = (found[stack] for stack in STACKS)
    if encoder != decoder:
        raise ValueError(
            f"encoder and decoder differ in {name} ({show(encoder)} and {show(decoder)}), which cannot be expressed"
        )
    return encoder


def special_ids(pad: int | None, bos: int | None, eos: int | None, start: int | None = None) -> dict[str, int | None]:
    """Return the fields of these special tokens; decoding starts with `bos` unless `start` is given."""
    return {
        "pad_token_id": pad,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "decoder_start_token_id": bos if start is None else start,
    }


__all__ = ["Defect", "FolderContents", "Layout", "Rule", "Transform"]
