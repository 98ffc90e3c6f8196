"""Faster modules of the plain model, with unchanged results.

Shapes: B batch, S source length, T target length, L either, h heads, d model width, V target vocabulary.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.cache_utils import Cache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPastAndCrossAttentions
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple
from transformers.utils.generic import is_flash_attention_requested, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from ..model.checks_vanilla_transformer import LAYER_ARGUMENTS, NEUTRAL_ARGUMENTS, check_batch_sizes
from ..model.compat_vanilla_transformer import CACHE, cache_argument
from ..model.loss_vanilla_transformer import check_loss_arguments
from ..model.masks_vanilla_transformer import bidirectional_mask, match_batch_size
from ..model.modeling_vanilla_transformer import (
    VanillaTransformerAttention,
    VanillaTransformerDecoder,
    VanillaTransformerEncoder,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerLayer,
    VanillaTransformerStack,
    eager_attention,
    split_heads,
)
from .cpu_ops import apply_dropout, bmm_attention, in_function_transform, to_autocast_dtype, use_bmm_attention
from .generation import FastGeneration
from .linear import apply_linear, begin_forward_pass, is_bare_linear, operands
from .packing import (
    PackedPair,
    Packing,
    packed_mask,
    shift_packed_right,
    stays_packed,
    varlen_arguments,
    varlen_attention,
)
from .recomputation import KEEP_ALL, inner_layer, layer_norm, recomputation
from .step_cache import StepCache


class FastAttention(VanillaTransformerAttention):
    """Attention with the processor's fastest routines, for packed sequences, and for beams that share a source."""

    def forward(
        self,
        hidden_states: Tensor,
        encoder_hidden_states: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        cache: Cache | None = None,
        implementation: str | None = None,
        packing: PackedPair | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend as the plain module does.

        With k rows per source, (B * k, T, d) over (B, S, d), the rows of a source are folded into one row of k * T
        queries, which the mask must cover. `implementation` is the configuration's, if the caller has looked it up.
        """
        rows, length, _ = hidden_states.shape
        is_cross = encoder_hidden_states is not None
        if encoder_hidden_states is not None and rows != encoder_hidden_states.shape[0]:
            hidden_states = fold_beams(hidden_states, encoder_hidden_states.shape[0])
        hidden_states = to_autocast_dtype(hidden_states)
        query = split_heads(apply_linear(self.q_proj, hidden_states), self.head_dim)
        cache = cache if past_key_values is None else past_key_values
        key, value = self._keys_values(hidden_states, encoder_hidden_states, cache)
        implementation = implementation or self.config._attn_implementation
        attend: Any = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention)
        if packing is not None:
            kwargs.update(varlen_arguments(packing, is_cross, query.device))
            attend = varlen_attention if implementation == "sdpa" else attend
        elif type(cache) is StepCache and not is_cross:
            attend = cache.attend
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

    # Duplicates the plain method rather than have it call a method for each product: Python overhead is a good part of
    # a small model's decoding step.
    def _keys_values(self, states: Tensor, encoder_states: Tensor | None, cache: Any) -> tuple[Tensor, Tensor]:
        kv_cache: Any = getattr(cache, "self_attention_cache", cache)
        if encoder_states is not None:
            kv_cache = getattr(cache, "cross_attention_cache", None)
            if kv_cache is not None:
                if cache.is_updated.get(self.layer_idx):
                    return kv_cache.layers[self.layer_idx].keys, kv_cache.layers[self.layer_idx].values
                cache.is_updated[self.layer_idx] = True
            states = to_autocast_dtype(encoder_states)
        key = split_heads(apply_linear(self.k_proj, states), self.head_dim)
        value = split_heads(apply_linear(self.v_proj, states), self.value_head_dim)
        return (key, value) if kv_cache is None else kv_cache.update(key, value, self.layer_idx)


def fold_beams(hidden_states: Tensor, sources: int) -> Tensor:
    """Fold beams into the query axis: k rows for each of B sources, (B * k, T, d) -> (B, k * T, d)."""
    return hidden_states.reshape(sources, -1, hidden_states.shape[-1])


# Not a subclass at run time: subclasses of the plain layer wrap `forward` again, which would hide a user's `forward`.
class FastLayer(VanillaTransformerLayer if TYPE_CHECKING else object):  # type: ignore[misc]  # mypy sees the first
    """A layer with faster dropout that stores less for the backward pass."""

    def _residual(self, x: Tensor, norm: nn.Module, sublayer: Any, **kwargs: Any) -> Tensor:
        pre, normalize = self.is_pre_norm, partial(layer_norm, norm) if self.training else norm
        output = sublayer(normalize(x) if pre else x, **kwargs)[0]
        if self.training:
            output = apply_dropout(output, self.config.dropout)
        return x + output if pre else normalize(x + output)

    def _feed_forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        if self.training:
            inner = inner_layer(self.fc1, self.activation_fn, self.config.activation_function, hidden_states)
            inner = apply_dropout(inner, self.config.activation_dropout)
        else:
            inner = self.activation_fn(apply_linear(self.fc1, hidden_states))
        return apply_linear(self.fc2, inner), None


class FastStack(VanillaTransformerStack):
    """Dropout, recomputation and packed input of both stacks."""

    layer_arguments = LAYER_ARGUMENTS | {"implementation", "packing"}

    def _add_positions(self, embeds: Tensor, positions: Tensor) -> Tensor:
        embeds = self.layernorm_embedding(embeds + positions.to(embeds))
        return apply_dropout(embeds, self.config.dropout) if self.training else embeds

    def _apply_layers(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        begin_forward_pass(hidden_states)
        kwargs["implementation"] = self.config._attn_implementation
        # Gradient checkpointing stores less than recomputation.
        with recomputation(hidden_states) if self.training and not self.gradient_checkpointing else KEEP_ALL:
            return super()._apply_layers(hidden_states, *args, **kwargs)

    def _embed_packed(self, input_ids: Tensor | None, inputs_embeds: Tensor | None, packing: Packing) -> Tensor:
        positions = F.embedding(packing.positions(), self.embed_positions(0, packing.longest, None))
        return self._add_positions(self._scaled_embeddings(input_ids, inputs_embeds), positions)

    def _reject_with_packing(self, options: dict[str, Any], **arguments: Any) -> None:
        """Reject arguments that do not apply to packed sequences."""
        arguments |= {name: options.get(name) for name in NEUTRAL_ARGUMENTS}
        arguments["output_attentions"] = options.get("output_attentions", self.config.output_attentions)
        for name, value in arguments.items():
            if value is not None and value is not False:
                raise ValueError(f"`{name}` is set, but does not apply to packed sequences (`packing`); leave it out.")

    @can_return_tuple
    def _run_padded(self, packing: Packing, **kwargs: Any) -> Any:
        """Run the stack on padded input, and pack the returned states."""
        outputs = self(return_dict=True, **kwargs)
        outputs.last_hidden_state = packing.unpad(outputs.last_hidden_state)
        if outputs.hidden_states is not None:
            outputs.hidden_states = tuple(x if x is None else packing.unpad(x) for x in outputs.hidden_states)
        return outputs


class FastEncoder(FastStack, VanillaTransformerEncoder):
    """An encoder that also takes packed sources."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        packing: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode as the plain encoder does, or encode packed sources (1, S), described by `packing`, to (1, S, d)."""
        if packing is None:
            return super().forward(input_ids, attention_mask, inputs_embeds, **kwargs)
        self._reject_with_packing(kwargs, attention_mask=attention_mask)
        x: Any = inputs_embeds if input_ids is None else input_ids
        source = Packing.of(x, packing)
        if stays_packed(self, self.config.encoder_attention_heads, x):
            return self._encode_packed(input_ids, inputs_embeds, source, **kwargs)
        padded = {"input_ids": source.pad(input_ids), "inputs_embeds": source.pad(inputs_embeds)}
        return self._run_padded(source, attention_mask=source.mask(), **padded, **kwargs)

    @merge_with_config_defaults
    @capture_outputs
    def _encode_packed(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, source: Packing, **kwargs: Any
    ) -> BaseModelOutput:
        hidden_states = self._embed_packed(input_ids, inputs_embeds, source)
        mask = packed_mask(create_bidirectional_mask, self.config, hidden_states, source, source)
        hidden_states = self._apply_layers(hidden_states, mask, packing=PackedPair(source, source), **kwargs)
        return BaseModelOutput(last_hidden_state=hidden_states)


class FastDecoder(FastStack, VanillaTransformerDecoder):
    """A decoder that also takes packed targets, and beams that share their source."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        packing: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode as the plain decoder does, or decode packed targets (1, T), described by `packing`, to (1, T, d)."""
        if packing is None:
            return super().forward(
                input_ids, attention_mask, encoder_hidden_states, encoder_attention_mask, past_key_values,
                inputs_embeds, use_cache=use_cache, cache=cache, **kwargs,
            )  # fmt: skip  # one argument a line would hide that they are passed on
        masks = {"decoder_attention_mask": attention_mask, "attention_mask": encoder_attention_mask}
        past = cache_argument(past_key_values, cache)
        self._reject_with_packing(kwargs, **masks, **{CACHE: past}, use_cache=use_cache)
        x: Any = inputs_embeds if input_ids is None else input_ids
        pair = PackedPair.of(x, encoder_hidden_states, packing)
        if stays_packed(self, self.config.decoder_attention_heads, x):
            return self._decode_packed(input_ids, inputs_embeds, pair, encoder_hidden_states, **kwargs)
        target, source = pair
        return self._run_padded(
            target,
            # Causal attention needs no mask for right padding.
            input_ids=target.pad(input_ids),
            inputs_embeds=target.pad(inputs_embeds),
            encoder_hidden_states=source.pad(encoder_hidden_states),
            encoder_attention_mask=source.mask(),
            use_cache=False,
            **kwargs,
        )

    @merge_with_config_defaults
    @capture_outputs
    def _decode_packed(
        self, input_ids: Any, inputs_embeds: Any, pair: PackedPair, encoder_hidden_states: Tensor | None, **kwargs: Any
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        target, source = pair
        hidden_states = self._embed_packed(input_ids, inputs_embeds, target)
        mask = packed_mask(create_causal_mask, self.config, hidden_states, target, target, **{CACHE: None})
        args, encoded = (self.config, hidden_states, target, source), encoder_hidden_states
        source_mask = packed_mask(create_bidirectional_mask, *args, encoder_hidden_states=encoded)
        hidden_states = self._apply_layers(hidden_states, mask, encoded, source_mask, packing=pair, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states)

    def decode_step(self, input_ids: Tensor, cache: StepCache) -> Tensor:
        """Return the states (N, 1, d) of the next tokens (N, 1), and advance the length of `cache`."""
        positions = cache.positions.index_select(0, cache.length[None])
        hidden_states = self._add_positions(self._scaled_embeddings(input_ids, None), positions)
        source = (cache.encoder_states, cache.source_mask)
        hidden_states = self._apply_layers(hidden_states, None, *source, **{CACHE: cache})
        cache.length += 1
        return hidden_states

    def _prepare_source(
        self, hidden_states: Tensor, encoder_states: Tensor, mask: Tensor | None, cache: Any
    ) -> tuple[Tensor, Any]:
        """Return the encoder states with one row per source of the target, and their attention mask."""
        sources = self._count_sources(hidden_states.shape[0], encoder_states.shape[0], cache)
        if encoder_states.shape[0] != sources:
            encoder_states, mask = match_batch_size(encoder_states, sources), match_batch_size(mask, sources)
        if hidden_states.shape[0] != sources:
            hidden_states = fold_beams(hidden_states, sources)
        return encoder_states, bidirectional_mask(self.config, hidden_states, mask, encoder_states)

    def _count_sources(self, rows: int, encoded: int, cache: Any) -> int:
        """Return the number of sources that the target's `rows` attend to.

        That is the number in the cross-attention cache, where each is stored once or repeated for its beams, or else
        the number `encoded`. With flash attention each row needs its own source, as a source's mask would apply to
        only one of its queries.
        """
        sources = encoded
        if isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(0):
            cached: Any = cache.cross_attention_cache.layers[0]
            sources = cached.keys.shape[0]
        for count in (encoded, sources):
            check_batch_sizes(rows, count)
        return rows if is_flash_attention_requested(self.config) else sources


class FastForConditionalGeneration(FastGeneration, VanillaTransformerForConditionalGeneration):
    """The model with a loss that never materializes the logits, packed pairs, and a faster `generate()`."""

    takes_packing = True

    def _shift_right(self, labels: Tensor, packing: Mapping[str, Any] | None = None, **kwargs: Any) -> Tensor:
        return super()._shift_right(labels) if packing is None else shift_packed_right(labels, packing, self.config)

    def _project(self, states: Tensor) -> Tensor:
        return apply_linear(self.lm_head, states)

    def _summed_loss(
        self, states: Tensor, labels: Tensor, smoothing: float, skip_logits: bool
    ) -> tuple[Tensor, Tensor | None]:
        if skip_logits and (loss := summed_loss_without_logits(states, self.lm_head, labels, smoothing)) is not None:
            return loss, None
        return super()._summed_loss(states, labels, smoothing, skip_logits)


def summed_loss_without_logits(states: Tensor, head: nn.Module, labels: Tensor, smoothing: float) -> Tensor | None:
    """Sum the label-smoothed cross-entropy of logits `head(states)`, not materialized, for `states` (B, T, d).

    Returns None if `head` has an adapter or hooks or is sharded, and under `torch.func` transforms.
    """
    transformed = not torch.compiler.is_compiling() and in_function_transform()
    if transformed or not is_bare_linear(head) or type(head.weight) not in (nn.Parameter, Tensor):
        return None
    # Imported late: defining a custom op takes as long as importing the rest of this package; decoding needs none.
    from .chunked_loss import chunked_cross_entropy

    check_loss_arguments(states, labels, smoothing)
    labels = labels.to(states.device).flatten()
    states, weight, bias = operands(head, states.flatten(0, 1))
    return chunked_cross_entropy(states, weight, bias, labels, smoothing, torch.is_grad_enabled())[0]
