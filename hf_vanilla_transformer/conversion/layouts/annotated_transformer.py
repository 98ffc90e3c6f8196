"""The Annotated Transformer and two notebooks of its structure: layers of `sublayer`s and norms written by hand."""

from ..rules import (
    Layout,
    expand_and_fold_unbiased_std,
    expand_scalar,
    fold_unbiased_std,
    special_ids,
    unchanged,
)
from .stack_keys import StackKeys, numbered_sublayers

_ANNOTATED_KEYS = StackKeys(
    embedding="{side}_embed.0.lut",
    positions="{side}_embed.1.pe",
    norms=numbered_sublayers("sublayer.{n}.norm", start=0),
    attentions={"encoder": ("self_attn",), "decoder": ("self_attn", "src_attn")},
    projections=tuple(f"linears.{n}" for n in range(4)),
    feed_forward="feed_forward.w_{n}",
    output="generator.proj",
    sides=("src", "tgt"),
    norm_parts=("a_2", "b_2"),
    norm_transforms=(fold_unbiased_std, unchanged),
)
# A norm's weight may be one scalar, and its bias another.
RESIDUAL_CONNECTION_KEYS = StackKeys(
    embedding="{side}_embed.embedding",
    positions="{side}_pos.pe",
    norms=numbered_sublayers("residual_connections.{n}.norm", start=0),
    attentions={
        "encoder": ("self_attention_block",),
        "decoder": ("self_attention_block", "cross_attention_block"),
    },
    projections=("w_q", "w_k", "w_v", "w_o"),
    feed_forward="feed_forward_block.linear{n}",
    output="projection_layer.proj",
    sides=("src", "tgt"),
    norm_parts=("alpha", "bias"),
    norm_transforms=(expand_and_fold_unbiased_std, expand_scalar),
)

# What the originals add to the standard deviation: see `fold_unbiased_std`.
STD_EPS = 1e-6
_ANNOTATED_FIELDS = {"norm_position": "pre", "activation_function": "relu", "layer_norm_eps": STD_EPS}

ANNOTATED_TRANSFORMER = Layout(
    name="annotated-transformer",
    description="EncoderDecoder of The Annotated Transformer (Harvard NLP), 2018 or 2022",
    signature=("src_embed.0.lut.weight", "encoder.layers.{i}.self_attn.linears.0.weight", "encoder.norm.a_2"),
    rules=tuple(_ANNOTATED_KEYS.rules()),
    # The order of special tokens in its vocabularies: `<s>` 0, `</s>` 1, `<blank>` 2, `<unk>` 3.
    defaults={**_ANNOTATED_FIELDS, **special_ids(pad=2, bos=0, eos=1)},
    example="multi30k_model_final.pt --config encoder_attention_heads=8",
    source_prefix=("bos",),
)

SIMPLE_TRANSFORMERS = Layout(
    name="simple-transformers",
    description="the Annotated Transformer with gamma and beta, as in the notebook Simple_Transformers",
    signature=("src_embed.0.embedding.weight", "encoder.layers.{i}.self_attn.linears.0.weight", "encoder.norm.gamma"),
    rules=tuple(_ANNOTATED_KEYS._replace(embedding="{side}_embed.0.embedding", norm_parts=("gamma", "beta")).rules()),
    # Its copy task pads with 0 and starts every sequence with 1; sequences have no end token.
    defaults={**_ANNOTATED_FIELDS, **special_ids(pad=0, bos=1, eos=None)},
    example="copy_task.pt --config encoder_attention_heads=8",
    source_prefix=("bos",),
    source_suffix=(),
)

SCALAR_NORM = Layout(
    name="scalar-norm",
    description="post-norm notebook with w_q .. w_o and scalar weights and biases of norms",
    signature=(
        "encoder.layers.{i}.self_attention_block.w_q.weight",
        "encoder.layers.{i}.feed_forward_block.linear1.weight",
        "encoder.norm.alpha",
        "projection_layer.proj.weight",
    ),
    rules=tuple(RESIDUAL_CONNECTION_KEYS.rules()),
    # The order of special tokens that its tokenizer trainer gets: `[UNK]` 0, `[PAD]` 1, `[SOS]` 2, `EOS` 3.
    defaults={
        "norm_position": "post",
        "final_layer_norm": True,
        "layer_norm_eps": STD_EPS,
        **special_ids(pad=1, bos=2, eos=3),
    },
    example="opus_books.pt --config encoder_attention_heads=8",
    nonstandard_sinusoids=True,
    source_prefix=("bos",),
)

__all__ = ["ANNOTATED_TRANSFORMER", "RESIDUAL_CONNECTION_KEYS", "SCALAR_NORM", "SIMPLE_TRANSFORMERS", "STD_EPS"]
