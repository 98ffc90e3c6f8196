"""BART, mBART, M2M100 and NLLB of transformers, which come from fairseq."""

from dataclasses import replace

from torch import Tensor
from transformers import BartConfig, M2M100Config, MBartConfig

from ..rules import EMBEDDING_NAMES, STACKS, Layout, Settings, Weights, our_keys, rules_of
from ..transformers_folder import fields_of, read_transformers_folder
from .fsmt import positions_after_padding
from .marian import OUTPUT_RULES, unshare_embeddings

_LAYER = "model.encoder.layers.{i}.self_attn.q_proj.weight"
_EMBEDDING_NORM, _FINAL_NORM = "model.encoder.layernorm_embedding.weight", "model.encoder.layer_norm.weight"
# Release numbers and computed positions in the files of early releases.
_IGNORED = tuple(f"model.{stack}.{name}" for stack in STACKS for name in ("version", "embed_positions.weights"))


def _unshare(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Return the weights with every embedding under its own key; untied, those of both stacks are used alone."""
    unshared = unshare_embeddings(weights, settings)
    if settings.get("tie_word_embeddings") is False and weights.keys() >= {*EMBEDDING_NAMES.values()}:
        unshared.pop("model.shared.weight", None)
    return unshared


BART = Layout(
    name="bart",
    description="BartForConditionalGeneration of transformers, such as facebook/bart-large-cnn: a folder or a name",
    signature=(_LAYER, _EMBEDDING_NORM),
    rules=(*rules_of(our_keys()._replace(final_norm="")), *OUTPUT_RULES),
    defaults={"norm_position": "post", "layer_norm_eps": 1e-5},
    example="facebook/bart-large-cnn",
    ignored_keys=_IGNORED,
    model_types=("bart",),
    preprocess=_unshare,
    infer_fields=fields_of(BartConfig),
    # Whatever the padding id is.
    first_position=2,
    read_folder=read_transformers_folder,
)

MBART = replace(
    BART,
    name="mbart",
    description="MBartForConditionalGeneration of transformers, such as facebook/mbart-large-50: a folder or a name",
    signature=(_LAYER, _EMBEDDING_NORM, _FINAL_NORM),
    rules=(*rules_of(our_keys()), *OUTPUT_RULES),
    defaults={**BART.defaults, "norm_position": "pre"},
    example="facebook/mbart-large-50-many-to-many-mmt",
    model_types=("mbart",),
    infer_fields=fields_of(MBartConfig),
)

M2M100 = replace(
    MBART,
    name="m2m100",
    description="M2M100ForConditionalGeneration of transformers, M2M100 and NLLB: a folder or a name on the Hub",
    signature=(_LAYER, _FINAL_NORM, "model.shared.weight"),
    rules=(*rules_of(our_keys()._replace(embedding_norm="")), *OUTPUT_RULES),
    example="facebook/nllb-200-distilled-600M",
    model_types=("m2m_100",),
    infer_fields=fields_of(M2M100Config),
    compute_positions=positions_after_padding,
    positions_follow_padding=True,
)

__all__ = ["BART", "M2M100", "MBART"]
