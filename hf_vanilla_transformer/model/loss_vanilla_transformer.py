"""Label shifting and losses.

Shapes: B batch, T target length, d model width, V target vocabulary, K classes.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import PreTrainedConfig

from .checks_vanilla_transformer import IGNORE_INDEX, can_branch_on, check_id_range, check_tensor, to_integer_ids
from .positions_vanilla_transformer import first_true_index

# Dimensions of each model output that index target positions.
TARGET_DIMS = {
    "last_hidden_state": (1,),
    "decoder_hidden_states": (1,),
    "decoder_attentions": (2, 3),
    "cross_attentions": (2,),
}


def shift_tokens_right(labels: Tensor, pad_token_id: int | None, decoder_start_token_id: int | None) -> Tensor:
    """Shift labels (B, T) right into decoder input (B, T): the start token, then all labels but the last.

    Left padding stays -100, before the start token; `move_padding_right` finds it.
    """
    check_tensor(labels, 2, "`labels`")
    if pad_token_id is None or decoder_start_token_id is None:
        name = "pad_token_id" if pad_token_id is None else "decoder_start_token_id"
        raise ValueError(f"`{name}` is None in the configuration; set it, or pass `decoder_input_ids`.")
    shifted = F.pad(labels[:, :-1], (1, 0))
    first = first_true_index(labels.ne(IGNORE_INDEX))
    indices = torch.arange(labels.shape[1], device=labels.device)
    shifted = shifted.masked_fill(indices == first, decoder_start_token_id)
    return shifted.masked_fill(shifted == IGNORE_INDEX, pad_token_id).masked_fill(indices < first, IGNORE_INDEX)


def move_padding_right(input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Move leading -100s of decoder input (B, T) to the end of each row, where causal attention needs no mask.

    Returns:
        The input with -100s replaced by an arbitrary token, and the indices (B, T) for `restore_padding`; None if
        nothing moved because no row starts with -100 or `attention_mask` hides the padding.
    """
    check_tensor(input_ids, 2, "`decoder_input_ids`")
    padding = first_true_index(input_ids.ne(IGNORE_INDEX))
    if can_branch_on(input_ids) and not padding.any():
        return input_ids, None
    length = input_ids.shape[1]
    indices = torch.arange(length, device=input_ids.device)
    input_ids = input_ids.masked_fill(indices < padding, 0)
    if attention_mask is not None:
        return input_ids, None
    # Both modulo `length`, which ONNX cannot express for a dynamic size.
    moved, original = indices + padding, indices - padding
    moved = torch.where(moved < length, moved, moved - length)
    return input_ids.gather(1, moved), torch.where(original < 0, original + length, original)


def restore_padding(outputs: Any, indices: Tensor) -> None:
    """Undo `move_padding_right` on a model's outputs, in place."""
    for name, dims in TARGET_DIMS.items():
        output = outputs.get(name)
        if isinstance(output, tuple):
            outputs[name] = tuple(_gather_targets(x, dims, indices) for x in output)
        elif output is not None:
            outputs[name] = _gather_targets(output, dims, indices)


def _gather_targets(x: Tensor, dims: tuple[int, ...], indices: Tensor) -> Tensor:
    indices = indices.to(x.device)
    for dim in dims:
        # Cached keys may precede those of this call and are not moved.
        past = x.shape[dim] - indices.shape[1]
        order = indices + past
        if past:
            order = torch.cat((torch.arange(past, device=x.device).expand(len(indices), -1), order), 1)
        shape = [1] * x.dim()
        shape[0], shape[dim] = order.shape
        x = x.gather(dim, order.view(shape).expand_as(x))
    return x


def check_labels(labels: Tensor, size: int | None, *remedy: str) -> Tensor:
    """Check `labels` and convert them to int64, which losses need; -100 is allowed."""
    labels = to_integer_ids(labels, "`labels`").long()
    check_id_range(labels.masked_fill(labels == IGNORE_INDEX, 0), size, "`labels`", *remedy)
    return labels


def mean_over_labels(summed: Tensor, labels: Tensor, num_items_in_batch: int | Tensor | None) -> Tensor:
    """Divide a summed loss by `num_items_in_batch`, by default the number of labels (B, T) other than -100.

    Without any label, loss and gradients are 0: a single such batch must not turn the weights into NaN.
    """
    count = labels.ne(IGNORE_INDEX).sum() if num_items_in_batch is None else torch.as_tensor(num_items_in_batch)
    if count.dim() or not count.is_cpu:
        # A CPU scalar divides directly; copying it to an accelerator would sync.
        count = count.to(summed.device)
    return summed / count.clamp(min=1)


def summed_loss(logits: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """Sum the label-smoothed cross-entropy of `logits` (B, T, V) over `labels` (B, T). Section 5.4."""
    check_loss_arguments(logits, labels, smoothing)
    logits, labels = logits.to(accumulation_dtype(logits.dtype)).flatten(0, 1), labels.to(logits.device).flatten()
    return F.cross_entropy(logits, labels, reduction="sum", label_smoothing=smoothing)


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype for sums over tensors of `dtype`: at least float32."""
    return torch.promote_types(dtype, torch.float32)


def check_loss_arguments(states: Tensor, labels: Tensor, smoothing: float) -> None:
    if not 0 <= smoothing < 1:
        raise ValueError(f"`smoothing` is {smoothing}; it must be at least 0 and below 1.")
    if states.shape[:2] != labels.shape:
        raise ValueError(
            f"`labels` have shape {tuple(labels.shape)}, but the decoder's input has {tuple(states.shape[:2])}; pass "
            "one label per decoder token, or leave out the decoder's input."
        )


def classification_loss(
    logits: Tensor, labels: Tensor, config: PreTrainedConfig, num_items_in_batch: int | Tensor | None
) -> Tensor:
    """Return the mean loss of `logits` (B, K) for `config.problem_type`, which is inferred and set if None.

    For `labels`, see `VanillaTransformerForSequenceClassification`.
    """
    if config.problem_type is None:
        if config.num_labels == 1:
            config.problem_type = "regression"
        elif labels.is_floating_point():
            config.problem_type = "multi_label_classification"
        else:
            config.problem_type = "single_label_classification"
    problem, labels = config.problem_type, labels.to(logits.device)
    one_class = problem == "single_label_classification"
    shape, numbers = (logits.shape[:1], "integers") if one_class else (logits.shape, "numbers")
    if labels.numel() != shape.numel() or (one_class and labels.is_floating_point()):
        raise ValueError(
            f"`labels` have dtype {labels.dtype} and shape {tuple(labels.shape)}, but {problem} with "
            f"`num_labels`={config.num_labels} needs {numbers} of shape {tuple(shape)}; change them, or set "
            "`problem_type` in the configuration."
        )
    logits, labels = logits.to(accumulation_dtype(logits.dtype)), labels.view(shape)
    if one_class:
        labels = check_labels(labels, config.num_labels, "set `num_labels` in the configuration")
        summed = F.cross_entropy(logits, labels, reduction="sum")
        return mean_over_labels(summed, labels, num_items_in_batch)
    elementwise = F.mse_loss if problem == "regression" else F.binary_cross_entropy_with_logits
    summed = elementwise(logits, labels.to(logits), reduction="sum")
    return mean_over_labels(summed, labels, labels.numel() if num_items_in_batch is None else num_items_in_batch)
