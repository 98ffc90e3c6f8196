"""Our models as CTranslate2 models: the same products in C++, with weights of 32, 16 or 8 bits.

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

from ..inference.ctranslate2 import POSITIONS_KEY, ctranslate2_missing
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.positions_vanilla_transformer import sinusoids

QUANTIZATIONS = ("float32", "float16", "int8", "int8_float16")

# Functions of ACT2FN by the names that CTranslate2 has for them.
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

# What CTranslate2 cannot express: a field, whether its value is such, and what would do.
INEXPRESSIBLE = (
    ("norm_position", lambda value: value == "none", 'its layers are normalized; train with "post" or "pre"'),
    ("encoder_ffn_dim", lambda value: value == 0, "its layers have a feed-forward part; train with 1 or more"),
    ("decoder_ffn_dim", lambda value: value == 0, "its layers have a feed-forward part; train with 1 or more"),
    ("activation_function", lambda value: value not in ACTIVATIONS, f"it has {', '.join(ACTIVATIONS)}"),
    ("eos_token_id", lambda value: value is None, "it stops at an end token; set its id"),
    ("decoder_start_token_id", lambda value: value is None, "it starts with a token; set its id"),
)


def check_expressible(config: VanillaTransformerConfig) -> None:
    """Raise for a shape that CTranslate2 has not.

    Raises:
        ValueError: Names the field, its value, and what would do.
    """
    for name, is_such, remedy in INEXPRESSIBLE:
        value = getattr(config, name)
        if is_such(value):
            raise ValueError(f"CTranslate2 cannot express `{name}`={value!r}: {remedy}")


def write_ctranslate2(
    model: Any,
    folder: Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
    quantization: str = "float32",
    max_positions: int | None = None,
) -> None:
    """Write a model as CTranslate2 reads it: model.bin, config.json and vocabularies.

    Args:
        model: A `VanillaTransformerForConditionalGeneration`.
        folder: An empty folder.
        tokenizer: Names the tokens in the vocabularies; without one they are named by their ids.
        quantization: Of the weights, one of `QUANTIZATIONS`; position encodings and layer norms have 16 bits at the
            least.
        max_positions: Rows of the table of sinusoids: the most tokens of a source and of an output. By default
            `max_position_embeddings`; learned positions have as many as were learned.

    Raises:
        ValueError: CTranslate2 is not installed or cannot express a property of the model, the quantization is
            unknown, learned positions are too few, or the tokenizer has more tokens than the model.
    """
    if missing := ctranslate2_missing():
        raise ValueError(f"CTranslate2 cannot be used: {missing}")
    if quantization not in QUANTIZATIONS:
        raise ValueError(f"quantization {quantization} is unknown; use one of {', '.join(QUANTIZATIONS)}")
    check_expressible(model.config)
    if quantization.startswith("int8"):
        model = equalize_layers(model)
    spec = _specification(model, _rows(model.config, max_positions))
    source, target = vocabularies(model.config, tokenizer)
    spec.register_source_vocabulary(source)
    spec.register_target_vocabulary(target)
    _configure(spec.config, model.config, target, len(spec.encoder.position_encodings.encodings))
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def vocabularies(
    config: VanillaTransformerConfig, tokenizer: PreTrainedTokenizerBase | None
) -> tuple[list[str], list[str]]:
    """Return a name for every id of the source and of the target.

    Args:
        config: Of the model, which may have more rows than there are tokens.
        tokenizer: Names the tokens; an id without a token, or every one without a tokenizer, is named by its number.

    Raises:
        ValueError: There are more tokens than rows.
    """
    sizes = (config.vocab_size, config.decoder_vocab_size)
    source, target = (getattr(tokenizer, f"{side}_tokenizer", tokenizer) for side in ("source", "target"))
    if sizes[0] != sizes[1] and target is tokenizer:
        # A tokenizer of another family tells the tokens of its source only; any names serve.
        target = None
    return _names(sizes[0], source, "source"), _names(sizes[1], target, "target")


def _names(size: int, tokenizer: PreTrainedTokenizerBase | None, side: str) -> list[str]:
    known = tokenizer.get_vocab() if tokenizer is not None else {}
    if known and max(known.values()) >= size:
        raise ValueError(
            f"the tokenizer's {side} vocabulary has ids up to {max(known.values())}, but the model has {size} rows; "
            "save the tokenizer that it was trained with"
        )
    tokens = {number: token for token, number in known.items()}
    # No token is spelled with a line end, for which no tokenizer has a name of one piece.
    return [tokens.get(number, f"id\n{number}") for number in range(size)]


# Fewer bits


def equalize_layers(model: Any) -> Any:
    """Return a copy of a model that computes the same, and loses less of it when rounded to 8 bits.

    One scale holds for a row of a matrix, and one for all inputs of a token. Between two products with nothing but
    ReLU or a mean over positions between them, any unit may be smaller in the one and larger in the other: each is
    made about as large as the column of the matrix that reads it (cross-layer equalization, Nagel et al. 2019).
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
    # A unit of no weight stays one.
    scale = ((first.weight.norm(dim=1) + bias) / second.weight.abs().amax(0).clamp(min=1e-9)).sqrt().clamp(min=1e-5)
    first.weight.div_(scale[:, None])
    if first.bias is not None:
        first.bias.div_(scale)
    second.weight.mul_(scale)


# The specification


