"""R-Drop: two passes with different dropout that must agree (Wu et al. 2021).

Shapes: B batch, T target length, V target vocabulary.
"""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, cast

import torch
from torch import Tensor
from transformers import Seq2SeqTrainer

from ..model.loss_vanilla_transformer import IGNORE_INDEX, at_labels, mean_over_labels
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
        without_logits = self._divergence_without_logits() if doubled.get("skip_logits") else None
        if "skip_logits" in doubled:
            skips = without_logits is not None
            doubled |= {"skip_logits": skips, "output_hidden_states": skips}
        count = None if num_items_in_batch is None else 2 * num_items_in_batch
        loss, outputs = super().compute_loss(model, doubled, True, count)
        if without_logits is None:
            logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[1]
            divergence = mean_divergence(logits, labels, num_items_in_batch)
        else:
            states = outputs["decoder_hidden_states"][-1]
            summed = without_logits(states, labels.ne(IGNORE_INDEX))
            divergence = mean_over_labels(summed, labels, num_items_in_batch)
        loss = loss + alpha / 2 * loss_scale(self, num_items_in_batch) * divergence
        return (loss, outputs) if return_outputs else loss

    def _divergence_without_logits(self) -> Callable[[Tensor, Tensor], Tensor] | None:
        """Return what sums the divergence of decoder states; None if not all weights are here."""
        if self.is_fsdp_enabled or self.is_deepspeed_enabled or self.args.n_gpu > 1 or self.args.torch_compile:
            return None
        model: Any = self.accelerator.unwrap_model(self.model)
        return getattr(model, "divergence_without_logits", None)


def loss_scale(trainer: Seq2SeqTrainer, num_items_in_batch: Tensor | int | None) -> float:
    """Return what `Trainer` multiplies a loss by: the processes whose labels it counted, as gradients are averaged.

    It depends on sharding, and on the release of transformers, and so is asked for with a loss of 1.
    """
    probe = copy(trainer)
    if trainer.compute_loss_func is not None:
        probe.compute_loss_func = lambda *args, **kwargs: 1.0
    model = cast(Any, lambda **inputs: {"loss": 1.0})
    return cast(float, Seq2SeqTrainer.compute_loss(probe, model, {}, num_items_in_batch=num_items_in_batch))


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


__all__ = ["RDropTrainer", "loss_scale", "mean_divergence"]
