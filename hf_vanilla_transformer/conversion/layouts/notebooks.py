"""Two notebooks of one layer a side: StatQuest's, and a Lightning one of eight phrases."""

from collections.abc import Iterator, Mapping

import torch

from ...marian_fields import HEAD_FIELDS
from ..rules import (
    EMBEDDING_NAMES,
    PROJECTIONS,
    STACKS,
    Defect,
    Layout,
    Rule,
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

__all__ = ["LIGHTNING_PHRASES", "STATQUEST"]
