"""The encoder-decoder Transformer of *Attention Is All You Need* (Vaswani et al. 2017), arXiv:1706.03762.

Leaf modules first, entry classes last; attention (section 3.2), positions (3.5) and losses (5.4) have files of their
own.

Shapes: B batch, S source length, T target length, L either, P cached positions, h heads, d model width, d_k key width,
V target vocabulary, K classes.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict, Unpack

from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    SequenceClassifierOutput,
)
from transformers.utils import can_return_tuple
from transformers.utils.generic import is_flash_attention_requested, merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .attention_vanilla_transformer import (
    AlignmentHead,
    VanillaTransformerAttention,
    fold_beams,
    lowest_to_inf,
    match_rows,
    may_leave_out,
)
from .checks_vanilla_transformer import (
    PAD_SOURCES,
    PASS_LABELS,
    check_arguments,
    check_batch_sizes,
    check_id_range,
    check_mask,
    check_packing,
    check_same_count,
    check_states,
    check_target,
    check_tensor,
    refuse_with_packing,
    to_integer_ids,
)
from .compat_vanilla_transformer import CACHE, either
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .cpu_ops_vanilla_transformer import apply_dropout
from .cuda_graphs_vanilla_transformer import RecordedSteps, can_capture
from .generation_vanilla_transformer import VanillaTransformerGenerationMixin
from .linear_vanilla_transformer import apply_linear, begin_forward_pass
from .loss_vanilla_transformer import (
    check_labels,
    classification_loss,
    mean_over_labels,
    move_padding_right,
    restore_padding,
    shift_tokens_right,
    summed_alignment_loss,
    summed_loss,
    summed_loss_without_logits,
)
from .packing_vanilla_transformer import Packing, packed_mask, stays_packed
from .positions_vanilla_transformer import POSITION_EMBEDDINGS, count_leading_padding
from .pretrained_vanilla_transformer import VanillaTransformerPreTrainedModel
from .recomputation_vanilla_transformer import KEEP_ALL, inner_layer, layer_norm, recomputation


class ForwardOptions(TypedDict, total=False):
    """Keyword arguments of every model's `forward`."""

    output_attentions: bool | None
    output_hidden_states: bool | None
    return_dict: bool | None


class VanillaTransformerLayer(GradientCheckpointingLayer):
    """Self-attention, in a decoder also encoder-decoder attention, then feed-forward. Section 3.1, figure 1."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, heads: int, ffn_dim: int, is_decoder: bool):
        super().__init__()
        self.config, self.is_pre_norm = config, config.norm_position == "pre"
        self.self_attn = VanillaTransformerAttention(config, heads, layer_idx, is_causal=is_decoder)
        self.self_attn_layer_norm = self._layer_norm()
        if is_decoder:
            self.encoder_attn = VanillaTransformerAttention(config, heads, layer_idx)
            self.encoder_attn_layer_norm = self._layer_norm()
        self.has_feed_forward = bool(ffn_dim)
        if self.has_feed_forward:
            self.activation_fn = ACT2FN[config.activation_function]
            self.fc1 = nn.Linear(config.d_model, ffn_dim)
            self.fc2 = nn.Linear(ffn_dim, config.d_model)
            self.final_layer_norm = self._layer_norm()

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        encoder_packing: Packing | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Map (B, L, d) to (B, L, d); skip encoder-decoder attention without `encoder_hidden_states` (B, S, d)."""
        # Self-attention
        hidden_states = self._residual(
            hidden_states, self.self_attn_layer_norm, self.self_attn, attention_mask=attention_mask, **kwargs
        )
        # Encoder-decoder attention
        if encoder_hidden_states is not None:
            hidden_states = self._residual(
                hidden_states,
                self.encoder_attn_layer_norm,
                self.encoder_attn,
                encoder_hidden_states=encoder_hidden_states,
                attention_mask=encoder_attention_mask,
                key_packing=encoder_packing,
                **kwargs,
            )
        # Feed-forward
        if self.has_feed_forward:
            hidden_states = self._residual(hidden_states, self.final_layer_norm, self._feed_forward)
        return hidden_states

    def _layer_norm(self) -> nn.Module:
        if self.config.norm_position == "none":
            return nn.Identity()
        return nn.LayerNorm(self.config.d_model, eps=self.config.layer_norm_eps)

    def _residual(self, x: Tensor, norm: nn.Module, sublayer: Callable[..., tuple], **kwargs: Any) -> Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1, 5.4), or x + Dropout(Sublayer(LayerNorm(x))) if "pre"."""
        pre, normalize = self.is_pre_norm, partial(layer_norm, norm) if self.training else norm
        output = sublayer(normalize(x) if pre else x, **kwargs)[0]
        if self.training:
            output = apply_dropout(output, self.config.dropout)
        return x + output if pre else normalize(x + output)

    def _feed_forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        """FFN(x) = max(0, x W1 + b1) W2 + b2, with any activation. Section 3.3, eq. 2."""
        if self.training:
            inner = inner_layer(self.fc1, self.activation_fn, self.config.activation_function, hidden_states)
            inner = apply_dropout(inner, self.config.activation_dropout)
        else:
            inner = self.activation_fn(apply_linear(self.fc1, hidden_states))
        return apply_linear(self.fc2, inner), None


class VanillaTransformerEncoderLayer(VanillaTransformerLayer):
    """Encoder layer. Section 3.1."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, config.encoder_attention_heads, config.encoder_ffn_dim, is_decoder=False)


