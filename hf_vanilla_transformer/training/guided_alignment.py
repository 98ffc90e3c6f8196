"""Guided alignment: a head of encoder-decoder attention that learns word alignments (Garg et al. 2019).

Shapes: B batch, S source length, T target length, h heads, d_k key width.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..model.loss_vanilla_transformer import IGNORE_INDEX, mean_over_labels
from ..model.positions_vanilla_transformer import first_true_index


class AlignmentHead:
    """Records queries and keys of a head of encoder-decoder attention, with any attention implementation."""

    def __init__(self, attention: Any, head: int):
        self.attention, self.head = attention, head
        self._recorded: dict[str, Tensor] = {}
        self._hooks: list[Any] = []

    @classmethod
    def of(cls, model: Any) -> "AlignmentHead":
        """Return the head that `generation_config.alignment_heads` names.

        Raises:
            ValueError: It names none, or one that the decoder does not have.
        """
        heads = getattr(model.generation_config, "alignment_heads", None)
        layer, head = heads[0] if heads else (-1, -1)
        layers = model.get_decoder().layers
        attention: Any = getattr(layers[layer], "encoder_attn", None) if 0 <= layer < len(layers) else None
        if attention is None or not 0 <= head < attention.q_proj.out_features // attention.head_dim:
            raise ValueError(
                f"`generation_config.alignment_heads` is {heads}, but `alignments` need a [layer, head] of the "
                f"decoder's {len(layers)} layers, counted from 0; set it with `set_alignment_heads`"
            )
        return cls(attention, head)

    def attach(self) -> None:
        """Start recording queries and keys of each forward pass."""
        if not self._hooks:
            watched = {"queries": self.attention.q_proj, "keys": self.attention.k_proj}
            self._hooks = [layer.register_forward_hook(self._recorder(name)) for name, layer in watched.items()]

    def detach(self) -> None:
        """Stop recording: hooks slow down decoding and prevent pickling."""
        while self._hooks:
            self._hooks.pop().remove()
        self._recorded.clear()

    def _recorder(self, name: str) -> Callable[..., None]:
        def record(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self._recorded[name] = output.unflatten(-1, (-1, self.attention.head_dim))[:, :, self.head]

        return record

    def loss(self, batch: Mapping[str, Any], num_items_in_batch: int | Tensor | None = None) -> Tensor:
        """Return the mean loss of the `alignments` of a batch that the model has just run on."""
        weights = self.weights(batch.get("attention_mask"), batch["labels"])
        summed = summed_alignment_loss(weights, batch["alignments"])
        return mean_over_labels(summed, batch["labels"], num_items_in_batch)

    def weights(self, attention_mask: Tensor | None, labels: Tensor) -> Tensor:
        """Return the last pass's weights (B, T, S) without dropout, in float32, and discard its record.

        The mask (B, S) is 1 at source tokens. Left padding of labels (B, T), which the model moves right, is restored.
        """
        queries, keys = self._recorded.pop("queries"), self._recorded.pop("keys")
        scores = torch.matmul(queries, keys.transpose(1, 2)).float() * self.attention.scaling
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask.eq(0)[:, None], torch.finfo(scores.dtype).min)
        length = labels.shape[1]
        order = torch.arange(length, device=labels.device) - first_true_index(labels.ne(IGNORE_INDEX))
        return scores.softmax(-1).gather(1, (order % length)[..., None].expand_as(scores))


def summed_alignment_loss(weights: Tensor, alignments: Tensor) -> Tensor:
    """Sum the cross-entropy of float32 attention weights (B, T, S) against alignments. Garg et al. 2019, eq. 4.

    Alignments (B, T, S) are the attention distributions that target tokens should have, or zeros for no constraint.
    """
    if weights.shape != alignments.shape:
        raise ValueError(
            f"`alignments` have shape {tuple(alignments.shape)}, but the attention weights have "
            f"{tuple(weights.shape)}; pass (B, T, S)."
        )
    # Clamped so that the logarithm is finite.
    return -(alignments.to(weights) * weights.clamp(min=torch.finfo(weights.dtype).tiny).log()).sum()
