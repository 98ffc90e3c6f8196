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
    """Keeps what a head of encoder-decoder attention computes its weights from, whatever computes attention."""

    def __init__(self, attention: Any, head: int):
        self.attention, self.head = attention, head
        self._kept: dict[str, Tensor] = {}
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
        """Keep queries and keys of each forward pass from now on."""
        if not self._hooks:
            watched = {"queries": self.attention.q_proj, "keys": self.attention.k_proj}
            self._hooks = [layer.register_forward_hook(self._keep(name)) for name, layer in watched.items()]

    def detach(self) -> None:
        """Keep nothing more: hooks slow down decoding, and no model with them can be pickled."""
        while self._hooks:
            self._hooks.pop().remove()
        self._kept.clear()

    def _keep(self, name: str) -> Callable[..., None]:
        def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
            self._kept[name] = output.unflatten(-1, (-1, self.attention.head_dim))[:, :, self.head]

        return keep

    def loss(self, batch: Mapping[str, Any], num_items_in_batch: int | Tensor | None = None) -> Tensor:
        """Return the mean loss of the `alignments` of a batch that the model has just run on."""
        weights = self.weights(batch.get("attention_mask"), batch["labels"])
        summed = summed_alignment_loss(weights, batch["alignments"])
        return mean_over_labels(summed, batch["labels"], num_items_in_batch)

    def weights(self, attention_mask: Tensor | None, labels: Tensor) -> Tensor:
        """Return the last weights (B, T, S) without dropout, float32, and forget them.

        The mask (B, S) is 1 at source tokens. Padding before labels (B, T), which the model moves, is back in place.
        """
        queries, keys = self._kept.pop("queries"), self._kept.pop("keys")
        scores = torch.matmul(queries, keys.transpose(1, 2)).float() * self.attention.scaling
        if attention_mask is not None:
            scores = scores.masked_fill(attention_mask.eq(0)[:, None], torch.finfo(scores.dtype).min)
        length = labels.shape[1]
        order = torch.arange(length, device=labels.device) - first_true_index(labels.ne(IGNORE_INDEX))
        return scores.softmax(-1).gather(1, (order % length)[..., None].expand_as(scores))


def summed_alignment_loss(weights: Tensor, alignments: Tensor) -> Tensor:
    """Sum the cross-entropy of float32 attention weights (B, T, S) against alignments. Garg et al. 2019, eq. 4.

    Alignments (B, T, S) have the probabilities that a target token should attend with, or zeros to leave it alone.
    """
    if weights.shape != alignments.shape:
        raise ValueError(
            f"`alignments` have shape {tuple(alignments.shape)}, but the targets attend to the sources by "
            f"{tuple(weights.shape)}; pass (B, T, S)."
        )
    # Finite, however small a weight is.
    return -(alignments.to(weights) * weights.clamp(min=torch.finfo(weights.dtype).tiny).log()).sum()
