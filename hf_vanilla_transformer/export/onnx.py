"""Export to two ONNX graphs that run without PyTorch.

The graphs and the names of their inputs and outputs:

    encoder.onnx: input_ids (B, S), attention_mask (B, S) -> cross_keys (N, B, h, S, d_k), cross_values (..., d_v)
    decoder.onnx: decoder_input_ids (B, T), attention_mask (B, S), cross_keys, cross_values,
                  past_keys (N, B, h, P, d_k), past_values (..., d_v)
                  -> logits (B, T, V), present_keys (N, B, h, P + T, d_k), present_values (..., d_v)

Legend: B batch, S source length, T new target tokens, P cached target tokens, N decoder layers, h heads, d_k and d_v
width of a head's keys and values, V target vocabulary.
"""

import copy
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import ModelOutput

from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.positions_vanilla_transformer import VanillaTransformerSinusoidalPositions
from ..model.pretrained_vanilla_transformer import VanillaTransformerPreTrainedModel

# Inputs and outputs of each graph, in tracing order.
GRAPHS = {
    "encoder": (("input_ids", "attention_mask"), ("cross_keys", "cross_values")),
    "decoder": (
        ("decoder_input_ids", "attention_mask", "cross_keys", "cross_values", "past_keys", "past_values"),
        ("logits", "present_keys", "present_values"),
    ),
}

# Axes of inputs and outputs: symbols of the legend have fixed sizes, words are dynamic.
AXES = {
    "input_ids": ("batch", "source"),
    "attention_mask": ("batch", "source"),
    "decoder_input_ids": ("batch", "target"),
    "cross_keys": ("N", "batch", "h", "source", "d_k"),
    "cross_values": ("N", "batch", "h", "source", "d_v"),
    "past_keys": ("N", "batch", "h", "past", "d_k"),
    "past_values": ("N", "batch", "h", "past", "d_v"),
    "logits": ("batch", "target", "V"),
    "present_keys": ("N", "batch", "h", "past + target", "d_k"),
    "present_values": ("N", "batch", "h", "past + target", "d_v"),
}

REQUIRED_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class EncoderGraph(VanillaTransformerPreTrainedModel):
    """The encoder, with the cross-attention keys and values of every decoder layer."""

    def __init__(self, model: Any):
        super().__init__(model.config)
        self.encoder = model.model.encoder
        self.attentions = torch.nn.ModuleList(layer.encoder_attn for layer in model.model.decoder.layers)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> ModelOutput:
        states = self.encoder(input_ids, attention_mask).last_hidden_state
        attentions: Any = self.attentions
        pairs = [attention._keys_values(states, states, None) for attention in attentions]
        keys, values = (torch.stack(tensors) for tensors in zip(*pairs, strict=True))
        return ModelOutput(cross_keys=keys, cross_values=values)


class DecoderGraph(VanillaTransformerPreTrainedModel):
    """The decoder and the output projection; the cache is an input and an output."""

    def __init__(self, model: Any):
        super().__init__(model.config)
        self.decoder, self.lm_head = model.model.decoder, model.lm_head

    def forward(
        self,
        decoder_input_ids: Tensor,
        attention_mask: Tensor,
        cross_keys: Tensor,
        cross_values: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
    ) -> ModelOutput:
        cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        for layer in range(self.config.decoder_layers):
            cache.self_attention_cache.update(past_keys[layer], past_values[layer], layer)
            cache.cross_attention_cache.update(cross_keys[layer], cross_values[layer], layer)
            cache.is_updated[layer] = True
        output = self.decoder(
            decoder_input_ids,
            # Only batch size and source length of this are used; the cache holds its keys and values.
            encoder_hidden_states=cross_keys[0, :, 0],
            encoder_attention_mask=attention_mask,
            cache=cache,
            use_cache=True,
        )
        layers: Sequence[Any] = cache.self_attention_cache.layers
        return ModelOutput(
            logits=self.lm_head(output.last_hidden_state),
            present_keys=torch.stack([layer.keys for layer in layers]),
            present_values=torch.stack([layer.values for layer in layers]),
        )


def onnx_missing() -> str | None:
    """Return a message that names missing packages, or None."""
    missing = [name for name in REQUIRED_PACKAGES if not find_spec(name)]
    if not missing:
        return None
    return f'export to ONNX needs {", ".join(missing)}; run `pip install "hf-vanilla-transformer[export]"`'


