"""The encoder-decoder Transformer of *Attention Is All You Need* (Vaswani et al. 2017), arXiv:1706.03762.

Leaf first, the entry class last; attention (section 3.2), positions (3.5) and losses (5.4) are files of their own.
Shape legend: B batch, S source length, T target length, L either, P cached positions, h heads, d model width
[d_model], V target vocabulary, K classes.
"""

import math
from collections.abc import Callable, Sequence
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

from .attention_vanilla_transformer import VanillaTransformerAttention, fold_beams, ready_made, regroup
from .checks_vanilla_transformer import as_ids, check_ids, check_mask, check_rows
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .cpu_ops_vanilla_transformer import drop_out, linear
from .generation_vanilla_transformer import VanillaTransformerGenerationMixin
from .loss_vanilla_transformer import (
    check_labels,
    classification_loss,
    mean_over_labels,
    padding_last,
    put_back,
    shift_tokens_right,
    summed_loss,
    summed_loss_without_logits,
)
from .positions_vanilla_transformer import POSITION_EMBEDDINGS, leading_padding
from .pretrained_vanilla_transformer import VanillaTransformerPreTrainedModel


class ForwardOptions(TypedDict, total=False):
    """Keyword arguments that every model takes."""

    output_attentions: bool | None
    output_hidden_states: bool | None
    return_dict: bool | None


class VanillaTransformerLayer(GradientCheckpointingLayer):
    """Self-attention, in a decoder also attention to the encoder, then feed-forward. Section 3.1, figure 1."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, heads: int, ffn_dim: int, is_decoder: bool):
        super().__init__()
        self.config = config
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
        **kwargs: Any,
    ) -> Tensor:
        """Map (B, L, d) to (B, L, d); without `encoder_hidden_states` (B, S, d) nothing attends to the encoder."""
        # Self-attention, masked in a decoder
        hidden_states = self._residual(
            hidden_states, self.self_attn_layer_norm, self.self_attn, attention_mask=attention_mask, **kwargs
        )
        # Encoder-decoder attention
        if encoder_hidden_states is not None:
            kwargs.update(encoder_hidden_states=encoder_hidden_states, attention_mask=encoder_attention_mask)
            hidden_states = self._residual(hidden_states, self.encoder_attn_layer_norm, self.encoder_attn, **kwargs)
        # Feed-forward
        if self.has_feed_forward:
            hidden_states = self._residual(hidden_states, self.final_layer_norm, self._feed_forward)
        return hidden_states

    def _layer_norm(self) -> nn.Module:
        if self.config.norm_position == "none":
            return nn.Identity()
        return nn.LayerNorm(self.config.d_model, eps=self.config.layer_norm_eps)

    def _residual(self, x: Tensor, norm: nn.Module, sublayer: Callable[..., tuple], **kwargs: Any) -> Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))), sections 3.1, 5.4; with "pre", x + Dropout(Sublayer(LayerNorm(x)))."""
        pre = self.config.norm_position == "pre"
        output = sublayer(norm(x) if pre else x, **kwargs)[0]
        x = x + drop_out(output, self.config.dropout, self.training)
        return x if pre else norm(x)

    def _feed_forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        """FFN(x) = max(0, x W1 + b1) W2 + b2, any activation for max; has no weights to return. Section 3.3, eq. 2."""
        inner = self.activation_fn(linear(self.fc1, hidden_states))
        return linear(self.fc2, drop_out(inner, self.config.activation_dropout, self.training)), None


class VanillaTransformerEncoderLayer(VanillaTransformerLayer):
    """A layer of the encoder. Section 3.1 (encoder)."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, config.encoder_attention_heads, config.encoder_ffn_dim, is_decoder=False)


class VanillaTransformerDecoderLayer(VanillaTransformerLayer):
    """A layer of the decoder. Section 3.1 (decoder)."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, config.decoder_attention_heads, config.decoder_ffn_dim, is_decoder=True)


