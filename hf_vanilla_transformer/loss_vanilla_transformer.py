"""Teaching the target: labels shifted right, and the label-smoothed loss, with logits or without storing them.

Shape legend: B batch, T target length, N labels that count, d model width, V target vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

IGNORE_INDEX = -100

# Logits stored at a time by the loss that never stores them all: 32 MiB in float32.
CHUNK_ELEMENTS = 2**23


def shift_tokens_right(labels: Tensor, pad_token_id: int, decoder_start_token_id: int) -> Tensor:
    """Return the decoder input (B, T) that teaches `labels` (B, T): the start token, then all but the last label."""
    shifted = F.pad(labels[:, :-1], (1, 0), value=decoder_start_token_id)
    return shifted.masked_fill(shifted == IGNORE_INDEX, pad_token_id)


class ChunkedCrossEntropy(torch.autograd.Function):
    """Label-smoothed cross-entropy (section 5.4) of the logits W h + b, of which one chunk at a time is stored.

    Gradients are taken in the forward pass, while a chunk's logits are at hand: softmax(logits) minus the
    smoothed target distribution, (1 - eps) one-hot + eps / V.
    """

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, eps: float) -> Tensor:
        """Return the float32 loss summed over `labels` (N), for `states` (N, d), `weight` (V, d), `bias` (V)."""
        vocab_size, rows = weight.shape[0], max(1, CHUNK_ELEMENTS // weight.shape[0])
        total = torch.zeros((), device=states.device)
        d_states, d_weight, d_bias = torch.empty_like(states), torch.zeros_like(weight, dtype=torch.float32), None
        d_bias = None if bias is None else torch.zeros_like(bias, dtype=torch.float32)
        for chunk, d_chunk, target in zip(states.split(rows), d_states.split(rows), labels.split(rows), strict=True):
            logits = F.linear(chunk, weight, bias).float()
            log_z, target = logits.logsumexp(-1, keepdim=True), target[:, None]
            total += (log_z - (1 - eps) * logits.gather(1, target)).sum() - eps / vocab_size * logits.sum()
            if any(ctx.needs_input_grad):
                d_logits = logits.sub_(log_z).exp_().sub_(eps / vocab_size)
                d_logits.scatter_add_(1, target, torch.full_like(log_z, eps - 1))
                if d_bias is not None:
                    d_bias += d_logits.sum(0)
                d_logits = d_logits.to(weight.dtype)
                torch.mm(d_logits, weight, out=d_chunk)
                d_weight += d_logits.T @ chunk
        ctx.save_for_backward(d_states, d_weight.to(weight.dtype), None if bias is None else d_bias.to(bias.dtype))
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # one output, typed
        """Scale the gradients of the forward pass."""
        return *(None if saved is None else saved * grad.to(saved.dtype) for saved in ctx.saved_tensors), None, None


def summed_loss(logits: Tensor, labels: Tensor, label_smoothing: float) -> Tensor:
    """Return the label-smoothed cross-entropy of `logits` (B, T, V), summed over `labels` (B, T). Section 5.4."""
    logits = logits.float().flatten(0, 1)
    return F.cross_entropy(logits, labels.flatten(), reduction="sum", label_smoothing=label_smoothing)


def summed_loss_without_logits(states: Tensor, head: nn.Linear, labels: Tensor, label_smoothing: float) -> Tensor:
    """Return `summed_loss` of the logits that `head` would give for `states` (B, T, d), never storing them all."""
    if torch.is_autocast_enabled(states.device.type):
        dtype = torch.get_autocast_dtype(states.device.type)
    else:
        dtype = head.weight.dtype
    kept = labels.flatten() != IGNORE_INDEX
    states, labels = states.flatten(0, 1)[kept].to(dtype), labels.flatten()[kept]
    bias = None if head.bias is None else head.bias.to(dtype)
    return ChunkedCrossEntropy.apply(states, head.weight.to(dtype), bias, labels, label_smoothing)
