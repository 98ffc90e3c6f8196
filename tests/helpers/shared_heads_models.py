"""Transformers as other code bases write them, continued: small projections that all heads share.

As in `source_models`, written for these tests after what those programs compute.
"""

import torch
from torch import Tensor, nn

from source_models import Holder, Positions, attend, masks, scattered_norm


class SharedAttention(nn.Module):
    """Every head projects its slice of the width by the same small matrices."""

    def __init__(self, width: int, heads: int, names: tuple[str, ...], by_width: bool):
        super().__init__()
        self.heads, self.names = heads, names
        # Scores divided by the root of the width are smaller than those divided by that of a head.
        self.factor = heads**-0.5 if by_width else 1.0
        for name in names[:3]:
            self.add_module(name, nn.Linear(width // heads, width // heads, bias=False))
        self.add_module(names[3], nn.Linear(width, width))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        *small, out = (self.get_submodule(name) for name in self.names)
        parts = zip(small, (x, memory, memory), strict=True)
        query, key, value = (linear(part.unflatten(-1, (self.heads, -1))).flatten(-2) for linear, part in parts)
        return out(attend(query * self.factor, key, value, self.heads, mask))


class SharedBlock(nn.Module):
    def __init__(self, width: int, inner: int, *attention):
        super().__init__()
        self.attention = SharedAttention(width, *attention)
        self.norm1, self.norm2 = scattered_norm(width), scattered_norm(width)
        self.feed_forward = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        x = self.norm1(x + self.attention(x, memory, mask))
        return self.norm2(x + self.feed_forward(x))


class SharedDecoderBlock(nn.Module):
    def __init__(self, width: int, inner: int, *attention):
        super().__init__()
        self.attention, self.norm = SharedAttention(width, *attention), scattered_norm(width)
        self.transformer_block = SharedBlock(width, inner, *attention)

    def forward(self, x: Tensor, causal: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        x = self.norm(x + self.attention(x, x, causal))
        return self.transformer_block(x, memory, mask)


class SharedHeads(nn.Module):
    """Post-norm, small shared projections, sinusoids of doubled exponents; its decoder as it should have been."""

    projections, by_width = ("query_matrix", "key_matrix", "value_matrix", "out"), False
    embeddings = (("embedding_layer", "positional_encoder"), ("word_embedding", "position_embedding"))

    def __init__(self, source_vocabulary=13, target_vocabulary=17, width=8, heads=(2, 4), inner=16, layers=2):
        super().__init__()
        kinds = (SharedBlock, SharedDecoderBlock)
        for side, block, vocabulary, n in zip(
            (0, 1), kinds, (source_vocabulary, target_vocabulary), heads, strict=True
        ):
            words, positions = self.embeddings[side]
            attention = (n, self.projections, self.by_width)
            stack = nn.ModuleList(block(width, inner, *attention) for _ in range(layers))
            parts = {words: nn.Embedding(vocabulary, width), positions: self._positions(width)}
            self.add_module(("encoder", "decoder")[side], Holder(**parts, layers=stack))
        self.decoder.fc_out = nn.Linear(width, target_vocabulary)

    def _positions(self, width: int) -> nn.Module:
        table = torch.zeros(30, width)
        for i in range(0, width, 2):
            angles = torch.arange(30) / 10000 ** (2 * i / width)
            table[:, i], table[:, i + 1] = angles.sin(), angles.cos()
        return Positions(table)

    def _embed(self, side: int, ids: Tensor) -> Tensor:
        stack, (words, positions) = (self.encoder, self.decoder)[side], self.embeddings[side]
        return stack.get_submodule(positions)(stack.get_submodule(words)(ids))

    def forward(self, source, target, source_mask=None, target_mask=None):
        seen, causal = masks(source_mask, target_mask, target.shape[1])
        memory, x = self._embed(0, source), self._embed(1, target)
        for layer in self.encoder.layers:
            memory = layer(memory, memory, seen)
        for layer in self.decoder.layers:
            x = layer(x, causal, memory, seen)
        return self.decoder.fc_out(x).log_softmax(-1)


class AddedRows(nn.Embedding):
    """Learned positions."""

    def forward(self, states: Tensor) -> Tensor:
        return states + self.weight[: states.shape[-2]]


class SharedHeadsLearned(SharedHeads):
    """The same with learned positions, and scores divided by the root of the width."""

    projections, by_width = ("queries", "keys", "values", "fc_out"), True
    embeddings = (("word_embedding", "position_embedding"), ("word_embedding", "position_embedding"))

    def _positions(self, width: int) -> nn.Module:
        return AddedRows(30, width)
