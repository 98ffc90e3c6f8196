"""Layout of jadore801120/attention-is-all-you-need-pytorch.

It applies dropout to embeddings before their norm, our model after it; this differs only in training.
"""

import math
from typing import Any

import torch
from torch import Tensor

from ...marian_fields import HEAD_FIELDS
from ..rules import EMBEDDING_NAMES, Layout, ModelKeys, Rule, Weights, special_ids
from ..settings import Settings, cannot_express

_KEYS = ModelKeys(
    embedding="{stack}.{side}_word_emb",
    positions=("{stack}.position_enc.pos_table",),
    embedding_norm="{stack}.layer_norm",
    layers="{stack}.layer_stack.{i}",
    norms=(
        ("slf_attn.layer_norm", "pos_ffn.layer_norm"),
        ("slf_attn.layer_norm", "enc_attn.layer_norm", "pos_ffn.layer_norm"),
    ),
    attentions=(("slf_attn",), ("slf_attn", "enc_attn")),
    projections=("w_qs", "w_ks", "w_vs", "fc"),
    feed_forward=("pos_ffn.w_1", "pos_ffn.w_2"),
    output="trg_word_prj",
    sides=("src", "trg"),
    optional=("_proj.bias", "lm_head.bias"),
)
# Embeddings and output projection, with our names.
_MATRICES = {
    "encoder.src_word_emb.weight": EMBEDDING_NAMES["encoder"],
    "decoder.trg_word_emb.weight": EMBEDDING_NAMES["decoder"],
    "trg_word_prj.weight": "lm_head.weight",
}
# Suffix of their keys if the original divides the logits.
_DIVIDED = " of logits / sqrt(d)"
# What is scaled if the output projection is tied to the embeddings: embeddings * sqrt(d), logits / sqrt(d), neither.
_SCALES = ("emb", "prj", "none")


def divide_by_root_of_width(tensor: Tensor, d_model: int) -> Tensor:
    """Divide by sqrt(d), as the original divides its logits; embeddings are scaled back by sqrt(d) (Section 3.4)."""
    return tensor / math.sqrt(d_model)


def _mark_divided(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Rename embeddings and output projection if the logits are divided, so that other rules apply."""
    if settings.get("scale_emb_or_prj") != "prj" or not _is_tied(weights):
        return dict(weights)
    return {f"{key}{_DIVIDED}" if key in _MATRICES else key: tensor for key, tensor in weights.items()}


def _is_tied(weights: Weights) -> bool:
    """Whether the output projection is tied to the decoder's embeddings; otherwise nothing is scaled."""
    _, decoder, output = (weights.get(key) for key in _MATRICES)
    return decoder is not None and output is not None and torch.equal(decoder, output)


def _infer_fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Infer scale and norm position.

    Releases since September 2020 store `scale_emb_or_prj` and are post-norm.
    """
    padding = [settings.get(name) for name in ("src_pad_idx", "trg_pad_idx")]
    if padding[0] != padding[1]:
        raise cannot_express(f"source and target are padded with {padding[0]} and {padding[1]}")
    if not weights:
        return {}
    scale, is_divided = settings.get("scale_emb_or_prj"), any(key.endswith(_DIVIDED) for key in weights)
    is_tied = is_divided or _is_tied(weights)
    if is_tied and scale not in _SCALES:
        raise ValueError(
            "the weights do not determine whether embeddings or logits were scaled; add the training argument in a "
            'config.json beside them: {"scale_emb_or_prj": "prj"}, "emb" or "none" (releases before September 2020 '
            'behave like "prj")'
        )
    norms = {"norm_position": "post"} if scale in _SCALES else {}
    # No argument changes the dropout of attention weights.
    return {**norms, "scale_embedding": is_tied and scale != "none", "attention_dropout": 0.1}


ATTENTION_IS_ALL_YOU_NEED = Layout(
    name="attention-is-all-you-need-pytorch",
    description="jadore801120/attention-is-all-you-need-pytorch, a checkpoint of its train.py",
    keys=(_KEYS,),
    other_rules=tuple(Rule(f"{key}{_DIVIDED}", (name,), divide_by_root_of_width) for key, name in _MATRICES.items()),
    # Special tokens in the order of torchtext's vocabularies: `<unk>` 0, `<blank>` 1, `<s>` 2, `</s>` 3.
    defaults={"norm_position": "post", "layer_norm_eps": 1e-6, **special_ids(pad=1, bos=2, eos=3)},
    example="model.chkpt",
    setting_fields={
        "n_head": HEAD_FIELDS,
        "d_k": ("head_dim",),
        "d_v": ("value_head_dim",),
        "dropout": ("dropout",),
        "trg_pad_idx": ("pad_token_id",),
    },
    argument_fields=("norm_position",),
    inexpressible={
        ("norm_position", "pre"): "its releases of November 2019 to May 2020 normalize the queries before an "
        "attention, but not its keys and values"
    },
    preprocess=_mark_divided,
    infer_fields=_infer_fields,
    source_prefix=("bos",),
)
