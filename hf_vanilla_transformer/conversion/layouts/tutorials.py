"""Layouts of tutorials: the Annotated Transformer, `torch.nn.Transformer` as PyTorch shows it, and five notebooks."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..rules import (
    EMBEDDINGS,
    HEADS,
    PROJECTIONS,
    SIDES,
    Defect,
    Layout,
    Rule,
    Transform,
    attention,
    block_diagonal,
    fold_unbiased_std,
    identity,
    linear,
    norm,
    positions,
    special_ids,
    spread,
    spread_and_fold_unbiased_std,
    stacked_inputs,
    sublayers,
    switch,
    unchanged,
)


class _Names(NamedTuple):
    """What a copy of the Annotated Transformer calls its parts; `{short}` is src or tgt, `{n}` counts from 0."""

    embedding: str
    table: str
    norm: str
    norm_parts: tuple[str, str]
    transforms: tuple[Transform, Transform]
    attentions: tuple[str, str]
    projections: tuple[str, ...]
    feed_forward: str
    head: str

    def rules(self) -> Iterator[Rule]:
        """Yield the table: two stacks of layers whose every sub-layer has a norm, and that end in one."""
        theirs = dict(zip(("self_attn", "encoder_attn"), self.attentions, strict=True))
        for side, short in zip(SIDES, ("src", "tgt"), strict=True):
            yield Rule(f"{self.embedding.format(short=short)}.weight", (EMBEDDINGS[side],))
            yield from positions(**{side: self.table.format(short=short)})
            layer, our_layer = f"{side}.layers.{{i}}", f"model.{side}.layers.{{i}}"
            for number, (our_norm, our_attention) in enumerate(sublayers(side)):
                yield from self._norm(f"{layer}.{self.norm.format(n=number)}", f"{our_layer}.{our_norm}")
                if our_attention:
                    name = f"{layer}.{theirs[our_attention]}"
                    yield from attention(name, f"{our_layer}.{our_attention}", self.projections)
            for n in (1, 2):
                yield from linear(f"{layer}.{self.feed_forward.format(n=n)}", f"{our_layer}.fc{n}")
            yield from self._norm(f"{side}.norm", f"model.{side}.layer_norm")
        yield from linear(self.head, "lm_head")

    def _norm(self, theirs: str, ours: str) -> Iterator[Rule]:
        return norm(theirs, ours, self.norm_parts, self.transforms)


_ANNOTATED = _Names(
    embedding="{short}_embed.0.lut",
    table="{short}_embed.1.pe",
    norm="sublayer.{n}.norm",
    norm_parts=("a_2", "b_2"),
    transforms=(fold_unbiased_std, unchanged),
    attentions=("self_attn", "src_attn"),
    projections=tuple(f"linears.{n}" for n in range(4)),
    feed_forward="feed_forward.w_{n}",
    head="generator.proj",
)
# One number stands for a norm's weight, and one for its bias.
_SCALAR_NORMS = _Names(
    embedding="{short}_embed.embedding",
    table="{short}_pos.pe",
    norm="residual_connections.{n}.norm",
    norm_parts=("alpha", "bias"),
    transforms=(spread_and_fold_unbiased_std, spread),
    attentions=("self_attention_block", "cross_attention_block"),
    projections=("w_q", "w_k", "w_v", "w_o"),
    feed_forward="feed_forward_block.linear{n}",
    head="projection_layer.proj",
)

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
                rules += stacked_inputs(attn, our_attn, optional_bias=True)
                rules += linear(f"{attn}.out_proj", f"{our_attn}.out_proj", optional_bias=True)
        for n in (1, 2):
            rules += linear(f"{layer}.linear{n}", f"{our_layer}.fc{n}", optional_bias=True)
        rules += linear(f"transformer.{side}.norm", f"model.{side}.layer_norm", optional_bias=True)
    rules += linear("generator", "lm_head", optional_bias=True)
    return (*rules, *positions(both="positional_encoding.pos_embedding"))


# What the arguments of `torch.nn.Transformer` are in our configuration.
_TORCH_NN_SETTINGS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "nhead": lambda heads: dict.fromkeys(HEADS, heads),
    "norm_first": lambda first: {"norm_position": "pre" if switch("norm_first", first) else "post"},
    "activation": lambda name: {"activation_function": name},
    "layer_norm_eps": lambda eps: {"layer_norm_eps": eps},
    "dropout": lambda probability: {"dropout": probability},
}


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


TUTORIAL_LAYOUTS = (
    Layout(
        name="annotated-transformer",
        description="EncoderDecoder of The Annotated Transformer (Harvard NLP), 2018 or 2022",
        signature=("src_embed.0.lut.weight", "encoder.layers.{i}.self_attn.linears.0.weight", "encoder.norm.a_2"),
        rules=tuple(_ANNOTATED.rules()),
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
        rules=tuple(_ANNOTATED._replace(embedding="{short}_embed.0.embedding", norm_parts=("gamma", "beta")).rules()),
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
        example="seq2seq.pt --config encoder_attention_heads=8 norm_position=post",
        settings=_TORCH_NN_SETTINGS,
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
        rules=tuple(_SCALAR_NORMS.rules()),
        # `[UNK]` 0, `[PAD]` 1, `[SOS]` 2, `EOS` 3: the order its trainer of tokenizers is given.
        defaults={
            "norm_position": "post",
            "final_layer_norm": True,
            "layer_norm_eps": _STD_EPS,
            **special_ids(pad=1, bos=2, eos=3),
        },
        example="opus_books.pt --config encoder_attention_heads=8",
        own_sinusoids=True,
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
        example="phrases.ckpt --patched",
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
        example="from_scratch.pt --patched",
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
        own_sinusoids=True,
        source_prefix=("bos",),
    ),
)

__all__ = ["TUTORIAL_LAYOUTS"]
