"""Teacher forcing: one forward pass over sources and given targets, and its cross-attention.

Shape legend: B batch, N layers, h heads, S source length, T target length.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from ..batches import greedy_batches
from ..model.checks_vanilla_transformer import IGNORE_INDEX

# Ids of a source and of its target, from after the start token through the end token.
IdPair = tuple[Sequence[int], Sequence[int]]


@contextmanager
def evaluation_mode(model: PreTrainedModel) -> Iterator[None]:
    """Disable dropout and gradients, then restore the model's mode."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


def position_limit(config: Any) -> int | None:
    """Return the most tokens of a source or target; None if positions are computed for any length."""
    if getattr(config, "position_embedding_type", None) == "sinusoidal":
        return None
    return getattr(config, "max_position_embeddings", None)


def tightest_limit(*limits: int | None) -> int | None:
    """Return the smallest limit; None means unlimited."""
    return min((limit for limit in limits if limit is not None), default=None)


def decoder_layers(config: Any) -> int:
    """Return the number of decoder layers; in some families the decoder has its own configuration."""
    names = ("decoder_layers", "num_decoder_layers")
    num_layers = next((count for name in names if (count := getattr(config, name, None))), None)
    return num_layers or config.get_text_config(decoder=True).num_hidden_layers


def start_token_id(model: PreTrainedModel) -> int | None:
    """Return the token that `generate()` starts with."""
    settings: Any = model.generation_config
    return settings.bos_token_id if settings.decoder_start_token_id is None else settings.decoder_start_token_id


def batches_of_pairs(pairs: Sequence[IdPair], max_tokens: int) -> Iterator[list[int]]:
    """Yield indices of pairs of similar length: at most `max_tokens` padded tokens per side, or a single pair."""
    lengths = [max(map(len, pair)) for pair in pairs]
    # Longest first: if memory runs out, it does so at once.
    order = sorted(range(len(pairs)), key=lambda i: -lengths[i])
    sizes = [max_tokens // max(1, lengths[i]) for i in order]
    return (order[batch] for batch in greedy_batches(len(order), sizes.__getitem__))


def force_targets(model: PreTrainedModel, pairs: Sequence[IdPair], **options: Any) -> tuple[Any, torch.Tensor]:
    """Run any encoder-decoder with `generate()` over pairs in one batch; `options` are passed to its `forward`.

    Returns:
        The outputs, where position t predicts target token t, and the labels (B, T), -100 at padding.

    Raises:
        ValueError: The generation settings have no start token.
    """
    sources, targets = (
        [torch.as_tensor(row, device=model.device) for row in side] for side in zip(*pairs, strict=True)
    )
    labels = pad_sequence(targets, batch_first=True, padding_value=IGNORE_INDEX)
    start = start_token_id(model)
    if start is None:
        raise ValueError("the generation settings have no decoder_start_token_id; set it in model.generation_config")
    outputs = model(
        input_ids=pad_sequence(sources, batch_first=True, padding_value=model.generation_config.pad_token_id or 0),
        attention_mask=pad_sequence([torch.ones_like(row) for row in sources], batch_first=True),
        # Not `labels`: families shift them differently or not at all, but all generate from the start token.
        decoder_input_ids=nn.functional.pad(labels[:, :-1].clamp(min=0), (1, 0), value=start),
        use_cache=False,
        **options,
    )
    return outputs, labels


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Use the eager implementation, the only one to return weights, then restore the model's."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


def cross_attentions(model: PreTrainedModel, pairs: Sequence[IdPair]) -> list[torch.Tensor]:
    """Return the cross-attention of each pair, (N, h, T, S), float32 on the CPU; row t predicts target token t.

    Raises:
        ValueError: The generation settings have no start token.
    """
    with evaluation_mode(model), eager_attention(model):
        outputs, _ = force_targets(model, pairs, output_attentions=True)
    weights = torch.stack(outputs.cross_attentions, 1).float().cpu()
    return [rows[..., : len(target), : len(source)] for rows, (source, target) in zip(weights, pairs, strict=True)]
