"""MarianMT models of transformers."""

import torch
from torch import Tensor
from transformers import MarianConfig

from ..rules import EMBEDDING_NAMES, Layout, Rule, Settings, Weights, our_keys, rules_of
from ..transformers_folder import fields_of, read_transformers_folder


def drop_batch_axis(tensor: Tensor, d_model: int) -> tuple[Tensor, ...]:
    """Drop the batch axis of a bias (1, V), V the target vocabulary."""
    return (tensor.squeeze(0),)


OUTPUT_RULES = (
    Rule("lm_head.weight", ("lm_head.weight",)),
    Rule("final_logits_bias", ("lm_head.bias",), drop_batch_axis),
)


def unshare_embeddings(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Return the weights with every embedding under its own key; files store shared ones once."""
    unshared = dict(weights)
    shared = weights.get("model.shared.weight")
    if shared is not None:
        embeddings = [unshared.setdefault(name, shared) for name in EMBEDDING_NAMES.values()]
        if any(torch.equal(embedding, shared) for embedding in embeddings):
            del unshared["model.shared.weight"]
    decoder = unshared.get(EMBEDDING_NAMES["decoder"])
    if decoder is not None and settings.get("tie_word_embeddings", True):
        # A stored output projection wins over tying, as in transformers.
        unshared.setdefault("lm_head.weight", decoder)
    return unshared


MARIAN = Layout(
    name="marian",
    description="MarianMTModel of transformers, such as Helsinki-NLP/opus-mt-en-de: a folder or a name on the Hub",
    signature=("final_logits_bias", "model.encoder.layers.{i}.self_attn.q_proj.weight"),
    rules=(*rules_of(our_keys()._replace(embedding_norm="", final_norm="")), *OUTPUT_RULES),
    defaults={
        "norm_position": "post",
        "layer_norm_eps": 1e-5,
        "position_embedding_type": "sinusoidal",
        "sinusoidal_layout": "concatenated",
    },
    example="Helsinki-NLP/opus-mt-en-de",
    model_types=("marian",),
    preprocess=unshare_embeddings,
    infer_fields=fields_of(MarianConfig),
    read_folder=read_transformers_folder,
)

__all__ = ["MARIAN", "OUTPUT_RULES", "unshare_embeddings"]