def _specification(model: Any, rows: int) -> Any:
    """Return CTranslate2's specification with all weights of a model."""
    from ctranslate2.specs import common_spec, transformer_spec

    config = model.config
    shape = {
        # Where a stack has a normalization at its end, there must be a place for it; with "post" it is optional.
        "pre_norm": True,
        "no_final_norm": not config.final_layer_norm,
        "activation": common_spec.Activation[ACTIVATIONS[config.activation_function]],
    }
    kinds = (transformer_spec.TransformerEncoderSpec, transformer_spec.TransformerDecoderSpec)
    sides = (model.model.encoder, model.model.decoder)
    heads = (config.encoder_attention_heads, config.decoder_attention_heads)
    made = [kind(len(side.layers), each, **shape) for kind, side, each in zip(kinds, sides, heads, strict=True)]
    for spec, side in zip(made, sides, strict=True):
        _fill_stack(spec, side, rows)
    encoder, decoder = made
    encoder.embeddings[0].weight = _array(model.model.encoder.embed_tokens.weight)
    decoder.embeddings.weight = _array(model.model.decoder.embed_tokens.weight)
    _fill_linear(decoder.projection, [model.lm_head.weight], [model.lm_head.bias])
    return transformer_spec.TransformerSpec(encoder, decoder)


def _fill_stack(spec: Any, stack: Any, rows: int) -> None:
    config = stack.config
    spec.pre_norm = config.norm_position == "pre"
    spec.scale_embeddings = config.scale_embedding
    spec.position_encodings.encodings = _array(_positions(stack, rows))
    if config.final_layer_norm:
        _fill_norm(spec.layer_norm, stack.layer_norm)
    for place, layer in zip(spec.layer, stack.layers, strict=True):
        _fill_attention(place.self_attention, layer.self_attn, layer.self_attn_layer_norm, fused=3)
        if hasattr(layer, "encoder_attn"):
            _fill_attention(place.attention, layer.encoder_attn, layer.encoder_attn_layer_norm, fused=2)
        _fill_norm(place.ffn.layer_norm, layer.final_layer_norm)
        _fill_linear(place.ffn.linear_0, [layer.fc1.weight], [layer.fc1.bias])
        _fill_linear(place.ffn.linear_1, [layer.fc2.weight], [layer.fc2.bias])


def _fill_attention(spec: Any, attention: Any, norm: nn.LayerNorm, fused: int) -> None:
    """Fill in an attention whose last `fused` input projections are one product.

    Heads have one width there. Zeros on the narrower of keys and values change neither scores nor sums.
    """
    width = max(attention.head_dim, attention.value_head_dim)
    widths = (attention.head_dim, attention.head_dim, attention.value_head_dim)
    inputs = [attention.q_proj, attention.k_proj, attention.v_proj]
    weights = [_widen_rows(each.weight, of, width) for each, of in zip(inputs, widths, strict=True)]
    biases = [
        None if each.bias is None else _widen_rows(each.bias, of, width)
        for each, of in zip(inputs, widths, strict=True)
    ]
    alone = 3 - fused
    parts = [slice(0, alone), slice(alone, 3)] if alone else [slice(0, 3)]
    for place, part in zip(spec.linear, parts, strict=False):
        _fill_linear(place, weights[part], biases[part])
    out = attention.out_proj
    _fill_linear(spec.linear[-1], [_widen_rows(out.weight.T, attention.value_head_dim, width).T], [out.bias])
    _fill_norm(spec.layer_norm, norm)
    spec.queries_scale = np.float32(attention.scaling)


def _widen_rows(weight: Tensor, width: int, to: int) -> Tensor:
    """Return a weight (h * width, ...) with rows of zeros after each head's own, (h * to, ...)."""
    heads = weight.detach().unflatten(0, (-1, width))
    return F.pad(heads, (0, 0) * (heads.dim() - 2) + (0, to - width)).flatten(0, 1)


def _fill_linear(spec: Any, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> None:
    spec.weight = _array(torch.cat(list(weights)))
    if biases[0] is not None:
        spec.bias = _array(torch.cat([bias for bias in biases if bias is not None]))


def _fill_norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray:
    # A copy: CTranslate2 rounds weights in place.
    return tensor.detach().float().cpu().numpy().copy()


# Positions and settings


def _rows(config: VanillaTransformerConfig, wanted: int | None) -> int:
    """Return how many positions the tables get."""
    rows = wanted or config.max_position_embeddings
    if config.position_embedding_type == "learned" and rows > config.max_position_embeddings:
        raise ValueError(
            f"--max_positions is {rows}, but only `max_position_embeddings`={config.max_position_embeddings} "
            "positions were learned; leave it out"
        )
    return rows


def _positions(stack: Any, rows: int) -> Tensor:
    """Return the encodings of the first positions, (rows, d)."""
    config = stack.config
    if config.position_embedding_type == "learned":
        return stack.embed_positions.weight[:rows]
    return sinusoids(torch.arange(rows), config.d_model, config.sinusoidal_layout)


def _configure(settings: Any, config: VanillaTransformerConfig, target: list[str], rows: int) -> None:
    """Fill in CTranslate2's config.json; our tokenizer ends a source with the end token by itself."""
    ends = config.eos_token_id if isinstance(config.eos_token_id, list) else [config.eos_token_id]
    start = config.decoder_start_token_id
    settings.decoder_start_token = target[start]  # type: ignore[index]  # `check_expressible` saw to it
    settings.bos_token = target[start if config.bos_token_id is None else config.bos_token_id]  # type: ignore[index]
    settings.eos_token = target[ends[0]]  # type: ignore[index]
    # A name that it asks for; tokens come by their ids, so that none is unknown.
    settings.unk_token = next((token for token in target if token == "<unk>"), settings.bos_token)
    settings.add_source_bos = settings.add_source_eos = False
    settings.layer_norm_epsilon = float(config.layer_norm_eps)
    settings.add_attribute(POSITIONS_KEY, rows)


__all__ = [
    "ACTIVATIONS",
    "QUANTIZATIONS",
    "equalize_layers",
    "check_expressible",
    "vocabularies",
    "write_ctranslate2",
]
