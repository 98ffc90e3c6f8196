"""R-Drop: two passes with different dropout that must agree (Wu et al. 2021).

Shapes: B batch, T target length, V target vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import Seq2SeqTrainer

from ..model.loss_vanilla_transformer import IGNORE_INDEX
from .arguments import VanillaTransformerTrainingArguments


class RDropTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` that with `args.rdrop_alpha` also trains two passes of each batch to agree.

    The loss is half of the paper's: the mean cross-entropy of both passes, plus alpha / 2 times their divergence.
    """

    args: VanillaTransformerTrainingArguments

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Compute the loss of a batch; in training, of both passes at once."""
        alpha = getattr(self.args, "rdrop_alpha", 0.0)
        if not (alpha and model.training and "labels" in inputs):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        labels, doubled = inputs["labels"], repeated(inputs)
        if "skip_logits" in doubled:
            doubled["skip_logits"] = False
        count = None if num_items_in_batch is None else 2 * num_items_in_batch
        loss, outputs = super().compute_loss(model, doubled, True, count)
        logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[1]
        divergence = self._loss_scale(num_items_in_batch) * mean_divergence(logits, labels, num_items_in_batch)
        loss = loss + alpha / 2 * divergence
        return (loss, outputs) if return_outputs else loss

    def _loss_scale(self, num_items_in_batch: Tensor | int | None) -> int:
        """Processes whose labels were counted, and whose gradients will be averaged, as `Trainer` scales its loss."""
        counted = num_items_in_batch is not None and (self.model_accepts_loss_kwargs or self.compute_loss_func)
        if not (counted and self.args.average_tokens_across_devices):
            return 1
        return self.args.n_gpu if self.args.n_gpu > 1 else self.accelerator.num_processes


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
    first, second = (half[present].float().log_softmax(-1) for half in logits.chunk(2))
    divergence = ((first.exp() - second.exp()) * (first - second)).sum() / 2
    count = present.sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch).to(divergence.device)
    return divergence / count.clamp(min=1)


__all__ = ["RDropTrainer", "mean_divergence"]