def write_onnx(
    model: Any, folder: Path, quantization: str = "float32", max_positions: int | None = None
) -> VanillaTransformerConfig:
    """Write `encoder.onnx` and `decoder.onnx`, using transformers' exporters.

    Args:
        model: A `VanillaTransformerForConditionalGeneration`; it is not modified.
        folder: An empty folder.
        quantization: Weight type, "float32" or "int8". "int8" also quantizes the inputs of linear layers at run time
            (onnxruntime's dynamic quantization).
        max_positions: Length of the sinusoid tables in the graphs, which limits the tokens of a source and of an
            output. By default `max_position_embeddings`. The number of learned positions cannot be changed.

    Returns:
        The configuration of the graphs, whose `max_position_embeddings` is their number of positions.

    Raises:
        ValueError: A package is not installed, or `max_positions` is set for learned positions.
    """
    if missing := onnx_missing():
        raise ValueError(missing)
    from transformers.exporters import OnnxConfig, OnnxExporter

    model = copy.deepcopy(model).float().cpu().eval()
    if max_positions not in (None, model.config.max_position_embeddings):
        _resize_positions(model, max_positions)
    if quantization == "int8":
        # A tied weight would not be quantized.
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    encoder, decoder = EncoderGraph(model), DecoderGraph(model)
    encoder_inputs, decoder_inputs = _example_inputs(encoder)
    graphs: Any = (("encoder", encoder, encoder_inputs), ("decoder", decoder, decoder_inputs))
    for name, graph, inputs in graphs:
        file = folder / f"{name}.onnx"
        with torch.no_grad(), _silence():
            exported = OnnxExporter().export(graph, inputs, OnnxConfig(dynamic=True))
        _save(exported, file, model.config)
        if quantization == "int8":
            _quantize(file)
    return model.config


def _resize_positions(model: Any, num_positions: int | None) -> None:
    """Resize the sinusoid tables of both stacks, and update the configuration."""
    config = model.config
    if config.position_embedding_type == "learned":
        raise ValueError(
            f"`max_positions={num_positions}`, but the model has learned {config.max_position_embeddings} positions; "
            "leave it out"
        )
    config.max_position_embeddings = num_positions
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions = VanillaTransformerSinusoidalPositions(config)


def _example_inputs(encoder: EncoderGraph) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return inputs for tracing both graphs; all sizes differ, so that tracing cannot confuse axes."""
    batch, source_length, past, new = 3, 6, 2, 4
    config = encoder.config
    ids = torch.randint(min(4, config.vocab_size - 1), config.vocab_size, (batch, source_length))
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    source["attention_mask"][-1, -2:] = 0
    with torch.no_grad():
        encoded = encoder(**source)
    return source, {
        "decoder_input_ids": torch.full((batch, new), int(config.decoder_start_token_id or 0)),
        "attention_mask": source["attention_mask"],
        **encoded,
        "past_keys": encoded["cross_keys"][..., :past, :].clone(),
        "past_values": encoded["cross_values"][..., :past, :].clone(),
    }


def _save(exported: Any, file: Path, config: VanillaTransformerConfig) -> None:
    """Write a graph to one file, with inputs and outputs named as in `GRAPHS` and `AXES`."""
    import onnx_ir

    # Newer releases of transformers return a model of several programs, older ones the program itself.
    program = getattr(exported, "program", exported)
    model = getattr(program, "model", program)
    heads = config.decoder_attention_heads
    sizes = dict(zip(("d_k", "d_v"), config.attention_dims(heads), strict=True))
    sizes |= {"N": config.decoder_layers, "h": heads, "V": config.decoder_vocab_size}
    inputs, outputs = GRAPHS[file.stem]
    for values, names in ((model.graph.inputs, inputs), (model.graph.outputs, outputs)):
        for value, name in zip(values, names, strict=True):
            value.name = name
            value.shape = onnx_ir.Shape([sizes.get(axis, axis) for axis in AXES[name]])
    onnx_ir.save(model, file)


def _quantize(file: Path) -> None:
    """Quantize the linear layers and embeddings of a graph to 8 bits."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with _silence():
        quantize_dynamic(
            file,
            file,
            op_types_to_quantize=["MatMul", "Gather"],
            per_channel=True,
            # Use 7 of the 8 bits: with all 8, sums saturate on processors without VNNI.
            reduce_range=True,
            weight_type=QuantType.QInt8,
        )


@contextmanager
def _silence() -> Iterator[None]:
    """Suppress output, logs and warnings of the exporters."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
