"""Layouts of transformers' models: Marian, and FSMT, BART, mBART, M2M100 and NLLB, which come from fairseq."""

from dataclasses import replace

import torch
from torch import Tensor
from transformers import BartConfig, FSMTConfig, M2M100Config, MarianConfig, MBartConfig

from ..rules import EMBEDDING_NAMES, STACKS, Layout, Rule, Weights, our_keys
from ..settings import Settings
from .fairseq import compute_positions

_LAYER = "model.encoder.layers.{i}.self_attn.q_proj.weight"
_EMBEDDING_NORM, _FINAL_NORM = "model.encoder.layernorm_embedding.weight", "model.encoder.layer_norm.weight"
_KEYS = our_keys()
_KEYS_WITHOUT_NORMS = _KEYS._replace(embedding_norm="", final_norm="")


def drop_batch_axis(tensor: Tensor, d_model: int) -> Tensor:
    """Drop the batch axis of a bias (1, V), V the target vocabulary."""
    return tensor.squeeze(0)


_OUTPUT_RULES = (
    Rule("lm_head.weight", ("lm_head.weight",)),
    Rule("final_logits_bias", ("lm_head.bias",), drop_batch_axis),
)


def _unshare(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Copy shared embeddings, which files store once, to each of their keys."""
    unshared = dict(weights)
    shared = weights.get("model.shared.weight")
    if shared is not None:
        embeddings = [unshared.setdefault(name, shared) for name in EMBEDDING_NAMES.values()]
        if any(torch.equal(embedding, shared) for embedding in embeddings):
            del unshared["model.shared.weight"]
    decoder = unshared.get(EMBEDDING_NAMES["decoder"])
    if decoder is not None and settings.get("tie_word_embeddings", True):
        # A stored output projection takes precedence over tying, as in transformers.
        unshared.setdefault("lm_head.weight", decoder)
    return unshared


def _unshare_bart(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Like `_unshare`, unless untied stacks have their own embeddings."""
    unshared = _unshare(weights, settings)
    if settings.get("tie_word_embeddings") is False and weights.keys() >= {*EMBEDDING_NAMES.values()}:
        unshared.pop("model.shared.weight", None)
    return unshared


def _untie_fsmt(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Copy tied weights, which files store once, to each of their keys."""
    untied = dict(weights)
    decoder = weights.get("model.decoder.embed_tokens.weight")
    if decoder is not None:
        untied.setdefault("model.decoder.output_projection.weight", decoder)
        if settings.get("tie_word_embeddings"):
            untied.setdefault("model.encoder.embed_tokens.weight", decoder)
    return untied


def _positions_after_padding(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Return the position tables (L, d), as fairseq computes them."""
    length = settings.get("max_position_embeddings", 1024)
    return compute_positions(weights, settings, {stack: length for stack in STACKS}, "model.")


MARIAN = Layout(
    name="marian",
    description="MarianMTModel of transformers, such as Helsinki-NLP/opus-mt-en-de: a folder or a name on the Hub",
    keys=(_KEYS_WITHOUT_NORMS,),
    own_signature=("final_logits_bias", _LAYER),
    other_rules=_OUTPUT_RULES,
    defaults={
        "norm_position": "post",
        "layer_norm_eps": 1e-5,
        "position_embedding_type": "sinusoidal",
        "sinusoidal_layout": "concatenated",
    },
    example="Helsinki-NLP/opus-mt-en-de",
    config_class=MarianConfig,
    preprocess=_unshare,
)

FSMT = Layout(
    name="fsmt",
    description="FSMTForConditionalGeneration of transformers, such as facebook/wmt19-en-de: a folder or a name",
    keys=(_KEYS_WITHOUT_NORMS,),
    own_signature=(_LAYER, "model.decoder.embed_tokens.weight"),
    other_rules=(Rule("model.decoder.output_projection.weight", ("lm_head.weight",)),),
    defaults={"norm_position": "post", "layer_norm_eps": 1e-5},
    example="facebook/wmt19-en-de",
    config_class=FSMTConfig,
    preprocess=_untie_fsmt,
    compute_positions=_positions_after_padding,
    first_position=None,
)

BART = Layout(
    name="bart",
    description="BartForConditionalGeneration of transformers, such as facebook/bart-large-cnn: a folder or a name",
    keys=(_KEYS._replace(final_norm=""),),
    own_signature=(_LAYER, _EMBEDDING_NORM),
    other_rules=_OUTPUT_RULES,
    defaults={"norm_position": "post", "layer_norm_eps": 1e-5},
    example="facebook/bart-large-cnn",
    # Release numbers and computed positions that early releases stored.
    ignored_keys=tuple(f"model.{stack}.{name}" for stack in STACKS for name in ("version", "embed_positions.weights")),
    config_class=BartConfig,
    preprocess=_unshare_bart,
    # Fixed, independent of the padding id.
    first_position=2,
)

MBART = replace(
    BART,
    name="mbart",
    description="MBartForConditionalGeneration of transformers, such as facebook/mbart-large-50: a folder or a name",
    keys=(_KEYS,),
    own_signature=(_LAYER, _EMBEDDING_NORM, _FINAL_NORM),
    defaults={**BART.defaults, "norm_position": "pre"},
    example="facebook/mbart-large-50-many-to-many-mmt",
    config_class=MBartConfig,
)

M2M100 = replace(
    MBART,
    name="m2m100",
    description="M2M100ForConditionalGeneration of transformers, M2M100 and NLLB: a folder or a name on the Hub",
    keys=(_KEYS._replace(embedding_norm=""),),
    own_signature=(_LAYER, _FINAL_NORM, "model.shared.weight"),
    example="facebook/nllb-200-distilled-600M",
    config_class=M2M100Config,
    compute_positions=_positions_after_padding,
    first_position=None,
)

# A layout precedes those whose signature is part of its own.
TRANSFORMERS_MODELS = (MBART, BART, M2M100, MARIAN, FSMT)
