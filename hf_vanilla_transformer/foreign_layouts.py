"""How others name the weights of a Transformer: one table of keys a layout, and the algebra between theirs and ours.

A layout is data: patterns of their keys, the names that our model has for them, and what happens to a tensor on the
way. In a pattern `{i}` stands for the number of a layer. Shape legend: d model width [d_model], d_k key width, L
positions.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .configuration_vanilla_transformer import VanillaTransformerConfig

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


def block_diagonal(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Give each of the d / d_k heads its own copy of one small projection (d_k, d_k), on the diagonal of (d, d)."""
    return (torch.block_diag(*[tensor] * (config.d_model // tensor.shape[0])),)


def table_of_positions(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Drop the batch axis, wherever it is, of a table of positions (1, L, d), (L, 1, d) or (L, d)."""
    if tensor.shape[-1] != config.d_model:
        raise ValueError(f"positions of width {tensor.shape[-1]}")
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
        complete: Adds, to the weights by their keys, what the original computes or leaves out of a file because it is
            another weight; takes also the foreign configuration, empty where there is none.
        read_fields: Fields that the shapes tell, beyond those that they tell in every layout; takes the foreign
            weights by their keys, and the foreign configuration, empty where there is none.
        defects: What cannot be converted unless it was repaired.
        model_types: What the config.json beside the weights may call the model, where the keys alone would not tell it
            from others; empty for any or none.
        finish: What else is to be taken over from the folder, as its tokenizer; takes the folder and the `Conversion`,
            to change its `tokenizer`, `generation` or `notes`.
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
    complete: Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Tensor]] | None = None
    read_fields: Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Any]] | None = None
    defects: tuple[Defect, ...] = ()
    model_types: tuple[str, ...] = ()
    finish: Callable[[Path, Any], None] | None = None
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


def sublayers(side: str) -> tuple[tuple[str, str], ...]:
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
        for number, (our_norm, our_attention) in enumerate(sublayers(side)):
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


# What the originals add to the standard deviation: see `fold_unbiased_std`.
_STD_EPS = 1e-6
_ANNOTATED_FIELDS = {"norm_position": "pre", "activation_function": "relu", "layer_norm_eps": _STD_EPS}


def _torch_nn() -> tuple[Rule, ...]:
    """Return the table of `torch.nn.Transformer` between embeddings and a generator, with or without biases."""
    rules: list[Rule] = []
    theirs = {"self_attn": "self_attn", "encoder_attn": "multihead_attn"}
    for side, short in zip(SIDES, ("src", "tgt"), strict=True):
        rules.append(Rule(f"{short}_tok_emb.embedding.weight", (EMBEDDINGS[side],)))
        layer, our_layer = f"transformer.{side}.layers.{{i}}", f"model.{side}.layers.{{i}}"
        for number, (our_norm, our_attention) in enumerate(sublayers(side), start=1):
            rules += linear(f"{layer}.norm{number}", f"{our_layer}.{our_norm}", optional_bias=True)
            if our_attention:
                attn, our_attn = f"{layer}.{theirs[our_attention]}", f"{our_layer}.{our_attention}"
                for part, optional in (("weight", False), ("bias", True)):
                    ours = tuple(f"{our_attn}.{name}.{part}" for name in PROJECTIONS[:3])
                    rules.append(Rule(f"{attn}.in_proj_{part}", ours, split_in_three, optional))
                rules += linear(f"{attn}.out_proj", f"{our_attn}.out_proj", optional_bias=True)
        for n in (1, 2):
            rules += linear(f"{layer}.linear{n}", f"{our_layer}.fc{n}", optional_bias=True)
        rules += linear(f"transformer.{side}.norm", f"model.{side}.layer_norm", optional_bias=True)
    rules += linear("generator", "lm_head", optional_bias=True)
    return (*rules, *positions(both="positional_encoding.pos_embedding"))


def _scalar_norms() -> tuple[Rule, ...]:
    """Return the table of the notebook whose norms have one weight and one bias for all of the width."""
    names, transforms = ("alpha", "bias"), (spread_and_fold_unbiased_std, spread)
    theirs = {"self_attn": "self_attention_block", "encoder_attn": "cross_attention_block"}
    rules: list[Rule] = []
    for side, short in zip(SIDES, ("src", "tgt"), strict=True):
        rules.append(Rule(f"{short}_embed.embedding.weight", (EMBEDDINGS[side],)))
        rules += positions(**{side: f"{short}_pos.pe"})
        layer, our_layer = f"{side}.layers.{{i}}", f"model.{side}.layers.{{i}}"
        for number, (our_norm, our_attention) in enumerate(sublayers(side)):
            rules += norm(f"{layer}.residual_connections.{number}.norm", f"{our_layer}.{our_norm}", names, transforms)
            if our_attention:
                projections = ("w_q", "w_k", "w_v", "w_o")
                rules += attention(f"{layer}.{theirs[our_attention]}", f"{our_layer}.{our_attention}", projections)
        for n in (1, 2):
            rules += linear(f"{layer}.feed_forward_block.linear{n}", f"{our_layer}.fc{n}")
        rules += norm(f"{side}.norm", f"model.{side}.layer_norm", names, transforms)
    return (*rules, *linear("projection_layer.proj", "lm_head"))


def _single_layers(sides: Mapping[str, str], attentions: Mapping[str, Mapping[str, str]], head: str) -> Iterator[Rule]:
    """Yield what two small notebooks have in common: one layer a side, `we`, `pe`, `W_q`, `W_k`, `W_v` and no more.

    Takes, by our side, its module and by our attention their name of it, and the projection to the vocabulary.
    """
    for side, module in sides.items():
        yield Rule(f"{module}.we.weight", (EMBEDDINGS[side],))
        yield from positions(**{side: f"{module}.pe.pe"})
        for ours, theirs in attentions[side].items():
            for name, projection in zip(("W_q", "W_k", "W_v"), PROJECTIONS, strict=False):
                yield Rule(f"{module}.{theirs}.{name}.weight", (f"model.{side}.layers.0.{ours}.{projection}.weight",))
    yield from linear(head, "lm_head")


def _lightning_phrases() -> tuple[Rule, ...]:
    """Return the table of the notebook with blocks, three norms and one linear layer as feed-forward."""
    sides = {side: f"{side}_block" for side in SIDES}
    cross = {"self_attn": "decoder_attention", "encoder_attn": "encoder_decoder_attention"}
    rules = list(_single_layers(sides, {"encoder": {"self_attn": "attention"}, "decoder": cross}, "linear_layer"))
    for side, module in sides.items():
        for number, (our_norm, _) in enumerate(sublayers(side), start=1):
            rules += linear(f"{module}.layer_norm{number}", f"model.{side}.layers.0.{our_norm}")
        rules += linear(f"{module}.linear_layer", f"model.{side}.layers.0.fc1")
    return tuple(rules)


def _shared_heads() -> tuple[Rule, ...]:
    """Return the table of the notebook in which all heads of an attention share one small projection."""
    words = {"encoder": "embedding_layer", "decoder": "word_embedding"}
    tables = {"encoder": "positional_encoder", "decoder": "position_embedding"}
    rules: list[Rule] = []
    for side in SIDES:
        rules.append(Rule(f"{side}.{words[side]}.weight", (EMBEDDINGS[side],)))
        rules += positions(**{side: f"{side}.{tables[side]}.pe"})
        layer, ours = f"{side}.layers.{{i}}", f"model.{side}.layers.{{i}}"
        block, inner = (layer, "self_attn") if side == "encoder" else (f"{layer}.transformer_block", "encoder_attn")
        attentions = {f"{layer}.attention": "self_attn", f"{block}.attention": inner}
        for theirs, our_attention in attentions.items():
            for name, projection in zip(("query", "key", "value"), PROJECTIONS, strict=False):
                rules.append(
                    Rule(
                        f"{theirs}.{name}_matrix.weight",
                        (f"{ours}.{our_attention}.{projection}.weight",),
                        block_diagonal,
                    )
                )
            rules += linear(f"{theirs}.out", f"{ours}.{our_attention}.out_proj")
        if side == "decoder":
            rules += linear(f"{layer}.norm", f"{ours}.self_attn_layer_norm")
        rules += linear(f"{block}.norm1", f"{ours}.{inner}_layer_norm")
        rules += linear(f"{block}.norm2", f"{ours}.final_layer_norm")
        for theirs, our_linear in (("0", "fc1"), ("2", "fc2")):
            rules += linear(f"{block}.feed_forward.{theirs}", f"{ours}.{our_linear}")
    return (*rules, *linear("decoder.fc_out", "lm_head"))


def _heads_of_shared(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return how many heads share a projection: as many as it fits into the width."""
    heads = {}
    for side, name in zip(SIDES, HEADS, strict=True):
        small, whole = (weights.get(f"{side}.layers.0.attention.{key}.weight") for key in ("query_matrix", "out"))
        if small is not None and whole is not None and small.numel() and small.dim() == whole.dim() == 2:
            heads[name] = whole.shape[0] // small.shape[0]
    return heads


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
    Layout(
        name="simple-transformers",
        description="the Annotated Transformer with gamma and beta, as in the notebook Simple_Transformers",
        signature=(
            "src_embed.0.embedding.weight",
            "encoder.layers.{i}.self_attn.linears.0.weight",
            "encoder.norm.gamma",
        ),
        rules=_annotated("embedding", ("gamma", "beta")),
        # Its copy task pads with 0, starts every sequence with 1, and ends none.
        defaults={**_ANNOTATED_FIELDS, **special_ids(pad=0, bos=1, eos=None)},
        example="copy_task.pt --config encoder_attention_heads=8",
        source_prefix=("bos",),
        source_suffix=(),
    ),
    Layout(
        name="torch-nn-transformer",
        description="torch.nn.Transformer with embeddings and a generator, as in PyTorch's translation tutorial",
        signature=(
            "transformer.encoder.layers.{i}.self_attn.in_proj_weight",
            "transformer.decoder.layers.{i}.multihead_attn.in_proj_weight",
            "src_tok_emb.embedding.weight",
            "generator.weight",
        ),
        rules=_torch_nn(),
        # Its stacks end in a norm wherever the others stand; `<unk>` 0, `<pad>` 1, `<bos>` 2, `<eos>` 3.
        defaults={
            "norm_position": "post",
            "final_layer_norm": True,
            "layer_norm_eps": 1e-5,
            **special_ids(pad=1, bos=2, eos=3),
        },
        example="seq2seq.pt --config encoder_attention_heads=8 norm_position=post --rename net.=transformer.",
        source_prefix=("bos",),
    ),
    Layout(
        name="scalar-norm",
        description="post-norm notebook with w_q .. w_o and one number for a norm's weight, and for its bias",
        signature=(
            "encoder.layers.{i}.self_attention_block.w_q.weight",
            "encoder.norm.alpha",
            "projection_layer.proj.weight",
        ),
        rules=_scalar_norms(),
        # `[UNK]` 0, `[PAD]` 1, `[SOS]` 2, `EOS` 3: the order its trainer of tokenizers is given.
        defaults={
            "norm_position": "post",
            "final_layer_norm": True,
            "layer_norm_eps": _STD_EPS,
            **special_ids(pad=1, bos=2, eos=3),
        },
        example="opus_books.pt --config encoder_attention_heads=8",
        source_prefix=("bos",),
    ),
    Layout(
        name="statquest",
        description="the StatQuest notebook: one layer, one head, no norms, no feed-forward, no output projection",
        signature=("encoder.we.weight", "decoder.enc_dec_attention.W_q.weight", "decoder.fc_layer.weight"),
        rules=tuple(
            _single_layers(
                {side: side for side in SIDES},
                {
                    "encoder": {"self_attn": "self_attention"},
                    "decoder": {"self_attn": "self_attention", "encoder_attn": "enc_dec_attention"},
                },
                "decoder.fc_layer",
            )
        ),
        defaults={
            "norm_position": "none",
            "scale_embedding": False,
            **dict.fromkeys(HEADS, 1),
            # It knows no padding; that of a batch is never looked at.
            **special_ids(pad=4, bos=0, eos=4),
        },
        example="statquest.pt",
        asked=(),
        fills={r"out_proj\.weight": identity},
        source_prefix=("bos",),
        source_suffix=(),
    ),
    Layout(
        name="lightning-phrases",
        description="the Lightning notebook of eight phrases: one block a side, a linear layer as feed-forward",
        signature=(
            "encoder_block.we.weight",
            "decoder_block.encoder_decoder_attention.W_q.weight",
            "linear_layer.weight",
        ),
        rules=_lightning_phrases(),
        defaults={
            "activation_function": "linear",
            "norm_position": "post",
            "scale_embedding": False,
            "layer_norm_eps": 1e-5,
            **dict.fromkeys(HEADS, 1),
            **special_ids(pad=15, bos=0, eos=14),
        },
        example="phrases.ckpt --repaired",
        asked=(),
        ignored=("decoder_block.decoder_attention.mask",),
        # One linear layer is two of which the second changes nothing.
        fills={r"out_proj\.weight": identity, r"fc2\.weight": identity, r"fc2\.bias": torch.zeros},
        defects=(
            Defect(
                SIDES,
                "residual around self-attention skips the position encoding",
                "add what the attention read, position encoding included, to what it gives",
            ),
        ),
        source_prefix=("bos",),
    ),
    Layout(
        name="shared-heads",
        description="the notebook whose heads share one small projection (query_matrix, key_matrix, value_matrix)",
        signature=("encoder.embedding_layer.weight", "encoder.layers.{i}.attention.query_matrix.weight"),
        rules=_shared_heads(),
        # Sequences start with 0 and end in 1; there is no padding, so 1 serves.
        defaults={
            "norm_position": "post",
            "scale_embedding": False,
            "layer_norm_eps": 1e-5,
            **special_ids(pad=1, bos=0, eos=1),
        },
        example="from_scratch.pt --repaired",
        fills={r"[qkv]_proj\.bias": torch.zeros},
        read_fields=_heads_of_shared,
        defects=(
            Defect(
                ("decoder",),
                "masked self-attention reads the encoder's output instead of the target, and what it gives are the "
                "values and the residual of the attention after it",
                "attend from the target to itself, add the target, then attend from that to the encoder's output",
            ),
            Defect(("decoder",), "softmax runs over the sentences of a batch", "take it over the vocabulary, or none"),
        ),
        source_prefix=("bos",),
    ),
)


def _by_name(layouts: Iterable[Layout]) -> dict[str, Layout]:
    return {layout.name: layout for layout in layouts}


LAYOUTS = _by_name(_LAYOUTS)

__all__ = ["LAYOUTS", "Defect", "Layout", "Rule", "Transform"]
