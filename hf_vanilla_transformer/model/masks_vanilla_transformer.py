"""Attention masks: 1 or true at visible tokens, or additive.

Shapes: B batch, S source length, T target length, L either, P cached positions.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from .checks_vanilla_transformer import can_branch_on
from .compat_vanilla_transformer import CACHE


def hidden_keys(attention_mask: Tensor) -> Tensor:
    """Return where a mask hides keys: at false, -inf, or the lowest value of its dtype."""
    if attention_mask.dtype == torch.bool:
        return ~attention_mask
    return attention_mask < torch.finfo(attention_mask.dtype).min / 2


def lowest_to_inf(attention_mask: Tensor | None) -> Tensor | None:
    """Replace the lowest value of an additive mask (B, 1, T, S) with -inf; return other masks unchanged.

    Fused kernels add scores to that value: a query without visible keys would attend to all.
    """
    if attention_mask is None or attention_mask.dim() != 4 or not attention_mask.is_floating_point():
        return attention_mask
    return attention_mask.masked_fill(hidden_keys(attention_mask), -torch.inf)


def causal_mask(config: PreTrainedConfig, states: Tensor, attention_mask: Tensor | None, cache: Any) -> Any:
    """Return the mask of self-attention in a decoder; the padding mask (B, P + T) covers `cache` and `states`."""
    mask, may_skip = lowest_to_inf(attention_mask), _may_skip(attention_mask)
    own_cache = {CACHE: getattr(cache, "self_attention_cache", cache)}
    return create_causal_mask(config, states, mask, **own_cache, allow_is_causal_skip=may_skip)


def bidirectional_mask(
    config: PreTrainedConfig, states: Tensor, attention_mask: Tensor | None, encoder_states: Tensor | None = None
) -> Any:
    """Return the mask of attention from `states` to themselves or to `encoder_states` with this padding (B, S)."""
    mask, may_skip = lowest_to_inf(attention_mask), _may_skip(attention_mask)
    return create_bidirectional_mask(config, states, mask, encoder_states, allow_is_bidirectional_skip=may_skip)


def _may_skip(attention_mask: Tensor | None) -> bool:
    """Whether attention may do without a mask that hides no key; finding out reads the mask's values."""
    return attention_mask is None or can_branch_on(attention_mask)


def mask_padding(attention_mask: Tensor | None, input_ids: Any, config: Any) -> Tensor | None:
    """Return `attention_mask`; if None, infer it from the padding in `input_ids` (B, S).

    Without padding, return None on a CPU, and a mask of ones on an accelerator, where reading it would sync. Return
    None if the padding token is also an end token: ids do not distinguish the two.
    """
    pad, ends = config.pad_token_id, config.eos_token_id
    if attention_mask is not None or pad is None or pad in (ends if isinstance(ends, list) else [ends]):
        return attention_mask
    # The id checks report invalid inputs.
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.layout is not torch.strided:
        return None
    mask = input_ids.ne(pad)
    return None if can_branch_on(mask) and mask.all() else mask.long()


def match_batch_size(x: Any, rows: int) -> Any:
    """Repeat each row of `x`, or keep one of each group of equal neighbors, to get `rows` rows; None stays None."""
    if x is None or x.shape[0] == rows:
        return x
    return x.repeat_interleave(rows // x.shape[0], 0) if x.shape[0] < rows else x[:: x.shape[0] // rows]
