"""Our models as `MarianMTModel` of transformers, for programs that know that one.

Shape legend: d model width [d_model], V target vocabulary.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from ..marian_fields import MARIAN_FIELDS
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig

# What Marian has one way of, and a configuration of ours may have otherwise.
ONLY = {
    "norm_position": "post",
    "final_layer_norm": (None, False),
    "position_embedding_type": "sinusoidal",
    "layer_norm_eps": 1e-5,
}
# Endings of the weights that read the model's width from their columns; all others have it, if at all, in front.
READ_WIDTH = ("embed_tokens.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight", "lm_head.weight")
WRITE_WIDTH = ("out_proj.weight", "out_proj.bias", "fc2.weight", "fc2.bias", "norm.weight", "norm.bias")


def write_marian(model: Any, folder: str | Path) -> None:
    """Write configuration and weights of a model of ours as `MarianMTModel.from_pretrained` loads them.

    Logits and translations are the same. Marian counts all sines of a position before all cosines; where ours take
    turns, as in the paper, the axes of the model's width are put in that order wherever they occur.

    Raises:
        ValueError: The model has a property that Marian's has not; names the field.
    """
    config = marian_config(model.config)
    marian = MarianMTModel(config).eval()
    weights = marian_weights(model)
    # Those of positions are computed alike.
    tables = {name: tensor for name, tensor in marian.state_dict().items() if "embed_positions" in name}
    marian.load_state_dict(weights | tables)
    held = marian.state_dict()
    if tied := [name for name, weight in weights.items() if not torch.equal(held[name], weight)]:
        raise ValueError(
            f"Marian ties what this model keeps apart ({', '.join(tied)}): with `tie_word_embeddings`="
            f"{model.config.tie_word_embeddings} and `share_encoder_decoder_embeddings`="
            f"{model.config.share_encoder_decoder_embeddings} it cannot be expressed"
        )
    marian.generation_config = model.generation_config
    marian.save_pretrained(folder)


def marian_config(config: VanillaTransformerConfig) -> MarianConfig:
    """Return the configuration of Marian that computes the same.

    Raises:
        ValueError: There is none; names the field.
    """
    for name, only in ONLY.items():
        allowed, value = only if isinstance(only, tuple) else (only,), getattr(config, name)
        if value not in allowed:
            raise ValueError(f"`{name}` is {value!r}, but Marian knows only {allowed[0]!r}; it cannot be expressed")
    for side in ("encoder", "decoder"):
        heads = getattr(config, f"{side}_attention_heads")
        for name, width in zip(("head_dim", "value_head_dim"), config.attention_dims(heads), strict=True):
            if width * heads != config.d_model:
                raise ValueError(
                    f"`{name}` is {width}, but Marian's is `d_model` / `{side}_attention_heads` = "
                    f"{config.d_model / heads:g}; it cannot be expressed"
                )
        if not getattr(config, f"{side}_ffn_dim"):
            raise ValueError(f"`{side}_ffn_dim` is 0, but Marian has feed-forward layers; it cannot be expressed")
    if config.pad_token_id is None or config.decoder_start_token_id is None:
        name = "pad_token_id" if config.pad_token_id is None else "decoder_start_token_id"
        raise ValueError(f"`{name}` is None, but Marian needs one; set it in the configuration")
    # An end that is forced is a matter of the generation settings, which come along.
    return MarianConfig(**{name: getattr(config, name) for name in MARIAN_FIELDS}, forced_eos_token_id=None)


def marian_weights(model: Any) -> dict[str, Tensor]:
    """Return the weights of a model of ours under Marian's names, its width in Marian's order."""
    ours, config = model.state_dict(), model.config
    order = torch.arange(config.d_model)
    if config.sinusoidal_layout == "interleaved":
        order = torch.cat((order[0::2], order[1::2]))
    weights = {name: in_order(name, tensor, order).clone() for name, tensor in ours.items()}
    bias = weights.pop("lm_head.bias", torch.zeros(config.decoder_vocab_size))
    weights["final_logits_bias"] = bias[None]
    for name in list(weights):
        if name.endswith("_proj.weight") and not config.attention_bias:
            weights[f"{name.removesuffix('weight')}bias"] = torch.zeros(len(weights[name]))
    if config.share_encoder_decoder_embeddings:
        weights["model.shared.weight"] = weights["model.encoder.embed_tokens.weight"]
    return weights


def in_order(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """Return a weight with the axis of the model's width, if it has one, in this order (d)."""
    if name.endswith(READ_WIDTH):
        return tensor[:, order]
    return tensor[order] if name.endswith(WRITE_WIDTH) else tensor


__all__ = ["marian_config", "write_marian"]
