"""R-Drop: two passes with different dropout that must agree (Wu et al. 2021).

Shapes: B batch, T target length, V target vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..model.loss_vanilla_transformer import IGNORE_INDEX, at_labels, mean_over_labels


def repeated(inputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with its rows twice, one pass after the other."""
    return {name: torch.cat([value, value]) if isinstance(value, Tensor) else value for name, value in inputs.items()}


def mean_divergence(logits: Tensor, labels: Tensor, num_items_in_batch: int | Tensor | None = None) -> Tensor:
    """Mean divergence of two passes in nats a label, (KL(p || q) + KL(q || p)) / 2. Wu et al. 2021, eq. 2.

    Args:
        logits: Of both passes, (2 B, T, V).
        labels: Of one pass, (B, T); -100 where there is none.
        num_items_in_batch: Number of labels to divide by; None: those of this batch.
    """
    present = labels.ne(IGNORE_INDEX)
    first, second = (at_labels(half, present).float().log_softmax(-1) for half in logits.chunk(2))
    return mean_over_labels(((first.exp() - second.exp()) * (first - second)).sum() / 2, labels, num_items_in_batch)
