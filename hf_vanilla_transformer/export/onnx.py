"""Our models as two ONNX graphs, which run where there is no PyTorch.

The graphs, with the names of their inputs and outputs:

    encoder.onnx: input_ids (B, S), attention_mask (B, S) -> cross_keys (N, B, h, S, d_k), cross_values (..., d_v)
    decoder.onnx: decoder_input_ids (B, T), attention_mask (B, S), cross_keys, cross_values,
                  past_keys (N, B, h, P, d_k), past_values (..., d_v)
                  -> logits (B, T, V), present_keys (N, B, h, P + T, d_k), present_values (..., d_v)

Legend: B batch, S source length, T target length, P past of it, N decoder layers, h heads, d_k and d_v width of a
head's keys and values, V target vocabulary.
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

# Inputs and outputs of each graph, in the order in which they are traced.
GRAPHS = {
    "encoder": (("input_ids", "attention_mask"), ("cross_keys", "cross_values")),
    "decoder": (
        ("decoder_input_ids", "attention_mask", "cross_keys", "cross_values", "past_keys", "past_values"),
        ("logits", "present_keys", "present_values"),
    ),
}

# The axes of each: sizes by the legend where they are fixed, names where they are free.
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

NEEDED = ("onnx", "onnxscript", "onnxruntime")


class EncoderGraph(VanillaTransformerPreTrainedModel):
    """The encoder, and what every decoder layer attends to of its output."""

    def __init__(self, model: Any):
        super().__init__(model.config)
        self.encoder = model.model.encoder
        self.attentions = torch.nn.ModuleList(layer.encoder_attn for layer in model.model.decoder.layers)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> ModelOutput:
        """Return the keys and values that the module's description names."""
        states = self.encoder(input_ids, attention_mask).last_hidden_state
        attentions: Any = self.attentions
        pairs = [attention._keys_values(states, states, None) for attention in attentions]
        keys, values = (torch.stack(side) for side in zip(*pairs, strict=True))
        return ModelOutput(cross_keys=keys, cross_values=values)


class DecoderGraph(VanillaTransformerPreTrainedModel):
    """The decoder over a cache that goes in and out, and the projection to the vocabulary."""

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
        """Return the logits, keys and values that the module's description names."""
        cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        for layer in range(self.config.decoder_layers):
            cache.self_attention_cache.update(past_keys[layer], past_values[layer], layer)
            cache.cross_attention_cache.update(cross_keys[layer], cross_values[layer], layer)
            cache.is_updated[layer] = True
        output = self.decoder(
            decoder_input_ids,
            # Only their shape is read, of what the cache holds already: rows and source length.
            encoder_hidden_states=cross_keys[0, :, 0],
            encoder_attention_mask=attention_mask,
            past_key_values=cache,
            use_cache=True,
        )
        layers: Sequence[Any] = cache.self_attention_cache.layers
        return ModelOutput(
            logits=self.lm_head(output.last_hidden_state),
            present_keys=torch.stack([layer.keys for layer in layers]),
            present_values=torch.stack([layer.values for layer in layers]),
        )


def onnx_missing() -> str | None:
    """Return what to do where a package is not installed, or None."""
    missing = [name for name in NEEDED if not find_spec(name)]
    if not missing:
        return None
    return f'{", ".join(missing)} not installed; `pip install "hf-vanilla-transformer[export]"` brings what ONNX needs'


def write_onnx(model: Any, folder: Path, max_positions: int | None = None) -> VanillaTransformerConfig:
    """Write `encoder.onnx` and `decoder.onnx`, in float32, by the exporters of transformers.

    Args:
        model: A `VanillaTransformerForConditionalGeneration`; it is left as it is.
        folder: An empty folder.
        max_positions: Sinusoids that the graphs hold: the most tokens of a source and of an output. By default
            `max_position_embeddings`; learned positions cannot be more than were learned.

    Returns:
        The configuration of what the graphs hold: `max_position_embeddings` is the number of their positions.

    Raises:
        ValueError: A package is not installed, or learned positions are too few.
    """
    if missing := onnx_missing():
        raise ValueError(missing)
    from transformers.exporters import OnnxConfig, OnnxExporter

    model = with_positions(copy.deepcopy(model).float().cpu().eval(), max_positions)
    encoder, decoder = EncoderGraph(model), DecoderGraph(model)
    source, target = _inputs(encoder)
    stages: Any = (("encoder", encoder, source), ("decoder", decoder, target))
    for name, graph, given in stages:
        with torch.no_grad(), _silence():
            exported = OnnxExporter().export(graph, given, OnnxConfig(dynamic=True))
        _save(exported, folder / f"{name}.onnx", model.config)
    return model.config


def with_positions(model: Any, rows: int | None) -> Any:
    """Give both stacks of a model so many positions, and its configuration the number.

    Raises:
        ValueError: So many were not learned.
    """
    config = model.config
    if rows is None or rows == config.max_position_embeddings:
        return model
    if config.position_embedding_type == "learned":
        raise ValueError(
            f"--max_positions is {rows}, but the model has learned `max_position_embeddings`="
            f"{config.max_position_embeddings}; leave it out"
        )
    config.max_position_embeddings = rows
    for stack in (model.model.encoder, model.model.decoder):
        stack.embed_positions = VanillaTransformerSinusoidalPositions(config)
    return model


def _inputs(encoder: EncoderGraph) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return inputs of both graphs, of lengths that are all different, by which the graphs are traced."""
    rows, length, past, new = 3, 6, 2, 4
    config = encoder.config
    ids = torch.randint(min(4, config.vocab_size - 1), config.vocab_size, (rows, length))
    source = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    source["attention_mask"][-1, -2:] = 0
    with torch.no_grad():
        encoded = encoder(**source)
    return source, {
        "decoder_input_ids": torch.full((rows, new), int(config.decoder_start_token_id or 0)),
        "attention_mask": source["attention_mask"],
        **encoded,
        "past_keys": encoded["cross_keys"][..., :past, :].clone(),
        "past_values": encoded["cross_values"][..., :past, :].clone(),
    }


def _save(exported: Any, file: Path, config: VanillaTransformerConfig) -> None:
    """Write a graph in one file, its inputs and outputs by the names and axes of the tables."""
    import onnx_ir

    # Newer releases of transformers give a model of several programs, older ones the program itself.
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


@contextmanager
def _silence() -> Iterator[None]:
    """Keep to itself what the exporters print and log of their steps, versions and future."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


__all__ = ["onnx_missing", "with_positions", "write_onnx"]
