"""The label-smoothed cross-entropy (section 5.4) that never stores all logits, as one op with its gradients.

Shapes: N labels, d model width, V target vocabulary.
"""

import re
from typing import Any

import torch
from torch import Tensor

from .checks_vanilla_transformer import IGNORE_INDEX
from .cpu_ops_vanilla_transformer import accumulation_dtype
from .linear_vanilla_transformer import linear_forward

# Logits per chunk: 16 MiB in float32, which fits a processor's cache.
CHUNK_ELEMENTS = 2**22
# Gradients of several chunks form a block that is multiplied at once: adding up the gradient of a large output
# projection for each chunk would cost more than the product.
CHUNKS_PER_BLOCK = 4
# In float16 more rows could overflow: gradients up to 1 times states up to 60.
MAX_FLOAT16_ROWS = 1024

# Code from the Hub is a second copy of this module and needs a namespace of its own; a folder may have any name, a
# namespace may not.
NAMESPACE = re.sub(r"\W", lambda found: f"_{ord(found[0]):x}_", __name__, flags=re.ASCII)


@torch.library.custom_op(f"{NAMESPACE}::chunked_cross_entropy", mutates_args=())
def chunked_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, eps: float, differentiate: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Label-smoothed cross-entropy (section 5.4) of the logits W h + b, stored one chunk at a time.

    The gradient of a logit is softmax(logits) minus the smoothed target, (1 - eps) one-hot + eps / V, and is taken
    while the chunk is stored. The uniform part of the target, eps times the mean logit, needs no logits at all: the
    mean logit is the product of h and the mean row of W.

    Args:
        states: Decoder states h (N, d).
        weight: Output projection W (V, d).
        bias: Its bias b (V), or None.
        labels: Labels (N); -100 is ignored.
        eps: Label smoothing.
        differentiate: Whether to compute the gradients, which are 0 otherwise.

    Returns:
        The summed loss and its gradients for `states`, `weight` and `bias`; the last two, sums over all labels, in at
        least float32.
    """
    kept = labels != IGNORE_INDEX
    counted = states[kept]
    # The weight's gradient is transposed: oneDNN is faster where a product has fewer rows than columns.
    loss, d_counted, d_weight, d_bias = _loss_by_chunks(counted, weight, bias, labels[kept], eps, differentiate)
    if eps:
        sum_of_states, mean_row = counted.sum(0, dtype=loss.dtype), weight.mean(0, dtype=loss.dtype)
        # Not a matrix product, which autocast would round to half precision.
        loss -= eps * (sum_of_states * mean_row).sum()
        d_counted -= (eps * mean_row).to(weight.dtype)
        d_weight -= eps / len(weight) * sum_of_states[:, None]
        if bias is not None:
            loss -= eps * len(counted) * bias.mean(dtype=loss.dtype)
            d_bias -= eps * len(counted) / len(weight)
    d_states = torch.zeros_like(states).masked_scatter_(kept[:, None], d_counted)
    return loss, d_states, d_weight.T.contiguous(), d_bias


def _loss_by_chunks(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, eps: float, differentiate: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the loss and gradients without the uniform part of the target, that of W transposed, (d, V)."""
    (vocab_size, width), dtype = weight.shape, accumulation_dtype(weight.dtype)
    loss, d_states = weight.new_zeros((), dtype=dtype), torch.empty_like(states)
    d_weight, d_bias = weight.new_zeros(width, vocab_size, dtype=dtype), weight.new_zeros(vocab_size, dtype=dtype)
    rows = max(1, CHUNK_ELEMENTS // vocab_size)
    block_rows = CHUNKS_PER_BLOCK * rows
    if weight.dtype == torch.float16:
        block_rows = min(block_rows, MAX_FLOAT16_ROWS)
    d_logits = weight.new_empty(min(block_rows, len(states)) if differentiate else 0, vocab_size)
    blocks = zip(states.split(block_rows), d_states.split(block_rows), labels.split(block_rows), strict=True)
    for block, d_block, block_labels in blocks:
        for i in range(0, len(block), rows):
            logits = linear_forward(block[i : i + rows], weight, bias).to(dtype)
            log_probs, target = logits.log_softmax(-1), block_labels[i : i + rows, None]
            loss += (eps * logits.gather(1, target) - log_probs.gather(1, target)).sum()
            if differentiate:
                d_chunk = log_probs.exp_().scatter_add_(1, target, torch.full_like(target, eps - 1, dtype=dtype))
                d_bias += d_chunk.sum(0) if bias is not None else 0
                d_logits[i : i + len(d_chunk)] = d_chunk
        if differentiate:
            d_block.copy_(linear_forward(d_logits[: len(block)], weight.T))
            d_weight += linear_forward(block.T, d_logits[: len(block)].T)
    return loss, d_states, d_weight, d_bias


@chunked_cross_entropy.register_fake
def _(states: Tensor, weight: Tensor, bias: Any, labels: Tensor, eps: float, differentiate: bool) -> Any:
    dtype, shapes = accumulation_dtype(weight.dtype), ((), weight.shape, weight.shape[:1])
    loss, d_weight, d_bias = (weight.new_empty(shape, dtype=dtype) for shape in shapes)
    return loss, torch.empty_like(states), d_weight, d_bias


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.has_bias, ctx.dtype = inputs[2] is not None, inputs[1].dtype
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _scale_gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError("the loss without logits has no second derivatives; leave out `skip_logits`.")
    # Sums over the labels and a scaled loss's gradient may each overflow float16; their products do not.
    d_states, d_weight, d_bias = ((saved.to(grad.dtype) * grad).to(ctx.dtype) for saved in ctx.saved_tensors)
    return d_states, d_weight, d_bias if ctx.has_bias else None, None, None, None


chunked_cross_entropy.register_autograd(_scale_gradients, setup_context=_save_gradients)


__all__ = ["chunked_cross_entropy"]
