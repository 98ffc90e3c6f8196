"""Transformers as other code bases write them, continued: learned positions, post-norm.

As in `source_models`, written for these tests after what those programs compute.
"""

import math

from torch import Tensor, nn

from source_models import Attention, FeedForward, Holder, masks, scattered_norm


class LearnedLayer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, cross: bool):
        super().__init__()
        names = ("fc_q", "fc_k", "fc_v", "fc_o")
        self.self_attention, self.self_attn_layer_norm = Attention(width, heads, names), scattered_norm(width)
        if cross:
            self.encoder_attention, self.enc_attn_layer_norm = Attention(width, heads, names), scattered_norm(width)
        self.positionwise_feedforward = FeedForward(width, inner, ("fc_1", "fc_2"))
        self.ff_layer_norm = scattered_norm(width)

    def forward(self, x: Tensor, mask: Tensor | None, memory: Tensor | None = None, memory_mask=None) -> Tensor:
        x = self.self_attn_layer_norm(x + self.self_attention(x, x, mask))
        if memory is not None:
            x = self.enc_attn_layer_norm(x + self.encoder_attention(x, memory, memory_mask))
        return self.ff_layer_norm(x + self.positionwise_feedforward(x))

    def share_norms(self) -> None:
        """Keep one norm, which the state dict names once."""
        self.layer_norm = self.ff_layer_norm
        for name in ("self_attn_layer_norm", "enc_attn_layer_norm", "ff_layer_norm"):
            if self._modules.pop(name, None) is not None:
                object.__setattr__(self, name, self.layer_norm)


class LearnedPositions(nn.Module):
    """Post-norm without norms at the end, learned positions from 0; a norm for each sub-layer, or one for a layer."""

    def __init__(
        self, vocabularies=(13, 17), width=8, heads=2, inner=16, layers=2, length=20, shared_norms=False
    ):  # fmt: skip  # as above
        super().__init__()
        for side, vocabulary in zip(("encoder", "decoder"), vocabularies, strict=True):
            stack = Holder(
                tok_embedding=nn.Embedding(vocabulary, width), pos_embedding=nn.Embedding(length, width),
                layers=nn.ModuleList(LearnedLayer(width, heads, inner, side == "decoder") for _ in range(layers)),
            )  # fmt: skip  # as above
            self.add_module(side, stack)
        self.decoder.fc_out = nn.Linear(width, vocabularies[1])
        if shared_norms:
            for layer in (*self.encoder.layers, *self.decoder.layers):
                layer.share_norms()

    def forward(self, source, target, source_mask=None, target_mask=None):
        seen, causal = masks(source_mask, target_mask, target.shape[1])
        sides = ((self.encoder, source), (self.decoder, target))
        scale = math.sqrt(self.encoder.tok_embedding.embedding_dim)
        memory, x = (
            side.tok_embedding(ids) * scale + side.pos_embedding.weight[: ids.shape[1]] for side, ids in sides
        )
        for layer in self.encoder.layers:
            memory = layer(memory, seen)
        for layer in self.decoder.layers:
            x = layer(x, causal, memory, seen)
        return self.decoder.fc_out(x)
