"""Keys and values of a recorded search, at fixed addresses even if beams are reordered.

Shapes: B sources, k beams, N = B * k hypotheses, S source length, L maximum target length, h heads, d_k key width,
d_v value width, d model width.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from . import kernels
from .kernels import suits


class StepCache:
    """A cache of one token per step, for `FastDecoder.decode_step`.

    Moving the keys and values of all beams takes longer than attending to them, so a table keeps track of the row that
    has those of each position.
    """

    def __init__(
        self, decoder: Any, rows: int, length: int, encoder_states: Tensor, mask: Tensor | None, is_moved: bool
    ):
        """Allocate `length` tokens for `rows` hypotheses over `encoder_states` (B, S, d) with a source mask.

        `is_moved` is true if hypotheses are reordered, as beams are.
        """
        source = _projected(decoder, encoder_states)
        self.encoder_states, self.source_mask = _source(decoder, rows, encoder_states, mask, source[0][0].dtype)
        # With the attributes of transformers' cache.
        self.cross_attention_cache = SimpleNamespace(layers=[SimpleNamespace(keys=k, values=v) for k, v in source])
        self.is_updated = dict.fromkeys(range(len(source)), True)
        self.states = [
            (x.new_zeros(rows, x.shape[1], length, x.shape[3]), y.new_zeros(rows, y.shape[1], length, y.shape[3]))
            for x, y in source
        ]
        self.positions = decoder.embed_positions(0, length, None)
        self.length = encoder_states.new_zeros((), dtype=torch.long)
        self._own_row = torch.arange(rows, device=encoder_states.device)[:, None]
        self._places = torch.arange(length, device=encoder_states.device)
        self.rows = self._own_row.repeat(1, length)
        self.is_moved = is_moved
        self._has_kernel = suits(source[0][0])

    @property
    def nbytes(self) -> int:
        """Size of the keys and values in bytes."""
        layers = [*self.states, *((layer.keys, layer.values) for layer in self.cross_attention_cache.layers)]
        return sum(x.nbytes for pair in layers for x in pair)

    def restart(self, decoder: Any, encoder_states: Tensor, mask: Tensor | None) -> None:
        """Restart with other sources of the same shapes."""
        source = _projected(decoder, encoder_states)
        for layer, (keys, values) in zip(self.cross_attention_cache.layers, source, strict=True):
            layer.keys.copy_(keys)
            layer.values.copy_(values)
        _, source_mask = _source(decoder, len(self.rows), encoder_states, mask, source[0][0].dtype)
        if self.source_mask is not None and source_mask is not None:
            self.source_mask.copy_(source_mask)
        self.length.zero_()
        self.rows.copy_(self._own_row.expand_as(self.rows))
        if not self._has_kernel:
            # All positions are read, and an attention weight of 0 does not hide a NaN of an earlier search.
            for x in (x for pair in self.states for x in pair):
                x.zero_()

    def reorder(self, rows: Tensor) -> None:
        """Let hypothesis i continue hypothesis `rows[i]` (N)."""
        moved = self.rows.index_select(0, rows)
        self.rows.copy_(torch.where(self._places < self.length, moved, self._own_row))

    # Interface to attention

    def update(self, key: Tensor, value: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        """Return the new keys and values, which `attend` stores."""
        return key, value

    def attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, scaling: float, **kwargs: Any
    ) -> tuple[Tensor, None]:
        """Store a step's keys (N, h, 1, d_k) and values, and attend to all so far; the output is (N, 1, h, d_v)."""
        keys, values = self.states[module.layer_idx]
        if self._has_kernel:
            rows = self.rows if self.is_moved else None
            return kernels.attend(query, key, value, keys, values, self.length, rows, scaling), None
        keys.index_copy_(2, self.length[None], key)
        values.index_copy_(2, self.length[None], value)
        if self.is_moved:
            keys, values = (x[self.rows, :, self._places].transpose(1, 2) for x in (keys, values))
        visible = (self._places <= self.length)[None, None, None]
        return F.scaled_dot_product_attention(query, keys, values, visible, scale=scaling).transpose(1, 2), None


def _projected(decoder: Any, encoder_states: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the keys (B, h, S, d_k) and values (B, h, S, d_v) of all layers, not shared with other tensors."""
    pairs = (layer.encoder_attn._keys_values(encoder_states, encoder_states, None) for layer in decoder.layers)
    return [(keys.contiguous(), values.contiguous()) for keys, values in pairs]


def _source(
    decoder: Any, rows: int, encoder_states: Tensor, mask: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor | None]:
    """Return the encoder's states and the additive mask (B, 1, k, S) of attention to them."""
    states, mask = decoder._prepare_source(encoder_states[:1, :1].expand(rows, 1, -1), encoder_states, mask, None)
    if mask is None or mask.dtype != torch.bool:
        return states, None if mask is None else mask.clone()
    # Converted once instead of at every step.
    return states, torch.zeros_like(mask, dtype=dtype).masked_fill_(~mask, -torch.inf)
