"""Teaching the target: labels shifted right; the label-smoothed loss, with or without stored logits; classes.

Shape legend: B batch, T target length, N labels that count, d model width, V target vocabulary, K classes.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedConfig

from .checks_vanilla_transformer import IGNORE_INDEX, as_ids, check_ids
from .cpu_ops_vanilla_transformer import accumulation_dtype, is_autocast, is_only_its_weights, is_plain, is_transformed
from .positions_vanilla_transformer import first_place


def shift_tokens_right(labels: Tensor, pad_token_id: int | None, decoder_start_token_id: int | None) -> Tensor:
    """Return the decoder input (B, T) that teaches `labels` (B, T): the start token, then all but the last label.

    A row that is padded on the left keeps that padding, as -100, before its start token: `padding_last` finds it.

    Raises:
        ValueError: If one of the two tokens is None, or the labels are no rows of at least one.
    """
    if labels.dim() != 2 or not labels.shape[1]:
        raise ValueError(f"`labels` have the shape {tuple(labels.shape)}: give (B, T), at least one for each row.")
    if pad_token_id is None or decoder_start_token_id is None:
        name = "pad_token_id" if pad_token_id is None else "decoder_start_token_id"
        raise ValueError(f"`{name}` is None in the configuration: set it, or give `decoder_input_ids`.")
    first = first_place(labels.ne(IGNORE_INDEX))
    places = torch.arange(labels.shape[1], device=labels.device)
    shifted = F.pad(labels[:, :-1], (1, 0)).masked_fill(places == first, decoder_start_token_id)
    return shifted.masked_fill(shifted == IGNORE_INDEX, pad_token_id).masked_fill(places < first, IGNORE_INDEX)


def padding_last(input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return decoder input (B, T) with the -100s that rows begin with moved to their ends, and places (B, T) to go to.

    There no token sees them, and none needs a mask. `put_back` takes the places, which are None where nothing has
    moved: no row begins with -100, or a mask hides them already. They become tokens, no matter which.
    """
    padding = first_place(input_ids.ne(IGNORE_INDEX))
    if is_plain(input_ids) and not padding.any():
        return input_ids, None
    length = input_ids.shape[1]
    places = torch.arange(length, device=input_ids.device)
    input_ids = input_ids.masked_fill(places < padding, 0)
    if attention_mask is not None:
        return input_ids, None
    return input_ids.gather(1, (places + padding) % length), (places - padding) % length


# The dimensions of an output that are target positions, by its name.
TARGET_DIMS = {
    "last_hidden_state": (1,),
    "decoder_hidden_states": (1,),
    "decoder_attentions": (2, 3),
    "cross_attentions": (2,),
}


def put_back(outputs: Any, places: Tensor) -> None:
    """Move what a model returned of the target to where its tokens were before `padding_last`, in place."""
    for name, dims in TARGET_DIMS.items():
        found = outputs.get(name)
        if isinstance(found, tuple):
            outputs[name] = tuple(_put_back(each, dims, places) for each in found)
        elif found is not None:
            outputs[name] = _put_back(found, dims, places)


def _put_back(x: Tensor, dims: tuple[int, ...], places: Tensor) -> Tensor:
    places = places.to(x.device)
    for dim in dims:
        # Keys may be preceded by cached ones, which stay.
        past = x.shape[dim] - places.shape[1]
        order = places + past
        if past:
            order = torch.cat((torch.arange(past, device=x.device).expand(len(places), -1), order), 1)
        shape = [1] * x.dim()
        shape[0], shape[dim] = order.shape
        x = x.gather(dim, order.view(shape).expand_as(x))
    return x


def mean_over_labels(summed: Tensor, labels: Tensor, num_items_in_batch: int | Tensor | None) -> Tensor:
    """Return the loss summed over `labels` (B, T), divided by `num_items_in_batch` or else by their own number.

    Where no label counts, loss and gradients are 0: one such batch must not turn the weights into NaN.
    """
    count = labels.ne(IGNORE_INDEX).sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    return summed / count.to(summed.device).clamp(min=1)


def summed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Return the label-smoothed cross-entropy of `logits` (B, T, V), summed over `labels` (B, T). Section 5.4.

    Raises:
        ValueError: If the shapes differ, or `smoothing` is not at least 0 and below 1.
    """
    _check_arguments(logits, labels, smoothing)
    logits, labels = logits.to(accumulation_dtype(logits.dtype)).flatten(0, 1), labels.to(logits.device).flatten()
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)


def summed_loss_without_logits(states: Tensor, head: nn.Module, labels: Tensor, smoothing: float) -> Tensor:
    """Return `summed_loss` of the logits that `head` would give for `states` (B, T, d), never storing them all.

    They are stored where `head` is more than its weights (adapted, as by LoRA, hooked, or dealt out to processes),
    and for transforms of functions, such as `torch.func.vmap`.

    Raises:
        ValueError: If the shapes differ, or `smoothing` is not at least 0 and below 1.
    """
    transformed = not torch.compiler.is_compiling() and is_transformed()
    if transformed or not is_only_its_weights(head) or type(head.weight) not in (nn.Parameter, Tensor):
        return summed_loss(head(states), labels, smoothing)
    # Defining an operation takes as long as importing the rest of this package; decoding needs none.
    from .chunked_loss_vanilla_transformer import chunked_cross_entropy

    _check_arguments(states, labels, smoothing)
    dtype = torch.get_autocast_dtype(states.device.type) if is_autocast(states) else head.weight.dtype
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
    logits, labels = logits.to(accumulation_dtype(logits.dtype)), labels.view(shape)
    if single:
        labels = check_labels(labels, config.num_labels, "set `num_labels` in the configuration")
        summed = F.cross_entropy(logits, labels, reduction="sum")
        return mean_over_labels(summed, labels, num_items_in_batch)
    elementwise = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
    summed = elementwise(logits, labels.to(logits), reduction="sum")
    return mean_over_labels(summed, labels, labels.numel() if num_items_in_batch is None else num_items_in_batch)


def check_labels(labels: Tensor, size: int | None, *remedy: str) -> Tensor:
    """Return `labels` as int64, as losses take them; takes the remaining arguments of `check_ids`.

    Raises:
        ValueError: If they are no integers, or one that is not -100 is negative or not below `size`.
    """
    labels = as_ids(labels, "`labels`").long()
    check_ids(labels.masked_fill(labels == IGNORE_INDEX, 0), size, "`labels`", *remedy)
    return labels


def _check_arguments(states: Tensor, labels: Tensor, smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise ValueError(f"`smoothing` is {smoothing}; it must be at least 0 and below 1.")
    if states.shape[:2] != labels.shape:
        raise ValueError(
            f"`labels` have the shape {tuple(labels.shape)}, but the decoder's input has {tuple(states.shape[:2])}: "
            "give one label for each decoder token, or leave out the decoder's input."
        )
