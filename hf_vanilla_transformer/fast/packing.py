"""Packed sequences: a batch without padding, with attention confined to each sequence.

The n sequences of a batch are concatenated into one row of L tokens. If the attention function does not support that,
they are padded to n rows of M tokens, and the result is packed again.

Shapes: n sequences, L tokens in all, M tokens of the longest, h heads, d model width, d_k key width, d_v value width.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.utils.generic import is_flash_attention_requested

from ..model.checks_vanilla_transformer import IGNORE_INDEX, check_dense
from ..model.loss_vanilla_transformer import shift_tokens_right
from .cpu_ops import autocast_enabled, is_plain_cpu

# Head widths that PyTorch's flash attention supports: multiples of the first, up to the second.
VARLEN_WIDTH_STEP, MAX_VARLEN_WIDTH = 8, 256

# Keys of the argument `packing`, for packed sources and targets.
NAMES = ("cu_seq_lens", "max_length", "decoder_cu_seq_lens", "decoder_max_length")


@dataclass(frozen=True, eq=False)
class Packing:
    """Boundaries of the sequences in a packed row.

    Nothing here syncs with a device.

    Attributes:
        edges: Sequence i is tokens `edges[i]` to `edges[i + 1]`, int32 (n + 1).
        longest: Length M of the longest sequence.
        tokens: Number L of tokens in all.
    """

    edges: Tensor
    longest: int
    tokens: int

    @classmethod
    def of(cls, x: Any, packing: Mapping[str, Any], prefix: str = "") -> "Packing":
        """Describe packed ids (1, L) or states (1, L, d) `x`.

        `packing` contains `cu_seq_lens` (n + 1), the edges of the sequences, and `max_length`, the length of the
        longest; for targets, with the prefix "decoder_".

        Raises:
            ValueError: `packing` does not describe the sequences of one row.
        """
        if not isinstance(packing, Mapping):
            raise ValueError(f"`packing` is of type {type(packing).__name__}; pass a mapping with {', '.join(NAMES)}.")
        if unknown := [name for name in packing if name not in NAMES]:
            raise ValueError(f"`packing` has {unknown[0]!r}, but takes {', '.join(NAMES)}; correct the name.")
        edges, longest = (packing.get(f"{prefix}{name}") for name in ("cu_seq_lens", "max_length"))
        check_packing(x, edges, longest, prefix)
        return cls(edges.to(x.device, torch.int32), longest, x.shape[1])  # type: ignore[union-attr, arg-type]  # checked

    def sequences(self) -> Tensor:
        """Return the index (L) of each token's sequence."""
        return self._per_token(torch.arange(self.edges.shape[0] - 1, device=self.edges.device))

    def positions(self) -> Tensor:
        """Return the position (L) of each token in its sequence."""
        return torch.arange(self.tokens, device=self.edges.device) - self._per_token(self.edges[:-1])

    def mask(self) -> Tensor:
        """Return the padding mask (n, M) of `pad`."""
        return torch.arange(self.longest, device=self.edges.device) < self.edges.diff()[:, None]

    def pad(self, x: Tensor | None) -> Tensor | None:
        """Pad (1, L, ...) with zeros to (n, M, ...); None stays None."""
        if x is None:
            return None
        rows = self.edges.shape[0] - 1
        padded = x.new_zeros(rows * self.longest, *x.shape[2:]).index_copy(0, self._padded_indices(), x[0])
        return padded.unflatten(0, (rows, self.longest))

    def unpad(self, x: Tensor) -> Tensor:
        """Undo `pad`: (n, M, ...) to (1, L, ...)."""
        return x.flatten(0, 1).index_select(0, self._padded_indices())[None]

    def _padded_indices(self) -> Tensor:
        return self.sequences() * self.longest + self.positions()

    def _per_token(self, x: Tensor) -> Tensor:
        # `output_size` avoids a device sync.
        return x.repeat_interleave(self.edges.diff(), output_size=self.tokens)


class PackedPair(NamedTuple):
    """Packed queries and the sources that they attend to."""

    own: Packing
    source: Packing

    @classmethod
    def of(cls, x: Any, encoder_states: Any, packing: Mapping[str, Any]) -> "PackedPair":
        """Describe packed targets `x`, ids (1, T) or states (1, T, d), and their encoded sources (1, S, d)."""
        pair = cls(Packing.of(x, packing, "decoder_"), Packing.of(encoder_states, packing))
        targets, sources = (len(side.edges) - 1 for side in pair)
        if sources != targets:
            raise ValueError(
                f"`cu_seq_lens` has the edges of {sources} sequences, but `decoder_cu_seq_lens` those of {targets}; "
                "pack one source for each target."
            )
        return pair


def shift_packed_right(labels: Tensor, packing: Mapping[str, Any], config: Any) -> Tensor:
    """Shift the labels (1, T) of each packed target right: the start token, then all labels but the last."""
    targets = Packing.of(labels, packing, "decoder_")
    shifted = shift_tokens_right(labels, config.pad_token_id, config.decoder_start_token_id)
    shifted = shifted.index_fill(1, targets.edges[:-1].long(), config.decoder_start_token_id)
    return shifted.masked_fill(shifted == IGNORE_INDEX, config.pad_token_id)