class VanillaTransformerStack(VanillaTransformerPreTrainedModel):
    """What encoder and decoder share: embeddings (section 3.4), positions (section 3.5), layers, final norm."""

    # What the names of a side's inputs begin with in a model with both sides.
    side = ""

    def __init__(self, config: VanillaTransformerConfig, vocab_size: int, layers: Sequence[VanillaTransformerLayer]):
        super().__init__(config)
        self.embed_tokens: nn.Module = nn.Embedding(vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = POSITION_EMBEDDINGS[config.position_embedding_type](config)
        self.layers = nn.ModuleList(layers)
        layer_norm: nn.Module = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.layer_norm = layer_norm if config.final_layer_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    @property
    def num_embeddings(self) -> int | None:
        """Size of the vocabulary; None where a wrapper, as of LoRA, does not tell."""
        return getattr(self.embed_tokens, "num_embeddings", None)

    def _embed(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, mask: Tensor | None, cache: Cache | None = None
    ) -> Tensor:
        """Return the scaled embeddings plus positions that the first layer takes, (B, L, d)."""
        past = 0 if cache is None else cache.get_seq_length()
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of `input_ids` and `inputs_embeds`.")
        if input_ids is not None:
            name = f"`{self.side}input_ids`"
            input_ids = as_ids(input_ids, name)
            check_ids(input_ids, self.num_embeddings, name)
        embeds = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        check_mask(mask, embeds.shape[0], past + embeds.shape[1], f"`{self.side}attention_mask`", cache)
        embeds = embeds * math.sqrt(self.config.d_model) if self.config.scale_embedding else embeds
        positions = self.embed_positions(past, embeds.shape[1], leading_padding(mask))
        return drop_out(embeds + positions.to(embeds), self.config.dropout, self.training)


class VanillaTransformerEncoder(VanillaTransformerStack):
    """A stack of N encoder layers over embedded source tokens. Section 3.1."""

    _can_record_outputs = {
        "hidden_states": VanillaTransformerEncoderLayer,
        "attentions": VanillaTransformerAttention,
    }

    def __init__(self, config: VanillaTransformerConfig):
        layers = [VanillaTransformerEncoderLayer(config, i) for i in range(config.encoder_layers)]
        super().__init__(config, config.vocab_size, layers)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> BaseModelOutput:
        """Encode `input_ids` (B, S) or `inputs_embeds` (B, S, d) to (B, S, d); `attention_mask` (B, S) is 1 at tokens.

        Raises:
            ValueError: If the inputs do not fit together, or learned positions are too few.
        """
        hidden_states = self._embed(input_ids, inputs_embeds, attention_mask)
        mask = create_bidirectional_mask(self.config, hidden_states, ready_made(attention_mask))
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class VanillaTransformerDecoder(VanillaTransformerStack):
    """A stack of N decoder layers over embedded target tokens. Section 3.1."""

    side = "decoder_"

    _can_record_outputs = {
        "hidden_states": VanillaTransformerDecoderLayer,
        "attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(VanillaTransformerAttention, index=1, layer_name="encoder_attn"),
    }

    def __init__(self, config: VanillaTransformerConfig):
        layers = [VanillaTransformerDecoderLayer(config, i) for i in range(config.decoder_layers)]
        super().__init__(config, config.decoder_vocab_size, layers)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the target vocabulary, the only one of a decoder alone."""
        shared = self.config.share_encoder_decoder_embeddings
        resize = super().resize_token_embeddings if shared else self.resize_decoder_token_embeddings
        return resize(*args, **kwargs)

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode `input_ids` (B, T) or `inputs_embeds` (B, T, d) over `encoder_hidden_states` (B, S, d) to (B, T, d).

        `attention_mask` (B, P + T) and `encoder_attention_mask` (B, S) are 1 at tokens; later positions are
        hidden from a token in any case (section 3.2.3). There may be k rows of tokens, one after the other, for each
        encoded source: (B * k, T) over (B, S, d).

        Raises:
            ValueError: If the inputs do not fit together, or learned positions are too few.
        """
        if use_cache and past_key_values is None:
            past_key_values = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        hidden_states = self._embed(input_ids, inputs_embeds, attention_mask, past_key_values)
        self_cache = getattr(past_key_values, "self_attention_cache", past_key_values)
        mask = create_causal_mask(self.config, hidden_states, ready_made(attention_mask), past_key_values=self_cache)
        queries = hidden_states
        if encoder_hidden_states is not None:
            given, length = encoder_hidden_states.shape[:2]
            check_mask(encoder_attention_mask, given, length, "`attention_mask`")
            sources = self._sources(queries.shape[0], given, past_key_values)
            encoder_hidden_states = regroup(encoder_hidden_states, sources)
            encoder_attention_mask = ready_made(regroup(encoder_attention_mask, sources))
            queries = queries if queries.shape[0] == sources else fold_beams(queries, sources)
        encoder_mask = create_bidirectional_mask(self.config, queries, encoder_attention_mask, encoder_hidden_states)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, mask, encoder_hidden_states, encoder_mask, past_key_values=past_key_values, **kwargs
            )
        return BaseModelOutputWithPastAndCrossAttentions(
            last_hidden_state=self.layer_norm(hidden_states), past_key_values=past_key_values
        )

    def _sources(self, rows: int, given: int, cache: Any) -> int:
        """Return how many sources the `rows` of the target attend to, of which there are `given`.

        As many as the cache has, which may have been made of each source once, or repeated for the beams. Flash
        attention would take the mask of a source for one of its queries, so that each row needs its own.
        """
        sources = given
        if isinstance(cache, EncoderDecoderCache) and cache.is_updated.get(0):
            cached: Any = cache.cross_attention_cache.layers[0]
            sources = cached.keys.shape[0]
        for count in (given, sources):
            check_rows(rows, count)
        return rows if is_flash_attention_requested(self.config) else sources


