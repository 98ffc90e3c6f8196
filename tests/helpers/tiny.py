"""Tiny models, batches for them, and comparisons."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version
from torch import Tensor, nn

from devices import same_numbers
from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

# Before 5.23, FSMT's cache contradicts its logits, and Marian's beam search fails with vocabularies of two sizes.
BASELINES_DECODE_CORRECTLY = Version(transformers.__version__) >= Version("5.23")

VOCABULARY = 40
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 32,
    "dropout": 0.0,
}
VOCABULARIES = {
    "shared": {},
    "tied": {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 50},
    "shared, untied": {"tie_word_embeddings": False},
    "separate": {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "decoder_vocab_size": 50},
}
EVERY_VOCABULARY = pytest.mark.parametrize("changes", VOCABULARIES.values(), ids=VOCABULARIES)
# Architectures that every fast path must support.
SHAPES: dict[str, dict[str, Any]] = {
    "paper": {},
    "two vocabularies": VOCABULARIES["separate"],
    "pre-norm": {"norm_position": "pre"},
    "norm after the embeddings": {"embedding_layer_norm": True},
    "learned positions": {"position_embedding_type": "learned"},
}
EVERY_SHAPE = pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
EMBEDDINGS = ("model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight")


def tiny_config(**changes: Any) -> VanillaTransformerConfig:
    return VanillaTransformerConfig(**{**TINY, **changes})


@same_numbers
def tiny_model(**changes: Any) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    return VanillaTransformerForConditionalGeneration(tiny_config(**changes)).eval()


def one_layer_model(**changes: Any) -> VanillaTransformerForConditionalGeneration:
    return tiny_model(encoder_layers=1, decoder_layers=1, **changes)


def randomize(module: nn.Module) -> None:
    """Draw all parameters, so that biases and norms, initialized to 0 and 1, have an effect."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.empty_like(parameter, device="cpu").normal_(std=0.3))


@same_numbers
def perturbed_model(scale: float = 0.2, **changes: Any) -> VanillaTransformerForConditionalGeneration:
    """Return a tiny model without weights of 0 or 1, so that omitting one shows."""
    model = tiny_model(**changes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * scale)
    return model


@same_numbers
def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(4, VOCABULARY, (rows, length))


@same_numbers
def padded_source(rows: int = 3) -> dict[str, Tensor]:
    """Sources of two to six tokens, padded on the right."""
    mask = (torch.arange(6)[None] < torch.arange(rows)[:, None] * 2 % 5 + 2).long()
    return {"input_ids": tokens(rows, 6).masked_fill(mask == 0, 0), "attention_mask": mask}


@same_numbers
def batch_with_padding() -> dict[str, Tensor]:
    """Two sources and targets; the second source is padded on the right, the second target on the left."""
    mask = torch.tensor([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    return {
        "input_ids": tokens(2, 6),
        "attention_mask": mask,
        "decoder_input_ids": tokens(2, 5),
        "decoder_attention_mask": torch.tensor([[1, 1, 1, 1, 1], [0, 0, 1, 1, 1]]),
    }


@same_numbers
def labelled_batch(rows: int = 4, length: int = 7) -> dict[str, Tensor]:
    """Sources, and labels of unequal lengths, padded on the right."""
    labels = tokens(rows, length)
    for row in range(rows):
        labels[row, length - row % 4 :] = -100
    source = tokens(rows, length + 1)
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": labels}


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def gradients(model: nn.Module) -> dict[str, Tensor]:
    """Return a model's gradients, and zero them."""
    taken = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return taken


def loss_and_gradients(
    model: Any, batch: dict[str, Any], dtype: torch.dtype | None = None, **options: Any
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss, under autocast if a dtype is given, and the gradients."""
    with torch.autocast(model.device.type, dtype, enabled=dtype is not None):
        loss = model(**batch, **options).loss
    loss.backward()
    return loss.detach(), gradients(model)


def counting_backend(graphs: list[Any]) -> Callable[..., Any]:
    """A compiler backend that collects its graphs and generates no code."""

    def compile_graph(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    return compile_graph


def close_gradients(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    assert actual.keys() == expected.keys()
    assert max(grad.abs().max() for grad in expected.values()) > 1e-3
    for name, grad in expected.items():
        torch.testing.assert_close(
            actual[name], grad, rtol=tolerance, atol=tolerance, msg=lambda text, name=name: name + text
        )
