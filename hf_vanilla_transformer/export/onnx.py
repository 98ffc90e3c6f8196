"""Export to two ONNX graphs that run without PyTorch, in onnxruntime and in transformers.js.

The graphs in `onnx/`, with the inputs and outputs that transformers.js selects by name:

    encoder_model.onnx: input_ids (B, S), attention_mask (B, S) -> last_hidden_state (B, N * h, S, d_k + d_v)
    decoder_model_merged.onnx: input_ids (B, T), encoder_attention_mask (B, S), encoder_hidden_states,
        past_key_values.0.decoder.key (B, N * h, P, d_k), past_key_values.0.decoder.value (..., d_v)
        -> logits (B, T, V), present.0.decoder.key (B, N * h, P + T, d_k), present.0.decoder.value (..., d_v)

The encoder returns the cross-attention keys and values of all decoder layers, so that no step computes them again. The
caches of all layers are one pair of tensors. After an end token only another one is possible, since transformers.js
continues finished rows until the whole batch has ended, and at the last position only an end token.

Legend: B batch, S source length, T new target tokens, P cached target tokens, N decoder layers, h heads, d_k and d_v
width of a head's keys and values, V target vocabulary.
"""

import copy
import logging
import warnings
from collections.abc import Iterator
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

# Inputs and outputs of each graph, in tracing order, and their axes: symbols of the legend have fixed sizes, words are
# dynamic. transformers.js starts with empty caches, whose sizes it takes from these words.
_MASK, _STATES = ("batch_size", "source"), ("batch_size", "N * h", "source", "d_k + d_v")
_CACHE = {"key": "d_k", "value": "d_v"}
GRAPHS: dict[str, tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]] = {
    "encoder_model": ({"input_ids": _MASK, "attention_mask": _MASK}, {"last_hidden_state": _STATES}),
    "decoder_model_merged": (
        {
            "input_ids": ("batch_size", "target"),
            "encoder_attention_mask": _MASK,
            "encoder_hidden_states": _STATES,
            **{f"past_key_values.0.decoder.{k}": ("batch_size", "N * h", "past", d) for k, d in _CACHE.items()},
        },
        {
            "logits": ("batch_size", "target", "V"),
            **{f"present.0.decoder.{k}": ("batch_size", "N * h", "past + target", d) for k, d in _CACHE.items()},
        },
    ),
}

# Ends of file names by weight type, as transformers.js expects them.
SUFFIXES = {"float32": "", "int8": "_quantized"}

REQUIRED_PACKAGES = ("onnx", "onnxscript", "onnxruntime")


class EncoderGraph(VanillaTransformerPreTrainedModel):
    """The encoder, with the cross-attention keys and values of every decoder layer.

    Source ids from `first_id` on count from there; without it, all count from 0.
    """

    def __init__(self, model: Any, first_id: int | None = None):
        super().__init__(model.config)
        self.encoder, self.first_id = model.model.encoder, first_id
        self.attentions = torch.nn.ModuleList(layer.encoder_attn for layer in model.model.decoder.layers)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> ModelOutput:
        if self.first_id is not None:
            input_ids = torch.where(input_ids < self.first_id, input_ids, input_ids - self.first_id)
        states = self.encoder(input_ids, attention_mask).last_hidden_state
        attentions: Any = self.attentions
        pairs = [torch.cat(attention._keys_values(states, states, None), -1) for attention in attentions]
        return ModelOutput(last_hidden_state=torch.cat(pairs, 1))


class DecoderGraph(VanillaTransformerPreTrainedModel):
    """The decoder and the output projection; the cache is an input and an output."""

    def __init__(self, model: Any):
        super().__init__(model.config)
        self.decoder, self.lm_head = model.model.decoder, model.lm_head
        # Converted models may start with the end token, and so do their first logits.
        ends = model.generation_config.eos_token_id
        self.ends = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def forward(
        self,
        input_ids: Tensor,
        encoder_attention_mask: Tensor,
        encoder_hidden_states: Tensor,
        past_keys: Tensor,
        past_values: Tensor,
    ) -> ModelOutput:
        config = self.config
        heads = config.decoder_attention_heads
        key_width, _ = config.attention_dims(heads)
        cache = EncoderDecoderCache(DynamicCache(config=config), DynamicCache(config=config))
        for layer in range(config.decoder_layers):
            own = slice(layer * heads, (layer + 1) * heads)
            cross = encoder_hidden_states[:, own]
            cache.self_attention_cache.update(past_keys[:, own], past_values[:, own], layer)
            cache.cross_attention_cache.update(cross[..., :key_width], cross[..., key_width:], layer)
            cache.is_updated[layer] = True
        output = self.decoder(
            input_ids,
            # Only batch size and source length of this are used; the cache holds its keys and values.
            encoder_hidden_states=encoder_hidden_states[:, 0],
            encoder_attention_mask=encoder_attention_mask,
            cache=cache,
            use_cache=True,
        )
        present: Any = cache.self_attention_cache.layers
        keys, values = (torch.cat([getattr(layer, name) for layer in present], 1) for name in ("keys", "values"))
        logits = self._ended(self.lm_head(output.last_hidden_state), input_ids, keys)
        return ModelOutput(logits=logits, present_keys=keys, present_values=values)

    def _ended(self, logits: Tensor, input_ids: Tensor, present_keys: Tensor) -> Tensor:
        """Allow only the end token at the last position, and after an end token that is not the first token."""
        if not self.ends:
            return logits
        # Counted, since tracing may take sizes for constants.
        positions = torch.ones_like(present_keys[:, 0, :, 0]).cumsum(-1)[:, -input_ids.shape[1] :]
        has_ended = torch.isin(input_ids, torch.tensor(self.ends)) & (positions > 1)
        has_ended |= positions >= self.config.max_position_embeddings
        other = torch.arange(logits.shape[-1]) != self.ends[0]
        return logits.masked_fill(has_ended[..., None] & other, -torch.inf)


