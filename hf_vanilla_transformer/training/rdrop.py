"""R-Drop: two passes with different dropout that must agree (Wu et al. 2021).

Shapes: B batch, T target length, N labels, d model width, V target vocabulary.
"""

from collections.abc import Mapping
from copy import copy
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from transformers import Seq2SeqTrainer

from ..model.chunked_loss_vanilla_transformer import ACCELERATOR_CHUNK_ELEMENTS, CHUNK_ELEMENTS, MIN_CHUNK_ROWS
from ..model.cpu_ops_vanilla_transformer import accumulation_dtype, autocast_enabled, is_plain_cpu
from ..model.linear_vanilla_transformer import is_bare_linear, linear_forward
from ..model.loss_vanilla_transformer import IGNORE_INDEX, mean_over_labels
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
        head = self._whole_head() if doubled.get("skip_logits") else None
        if "skip_logits" in doubled:
            doubled |= {"skip_logits": head is not None, "output_hidden_states": head is not None}
        count = None if num_items_in_batch is None else 2 * num_items_in_batch
        loss, outputs = super().compute_loss(model, doubled, True, count)
        if head is None:
            logits = outputs["logits"] if isinstance(outputs, Mapping) else outputs[1]
            divergence = mean_divergence(logits, labels, num_items_in_batch)
        else:
            states = outputs["decoder_hidden_states"][-1]
            summed = summed_divergence_without_logits(states, head, labels.ne(IGNORE_INDEX))
            divergence = mean_over_labels(summed, labels, num_items_in_batch)
        loss = loss + alpha / 2 * self._loss_scale(num_items_in_batch) * divergence
        return (loss, outputs) if return_outputs else loss

    def _whole_head(self) -> nn.Linear | None:
        """Return the output projection if its weights can be multiplied outside of the model: they are all here."""
        head = cast(Any, self.accelerator.unwrap_model(self.model)).get_output_embeddings()
        wrapped = self.is_fsdp_enabled or self.is_deepspeed_enabled or self.args.n_gpu > 1 or self.args.torch_compile
        whole = is_bare_linear(head) and type(head.weight) is nn.Parameter
        return head if whole and not wrapped else None

    def _loss_scale(self, num_items_in_batch: Tensor | int | None) -> float:
        """What `Trainer` multiplies a loss by: the processes whose labels it counted, as their gradients are averaged.

        It depends on sharding, and on the release of transformers, and so is asked for with a loss of 1.
        """
        probe = copy(self)
        if self.compute_loss_func is not None:
            probe.compute_loss_func = lambda *args, **kwargs: 1.0
        model = cast(Any, lambda **inputs: {"loss": 1.0})
        return cast(float, super(RDropTrainer, probe).compute_loss(model, {}, num_items_in_batch=num_items_in_batch))


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
    first, second = (_at_labels(half, present).float().log_softmax(-1) for half in logits.chunk(2))
    return mean_over_labels(((first.exp() - second.exp()) * (first - second)).sum() / 2, labels, num_items_in_batch)


def summed_divergence_without_logits(states: Tensor, head: nn.Linear, present: Tensor) -> Tensor:
    """Sum the divergence of the two passes over all labels, from logits that are never all stored.

    Args:
        states: Decoder states of both passes, (2 B, T, d).
        head: Output projection to V logits.
        present: Where there are labels, (B, T).
    """
    dtype = torch.get_autocast_dtype(states.device.type) if autocast_enabled(states) else head.weight.dtype
    pairs = torch.stack([_at_labels(half, present) for half in states.chunk(2)], 1).to(dtype)
    bias = None if head.bias is None else head.bias.to(dtype)
    return cast(Tensor, _DivergenceByChunks.apply(pairs, head.weight.to(dtype), bias))


def _at_labels(x: Tensor, present: Tensor) -> Tensor:
    """Return the rows of one pass (B, T, ...) that have labels; on an accelerator all rows, the others as zeros.

    How many have labels is not known without waiting for the accelerator. Of zeros in both passes, neither the
    divergence nor its gradient is more than 0.
    """
    return x[present] if is_plain_cpu(x) else x.masked_fill(~present[..., None], 0).flatten(0, 1)


class _DivergenceByChunks(torch.autograd.Function):
    """Summed divergence of pairs of states (N, 2, d); its gradients are taken while a chunk of logits is stored."""

    @staticmethod
    def forward(ctx: Any, pairs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        (vocab_size, width), dtype = weight.shape, accumulation_dtype(weight.dtype)
        elements = CHUNK_ELEMENTS if pairs.is_cpu else ACCELERATOR_CHUNK_ELEMENTS
        total, d_pairs = weight.new_zeros((), dtype=dtype), torch.empty_like(pairs)
        d_weight, d_bias = weight.new_zeros(vocab_size, width, dtype=dtype), weight.new_zeros(vocab_size, dtype=dtype)
        rows = max(MIN_CHUNK_ROWS, elements // (2 * vocab_size))
        for chunk, d_chunk in zip(pairs.split(rows), d_pairs.split(rows), strict=True):
            states = chunk.flatten(0, 1)
            logits = linear_forward(states, weight, bias).view(*chunk.shape[:2], vocab_size)
            divergence, d_logits = _divergence(logits.log_softmax(-1, dtype=dtype))
            total += divergence
            if bias is not None:
                d_bias += d_logits.sum((0, 1))
            flat = d_logits.flatten(0, 1).to(weight.dtype)
            d_chunk.copy_(linear_forward(flat, weight.T).view_as(d_chunk))
            d_weight += linear_forward(flat.T, states.T)
        ctx.save_for_backward(d_pairs, d_weight, None if bias is None else d_bias)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        d_pairs, *others = ctx.saved_tensors
        scaled = ((saved * grad).to(d_pairs.dtype) if saved is not None else None for saved in (d_pairs, *others))
        return tuple(scaled)


def _divergence(log_probs: Tensor) -> tuple[Tensor, Tensor]:
    """Return the summed divergence of log-probabilities (N, 2, V), and its gradient for their logits (N, 2, V)."""
    probs, gap = log_probs.exp(), log_probs[:, 0] - log_probs[:, 1]
    # log p - log q for the first pass, log q - log p for the second.
    gaps = torch.stack([gap, -gap], 1)
    divergences = (probs * gaps).sum(-1, keepdim=True)
    gradient = gaps.sub_(divergences).mul_(probs).add_(probs).sub_(probs.flip(1))
    return divergences.sum() / 2, gradient / 2


__all__ = ["RDropTrainer", "mean_divergence", "summed_divergence_without_logits"]
