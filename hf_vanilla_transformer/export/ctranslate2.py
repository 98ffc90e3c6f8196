"""Export to CTranslate2, which runs the same model in C++, with weights of 32, 16 or 8 bits.

Legend: h heads, d width [d_model], d_k and d_v width of a head's keys and values.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerBase

from ..inference.alignment import alignment_heads
from ..inference.ctranslate2 import POSITIONS_KEY, check_finite_export, ctranslate2_missing
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.positions_vanilla_transformer import sinusoids

# Names of activations in transformers' ACT2FN and in CTranslate2.
ACTIVATIONS = {
    "relu": "RELU",
    "gelu": "GELU",
    "gelu_python": "GELU",
    "gelu_accurate": "GELUTanh",
    "gelu_fast": "GELUTanh",
    "gelu_new": "GELUTanh",
    "gelu_python_tanh": "GELUTanh",
    "gelu_pytorch_tanh": "GELUTanh",
    "quick_gelu": "GELUSigmoid",
    "silu": "SWISH",
    "swish": "SWISH",
    "sigmoid": "Sigmoid",
    "tanh": "Tanh",
}

# What CTranslate2 cannot express: a field, a test for unsupported values, and the remedy.
UNSUPPORTED = (
    ("norm_position", lambda value: value == "none", 'its layers have norms; train with "post" or "pre"'),
    ("encoder_ffn_dim", lambda value: value == 0, "its layers have a feed-forward part; train with 1 or more"),
    ("decoder_ffn_dim", lambda value: value == 0, "its layers have a feed-forward part; train with 1 or more"),
    ("activation_function", lambda value: value not in ACTIVATIONS, f"use one of {', '.join(ACTIVATIONS)}"),
    ("eos_token_id", lambda value: value is None, "its search stops at an end token; set its id"),
    ("decoder_start_token_id", lambda value: value is None, "its search begins with a start token; set its id"),
)


def check_supported(config: VanillaTransformerConfig) -> None:
    """Raise a ValueError with field, value and remedy if CTranslate2 cannot express the model."""
    for name, is_unsupported, remedy in UNSUPPORTED:
        value = getattr(config, name)
        if is_unsupported(value):
            raise ValueError(f"CTranslate2 cannot express `{name}={value!r}`: {remedy}")


def write_ctranslate2(
    model: Any,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    quantization: str = "float32",
    max_positions: int | None = None,
) -> None:
    """Write a model in CTranslate2's format: model.bin, config.json and vocabularies.

    Args:
        model: A `VanillaTransformerForConditionalGeneration`.
        folder: An empty folder.
        tokenizer: Names the tokens in the vocabularies; without one, tokens are named by their ids.
        quantization: Weight type, "float32", "float16", "int8" or "int8_float16"; position encodings and norms keep
            at least 16 bits.
        max_positions: Length of the sinusoid table, which limits the tokens of a source and of an output. By default
            `max_position_embeddings`. Learned positions cannot be extended.

    Raises:
        ValueError: CTranslate2 is not installed or cannot express a property of the model, the weights overflow in
            the quantized type, learned positions are too few, or the tokenizer has more tokens than the model.
    """
    if missing := ctranslate2_missing():
        raise ValueError(f"CTranslate2 cannot be used: {missing}")
    check_supported(model.config)
    if quantization.startswith("int8"):
        model = equalize_layers(model)
    num_positions = max_positions or model.config.max_position_embeddings
    if model.config.position_embedding_type == "learned" and num_positions > model.config.max_position_embeddings:
        raise ValueError(
            f"`max_positions={num_positions}`, but the model has learned only {model.config.max_position_embeddings} "
            "positions; leave it out"
        )
    spec = _build_spec(model, num_positions)
    source, target = vocabularies(model.config, tokenizer)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    _fill_config(spec.config, model.config, target, num_positions)
    spec.validate()
    # Overflows become infinite, which the check of the file reports by weight name.
    with np.errstate(over="ignore", invalid="ignore"):
        spec.optimize(quantization)
    spec.save(str(folder))
    check_finite_export(folder, f"`quantization` {quantization}", "they overflow; use float32")


def vocabularies(
    config: VanillaTransformerConfig, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[list[str], list[str]]:
    """Return the source and target tokens in id order, with unique names for ids that have no token.

    Raises:
        ValueError: There are more tokens than embedding rows.
    """
    sizes = (config.vocab_size, config.decoder_vocab_size)
    source, target = (getattr(tokenizer, f"{side}_tokenizer", tokenizer) for side in ("source", "target"))
    if sizes[0] != sizes[1] and target is tokenizer:
        # Tokenizers of other families list only their source tokens; any target names will do.
        target = None
    return _token_names(sizes[0], source, "source"), _token_names(sizes[1], target, "target")


def _token_names(size: int, tokenizer: PreTrainedTokenizerBase | None, side: str) -> list[str]:
    vocabulary = tokenizer.get_vocab() if tokenizer is not None else {}
    if vocabulary and max(vocabulary.values()) >= size:
        raise ValueError(
            f"the tokenizer's {side} vocabulary has ids up to {max(vocabulary.values())}, but the model has {size} "
            "embedding rows; save the tokenizer that the model was trained with"
        )
    tokens = {i: token for token, i in vocabulary.items()}
    # No token contains a newline, so these names are unique.
    return [tokens.get(i, f"id\n{i}") for i in range(size)]


def equalize_layers(model: Any) -> Any:
    """Return an equivalent copy of a model that loses less accuracy when quantized to 8 bits.

    Each weight row has one quantization scale, and so have all activations of a token. Where only ReLU or a weighted
    mean over positions lies between two linear layers, a unit can be scaled down in the first and up in the second, so
    that its row in the first and its column in the second get about the same magnitude (cross-layer equalization,
    Nagel et al. 2019).
    """
    model = copy.deepcopy(model)
    with torch.no_grad():
        for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
            for attention in (layer.self_attn, getattr(layer, "encoder_attn", None)):
                if attention is not None:
                    _equalize(attention.v_proj, attention.out_proj)
            if model.config.activation_function == "relu":
                _equalize(layer.fc1, layer.fc2)
    return model


def _equalize(first: nn.Linear, second: nn.Linear) -> None:
    bias: Any = 0.0 if first.bias is None else first.bias.clamp(min=0)
    # Clamped to avoid division by zero in units whose weights are all zero.
    scale = ((first.weight.norm(dim=1) + bias) / second.weight.abs().amax(0).clamp(min=1e-9)).sqrt().clamp(min=1e-5)
    first.weight.div_(scale[:, None])
    if first.bias is not None:
        first.bias.div_(scale)
    second.weight.mul_(scale)


def _build_spec(model: Any, num_positions: int) -> Any:
    """Return CTranslate2's specification, filled with the model's weights."""
    from ctranslate2.specs import common_spec, transformer_spec

    config = model.config
    shape = {
        # Only pre-norm specifications have a final norm; `_fill_stack` sets the actual value.
        "pre_norm": True,
        "no_final_norm": not config.final_layer_norm,
        "layernorm_embedding": config.embedding_layer_norm,
        "activation": common_spec.Activation[ACTIVATIONS[config.activation_function]],
    }
    encoder = transformer_spec.TransformerEncoderSpec(config.encoder_layers, config.encoder_attention_heads, **shape)
    layer, aligning = _alignment_layer(model)
    decoder = transformer_spec.TransformerDecoderSpec(
        config.decoder_layers,
        config.decoder_attention_heads,
        alignment_layer=layer,
        alignment_heads=len(aligning),
        **shape,
    )
    model = _with_heads_first(model, layer, aligning)
    _fill_stack(encoder, model.model.encoder, num_positions)
    _fill_stack(decoder, model.model.decoder, num_positions)
    encoder.embeddings[0].weight = _array(model.model.encoder.embed_tokens.weight)
    decoder.embeddings.weight = _array(model.model.decoder.embed_tokens.weight)
    _fill_linear(decoder.projection, [model.lm_head.weight], [model.lm_head.bias])
    return transformer_spec.TransformerSpec(encoder, decoder)


def _alignment_layer(model: Any) -> tuple[int, list[int]]:
    """Return the decoder layer and the heads of its cross-attention that align words."""
    layers, heads = zip(*alignment_heads(model), strict=True)
    if len(set(layers)) > 1:
        raise ValueError(
            f"CTranslate2 cannot express `alignment_heads={alignment_heads(model)!r}`: it aligns words by heads of "
            "one layer; keep the heads of one layer"
        )
    return layers[0], list(heads)


def _with_heads_first(model: Any, layer: int, heads: list[int]) -> Any:
    """Move these cross-attention heads to the front: CTranslate2 aligns words by the first heads."""
    if heads == list(range(len(heads))):
        return model
    model = copy.deepcopy(model)
    attention = model.model.decoder.layers[layer].encoder_attn
    order = [*heads, *(head for head in range(model.config.decoder_attention_heads) if head not in heads)]
    with torch.no_grad():
        for name in ("q_proj", "k_proj", "v_proj"):
            for parameter in getattr(attention, name).parameters():
                parameter.copy_(parameter.unflatten(0, (len(order), -1))[order].flatten(0, 1))
        weight = attention.out_proj.weight
        weight.copy_(weight.unflatten(1, (len(order), -1))[:, order].flatten(1, 2))
    return model


def _fill_stack(spec: Any, stack: Any, num_positions: int) -> None:
    config = stack.config
    spec.pre_norm = config.norm_position == "pre"
    spec.scale_embeddings = config.scale_embedding
    if config.position_embedding_type == "learned":
        positions = stack.embed_positions.weight[:num_positions]
    else:
        positions = sinusoids(torch.arange(num_positions), config.d_model, config.sinusoidal_layout)
    spec.position_encodings.encodings = _array(positions)
    if config.embedding_layer_norm:
        _fill_norm(spec.layernorm_embedding, stack.layernorm_embedding)
    if config.final_layer_norm:
        _fill_norm(spec.layer_norm, stack.layer_norm)
    for layer_spec, layer in zip(spec.layer, stack.layers, strict=True):
        _fill_attention(layer_spec.self_attention, layer.self_attn, layer.self_attn_layer_norm, num_fused=3)
        if hasattr(layer, "encoder_attn"):
            _fill_attention(layer_spec.attention, layer.encoder_attn, layer.encoder_attn_layer_norm, num_fused=2)
        _fill_norm(layer_spec.ffn.layer_norm, layer.final_layer_norm)
        _fill_linear(layer_spec.ffn.linear_0, [layer.fc1.weight], [layer.fc1.bias])
        _fill_linear(layer_spec.ffn.linear_1, [layer.fc2.weight], [layer.fc2.bias])


def _fill_attention(spec: Any, attention: Any, norm: nn.LayerNorm, num_fused: int) -> None:
    """Fill an attention whose last `num_fused` input projections are fused into one linear layer.

    CTranslate2 has one width for keys and values, so the narrower of them is padded with zeros, which changes nothing.
    """
    key_width, value_width = attention.head_dim, attention.value_head_dim
    width = max(key_width, value_width)
    projections = ((attention.q_proj, key_width), (attention.k_proj, key_width), (attention.v_proj, value_width))
    weights = [_pad_heads(linear.weight, own, width) for linear, own in projections]
    biases = [None if linear.bias is None else _pad_heads(linear.bias, own, width) for linear, own in projections]
    parts = {3: [slice(0, 3)], 2: [slice(0, 1), slice(1, 3)]}[num_fused]
    for linear_spec, part in zip(spec.linear, parts, strict=False):
        _fill_linear(linear_spec, weights[part], biases[part])
    out = attention.out_proj
    _fill_linear(spec.linear[-1], [_pad_heads(out.weight.T, value_width, width).T], [out.bias])
    _fill_norm(spec.layer_norm, norm)
    spec.queries_scale = np.float32(attention.scaling)


def _pad_heads(weight: Tensor, width: int, padded: int) -> Tensor:
    """Pad each head's rows with zeros: (h * width, ...) to (h * padded, ...)."""
    heads = weight.detach().unflatten(0, (-1, width))
    return F.pad(heads, (0, 0) * (heads.dim() - 2) + (0, padded - width)).flatten(0, 1)


def _fill_linear(spec: Any, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> None:
    spec.weight = _array(torch.cat(list(weights)))
    if biases[0] is not None:
        spec.bias = _array(torch.cat([bias for bias in biases if bias is not None]))


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray:
    # A copy: CTranslate2 quantizes weights in place.
    return tensor.detach().float().cpu().numpy().copy()


def _fill_config(settings: Any, config: VanillaTransformerConfig, target: list[str], num_positions: int) -> None:
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    start = config.decoder_start_token_id
    settings.decoder_start_token = target[start]  # type: ignore[index]  # `check_supported` excludes None
    settings.bos_token = target[start if config.bos_token_id is None else config.bos_token_id]  # type: ignore[index]
    settings.eos_token = target[ends[0]]  # type: ignore[index]
    # Required but unused: all tokens that it receives are in the vocabulary.
    settings.unk_token = next((token for token in target if token == "<unk>"), settings.bos_token)
    # The tokenizer already adds the special tokens of a source.
    settings.add_source_bos = settings.add_source_eos = False
    settings.layer_norm_epsilon = float(config.layer_norm_eps)
    settings.add_attribute(POSITIONS_KEY, num_positions)
