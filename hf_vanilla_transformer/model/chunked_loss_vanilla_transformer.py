"""The label-smoothed cross-entropy (section 5.4) that never stores all logits, as one operation with its gradients.

Shape legend: N labels, d model width, V target vocabulary.
"""

import re
from typing import Any

import torch
from torch import Tensor

from .checks_vanilla_transformer import IGNORE_INDEX
from .cpu_ops_vanilla_transformer import accumulation_dtype, multiply

# Logits stored at a time: 16 MiB in float32, which fit a processor's cache.
CHUNK_ELEMENTS = 2**22
# Their gradients are gathered from so many chunks before they are multiplied: adding up the gradient of a large output
# projection for each chunk would cost more than the product.
CHUNKS_OF_A_BLOCK = 4
# Rows of a block in float16, which holds the sum of so many gradients of at most 1 times states of up to 60.
FLOAT16_ROWS = 1024


# Named after the module, since code that comes with a model from the Hub is a second copy of it; a folder may have any
# name, an operation may not.
NAMESPACE = re.sub(r"\W", lambda found: f"_{ord(found[0]):x}_", __name__, flags=re.ASCII)


@torch.library.custom_op(f"{NAMESPACE}::chunked_cross_entropy", mutates_args=())
def chunked_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, eps: float, differentiate: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Label-smoothed cross-entropy (section 5.4) of the logits W h + b, of which one chunk at a time is stored.

    Gradients are taken while a chunk's logits are at hand: softmax(logits) minus the smoothed target distribution,
    (1 - eps) one-hot + eps / V. What the second part of that gives, eps times the mean of all logits, needs no
    logits: it is the product of h with the mean of the rows of W.

    Args:
        states: The decoder's states h (N, d).
        weight: The output projection W (V, d).
        bias: Its bias b (V), or None.
        labels: Labels (N); where they are -100, states do not count.
        eps: Label smoothing.
        differentiate: Whether to take the gradients; otherwise they are 0.

    Returns:
        The loss summed over the labels that count, and its gradients for `states`, `weight` and `bias`; the last two,
        sums over all labels, in at least float32.
    """
    kept = labels != IGNORE_INDEX
    counted, labels, (vocab_size, width) = states[kept], labels[kept], weight.shape
    dtype = accumulation_dtype(weight.dtype)
    # Transposed: oneDNN is faster where a product has fewer rows than columns.
    d_counted, d_weight = torch.empty_like(counted), weight.new_zeros(width, vocab_size, dtype=dtype)
    d_bias, total = weight.new_zeros(vocab_size, dtype=dtype), weight.new_zeros((), dtype=dtype)
    rows = max(1, CHUNK_ELEMENTS // vocab_size)
    block_rows = CHUNKS_OF_A_BLOCK * rows
    if weight.dtype == torch.float16:
        block_rows = min(block_rows, FLOAT16_ROWS)
    d_logits = weight.new_empty(min(block_rows, len(counted)) if differentiate else 0, vocab_size)
    blocks = zip(counted.split(block_rows), d_counted.split(block_rows), labels.split(block_rows), strict=True)
    for block, d_block, block_labels in blocks:
        for i in range(0, len(block), rows):
            logits = multiply(block[i : i + rows], weight, bias).to(dtype)
            log_probs, target = logits.log_softmax(-1), block_labels[i : i + rows, None]
            total += (eps * logits.gather(1, target) - log_probs.gather(1, target)).sum()
            if differentiate:
                d_chunk = log_probs.exp_().scatter_add_(1, target, torch.full_like(target, eps - 1, dtype=dtype))
                d_bias += d_chunk.sum(0) if bias is not None else 0
                d_logits[i : i + len(d_chunk)] = d_chunk
        if differentiate:
            d_block.copy_(multiply(d_logits[: len(block)], weight.T))
            d_weight += multiply(block.T, d_logits[: len(block)].T)
    if eps:
        # The mean of the logits and its gradients.
        sum_of_states, mean_row = counted.sum(0, dtype=dtype), weight.mean(0, dtype=dtype)
        # Autocast would take a product of the two in half precision.
        total -= eps * (sum_of_states * mean_row).sum()
        d_counted -= (eps * mean_row).to(weight.dtype)
        d_weight -= eps / vocab_size * sum_of_states[:, None]
        if bias is not None:
            total -= eps * len(counted) * bias.mean(dtype=dtype)
            d_bias -= eps * len(counted) / vocab_size
    d_states = torch.zeros_like(states).masked_scatter_(kept[:, None], d_counted)
    return total, d_states, d_weight.T.contiguous(), d_bias


@chunked_cross_entropy.register_fake
def _(states: Tensor, weight: Tensor, bias: Any, labels: Tensor, eps: float, differentiate: bool) -> Any:
    total, d_weight, d_bias = (
        weight.new_empty(shape, dtype=accumulation_dtype(weight.dtype))
        for shape in ((), weight.shape, weight.shape[:1])
    )
    return total, torch.empty_like(states), d_weight, d_bias


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.has_bias, ctx.dtype = inputs[2] is not None, inputs[1].dtype
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _scale_gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError("the loss without logits has no second derivatives: leave out `skip_logits`.")
    # Sums over the labels, and what a loss is scaled by, may be beyond float16; the products of the two are not.
    d_states, d_weight, d_bias = ((saved.to(grad.dtype) * grad).to(ctx.dtype) for saved in ctx.saved_tensors)
    return d_states, d_weight, d_bias if ctx.has_bias else None, None, None, None


chunked_cross_entropy.register_autograd(_scale_gradients, setup_context=_save_gradients)


__all__ = ["chunked_cross_entropy"]
