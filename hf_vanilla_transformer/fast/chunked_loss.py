"""Label-smoothed cross-entropy (section 5.4) that never materializes all logits.

Shapes: B batch, T target length, N labels, d model width, V target vocabulary.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..model.checks_vanilla_transformer import IGNORE_INDEX
from ..model.loss_vanilla_transformer import accumulation_dtype
from .cpu_ops import is_plain_cpu
from .kernels import replace_by_gradients, suits
from .linear import linear_forward

# Logits per chunk. On a CPU: 16 MiB in float32, which fits the cache. An accelerator needs large products instead.
CHUNK_ELEMENTS, ACCELERATOR_CHUNK_ELEMENTS = 2**22, 2**26
# Logits per block of the kernel that replaces them with their gradients.
FUSED_ELEMENTS = 2**28
# Products with fewer rows are slow.
MIN_CHUNK_ROWS = 128
# Gradients of several chunks are multiplied as one block: accumulating the gradient of a large output projection per
# chunk would cost more than the product.
CHUNKS_PER_BLOCK = 4
# More rows could overflow float16: gradients up to 1 times states up to 60.
MAX_FLOAT16_ROWS = 1024


@torch.library.custom_op("hf_vanilla_transformer::chunked_cross_entropy", mutates_args=())
def chunked_cross_entropy(
    states: Tensor, weight: Tensor, bias: Tensor | None, labels: Tensor, eps: float, differentiate: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Label-smoothed cross-entropy (section 5.4) of the logits W h + b, materialized one chunk at a time.

    The gradient of a logit is softmax(logits) minus the smoothed target, (1 - eps) one-hot + eps / V, and is computed
    while the chunk is in memory. The uniform part of the target, eps times the mean logit, needs no logits at all: the
    mean logit is the product of h and the mean row of W.

    Takes states h (N, d), W (V, d), b (V) and labels (N), where -100 is ignored. Returns the summed loss and its
    gradients with respect to states, weight and bias, which are 0 unless `differentiate`. Those of weight and bias,
    sums over all labels, are in at least float32.
    """
    present = labels != IGNORE_INDEX
    if is_plain_cpu(states):
        inputs, labels, mask = states[present], labels[present], None
    else:
        # Counting the labels would sync the accelerator. Zeroed states add nothing to the gradient of W, and their own
        # gradients are zeroed below.
        inputs, labels, mask = states.masked_fill(~present[:, None], 0), labels.clamp(min=0), present[:, None]
    # The weight's gradient is transposed: oneDNN is faster if a product has fewer rows than columns.
    loss, d_inputs, d_weight, d_bias = _Projection(weight, bias, eps, differentiate).loss(inputs, labels, mask)
    if eps:
        sum_of_states, mean_row = inputs.sum(0, dtype=loss.dtype), weight.mean(0, dtype=loss.dtype)
        # Not a matrix product, which autocast would round to half precision.
        loss -= eps * (sum_of_states * mean_row).sum()
        d_inputs -= (eps * mean_row).to(weight.dtype)
        d_weight -= eps / len(weight) * sum_of_states[:, None]
        if bias is not None:
            number = len(inputs) if mask is None else present.sum(dtype=loss.dtype)
            loss -= eps * number * bias.mean(dtype=loss.dtype)
            d_bias -= eps * number / len(weight)
    if mask is None:
        d_states = torch.zeros_like(states).masked_scatter_(present[:, None], d_inputs)
    else:
        d_states = d_inputs.masked_fill_(~mask, 0)
    return loss, d_states, d_weight.T.contiguous(), d_bias


class _Projection(NamedTuple):
    """The output projection and the settings of the loss, shared by all chunks.

    Methods take states (N, d), labels (N) and a mask (N, 1) of the labels that count. Where it is false, a label adds
    nothing to the loss, its state is 0, and its state's gradient is arbitrary.
    """

    weight: Tensor
    bias: Tensor | None
    eps: float
    differentiate: bool

    def loss(self, states: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return loss and gradients without the uniform part of the target; W's gradient is transposed, (d, V)."""
        weight, is_fused = self.weight, suits(self.weight)
        (vocab_size, width), dtype = weight.shape, accumulation_dtype(weight.dtype)
        loss, d_states = weight.new_zeros((), dtype=dtype), torch.empty_like(states)
        d_weight, d_bias = weight.new_zeros(width, vocab_size, dtype=dtype), weight.new_zeros(vocab_size, dtype=dtype)
        rows_per_block = max(MIN_CHUNK_ROWS, FUSED_ELEMENTS // vocab_size)
        block_rows = rows_per_block if is_fused else CHUNKS_PER_BLOCK * _chunk_rows(states, vocab_size)
        if weight.dtype == torch.float16:
            block_rows = min(block_rows, MAX_FLOAT16_ROWS)
        gradients = self._fused_gradients if is_fused else self._gradients_by_chunks
        for start in range(0, len(states), block_rows):
            rows = slice(start, start + block_rows)
            block = states[rows]
            block_loss, d_logits = gradients(block, labels[rows], None if mask is None else mask[rows])
            loss += block_loss
            if self.differentiate:
                d_states[rows] = linear_forward(d_logits, weight.T)
                d_weight += linear_forward(block.T, d_logits.T)
                if self.bias is not None:
                    d_bias += d_logits.sum(0, dtype=dtype)
        return loss, d_states, d_weight, d_bias

    def _gradients_by_chunks(self, states: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the summed loss of a block and the gradients of its logits (N, V), computed in chunks."""
        weight, bias, eps, differentiate = self
        vocab_size, dtype = len(weight), accumulation_dtype(weight.dtype)
        rows = _chunk_rows(states, vocab_size)
        loss = weight.new_zeros((), dtype=dtype)
        d_logits = weight.new_empty(len(states) if differentiate else 0, vocab_size)
        for start in range(0, len(states), rows):
            chunk = slice(start, start + rows)
            logits, target = linear_forward(states[chunk], weight, bias), labels[chunk, None]
            # Accelerators convert to `dtype` within the softmax kernel.
            log_probs = logits.log_softmax(-1, dtype=dtype)
            of_target = log_probs.gather(1, target)
            losses = eps * logits.gather(1, target).to(dtype) - of_target
            loss += (losses if mask is None else losses.masked_fill(~mask[chunk], 0)).sum()
            if differentiate:
                # Rounded while written, which saves a pass over memory.
                d_chunk = torch.exp(log_probs, out=d_logits[chunk])
                d_chunk.scatter_(1, target, (of_target.exp() + (eps - 1)).to(d_chunk.dtype))
        if differentiate and bias is not None and mask is not None:
            d_logits.masked_fill_(~mask, 0)
        return loss, d_logits

    def _fused_gradients(self, states: Tensor, labels: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the same on a GPU, with one pass that reads the logits and one that replaces them."""
        logits = linear_forward(states, self.weight, self.bias)
        labels = labels if mask is None else labels.masked_fill(~mask[:, 0], IGNORE_INDEX)
        return replace_by_gradients(logits, labels, self.eps, self.differentiate).sum(), logits


def _chunk_rows(states: Tensor, vocab_size: int) -> int:
    elements = CHUNK_ELEMENTS if is_plain_cpu(states) else ACCELERATOR_CHUNK_ELEMENTS
    return max(MIN_CHUNK_ROWS, elements // vocab_size)


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
