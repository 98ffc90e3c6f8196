"""Cross-attention of given translations.

Shape legend: N layers, h heads, S source length, T target length.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from .teacher_forcing import IdPair, evaluation_mode, force_targets


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """Compute attention in the only way that returns weights, then restore the model's."""
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(implementation)


def cross_attentions(model: PreTrainedModel, pairs: Sequence[IdPair]) -> list[torch.Tensor]:
    """Return what the decoder attends to in each source while it predicts the tokens of the target.

    Args:
        model: Any encoder-decoder with `generate()` that returns cross-attentions.
        pairs: Ids of sources and targets through their end tokens, without the start token; run as one batch.

    Returns:
        The weights of each pair, (N, h, T, S), float32 on the CPU: row t predicts target token t.

    Raises:
        ValueError: The generation settings have no start token.
    """
    with evaluation_mode(model), eager_attention(model):
        outputs, _ = force_targets(model, pairs, output_attentions=True)
    weights = torch.stack(outputs.cross_attentions, 1).float().cpu()
    return [rows[..., : len(target), : len(source)] for rows, (source, target) in zip(weights, pairs, strict=True)]