def stays_packed(stack: PreTrainedModel, heads: int, x: Tensor) -> bool:
    """Whether attention with `heads` heads supports packed sequences directly, on the device of the input `x`."""
    config: Any = stack.config
    implementation = config._attn_implementation
    if implementation == "flex_attention" or is_flash_attention_requested(config):
        return True
    key_width, value_width = config.attention_dims(heads)
    return (
        implementation == "sdpa"
        and key_width == value_width <= MAX_VARLEN_WIDTH
        and key_width % VARLEN_WIDTH_STEP == 0
        and not (stack.training and config.attention_dropout)
        and has_varlen_attention(
            x.device, torch.get_autocast_dtype(x.device.type) if autocast_enabled(x) else stack.dtype
        )
    )


@torch.compiler.assume_constant_result
def has_varlen_attention(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether PyTorch's flash attention runs on `device` in `dtype`: half precision, NVIDIA GPUs from Ampere on."""
    return (
        device.type == "cuda"
        and dtype in (torch.float16, torch.bfloat16)
        and torch.version.hip is None
        and torch.backends.cuda.is_flash_attention_available()
        and torch.backends.cuda.flash_sdp_enabled()
        and torch.cuda.get_device_capability(device) >= (8, 0)
    )


def packed_mask(
    create_mask: Callable[..., Any],
    config: PreTrainedConfig,
    states: Tensor,
    queries: Packing,
    keys: Packing,
    **kwargs: Any,
) -> Any:
    """Return the mask that confines flex attention to each sequence; None for functions that take lengths.

    `create_mask` is `create_causal_mask` or `create_bidirectional_mask` of transformers, `states` (1, L, d) are those
    of the queries.
    """
    if config._attn_implementation != "flex_attention":
        return None
    query_sequences, key_sequences = queries.sequences(), keys.sequences()

    def same_sequence(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return query_sequences[query] == key_sequences[key]

    return create_mask(config, states, None, and_mask_function=same_sequence, **kwargs)


def varlen_arguments(pair: PackedPair, is_cross: bool, device: torch.device) -> dict[str, Any]:
    """Return the `FlashAttentionKwargs` of transformers, for attention to the sources or for self-attention."""
    queries, keys = pair.own, pair.source if is_cross else pair.own
    return {
        "cu_seq_lens_q": queries.edges.to(device),
        "cu_seq_lens_k": keys.edges.to(device),
        "max_length_q": queries.longest,
        "max_length_k": keys.longest,
    }


def varlen_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: None,
    scaling: float,
    cu_seq_lens_q: Tensor,
    cu_seq_lens_k: Tensor,
    max_length_q: int,
    max_length_k: int,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention (section 3.2.1, eq. 1) within packed sequences, with PyTorch's flash attention.

    Takes queries (1, h, L, d_k), and keys and values of as many sequences, possibly of other lengths;
    `module.is_causal` hides later keys. Returns the output (1, L, h, d_k), and None for the weights.
    """
    # Imported late: defining its custom ops takes longer than importing this package.
    from torch.nn.attention.varlen import varlen_attn

    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))
    lengths = (cu_seq_lens_q, cu_seq_lens_k, max_length_q, max_length_k)
    window = (-1, 0) if module.is_causal else (-1, -1)
    out: Any = varlen_attn(query, key, value, *lengths, scale=scaling, window_size=window)
    return out[None], None


def check_packing(x: Any, edges: Any, longest: Any, prefix: str) -> None:
    """Check that `edges` (n + 1) and `longest`, a bound of their lengths, describe the sequences of one packed row."""
    name, length_name = f"`{prefix}cu_seq_lens`", f"`{prefix}max_length`"
    if edges is None or longest is None:
        missing = name if edges is None else length_name
        raise ValueError(f"`packing` needs both {name} and {length_name}; add {missing}.")
    if x is None:
        raise ValueError(f"{name} is given without the ids or embeddings that it describes; pass them.")
    check_dense(x, f"the input of {name}")
    check_dense(edges, name, x)
    if edges.dim() != 1 or edges.shape[0] < 2 or edges.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"{name} has shape {tuple(edges.shape)} and dtype {edges.dtype}; use integers of shape (n + 1,) for n "
            "sequences."
        )
    if not isinstance(longest, int):
        raise ValueError(
            f"{length_name} is of type {type(longest).__name__}; pass a Python int, to avoid a device sync."
        )
    if x.dim() < 2 or x.shape[0] != 1:
        raise ValueError(f"{name} is given for an input of shape {tuple(x.shape)}; packed sequences share one row.")
    if not is_plain_cpu(edges):
        return
    lengths = edges.diff()
    if edges[0] != 0 or edges[-1] != x.shape[1] or lengths.min() < 1:
        raise ValueError(
            f"{name} goes from {edges[0]} to {edges[-1]} in steps of at least {lengths.min()}, but the input has "
            f"{x.shape[1]} tokens; it must increase from 0 to that number."
        )
    if lengths.max() > longest:
        raise ValueError(f"{length_name} is {longest}, but a sequence has {lengths.max()} tokens; pass that number.")
