"""Multi-head attention. Section 3.2.

Shapes: B batch, S source length, T target length, L either, h heads, d model width, d_k key width, d_v value width.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .cpu_ops_vanilla_transformer import bmm_attention, is_plain_cpu, to_autocast_dtype, use_bmm_attention
from .linear_vanilla_transformer import apply_linear
from .packing_vanilla_transformer import Packing, varlen_arguments, varlen_attention

# cuDNN builds a plan for every new shape, which takes 0.4 s on an H100 where a training step takes 0.08 s, and queries
# without visible keys get arbitrary outputs from it. PyTorch has other fused kernels for all that it can do.
torch.backends.cuda.enable_cudnn_sdp(False)


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, softmax(Q K^T / sqrt(d_k)) V. Section 3.2.1, eq. 1.

    Args:
        module: Drops weights while training.
        query: (B, h, T, d_k).
        key: (B, h, S, d_k).
        value: (B, h, S, d_v).
        attention_mask: Additive, or boolean and true at visible keys; None shows all.
        scaling: Factor of the scores, 1 / sqrt(d_k) in the paper.
        dropout: Probability of dropping an attention weight.
        **kwargs: Ignored; other implementations take more.

    Returns:
        The output (B, T, h, d_v) and the weights (B, h, T, S).
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is None:
        weights = scores.softmax(-1)
    elif every_query_has_a_key(attention_mask):
        weights = (scores + attention_mask).softmax(-1)
    else:
        hidden = hidden_keys(attention_mask)
        if attention_mask.dtype != torch.bool:
            scores = scores + attention_mask
        # A query without visible keys gets 0, as from every other implementation. Its scores stay finite before the
        # softmax: a row of -inf would make the gradients NaN.
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(hidden, 0)
    weights = F.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2), weights


def hidden_keys(attention_mask: Tensor) -> Tensor:
    """Return where a mask hides keys: false, -inf, or the lowest number of its dtype."""
    if attention_mask.dtype == torch.bool:
        return ~attention_mask
    return attention_mask < torch.finfo(attention_mask.dtype).min / 2


def every_query_has_a_key(attention_mask: Tensor) -> bool:
    """Whether an additive mask (B, 1, T, S) shows every query a key; False if unknown, as on accelerators.

    The check costs 1 / h of a pass over the scores and saves four passes.
    """
    if attention_mask.dtype == torch.bool or not attention_mask.numel() or not is_plain_cpu(attention_mask):
        return False
    return not hidden_keys(attention_mask.amax(-1)).any()


def lowest_to_inf(attention_mask: Tensor | None) -> Tensor | None:
    """Replace the lowest number of an additive mask (B, 1, T, S) by -inf; return other masks unchanged.

    Fused implementations add scores to that number: a query without visible keys would attend to all.
    """
    if attention_mask is None or attention_mask.dim() != 4 or not attention_mask.is_floating_point():
        return attention_mask
    return attention_mask.masked_fill(hidden_keys(attention_mask), -torch.inf)


def may_leave_out(attention_mask: Tensor | None) -> bool:
    """Whether to look if a mask hides any key, and to do without if not.

    Looking at a mask on an accelerator would wait for it; without padding, callers may pass no mask.
    """
    return attention_mask is None or is_plain_cpu(attention_mask)


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
    return None if is_plain_cpu(mask) and mask.all() else mask.long()


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Split (B, L, h * d_k) into (B, h, L, d_k)."""
    rows, length, width = x.shape
    return x.view(rows, length, width // head_dim, head_dim).transpose(1, 2)


def fold_beams(hidden_states: Tensor, sources: int) -> Tensor:
    """Fold beams into the query axis: k rows for each of B sources, (B * k, T, d) -> (B, k * T, d)."""
    return hidden_states.reshape(sources, -1, hidden_states.shape[-1])


def match_rows(x: Tensor | None, rows: int) -> Tensor | None:
    """Repeat each row of `x`, or keep one of each group of equal neighbours, to get `rows` rows."""
    if x is None or x.shape[0] == rows:
        return x
    return x.repeat_interleave(rows // x.shape[0], 0) if x.shape[0] < rows else x[:: x.shape[0] // rows]


@dataclass(eq=False)
class AlignmentHead:
    """A head of encoder-decoder attention whose weights are wanted, whatever computes attention.

    Attributes:
        layer: Index of the decoder layer.
        head: Index of the head.
        attention_mask: Mask of the source: 1 at tokens (B, S), or any of four dimensions; None shows all.
        weights: Weights (B, T, S) without dropout, float32, once the layer was called.
    """

    layer: int
    head: int
    attention_mask: Tensor | None = None
    weights: Tensor | None = None

    def attend(self, query: Tensor, key: Tensor, scaling: float) -> None:
        """Compute the weights in the plain way from (B, h, T, d_k) and (B, h, S, d_k)."""
        scores = torch.matmul(query[:, self.head], key[:, self.head].transpose(1, 2)).float() * scaling
        if (mask := self.attention_mask) is not None:
            hidden = mask.eq(0)[:, None] if mask.dim() == 2 else hidden_keys(mask[:, 0])
            scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
        self.weights = scores.softmax(-1)


class VanillaTransformerAttention(nn.Module):
    """Multi-head attention. Section 3.2.2."""

    def __init__(self, config: VanillaTransformerConfig, heads: int, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config, self.layer_idx, self.is_causal = config, layer_idx, is_causal
        self.head_dim, self.value_head_dim = config.attention_dims(heads)
        self.scaling = self.head_dim**-0.5
        self.q_proj = nn.Linear(config.d_model, heads * self.head_dim, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.d_model, heads * self.head_dim, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.d_model, heads * self.value_head_dim, bias=config.attention_bias)
        self.out_proj = nn.Linear(heads * self.value_head_dim, config.d_model, bias=config.attention_bias)

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        implementation: str | None = None,
        packing: Packing | None = None,
        key_packing: Packing | None = None,
        alignment_head: AlignmentHead | None = None,
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `hidden_states` (B, T, d) to themselves, or to `encoder_hidden_states` (B, S, d) if given.

        With k rows per source, (B * k, T, d), as for beams, the rows of a source become one row of k * T queries, and
        the mask must cover those. `implementation` is that of the configuration, unless the caller has looked it up.
        `packing` and, where the keys are others, `key_packing` describe packed rows. `alignment_head` is told its
        weights.
        """
        rows, length, _ = hidden_states.shape
        if encoder_hidden_states is not None and rows != encoder_hidden_states.shape[0]:
            hidden_states = fold_beams(hidden_states, encoder_hidden_states.shape[0])
        hidden_states = to_autocast_dtype(hidden_states)
        query = split_heads(apply_linear(self.q_proj, hidden_states), self.head_dim)
        # Given by the name that the installed transformers has.
        cache = cache if past_key_values is None else past_key_values
        key, value = self._keys_values(hidden_states, encoder_hidden_states, cache)
        if alignment_head and encoder_hidden_states is not None and alignment_head.layer == self.layer_idx:
            alignment_head.attend(query, key, self.scaling)
        implementation = implementation or self.config._attn_implementation
        attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
        if packing is not None:
            kwargs.update(varlen_arguments(packing, key_packing or packing, query.device))
            attend = varlen_attention if implementation == "sdpa" else attend
        elif implementation == "sdpa" and use_bmm_attention(query, key, self.training):
            attend = bmm_attention
        dropout = self.config.attention_dropout if self.training else 0.0
        out, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling, dropout=dropout, **kwargs)
        out = apply_linear(self.out_proj, out.flatten(2))
        if out.shape[0] == rows:
            return out, weights
        if weights is not None:
            # (B, h, k * T, S) -> (B * k, h, T, S)
            weights = weights.unflatten(2, (-1, length)).transpose(1, 2).flatten(0, 1)
        return out.reshape(rows, length, -1), weights

    def _keys_values(self, states: Tensor, encoder_states: Tensor | None, cache: Any) -> tuple[Tensor, Tensor]:
        """Return keys (B, h, S, d_k) and values (B, h, S, d_v), cached ones included; project the encoder's once."""
        own: Any = getattr(cache, "self_attention_cache", cache)
        if encoder_states is not None:
            own = getattr(cache, "cross_attention_cache", None)
            if own is not None:
                if cache.is_updated.get(self.layer_idx):
                    return own.layers[self.layer_idx].keys, own.layers[self.layer_idx].values
                cache.is_updated[self.layer_idx] = True
            states = to_autocast_dtype(encoder_states)
        key = split_heads(apply_linear(self.k_proj, states), self.head_dim)
        value = split_heads(apply_linear(self.v_proj, states), self.value_head_dim)
        return (key, value) if own is None else own.update(key, value, self.layer_idx)