class VanillaTransformerModel(VanillaTransformerPreTrainedModel):
    """Encoder and decoder without the projection to the vocabulary. Figure 1."""

    _tieable_weights_keys = {"decoder.embed_tokens.weight": "encoder.embed_tokens.weight"}

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        if config.share_encoder_decoder_embeddings:
            self._tied_weights_keys = self._tieable_weights_keys
        self.encoder = VanillaTransformerEncoder(config)
        self.decoder = VanillaTransformerDecoder(config)
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Return the tied weights; sharing the two embeddings does not hang on `tie_word_embeddings`."""
        return super().get_expanded_tied_weights_keys(True) if all_submodels else dict(self._tied_weights_keys or {})

    @property
    def shared(self) -> nn.Module | None:
        """The embeddings that both sides read, if they do."""
        return self.encoder.embed_tokens if self.config.share_encoder_decoder_embeddings else None

    def get_input_embeddings(self) -> nn.Module:
        """Return the shared embeddings, or else the encoder's."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the shared embeddings, or else the encoder's."""
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
        **kwargs: Unpack[ForwardOptions],
    ) -> Seq2SeqModelOutput:
        """Encode the source (B, S), or take `encoder_outputs`, and decode the target (B, T) over it to (B, T, d).

        Raises:
            ValueError: If the inputs do not fit together, or learned positions are too few.
        """
        if (decoder_input_ids is None) == (decoder_inputs_embeds is None):
            raise ValueError("give exactly one of `decoder_input_ids` and `decoder_inputs_embeds`, or only `labels`.")
        encoded: Any = encoder_outputs
        if encoded is None:
            encoded = self.encoder(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        elif not isinstance(encoded, BaseModelOutput):
            encoded = BaseModelOutput(*encoded)
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=past_key_values,
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            past_key_values=decoded.past_key_values,
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            encoder_last_hidden_state=encoded.last_hidden_state,
            encoder_hidden_states=encoded.hidden_states,
            encoder_attentions=encoded.attentions,
        )


class VanillaTransformerForConditionalGeneration(VanillaTransformerPreTrainedModel, VanillaTransformerGenerationMixin):
    """The whole Transformer, with the projection to the target vocabulary; trains, and decodes by `generate()`."""

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

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the decoder input (B, T) for `labels` (B, T); data collators call this.

        Padding on the left stays -100, which `forward` takes unless it fills a cache.
        """
        return shift_tokens_right(labels, self.config.pad_token_id, self.config.decoder_start_token_id)

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
        **kwargs: Unpack[ForwardOptions],
    ) -> Seq2SeqLMOutput:
        """Return the logits (B, T, V) of the next target token, and the loss where `labels` (B, T) are given.

        Args:
            input_ids: Source tokens (B, S).
            attention_mask: 1 at source tokens, 0 at padding, (B, S).
            decoder_input_ids: Target tokens (B, T); by default `labels` shifted right, with the start token before the
                first label of a row. A row may begin with -100 for padding, unless a cache is filled.
            decoder_attention_mask: 1 at target tokens, 0 at padding, (B, P + T).
            encoder_outputs: What the encoder returned, to spare running it.
            past_key_values: Keys and values of earlier target tokens.
            inputs_embeds: Source embeddings (B, S, d), unscaled, instead of `input_ids`.
            decoder_inputs_embeds: Target embeddings (B, T, d), unscaled, instead of `decoder_input_ids`.
            labels: Target tokens to predict (B, T); -100 is left out of the loss.
            use_cache: Whether to return `past_key_values`; never with `labels`.
            logits_to_keep: Compute logits for the last so many positions only (0: all), or for these indices;
                with `labels`, always for all.
            num_items_in_batch: Number of labels to divide the summed loss by: those of all batches that
                are accumulated into one step. By default, the labels of this batch.
            smoothing: Epsilon of the label smoothing of section 5.4, at least 0 and below 1, in this call's loss;
                `Trainer` would take an argument with "label" in its name for labels.
            skip_logits: Whether to compute the loss without storing logits (`logits` is then None).
            **kwargs: `ForwardOptions`, and arguments of the attention function.

        Raises:
            ValueError: If a side has no input or two, a mask another shape than the tokens, an id no embedding,
                learned positions are too few, or epsilon is out of range.
        """
        places, use_cache = None, self.config.use_cache if use_cache is None else use_cache
        fills_cache = labels is None and (use_cache or past_key_values is not None)
        if labels is not None:
            use_cache = False
            labels = check_labels(labels, self.get_decoder().num_embeddings)
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        # A cache would keep tokens in the places that they are moved to.
        if decoder_input_ids is not None and not fills_cache:
            decoder_input_ids, places = padding_last(decoder_input_ids, decoder_attention_mask)
        outputs = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        if places is not None:
            put_back(outputs, places)
        states, logits, loss = outputs.last_hidden_state, None, None
        if labels is None:
            kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits = linear(self.lm_head, states[:, kept, :])
        elif skip_logits:
            loss = summed_loss_without_logits(states, self.lm_head, labels, smoothing)
            loss = mean_over_labels(loss, labels, num_items_in_batch)
        else:
            logits = linear(self.lm_head, states)
            loss = mean_over_labels(summed_loss(logits, labels, smoothing), labels, num_items_in_batch)
        passed_on = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **passed_on)


