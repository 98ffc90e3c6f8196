"""R-Drop: two passes with different dropout are trained to agree (Wu et al. 2021).

Shapes: B batch, T target length, V target vocabulary.
"""

from torch import Tensor

from ..model.loss_vanilla_transformer import IGNORE_INDEX, at_labels, mean_over_labels


def mean_divergence(logits: Tensor, labels: Tensor, num_items_in_batch: int | Tensor | None = None) -> Tensor:
    """Mean divergence of two passes (2 B, T, V) in nats per label, (KL(p||q) + KL(q||p)) / 2. Wu et al. 2021, eq. 2.

    Labels (B, T) are those of one pass; the sum is divided by their number, or by `num_items_in_batch` if given.
    """
    present = labels.ne(IGNORE_INDEX)
    first, second = (at_labels(half, present).float().log_softmax(-1) for half in logits.chunk(2))
    return mean_over_labels(((first.exp() - second.exp()) * (first - second)).sum() / 2, labels, num_items_in_batch)
