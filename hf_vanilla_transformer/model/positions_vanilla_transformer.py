"""Position encodings: sinusoids (section 3.5) and learned embeddings (Table 3, row E).

Shapes: B batch, L length, d model width.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .configuration_vanilla_transformer import VanillaTransformerConfig

# Upper limit of the cache: `max_position_embeddings` may be any number, but longer sequences are rare.
MAX_CACHED = 2**17


def sinusoids(positions: Tensor, d_model: int, layout: str) -> Tensor:
    """Return the sinusoidal encodings (..., d) of integer `positions` (...). Section 3.5.

    `PE[pos, 2i] = sin(pos / 10000 ** (2i / d))` and `PE[pos, 2i + 1]` is the cosine of the same angle; the
    "concatenated" layout puts all sines before all cosines. Angles are float64 if the device supports it: at position
    1,000 a float32 angle is already off by 3e-5.
    """
    dtype = torch.float32 if positions.device.type == "mps" else torch.float64
    exponents = torch.arange(0, d_model, 2, device=positions.device, dtype=dtype) / d_model
    angles = positions[..., None].to(dtype) * torch.exp(-math.log(10000.0) * exponents)
    waves = (angles.sin(), angles.cos())
    encoding = torch.stack(waves, -1).flatten(-2) if layout == "interleaved" else torch.cat(waves, -1)
    return encoding.float()


class VanillaTransformerSinusoidalPositions(nn.Module):
    """Sinusoidal encodings, cached up to `max_position_embeddings` or `MAX_CACHED`, computed beyond. Section 3.5."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__()
        self.d_model, self.layout = config.d_model, config.sinusoidal_layout
        self.num_cached = min(config.max_position_embeddings, MAX_CACHED)
        self.weight = nn.Buffer(self.compute_weight(), persistent=False)

    def compute_weight(self) -> Tensor:
        """Return the encodings to cache, (num_cached, d)."""
        return sinusoids(torch.arange(self.num_cached), self.d_model, self.layout)

    def restore(self, device: torch.device) -> None:
        """Compute the encodings, which no checkpoint has: after `to_empty` arbitrary, on the meta device missing."""
        if self.weight.is_meta:
            self.weight = nn.Buffer(self.compute_weight().to(device, self.weight.dtype), persistent=False)
        else:
            self.weight.copy_(self.compute_weight())

    def forward(self, past: int | Tensor, length: int, leading_padding: Tensor | None) -> Tensor:
        """Return the encodings of `length` positions after `past`: (L, d), or (B, L, d) with `leading_padding`.

        `leading_padding` (B, 1) counts the padding before each row's first token, which does not shift positions.
        """
        # An exported graph would end at the length of the cache.
        can_use_cache = not isinstance(past, Tensor) and not torch.compiler.is_exporting()
        is_cached = can_use_cache and past + length <= self.num_cached
        if is_cached and leading_padding is None:
            return self.weight[past : past + length]
        positions = position_ids(past, length, leading_padding, self.weight.device)
        return F.embedding(positions, self.weight) if is_cached else sinusoids(positions, self.d_model, self.layout)


class VanillaTransformerLearnedPositions(nn.Embedding):
    """Learned position embeddings. Table 3, row E."""

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config.max_position_embeddings, config.d_model)

    def forward(  # type: ignore[override]  # takes the arguments of sinusoidal positions instead of ids
        self, past: int | Tensor, length: int, leading_padding: Tensor | None
    ) -> Tensor:
        """Return the embeddings of `length` positions after `past`: (L, d), or (B, L, d) with `leading_padding`.

        Raises:
            ValueError: The positions exceed `max_position_embeddings`.
        """
        # A compiled graph cannot raise an error that depends on a dynamic length.
        if not torch.compiler.is_compiling() and past + length > self.num_embeddings:
            raise ValueError(
                f"the sequence has {past + length} tokens, but the learned positions end at "
                f"`max_position_embeddings`={self.num_embeddings}; shorten the input, or train with more positions "
                'or with `position_embedding_type="sinusoidal"`, which has no limit.'
            )
        return super().forward(position_ids(past, length, leading_padding, self.weight.device))


POSITION_EMBEDDINGS = {
    "sinusoidal": VanillaTransformerSinusoidalPositions,
    "learned": VanillaTransformerLearnedPositions,
}


def position_ids(past: int | Tensor, length: int, leading_padding: Tensor | None, device: torch.device) -> Tensor:
    """Return the positions after `past`: (L), or (B, L) counted from each row's first token."""
    positions = torch.arange(length, device=device) + past
    return positions if leading_padding is None else (positions - leading_padding).clamp(min=0)


def count_leading_padding(attention_mask: Tensor | None) -> Tensor | None:
    """Count the padding (B, 1) before each row's first token in a padding mask (B, L); None for other masks."""
    if attention_mask is None or attention_mask.dim() != 2:
        return None
    return first_true_index(attention_mask.ne(0))


def first_true_index(condition: Tensor) -> Tensor:
    """Return the index (B, 1) of the first true element of each row (B, L), or 0 if there is none."""
    return condition.long().argmax(-1, keepdim=True)