def onnx_missing() -> str | None:
    """Return a message that names missing packages, or None."""
    missing = [name for name in REQUIRED_PACKAGES if not find_spec(name)]
    if not missing:
        return None
    return f"export to ONNX needs {', '.join(missing)}; run `pip install {' '.join(missing)}`"


def write_onnx(
    model: Any,
    folder: Path,
    quantization: str = "float32",
    max_positions: int | None = None,
    first_source_id: int | None = None,
) -> VanillaTransformerConfig:
    """Write both graphs to the subfolder `onnx`, using transformers' exporters.

    Args:
        model: A `VanillaTransformerForConditionalGeneration`; it is not modified.
        folder: An empty folder.
        quantization: Type of stored weights, "float32" or "int8", which computes in float32 too; its files end in
            `_quantized.onnx`.
        max_positions: Length of the sinusoid tables in the graphs, which limits the tokens of a source and of an
            output. By default `max_position_embeddings`. The number of learned positions cannot be changed.
        first_source_id: Id of the first token of a source vocabulary that follows the target vocabulary; smaller ids,
            those of the special tokens, are the same on both sides. By default both vocabularies start at 0.

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
    encoder, decoder = EncoderGraph(model, first_source_id), DecoderGraph(model)
    (folder / "onnx").mkdir()
    examples: Any = _example_inputs(encoder, decoder)
    for name, graph, inputs in zip(GRAPHS, (encoder, decoder), examples, strict=True):
        with torch.no_grad(), _silence():
            exported = OnnxExporter().export(graph, inputs, OnnxConfig(dynamic=True))
        file = folder / "onnx" / f"{name}{SUFFIXES[quantization]}.onnx"
        _save(exported, file, name, model.config)
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


def _example_inputs(encoder: EncoderGraph, decoder: DecoderGraph) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return inputs for tracing both graphs; all sizes differ, so that tracing cannot confuse axes."""
    batch, source_length, past, new = 3, 6, 2, 4
    config = encoder.config
    ids = torch.randint(min(4, config.vocab_size - 1), config.vocab_size, (batch, source_length))
    mask = torch.ones_like(ids)
    mask[-1, -2:] = 0
    with torch.no_grad():
        states = encoder(ids, mask).last_hidden_state
    keys, values = states[..., :past, :].split(config.attention_dims(config.decoder_attention_heads), -1)
    return {"input_ids": ids, "attention_mask": mask}, {
        "input_ids": torch.full((batch, new), int(config.decoder_start_token_id or 0)),
        "encoder_attention_mask": mask,
        "encoder_hidden_states": states,
        "past_keys": keys.clone(),
        "past_values": values.clone(),
    }


def _save(exported: Any, file: Path, name: str, config: VanillaTransformerConfig) -> None:
    """Write a graph to one file, with inputs and outputs named as in `GRAPHS`."""
    import onnx_ir

    # Newer releases of transformers return a model of several programs, older ones the program itself.
    program = getattr(exported, "program", exported)
    model = getattr(program, "model", program)
    heads = config.decoder_attention_heads
    sizes = dict(zip(("d_k", "d_v"), config.attention_dims(heads), strict=True))
    sizes |= {"N * h": config.decoder_layers * heads, "d_k + d_v": sum(sizes.values()), "V": config.decoder_vocab_size}
    for values, axes in zip((model.graph.inputs, model.graph.outputs), GRAPHS[name], strict=True):
        for value, (name, names) in zip(values, axes.items(), strict=True):
            value.name = name
            value.shape = onnx_ir.Shape([sizes.get(axis, axis) for axis in names])
    onnx_ir.save(model, file)


def _quantize(file: Path) -> None:
    """Store the matrices of a graph in 8 bits, with a scale per output feature or embedding.

    Products stay in float32, after two operations that onnxruntime computes once, when it loads the graph. Its own
    dynamic quantization, which also quantizes activations, costs 0.6 BLEU where this costs none.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(file)
    graph = model.graph
    matrices = [
        tensor for tensor in graph.initializer if len(tensor.dims) == 2 and tensor.data_type == TensorProto.FLOAT
    ]
    products = {name for node in graph.node if node.op_type == "MatMul" for name in node.input}
    nodes = []
    for matrix in matrices:
        name, weights = matrix.name, torch.from_numpy(numpy_helper.to_array(matrix).copy())
        # Products have their output features in columns; embeddings and transposed matrices have theirs in rows.
        scales = weights.abs().amax(0 if name in products else 1, keepdim=True).clamp(min=1e-12) / 127
        integers = (weights / scales).round().to(torch.int8)
        graph.initializer.remove(matrix)
        for suffix, tensor in (("8bit", integers), ("scale", scales)):
            graph.initializer.append(numpy_helper.from_array(tensor.numpy(), f"{name}_{suffix}"))
        nodes.append(helper.make_node("Cast", [f"{name}_8bit"], [f"{name}_float"], to=TensorProto.FLOAT))
        nodes.append(helper.make_node("Mul", [f"{name}_float", f"{name}_scale"], [name]))
    nodes.extend(graph.node)
    del graph.node[:]
    graph.node.extend(nodes)
    onnx.save(model, file)


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
