"""Teaching the target: labels shifted right; the label-smoothed loss, with or without stored logits; classes.

Shape legend: B batch, T target length, N labels that count, d model width, V target vocabulary, K classes.
"""

import re
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

from .checks_vanilla_transformer import check_ids
from .kernels_vanilla_transformer import is_only_its_weights, multiply

IGNORE_INDEX = -100

# Logits stored at a time by the loss that never stores them all: 16 MiB in float32, which fit a processor's cache.
CHUNK_ELEMENTS = 2**22
# Their gradients are gathered from so many chunks before they are multiplied: adding up the gradient of a large output
# projection for each chunk would cost more than the product.
CHUNKS_OF_A_BLOCK = 4


def shift_tokens_right(labels: Tensor, pad_token_id: int | None, decoder_start_token_id: int | None) -> Tensor:
    """Return the decoder input (B, T) that teaches `labels` (B, T): the start token, then all but the last label.

    Raises:
        ValueError: If one of the two tokens is None.
    """
    if pad_token_id is None or decoder_start_token_id is None:
        name = "pad_token_id" if pad_token_id is None else "decoder_start_token_id"
        raise ValueError(f"`{name}` is None in the configuration: set it, or give `decoder_input_ids`.")
    shifted = F.pad(labels[:, :-1], (1, 0), value=decoder_start_token_id)
    return shifted.masked_fill(shifted == IGNORE_INDEX, pad_token_id)


def mean_over_labels(summed: Tensor, labels: Tensor, num_items_in_batch: int | Tensor | None) -> Tensor:
    """Return the loss summed over `labels` (B, T), divided by `num_items_in_batch` or else by their own number.

    Where no label counts, loss and gradients are 0: one such batch must not turn the weights into NaN.
    """
    count = labels.ne(IGNORE_INDEX).sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    return summed / count.to(summed.device).clamp(min=1)


