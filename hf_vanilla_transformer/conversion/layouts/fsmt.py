"""FSMT models of transformers, which come from fairseq."""

from torch import Tensor
from transformers import FSMTConfig

from ..rules import STACKS, Layout, Rule, Settings, Weights, our_keys, rules_of
from ..transformers_folder import fields_of, read_transformers_folder
from .fairseq import compute_positions


def _untie(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Return FSMT's weights with tied ones under each of their keys; files store them once."""
    untied = dict(weights)
    decoder = weights.get("model.decoder.embed_tokens.weight")
    if decoder is not None:
        untied.setdefault("model.decoder.output_projection.weight", decoder)
        if settings.get("tie_word_embeddings"):
            untied.setdefault("model.encoder.embed_tokens.weight", decoder)
    return untied


def positions_after_padding(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Return the position tables (L, d) of a folder of transformers, as fairseq computes them."""
    length = settings.get("max_position_embeddings", 1024)
    return compute_positions(weights, settings, {stack: length for stack in STACKS}, "model.")


FSMT = Layout(
    name="fsmt",
    description="FSMTForConditionalGeneration of transformers, such as facebook/wmt19-en-de: a folder or a name",
    signature=("model.encoder.layers.{i}.self_attn.q_proj.weight", "model.decoder.embed_tokens.weight"),
    rules=(
        *rules_of(our_keys()._replace(embedding_norm="", final_norm="")),
        Rule("model.decoder.output_projection.weight", ("lm_head.weight",)),
    ),
    defaults={"norm_position": "post", "layer_norm_eps": 1e-5},
    example="facebook/wmt19-en-de",
    model_types=("fsmt",),
    preprocess=_untie,
    infer_fields=fields_of(FSMTConfig),
    compute_positions=positions_after_padding,
    positions_follow_padding=True,
    read_folder=read_transformers_folder,
)

__all__ = ["FSMT", "positions_after_padding"]
