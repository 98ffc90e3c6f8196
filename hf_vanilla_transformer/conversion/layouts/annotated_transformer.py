"""The Annotated Transformer and two relatives of its structure: layers of `sublayer`s and norms written by hand."""

from collections.abc import Iterator
from typing import NamedTuple

from ..rules import (
    EMBEDDING_NAMES,
    STACKS,
    Layout,
    Rule,
    Transform,
    attention_rules,
    expand_and_fold_unbiased_std,
    expand_scalar,
    fold_unbiased_std,
    linear_rules,
    position_rules,
    special_ids,
    sublayer_names,
    unchanged,
)


class _Keys(NamedTuple):
    """Keys of the parts of a model; `{short}` is src or tgt, `{n}` an index."""

    embedding: str
    positions: str
    norm: str
    norm_parts: tuple[str, str]
    norm_transforms: tuple[Transform, Transform]
    attentions: dict[str, str]
    projections: tuple[str, ...]
    feed_forward: str
    output: str

    def rules(self) -> Iterator[Rule]:
        """Yield the rules of two stacks that end in a norm, with a norm at each sub-layer."""
        for stack, short in zip(STACKS, ("src", "tgt"), strict=True):
            yield Rule(f"{self.embedding.format(short=short)}.weight", (EMBEDDING_NAMES[stack],))
            yield from position_rules({stack: self.positions.format(short=short)})
            key, name = f"{stack}.layers.{{i}}", f"model.{stack}.layers.{{i}}"
            for n, (norm, attention) in enumerate(sublayer_names(stack)):
                yield from self._norm_rules(f"{key}.{self.norm.format(n=n)}", f"{name}.{norm}")
                if attention:
                    yield from attention_rules(
                        f"{key}.{self.attentions[attention]}", f"{name}.{attention}", self.projections
                    )
            for n in (1, 2):
                yield from linear_rules(f"{key}.{self.feed_forward.format(n=n)}", f"{name}.fc{n}")
            yield from self._norm_rules(f"{stack}.norm", f"model.{stack}.layer_norm")
        yield from linear_rules(self.output, "lm_head")

    def _norm_rules(self, key: str, name: str) -> Iterator[Rule]:
        parts = zip(self.norm_parts, ("weight", "bias"), self.norm_transforms, strict=True)
        return (Rule(f"{key}.{theirs}", (f"{name}.{ours}",), transform) for theirs, ours, transform in parts)


_ANNOTATED_KEYS = _Keys(
    embedding="{short}_embed.0.lut",
    positions="{short}_embed.1.pe",
    norm="sublayer.{n}.norm",
    norm_parts=("a_2", "b_2"),
    norm_transforms=(fold_unbiased_std, unchanged),
    attentions={"self_attn": "self_attn", "encoder_attn": "src_attn"},
    projections=tuple(f"linears.{n}" for n in range(4)),
    feed_forward="feed_forward.w_{n}",
    output="generator.proj",
)
# A norm's weight is one scalar, and its bias another.
_SCALAR_NORM_KEYS = _Keys(
    embedding="{short}_embed.embedding",
    positions="{short}_pos.pe",
    norm="residual_connections.{n}.norm",
    norm_parts=("alpha", "bias"),
    norm_transforms=(expand_and_fold_unbiased_std, expand_scalar),
    attentions={"self_attn": "self_attention_block", "encoder_attn": "cross_attention_block"},
    projections=("w_q", "w_k", "w_v", "w_o"),
    feed_forward="feed_forward_block.linear{n}",
    output="projection_layer.proj",
)

# What the originals add to the standard deviation: see `fold_unbiased_std`.
_STD_EPS = 1e-6
_ANNOTATED_FIELDS = {"norm_position": "pre", "activation_function": "relu", "layer_norm_eps": _STD_EPS}

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
    rules=tuple(_ANNOTATED_KEYS._replace(embedding="{short}_embed.0.embedding", norm_parts=("gamma", "beta")).rules()),
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
        "encoder.norm.alpha",
        "projection_layer.proj.weight",
    ),
    rules=tuple(_SCALAR_NORM_KEYS.rules()),
    # The order of special tokens that its tokenizer trainer gets: `[UNK]` 0, `[PAD]` 1, `[SOS]` 2, `EOS` 3.
    defaults={
        "norm_position": "post",
        "final_layer_norm": True,
        "layer_norm_eps": _STD_EPS,
        **special_ids(pad=1, bos=2, eos=3),
    },
    example="opus_books.pt --config encoder_attention_heads=8",
    nonstandard_sinusoids=True,
    source_prefix=("bos",),
)

__all__ = ["ANNOTATED_TRANSFORMER", "SCALAR_NORM", "SIMPLE_TRANSFORMERS"]