def summed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the label-smoothed cross-entropy of `logits` (B, T, V), summed over `labels` (B, T). Section 5.4.

    Raises:
        ValueError: If the shapes differ, a label is no token, or `smoothing` is not at least 0 and below 1.
    """
    _check_arguments(logits, labels, logits.shape[-1], smoothing)
    logits, labels = logits.to(_sum_dtype(logits.dtype)).flatten(0, 1), labels.to(logits.device).flatten()
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)


def summed_loss_without_logits(states: Tensor, head: nn.Module, labels: Tensor, smoothing: float) -> Tensor:
    """Return `summed_loss` of the logits that `head` would give for `states` (B, T, d), never storing them all.

    They are stored where `head` is more than its weights: adapted, as by LoRA, hooked, or dealt out to processes.

    Raises:
        ValueError: If the shapes differ, a label is no token, or `smoothing` is not at least 0 and below 1.
    """
    if not is_only_its_weights(head) or type(head.weight) not in (nn.Parameter, Tensor):
        return summed_loss(head(states), labels, smoothing)
    _check_arguments(states, labels, head.weight.shape[0], smoothing)
    dtype = head.weight.dtype
    if torch.is_autocast_enabled(states.device.type):
        dtype = torch.get_autocast_dtype(states.device.type)
    states, labels = states.flatten(0, 1).to(dtype), labels.to(states.device).flatten()
    bias = None if head.bias is None else head.bias.to(dtype)
    return chunked_cross_entropy(states, head.weight.to(dtype), bias, labels, smoothing, torch.is_grad_enabled())[0]


def classification_loss(
    logits: Tensor, labels: Tensor, config: PreTrainedConfig, num_items_in_batch: int | Tensor | None
) -> Tensor:
    """Return the mean loss of `logits` (B, K) for `labels`, by `config.problem_type`, which is set where it is None.

    Cross-entropy of classes (B), binary cross-entropy of 0s and 1s (B, K), or the squared error of numbers (B, K)
    or (B). Dividing by `num_items_in_batch` makes batches that are accumulated count as one.

    Raises:
        ValueError: If the labels have the wrong shape or type for the problem.
    """
    if config.problem_type is None:
        if config.num_labels == 1:
            config.problem_type = "regression"
        elif labels.is_floating_point():
            config.problem_type = "multi_label_classification"
        else:
            config.problem_type = "single_label_classification"
    problem, labels = config.problem_type, labels.to(logits.device)
    single = problem == "single_label_classification"
    shape = logits.shape[:1] if single else logits.shape
    if labels.numel() != shape.numel() or (single and labels.is_floating_point()):
        raise ValueError(
            f"`labels` are {labels.dtype} of shape {tuple(labels.shape)}, but {problem} with "
            f"`num_labels`={config.num_labels} needs {'integers' if single else 'numbers'} of shape {tuple(shape)}: "
            "change them, or set `problem_type` in the configuration."
        )
    logits, labels = logits.to(_sum_dtype(logits.dtype)), labels.view(shape)
    if single:
        classes = labels.masked_fill(labels == IGNORE_INDEX, 0)
        check_ids(classes, config.num_labels, "`labels`", "set `num_labels` in the configuration")
        summed = F.cross_entropy(logits, labels, reduction="sum")
        return mean_over_labels(summed, labels, num_items_in_batch)
    elementwise = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
    summed = elementwise(logits, labels.to(logits), reduction="sum")
    return mean_over_labels(summed, labels, labels.numel() if num_items_in_batch is None else num_items_in_batch)


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
        The loss summed over the labels that count, and its gradients for `states`, `weight` and `bias`.
    """
    kept = labels != IGNORE_INDEX
    counted, labels, (vocab_size, width) = states[kept], labels[kept], weight.shape
    dtype = _sum_dtype(weight.dtype)
    # Transposed: oneDNN is faster where a product has fewer rows than columns.
    d_counted, d_weight = torch.empty_like(counted), weight.new_zeros(width, vocab_size, dtype=dtype)
    d_bias, total = weight.new_zeros(vocab_size, dtype=dtype), weight.new_zeros((), dtype=dtype)
    rows = max(1, CHUNK_ELEMENTS // vocab_size)
    block_rows = CHUNKS_OF_A_BLOCK * rows
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
    d_weight = d_weight.T.to(weight.dtype).contiguous()
    return total, d_states, d_weight, d_bias.to(weight.dtype)


@chunked_cross_entropy.register_fake
def _(states: Tensor, weight: Tensor, bias: Any, labels: Tensor, eps: float, differentiate: bool) -> Any:
    total = weight.new_empty((), dtype=_sum_dtype(weight.dtype))
    return total, torch.empty_like(states), torch.empty_like(weight), weight.new_empty(weight.shape[0])


def _save_gradients(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    ctx.has_bias = inputs[2] is not None
    ctx.save_for_backward(*output[1:])
    ctx.set_materialize_grads(False)


def _scale_gradients(ctx: Any, grad: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise RuntimeError("the loss without logits has no second derivatives: leave out `skip_logits`.")
    d_states, d_weight, d_bias = (saved * grad.to(saved.dtype) for saved in ctx.saved_tensors)
    return d_states, d_weight, d_bias if ctx.has_bias else None, None, None, None


chunked_cross_entropy.register_autograd(_scale_gradients, setup_context=_save_gradients)


def _check_arguments(states: Tensor, labels: Tensor, vocab_size: int, smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise ValueError(f"`smoothing` is {smoothing}; it must be at least 0 and below 1.")
    if states.shape[:2] != labels.shape:
        raise ValueError(
            f"`labels` have the shape {tuple(labels.shape)}, but the decoder's input has {tuple(states.shape[:2])}: "
            "give one label for each decoder token, or leave out the decoder's input."
        )
    check_ids(labels.masked_fill(labels == IGNORE_INDEX, 0), vocab_size, "`labels`")


def _sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type that sums over logits of type `dtype` are taken in: at least float32."""
    return torch.promote_types(dtype, torch.float32)