class VanillaTransformerEncoderModel(VanillaTransformerPreTrainedModel):
    """The encoder alone, under the names it has in a model with both sides: loads either's weights."""

    _keys_to_ignore_on_load_unexpected = [r"^decoder\.", r"^model\.decoder\.", r"^lm_head\."]

    def __init__(self, config: VanillaTransformerConfig):
        super().__init__(config)
        self.encoder = VanillaTransformerEncoder(config)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the embeddings of the source tokens."""
        return self.encoder.embed_tokens

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embeddings of the source tokens."""
        self.encoder.embed_tokens = value

    def forward(self, *args: Any, **kwargs: Any) -> BaseModelOutput:
        """Encode as `VanillaTransformerEncoder` does, by the same arguments."""
        return self.encoder(*args, **kwargs)


class VanillaTransformerForSequenceClassification(VanillaTransformerPreTrainedModel):
    """The encoder, the mean of its states over the tokens, dropout, and a linear classifier or regressor."""

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
        """Return the logits (B, K) of K classes, and the loss where `labels` are given.

        Args:
            input_ids: Tokens (B, S).
            attention_mask: 1 at tokens, 0 at padding, (B, S).
            inputs_embeds: Embeddings (B, S, d), unscaled, instead of `input_ids`.
            labels: By `config.problem_type`, which where it is None is found by `num_labels` and the labels' type:
                classes (B) for "single_label_classification", 0 or 1 for each class (B, K) for
                "multi_label_classification", numbers (B) or (B, K) for "regression".
            num_items_in_batch: Number of labels to divide the summed loss by: those of all batches that
                are accumulated into one step. By default, the labels of this batch.
            **kwargs: `ForwardOptions`, and arguments of the attention function.

        Raises:
            ValueError: If not exactly one of the inputs is given, or the labels do not suit the problem.
        """
        encoded = self.model(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        states = F.dropout(encoded.last_hidden_state, p=self.config.dropout, training=self.training)
        logits = self.classifier(mean_over_tokens(states, attention_mask))
        loss = None if labels is None else classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )


def mean_over_tokens(states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Return the mean (B, d) of `states` (B, S, d) where `attention_mask` (B, S) is not 0; 0 for a row of padding."""
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