class VanillaTransformerDecoderLayer(VanillaTransformerLayer):
    """Decoder layer. Section 3.1."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, config.decoder_attention_heads, config.decoder_ffn_dim, is_decoder=True)


class VanillaTransformerStack(VanillaTransformerPreTrainedModel):
    """Base class of encoder and decoder: embeddings (section 3.4), positions (section 3.5), layers, final norm."""

    # Prefix of this side's inputs in error messages, and what to do about -100 there.
    input_prefix, padding_remedy = "", PAD_SOURCES

    def __init__(self, config: VanillaTransformerConfig, vocab_size: int, layers: Sequence[VanillaTransformerLayer]):
        super().__init__(config)
        self.embed_tokens: nn.Module = nn.Embedding(vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = POSITION_EMBEDDINGS[config.position_embedding_type](config)
        self.layers = nn.ModuleList(layers)
        self.layernorm_embedding, self.layer_norm = (
            nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if has_norm else nn.Identity()
            for has_norm in (config.embedding_layer_norm, config.final_layer_norm)
        )
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def num_embeddings(self) -> int | None:
        """Vocabulary size; None if a wrapper such as LoRA's hides it."""
        return getattr(self.embed_tokens, "num_embeddings", None)

    def _embed(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        mask: Tensor | None,
        cache: Cache | None = None,
        packing: Packing | None = None,
    ) -> Tensor:
        """Return the input (B, L, d) of the first layer: scaled embeddings plus positions, normalized if so set."""
        past = 0 if cache is None else cache.get_seq_length()
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass exactly one of `input_ids` and `inputs_embeds`.")
        # None if a wrapper such as LoRA's hides it.
        weight = getattr(self.embed_tokens, "weight", None)
        if input_ids is not None:
            name = f"`{self.input_prefix}input_ids`"
            check_tensor(input_ids, 2, name, weight)
            input_ids = to_integer_ids(input_ids, name)
            check_id_range(input_ids, self.num_embeddings, name, padding_remedy=self.padding_remedy)
            embeds = self.embed_tokens(input_ids)
        else:
            check_states(inputs_embeds, self.config.d_model, f"`{self.input_prefix}inputs_embeds`", weight)
            embeds = inputs_embeds
        check_mask(mask, embeds, past, f"`{self.input_prefix}attention_mask`", cache)
        embeds = embeds * math.sqrt(self.config.d_model) if self.config.scale_embedding else embeds
        begin_forward_pass(embeds)
        if packing is None:
            positions = self.embed_positions(past, embeds.shape[1], count_leading_padding(mask))
        else:
            positions = F.embedding(packing.positions(), self.embed_positions(0, packing.longest, None))
        embeds = self.layernorm_embedding(embeds + positions.to(embeds))
        return apply_dropout(embeds, self.config.dropout) if self.training else embeds

    def _apply_layers(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Map (B, L, d) to (B, L, d) by all layers, which take the remaining arguments."""
        implementation = self.config._attn_implementation
        check_arguments(kwargs, implementation)
        # Gradient checkpointing keeps less than recomputation.
        with recomputation(hidden_states) if self.training and not self.gradient_checkpointing else KEEP_ALL:
            for layer in self.layers:
                hidden_states = layer(hidden_states, *args, implementation=implementation, **kwargs)
        return hidden_states

    def _refuse_with_packing(self, arguments: dict[str, Any], options: Any) -> None:
        attentions = options.get("output_attentions", self.config.output_attentions)
        refuse_with_packing(**arguments, output_attentions=attentions)

    @can_return_tuple
    def _pack_outputs(self, packing: Packing, run: Callable[..., Any], *padded: Any, **kwargs: Any) -> Any:
        """Run the stack on padded input, and pack what it returns."""
        outputs = run(*padded, return_dict=True, **kwargs)
        packing.unpad_outputs(outputs)
        return outputs


class VanillaTransformerEncoder(VanillaTransformerStack):
    """Stack of N encoder layers over embedded source tokens. Section 3.1."""

    _can_record_outputs = {
        "hidden_states": VanillaTransformerEncoderLayer,
        "attentions": VanillaTransformerAttention,
    }

    def __init__(self, config: VanillaTransformerConfig):
        layers = [VanillaTransformerEncoderLayer(config, i) for i in range(config.encoder_layers)]
        super().__init__(config, config.vocab_size, layers)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        cu_seq_lens: Tensor | None = None,
        max_length: int | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> BaseModelOutput:
        """Encode `input_ids` (B, S) or `inputs_embeds` (B, S, d) to (B, S, d); `attention_mask` (B, S) is 1 at tokens.

        Of packed sources (1, S), `cu_seq_lens` (n + 1) are the edges, and `max_length` is the length of the longest.

        Raises:
            ValueError: The inputs are inconsistent, or exceed learned positions.
        """
        if cu_seq_lens is None and max_length is None:
            return self._encode(input_ids, attention_mask, inputs_embeds, **kwargs)
        self._refuse_with_packing({"attention_mask": attention_mask}, kwargs)
        x: Any = inputs_embeds if input_ids is None else input_ids
        packing = Packing.of(x, cu_seq_lens, max_length)
        if stays_packed(self, self.config.encoder_attention_heads, x):
            return self._encode(input_ids, None, inputs_embeds, packing, **kwargs)
        padded = (packing.pad(input_ids), packing.mask(), packing.pad(inputs_embeds))
        return self._pack_outputs(packing, self._encode, *padded, **kwargs)

    @merge_with_config_defaults
    @capture_outputs
    def _encode(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        inputs_embeds: Tensor | None,
        packing: Packing | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        hidden_states = self._embed(input_ids, inputs_embeds, attention_mask, packing=packing)
        if packing is None:
            mask = create_bidirectional_mask(
                self.config,
                hidden_states,
                lowest_to_inf(attention_mask),
                allow_is_bidirectional_skip=may_leave_out(attention_mask),
            )
        else:
            mask = packed_mask(create_bidirectional_mask, self.config, hidden_states, packing, packing)
            kwargs.update(packing=packing)
        hidden_states = self._apply_layers(hidden_states, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class VanillaTransformerDecoder(VanillaTransformerStack):
    """Stack of N decoder layers over embedded target tokens. Section 3.1."""

    input_prefix, padding_remedy = "decoder_", PASS_LABELS

    _can_record_outputs = {
        "hidden_states": VanillaTransformerDecoderLayer,
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        layers = [VanillaTransformerDecoderLayer(config, i) for i in range(config.decoder_layers)]
        super().__init__(config, config.decoder_vocab_size, layers)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the target vocabulary."""
        shared = self.config.share_encoder_decoder_embeddings
        resize = super().resize_token_embeddings if shared else self.resize_decoder_token_embeddings
        return resize(*args, **kwargs)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seq_lens: Tensor | None = None,
        max_length: int | None = None,
        encoder_cu_seq_lens: Tensor | None = None,
        encoder_max_length: int | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode `input_ids` (B, T) or `inputs_embeds` (B, T, d) over `encoder_hidden_states` (B, S, d) to (B, T, d).

        `attention_mask` (B, P + T) and `encoder_attention_mask` (B, S) are 1 at tokens; attention is causal regardless
        (section 3.2.3). The target may have k consecutive rows per source: (B * k, T) over (B, S, d).

        Of packed targets (1, T), `cu_seq_lens` (n + 1) are the edges, and `max_length` is the length of the longest;
        `encoder_cu_seq_lens` and `encoder_max_length` are those of their sources (1, S, d).

        Raises:
            ValueError: The inputs are inconsistent, or exceed learned positions.
        """
        cache = either(past_key_values, cache)
        if cu_seq_lens is None and max_length is None and encoder_cu_seq_lens is None:
            return self._decode(
                input_ids,
                attention_mask,
                encoder_hidden_states,
                encoder_attention_mask,
                cache,
                inputs_embeds,
                use_cache=use_cache,
                **kwargs,
            )
        masks = {"decoder_attention_mask": attention_mask, "attention_mask": encoder_attention_mask}
        self._refuse_with_packing({**masks, CACHE: cache, "use_cache": use_cache}, kwargs)
        x: Any = inputs_embeds if input_ids is None else input_ids
        target = Packing.of(x, cu_seq_lens, max_length, self.input_prefix)
        source = Packing.of(encoder_hidden_states, encoder_cu_seq_lens, encoder_max_length)
        check_same_count(source.edges, target.edges)
        if stays_packed(self, self.config.decoder_attention_heads, x):
            return self._decode(
                input_ids,
                encoder_hidden_states=encoder_hidden_states,
                inputs_embeds=inputs_embeds,
                use_cache=False,
                packing=target,
                encoder_packing=source,
                **kwargs,
            )
        return self._pack_outputs(
            target,
            self._decode,
            # Causal attention needs no mask of padding on the right.
            target.pad(input_ids),
            encoder_hidden_states=source.pad(encoder_hidden_states),
            encoder_attention_mask=source.mask(),
            inputs_embeds=target.pad(inputs_embeds),
            use_cache=False,
            **kwargs,
        )

    @merge_with_config_defaults
    @capture_outputs
    def _decode(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Any = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        packing: Packing | None = None,
        encoder_packing: Packing | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        if use_cache and cache is None:
            cache = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        hidden_states = self._embed(input_ids, inputs_embeds, attention_mask, cache, packing)
        if packing is None or encoder_packing is None:
            own_cache = getattr(cache, "self_attention_cache", cache)
            mask = create_causal_mask(
                self.config,
                hidden_states,
                lowest_to_inf(attention_mask),
                **{CACHE: own_cache},
                allow_is_causal_skip=may_leave_out(attention_mask),
            )
            encoder_hidden_states, encoder_mask = self._prepare_source(
                hidden_states, encoder_hidden_states, encoder_attention_mask, cache
            )
        else:
            mask = packed_mask(create_causal_mask, self.config, hidden_states, packing, packing, **{CACHE: None})
            encoder_mask = packed_mask(
                create_bidirectional_mask,
                self.config,
                hidden_states,
                packing,
                encoder_packing,
                encoder_hidden_states=encoder_hidden_states,
            )
            kwargs.update(packing=packing, encoder_packing=encoder_packing)
        hidden_states = self._apply_layers(
            hidden_states, mask, encoder_hidden_states, encoder_mask, **{CACHE: cache}, **kwargs
        )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states), **{CACHE: cache}
        )

    def _prepare_source(
        self, hidden_states: Tensor, encoder_states: Tensor | None, mask: Tensor | None, cache: Any
    ) -> tuple[Tensor | None, Any]:
        """Match the encoder's rows with those of the target; return its states and the mask of its keys."""
        if encoder_states is not None:
            check_states(encoder_states, self.config.d_model, "the encoder's output", hidden_states)
            check_mask(mask, encoder_states, 0, "`attention_mask`")
            given = encoder_states.shape[0]
            sources = self._count_sources(hidden_states.shape[0], given, cache)
            encoder_states, mask = match_rows(encoder_states, sources), lowest_to_inf(match_rows(mask, sources))
            if hidden_states.shape[0] != sources:
                hidden_states = fold_beams(hidden_states, sources)
        may_skip = may_leave_out(mask)
        return encoder_states, create_bidirectional_mask(
            self.config, hidden_states, mask, encoder_states, allow_is_bidirectional_skip=may_skip
        )

    def _count_sources(self, rows: int, given: int, cache: Any) -> int:
        """Return how many sources the `rows` of the target attend to.

        As many as the cross-attention cache holds, each once or repeated for the beams, or else all `given`. Flash
        attention would apply a source's mask to one of its queries, so each row needs a source of its own.
        """
        sources = given
        if isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(0):
            cached: Any = cache.cross_attention_cache.layers[0]
            sources = cached.keys.shape[0]
        for count in (given, sources):
            check_batch_sizes(rows, count)
        return rows if is_flash_attention_requested(self.config) else sources


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Encoder and decoder without the output projection. Figure 1."""

    _tieable_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = self._tieable_weights_keys
        self.encoder = VanillaTransformerEncoder(config)
        self.decoder = VanillaTransformerDecoder(config)
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Return the tied weights; sharing the embeddings does not depend on `tie_word_embeddings`."""
        return super().get_expanded_tied_weights_keys(True) if all_submodels else dict(self._tied_weights_keys or {})

    @property
    def shared(self) -> nn.Module | None:
        """The shared embeddings, or None."""
        return self.encoder.embed_tokens if self.config.share_encoder_decoder_embeddings else None

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embed_tokens = value
        if self.config.share_encoder_decoder_embeddings:
            self.decoder.embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cu_seq_lens: Tensor | None = None,
        max_length: int | None = None,
        decoder_cu_seq_lens: Tensor | None = None,
        decoder_max_length: int | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> Seq2SeqModelOutput:
        """Encode the source (B, S), unless `encoder_outputs` are given, and decode the target (B, T) to (B, T, d).

        Of packed pairs (1, S) and (1, T), `cu_seq_lens` and `decoder_cu_seq_lens` (n + 1) are the edges, `max_length`
        and `decoder_max_length` the lengths of the longest source and target.

        Raises:
            ValueError: The inputs are inconsistent, or exceed learned positions.
        """
        check_target(decoder_input_ids, decoder_inputs_embeds)
        encoded: Any = encoder_outputs
        if encoded is None:
            packing: dict[str, Any] = {"cu_seq_lens": cu_seq_lens, "max_length": max_length}
            encoded = self.encoder(input_ids, attention_mask, inputs_embeds, return_dict=True, **packing, **kwargs)
        elif not isinstance(encoded, BaseModelOutput):
            encoded = BaseModelOutput(*encoded)
        if encoded.last_hidden_state is None:
            raise ValueError("`encoder_outputs` is empty; pass the encoder's output, or `input_ids` instead.")
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            cache=cache,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            cu_seq_lens=decoder_cu_seq_lens,
            max_length=decoder_max_length,
            encoder_cu_seq_lens=cu_seq_lens,
            encoder_max_length=max_length,
            return_dict=True,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            **{CACHE: getattr(decoded, CACHE)},
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


class VanillaTransformerForConditionalGeneration(VanillaTransformerPreTrainedModel, VanillaTransformerGenerationMixin):
    """Encoder, decoder and output projection, for training and `generate()`. Figure 1."""

    _tp_plan = {"lm_head": "colwise_gather_output"}
    _tieable_weights_keys = {
        "model.decoder.embed_tokens.weight": "model.encoder.embed_tokens.weight",
        "lm_head.weight": "model.decoder.embed_tokens.weight",
    }

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.model = VanillaTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.decoder_vocab_size, config.lm_head_bias)
        side = "encoder" if config.share_encoder_decoder_embeddings else "decoder"
        self._tied_weights_keys = {"lm_head.weight": f"model.{side}.embed_tokens.weight"}
        self.post_init()

    def get_compiled_call(self, compile_config: Any) -> Callable[..., Any]:
        """Return the forward pass of steps over a static cache: CUDA graphs, or what `compile_config` asks for."""
        if compile_config is None and can_capture(self):
            return RecordedSteps(self, self.device)
        return super().get_compiled_call(compile_config)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor, cu_seq_lens: Tensor | None = None) -> Tensor:
        """Return the decoder input (B, T) for `labels` (B, T); called by data collators.

        Padding on the left stays -100, which `forward` accepts unless it fills a cache. Of packed labels (1, T),
        `cu_seq_lens` (n + 1) are the edges.
        """
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id, cu_seq_lens)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Any, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        num_items_in_batch: int | Tensor | None = None,
        smoothing: float = 0.0,
        skip_logits: bool = False,
        cu_seq_lens: Tensor | None = None,
        max_length: int | None = None,
        decoder_cu_seq_lens: Tensor | None = None,
        decoder_max_length: int | None = None,
        alignments: Tensor | None = None,
        alignment_head: Sequence[int] | None = None,
        alignment_weight: float = 0.0,
        cache: Cache | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> Seq2SeqLMOutput:
        """Return the logits (B, T, V) of the next target token, and the loss if `labels` (B, T) are given.

        Args:
            input_ids: Source tokens (B, S).
            attention_mask: 1 at source tokens, 0 at padding, (B, S).
            decoder_input_ids: Target tokens (B, T); by default `labels` shifted right. Unless a cache is filled, rows
                may start with -100 for padding.
            decoder_attention_mask: 1 at target tokens, 0 at padding, (B, P + T).
            encoder_outputs: Outputs of the encoder, to skip running it.
            past_key_values: Keys and values of earlier target tokens, as an earlier output has them.
            inputs_embeds: Unscaled source embeddings (B, S, d) instead of `input_ids`.
            decoder_inputs_embeds: Unscaled target embeddings (B, T, d) instead of `decoder_input_ids`.
            labels: Target tokens to predict (B, T); the loss ignores -100.
            use_cache: Whether to return `past_key_values` (`cache` from transformers 5.24 on); never with `labels`.
            logits_to_keep: Number of last positions, or their indices, to compute logits for; 0, or `labels`: all.
            num_items_in_batch: Labels in all accumulated batches, to divide the summed loss by; by default those here.
            smoothing: Epsilon of label smoothing (section 5.4), in [0, 1). Its name avoids "label": `Trainer` takes
                such arguments for labels.
            skip_logits: Whether to compute the loss without storing logits, which are None then.
            cu_seq_lens: Of n pairs packed without padding, their sources one after another in a row (1, S): where each
                begins, and where the last one ends (n + 1). Such pairs take no masks and no cache.
            max_length: Length of the longest packed source.
            decoder_cu_seq_lens: The same as `cu_seq_lens` for packed targets (1, T).
            decoder_max_length: Length of the longest packed target.
            alignments: Which source tokens each label translates (B, T, S), to add guided attention (Garg et al. 2019)
                to the loss: probabilities, or a row of zeros for a label that may attend to anything. Not for packed
                pairs.
            alignment_head: Indices of the decoder layer and the head that learn them.
            alignment_weight: Weight of that part of the loss.
            cache: The same as `past_key_values`, by its name from transformers 5.24 on.
            **kwargs: `ForwardOptions`, and arguments of the attention function.

        Raises:
            ValueError: The inputs are inconsistent, out of range, or exceed learned positions.
        """
        is_packed, indices = decoder_cu_seq_lens is not None, None
        use_cache = self.config.use_cache and not is_packed if use_cache is None else use_cache
        if labels is not None:
            check_tensor(labels, 2, "`labels`", getattr(self.lm_head, "weight", None))
            use_cache, labels = False, check_labels(labels, self.get_decoder().num_embeddings)
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                if decoder_cu_seq_lens is not None:
                    check_packing(labels, decoder_cu_seq_lens, decoder_max_length, "decoder_")
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels, decoder_cu_seq_lens)
        # A cache would keep moved tokens where they were moved to.
        is_given = past_key_values is not None or cache is not None
        fills_cache = labels is None and (use_cache or is_given)
        if decoder_input_ids is not None and not fills_cache and not is_packed:
            decoder_input_ids, indices = move_padding_right(decoder_input_ids, decoder_attention_mask)
        options: dict[str, Any] = dict(kwargs)
        if alignments is not None:
            guided = self._alignment_head(alignment_head, attention_mask, decoder_cu_seq_lens)
            options["alignment_head"] = guided
        outputs = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            past_key_values=past_key_values,
            cache=cache,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            cu_seq_lens=cu_seq_lens,
            max_length=max_length,
            decoder_cu_seq_lens=decoder_cu_seq_lens,
            decoder_max_length=decoder_max_length,
            return_dict=True,
            **options,
        )
        if alignments is not None:
            outputs["alignment_weights"] = guided.weights
        if indices is not None:
            restore_padding(outputs, indices)
        states, loss = outputs.last_hidden_state, None
        if labels is None:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits: Tensor | None = apply_linear(self.lm_head, states[:, kept, :])
        else:
            summed, logits = self._summed_loss(states, labels, smoothing, skip_logits)
            if alignments is not None:
                aligned = summed_alignment_loss(outputs["alignment_weights"], alignments)
                summed = summed + alignment_weight * aligned.to(summed)
            loss = mean_over_labels(summed, labels, num_items_in_batch)
        own = ("last_hidden_state", "alignment_weights")
        others = {name: value for name, value in outputs.items() if name not in own}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **others)

    def _alignment_head(
        self, indices: Sequence[int] | None, attention_mask: Tensor | None, decoder_cu_seq_lens: Tensor | None
    ) -> AlignmentHead:
        if decoder_cu_seq_lens is not None:
            refuse_with_packing(alignments=True)
        layers, heads = self.config.decoder_layers, self.config.decoder_attention_heads
        layer, head = indices or (-1, -1)
        if not (0 <= layer < layers and 0 <= head < heads):
            raise ValueError(
                f"`alignment_head` is {indices!r}, but `alignments` need a decoder layer below {layers} and a head "
                f"below {heads}; pass both, counted from 0."
            )
        return AlignmentHead(layer, head, attention_mask)

    def _summed_loss(
        self, states: Tensor, labels: Tensor, smoothing: float, skip_logits: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the summed loss, and the logits (B, T, V) unless they are skipped."""
        if skip_logits:
            return summed_loss_without_logits(states, self.lm_head, labels, smoothing), None
        logits = apply_linear(self.lm_head, states)
        return summed_loss(logits, labels, smoothing), logits


class VanillaTransformerEncoderModel(VanillaTransformerPreTrainedModel):
    """The encoder alone; loads its weights from a model with both sides as well."""

    _keys_to_ignore_on_load_unexpected = [r"^decoder\.", r"^model\.decoder\.", r"^lm_head\."]

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.encoder = VanillaTransformerEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.embed_tokens = value

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutput:
        """Encode; takes the arguments of `VanillaTransformerEncoder`."""
        return self.encoder(*args, **kwargs)


class VanillaTransformerForSequenceClassification(VanillaTransformerPreTrainedModel):
    """Encoder, mean over tokens, dropout, and a linear classifier or regressor."""

    _keys_to_ignore_on_load_unexpected = VanillaTransformerEncoderModel._keys_to_ignore_on_load_unexpected

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.model = VanillaTransformerEncoderModel(config)
        self.classifier = nn.Linear(config.d_model, config.num_labels or 0)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        num_items_in_batch: int | Tensor | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> SequenceClassifierOutput:
        """Return the logits (B, K), and the loss if `labels` are given.

        Args:
            input_ids: Tokens (B, S).
            attention_mask: 1 at tokens, 0 at padding, (B, S).
            inputs_embeds: Unscaled embeddings (B, S, d) instead of `input_ids`.
            labels: By `config.problem_type`: classes (B) for "single_label_classification", 0 or 1 per class (B, K)
                for "multi_label_classification", numbers (B) or (B, K) for "regression". If it is None, it is inferred
                from `num_labels` and the labels' dtype.
            num_items_in_batch: Number of labels to divide the summed loss by, counted over all accumulated batches; by
                default those of this batch.
            **kwargs: `ForwardOptions`, and arguments of the attention function.

        Raises:
            ValueError: Not exactly one input is given, or the labels do not suit the problem.
        """
        if kwargs.get("cu_seq_lens") is not None:
            raise ValueError("`cu_seq_lens` is set, but a classifier takes no packed sequences; pad them instead.")
        encoded = self.model(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        states = F.dropout(encoded.last_hidden_state, p=self.config.dropout, training=self.training)
        logits = self.classifier(mean_over_tokens(states, attention_mask))
        loss = None if labels is None else classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )


def mean_over_tokens(states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Average `states` (B, S, d) where `attention_mask` (B, S) is not 0; a row of padding gives 0."""
    if attention_mask is None:
        return states.mean(1)
    weights = attention_mask.ne(0).to(states)[..., None]
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


__all__ = [
    "VanillaTransformerDecoder",
    "VanillaTransformerEncoder",
    "VanillaTransformerEncoderModel",
    "VanillaTransformerForConditionalGeneration",
    "VanillaTransformerForSequenceClassification",
    "VanillaTransformerModel",
    "VanillaTransformerPreTrainedModel",
]
