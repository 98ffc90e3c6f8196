"""Three notebooks: StatQuest's, a Lightning one of eight phrases, and one whose heads share a projection."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from ...marian_fields import HEAD_FIELDS
from ..rules import (
    EMBEDDING_NAMES,
    PROJECTIONS,
    STACKS,
    Defect,
    Layout,
    Rule,
    Settings,
    Weights,
    block_diagonal,
    identity,
    linear_rules,
    position_rules,
    special_ids,
    sublayer_names,
)

_SINGLE_HEADS = dict.fromkeys(HEAD_FIELDS, 1)


def _single_layer_rules(
    modules: Mapping[str, str], attentions: Mapping[str, Mapping[str, str]], output: str
) -> Iterator[Rule]:
    """Yield the rules that StatQuest's and the Lightning notebook share, for one layer in each stack.

    Args:
        modules: The key of each stack.
        attentions: The keys of a stack's attentions, by our names of them.
        output: The key of the output projection.
    """
    for stack, module in modules.items():
        yield Rule(f"{module}.we.weight", (EMBEDDING_NAMES[stack],))
        yield from position_rules({stack: f"{module}.pe.pe"})
        for attention, key in attentions[stack].items():
            name = f"model.{stack}.layers.0.{attention}"
            for theirs, ours in zip(("W_q", "W_k", "W_v"), PROJECTIONS, strict=False):
                yield Rule(f"{module}.{key}.{theirs}.weight", (f"{name}.{ours}.weight",))
    yield from linear_rules(output, "lm_head")


STATQUEST = Layout(
    name="statquest",
    description="the StatQuest notebook: one layer, one head, no norms, no feed-forward, no output projection",
    signature=("encoder.we.weight", "decoder.enc_dec_attention.W_q.weight", "decoder.fc_layer.weight"),
    rules=tuple(
        _single_layer_rules(
            {stack: stack for stack in STACKS},
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
        **_SINGLE_HEADS,
        # It has no padding token; padding in a batch is masked, so any id serves.
        **special_ids(pad=4, bos=0, eos=4),
    },
    example="statquest.pt",
    required_fields=(),
    fillers={r"out_proj\.weight": identity},
    source_prefix=("bos",),
    source_suffix=(),
)


def _phrases_rules() -> Iterator[Rule]:
    modules = {stack: f"{stack}_block" for stack in STACKS}
    attentions = {
        "encoder": {"self_attn": "attention"},
        "decoder": {"self_attn": "decoder_attention", "encoder_attn": "encoder_decoder_attention"},
    }
    yield from _single_layer_rules(modules, attentions, "linear_layer")
    for stack, module in modules.items():
        for n, (norm, _) in enumerate(sublayer_names(stack), start=1):
            yield from linear_rules(f"{module}.layer_norm{n}", f"model.{stack}.layers.0.{norm}")
        yield from linear_rules(f"{module}.linear_layer", f"model.{stack}.layers.0.fc1")


LIGHTNING_PHRASES = Layout(
    name="lightning-phrases",
    description="the Lightning notebook of eight phrases: one layer in each stack, a linear layer as feed-forward",
    signature=(
        "encoder_block.we.weight",
        "decoder_block.encoder_decoder_attention.W_q.weight",
        "linear_layer.weight",
    ),
    rules=tuple(_phrases_rules()),
    defaults={
        "activation_function": "linear",
        "norm_position": "post",
        "scale_embedding": False,
        "layer_norm_eps": 1e-5,
        **_SINGLE_HEADS,
        **special_ids(pad=15, bos=0, eos=14),
    },
    example="phrases.ckpt --patched",
    required_fields=(),
    ignored_keys=("decoder_block.decoder_attention.mask",),
    # A single linear layer equals two of which the second is the identity.
    fillers={r"out_proj\.weight": identity, r"fc2\.weight": identity, r"fc2\.bias": torch.zeros},
    defects=(
        Defect(
            STACKS,
            "residual around self-attention skips the position encoding",
            "add the input of the attention, position encoding included, to its output",
        ),
    ),
    source_prefix=("bos",),
)


def _shared_heads_rules() -> Iterator[Rule]:
    embeddings = {"encoder": "embedding_layer", "decoder": "word_embedding"}
    positions = {"encoder": "positional_encoder", "decoder": "position_embedding"}
    for stack in STACKS:
        yield Rule(f"{stack}.{embeddings[stack]}.weight", (EMBEDDING_NAMES[stack],))
        yield from position_rules({stack: f"{stack}.{positions[stack]}.pe"})
        layer, name = f"{stack}.layers.{{i}}", f"model.{stack}.layers.{{i}}"
        block, attention = (
            (layer, "self_attn") if stack == "encoder" else (f"{layer}.transformer_block", "encoder_attn")
        )
        if stack == "decoder":
            yield from _shared_projection_rules(f"{layer}.attention", f"{name}.self_attn")
        yield from _shared_projection_rules(f"{block}.attention", f"{name}.{attention}")
        if stack == "decoder":
            yield from linear_rules(f"{layer}.norm", f"{name}.self_attn_layer_norm")
        yield from linear_rules(f"{block}.norm1", f"{name}.{attention}_layer_norm")
        yield from linear_rules(f"{block}.norm2", f"{name}.final_layer_norm")
        yield from linear_rules(f"{block}.feed_forward.0", f"{name}.fc1")
        yield from linear_rules(f"{block}.feed_forward.2", f"{name}.fc2")
    yield from linear_rules("decoder.fc_out", "lm_head")


def _shared_projection_rules(key: str, name: str) -> Iterator[Rule]:
    for theirs, ours in zip(("query", "key", "value"), PROJECTIONS, strict=False):
        yield Rule(f"{key}.{theirs}_matrix.weight", (f"{name}.{ours}.weight",), block_diagonal)
    yield from linear_rules(f"{key}.out", f"{name}.out_proj")


def _shared_heads_fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Return the number of heads: the ratio of the output projection's width to the shared projection's."""
    heads = {}
    for stack, field in zip(STACKS, HEAD_FIELDS, strict=True):
        shared, whole = (weights.get(f"{stack}.layers.0.attention.{key}.weight") for key in ("query_matrix", "out"))
        if shared is not None and whole is not None and shared.numel() and shared.dim() == whole.dim() == 2:
            heads[field] = whole.shape[0] // shared.shape[0]
    return heads


SHARED_HEADS = Layout(
    name="shared-heads",
    description="the notebook whose heads share one small projection (query_matrix, key_matrix, value_matrix)",
    signature=("encoder.embedding_layer.weight", "encoder.layers.{i}.attention.query_matrix.weight"),
    rules=tuple(_shared_heads_rules()),
    # Sequences start with 0 and end with 1; without a padding token, 1 serves.
    defaults={
        "norm_position": "post",
        "scale_embedding": False,
        "layer_norm_eps": 1e-5,
        **special_ids(pad=1, bos=0, eos=1),
    },
    example="from_scratch.pt --patched",
    fillers={r"[qkv]_proj\.bias": torch.zeros},
    infer_fields=_shared_heads_fields,
    defects=(
        Defect(
            ("decoder",),
            "masked self-attention reads the encoder's output instead of the target, and its output serves as the "
            "values and the residual of the attention after it",
            "attend from the target to itself, add the target, then attend from that to the encoder's output",
        ),
        Defect(("decoder",), "softmax runs over the sentences of a batch", "take it over the vocabulary, or omit it"),
    ),
    nonstandard_sinusoids=True,
    source_prefix=("bos",),
)

__all__ = ["LIGHTNING_PHRASES", "SHARED_HEADS", "STATQUEST"]
