"""Export to transformers' `MarianMTModel`.

Shape legend: d model width [d_model].
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import MarianConfig, MarianMTModel

from ..marian_fields import MARIAN_FIELDS
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig

# Fields that Marian lacks, and the values that it implies.
REQUIRED_VALUES: dict[str, tuple[Any, ...]] = {
    "norm_position": ("post",),
    "final_layer_norm": (None, False),
    "embedding_layer_norm": (False,),
    "position_embedding_type": ("sinusoidal",),
    "layer_norm_eps": (1e-5,),
}
# Suffixes of weights whose second axis, and of those whose first axis, is the model's width.
WIDTH_SECOND = (
    "embed_tokens.weight", "q_proj.weight", "k_proj.weight", "v_proj.weight", "fc1.weight", "lm_head.weight",
)  # fmt: skip  # a table, not an expression
WIDTH_FIRST = ("out_proj.weight", "out_proj.bias", "fc2.weight", "fc2.bias", "norm.weight", "norm.bias")


def write_marian(model: Any, folder: str | Path) -> None:
    """Write configuration and weights for `MarianMTModel.from_pretrained`.

    Logits and translations are unchanged. Marian's position encodings have all sines before all cosines; if the model
    interleaves them, as the paper does, the axes of the model's width are permuted in every weight.

    Raises:
        ValueError: The model has a property that Marian cannot express; the message names the field.
    """
    config = marian_config(model.config)
    marian = MarianMTModel(config).eval()
    weights = marian_weights(model)
    # Marian's own position tables hold the same function.
    positions = {name: tensor for name, tensor in marian.state_dict().items() if "embed_positions" in name}
    marian.load_state_dict(weights | positions)
    loaded = marian.state_dict()
    if tied := [name for name, weight in weights.items() if not torch.equal(loaded[name], weight)]:
        raise ValueError(
            f"Marian cannot express `tie_word_embeddings={model.config.tie_word_embeddings}` with "
            f"`share_encoder_decoder_embeddings={model.config.share_encoder_decoder_embeddings}`: it ties "
            f"{', '.join(tied)}"
        )
    marian.generation_config = model.generation_config
    marian.save_pretrained(folder)


def marian_config(config: VanillaTransformerConfig) -> MarianConfig:
    """Return the equivalent Marian configuration; a ValueError names a field that Marian cannot express."""
    for name, allowed in REQUIRED_VALUES.items():
        value = getattr(config, name)
        if value not in allowed:
            raise ValueError(f"Marian cannot express `{name}={value!r}`: it supports only {allowed[0]!r}")
    for side in ("encoder", "decoder"):
        heads = getattr(config, f"{side}_attention_heads")
        for name, width in zip(("head_dim", "value_head_dim"), config.attention_dims(heads), strict=True):
            if width * heads != config.d_model:
                raise ValueError(
                    f"Marian cannot express `{name}={width}`: its head width is d_model / {side}_attention_heads = "
                    f"{config.d_model / heads:g}"
                )
        if not getattr(config, f"{side}_ffn_dim"):
            raise ValueError(f"Marian cannot express `{side}_ffn_dim=0`: its layers have a feed-forward part")
    for name in ("pad_token_id", "decoder_start_token_id"):
        if getattr(config, name) is None:
            raise ValueError(f"Marian cannot express `{name}=None`; set the id in the configuration")
    # The generation settings saved with the model decide whether an end token is forced.
    return MarianConfig(**{name: getattr(config, name) for name in MARIAN_FIELDS}, forced_eos_token_id=None)


def marian_weights(model: Any) -> dict[str, Tensor]:
    """Return the weights under Marian's names, with the model's width permuted to Marian's order."""
    ours, config = model.state_dict(), model.config
    order = torch.arange(config.d_model)
    if config.sinusoidal_layout == "interleaved":
        order = torch.cat((order[0::2], order[1::2]))
    weights = {}
    for name, tensor in ours.items():
        if name.endswith(WIDTH_SECOND):
            tensor = tensor[:, order]
        elif name.endswith(WIDTH_FIRST):
            tensor = tensor[order]
        weights[name] = tensor.clone()
    bias = weights.pop("lm_head.bias", torch.zeros(config.decoder_vocab_size))
    weights["final_logits_bias"] = bias[None]
    for name in list(weights):
        if name.endswith("_proj.weight") and not config.attention_bias:
            weights[f"{name.removesuffix('weight')}bias"] = torch.zeros(len(weights[name]))
    if config.share_encoder_decoder_embeddings:
        weights["model.shared.weight"] = weights["model.encoder.embed_tokens.weight"]
    return weights
