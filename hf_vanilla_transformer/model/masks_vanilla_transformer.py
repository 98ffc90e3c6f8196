"""Masks: 1 or true at visible tokens, or numbers added to attention scores.

Shapes: B batch, S source length, T target length, L either.
"""

from typing import Any

import torch
from torch import Tensor

from .checks_vanilla_transformer import has_values


def hidden_keys(attention_mask: Tensor) -> Tensor:
    """Return where a mask hides keys: false, -inf, or the lowest number of its dtype."""
    if attention_mask.dtype == torch.bool:
        return ~attention_mask
    return attention_mask < torch.finfo(attention_mask.dtype).min / 2


def lowest_to_inf(attention_mask: Tensor | None) -> Tensor | None:
    """Replace the lowest number of an additive mask (B, 1, T, S) by -inf; return other masks unchanged.

    Fused implementations add scores to that number: a query without visible keys would attend to all.
    """
    if attention_mask is None or attention_mask.dim() != 4 or not attention_mask.is_floating_point():
        return attention_mask
    return attention_mask.masked_fill(hidden_keys(attention_mask), -torch.inf)


def may_leave_out(attention_mask: Tensor | None) -> bool:
    """Whether to look if a mask hides any key, and to do without if not."""
    return attention_mask is None or has_values(attention_mask)


def mask_padding(attention_mask: Tensor | None, input_ids: Any, config: Any) -> Tensor | None:
    """Return `attention_mask`; if it is None, infer it from the padding in `input_ids` (B, S).

    Without padding None on a CPU; on an accelerator a mask of ones, as looking at it would wait. None if the padding
    token also ends sources: ids do not tell the two apart.
    """
    pad, ends = config.pad_token_id, config.eos_token_id
    if attention_mask is not None or pad is None or pad in (ends if isinstance(ends, list) else [ends]):
        return attention_mask
    # The checks of ids report others.
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.layout is not torch.strided:
        return None
    mask = input_ids.ne(pad)
    return None if has_values(mask) and mask.all() else mask.long()


def match_rows(x: Any, rows: int) -> Any:
    """Repeat each row of `x`, or keep one of each group of equal neighbours, to get `rows` rows; None stays None."""
    if x is None or x.shape[0] == rows:
        return x
    return x.repeat_interleave(rows // x.shape[0], 0) if x.shape[0] < rows else x[:: x.shape[0] // rows]
