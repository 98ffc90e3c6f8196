"""The encoder-decoder Transformer of *Attention Is All You Need* (Vaswani et al. 2017), arXiv:1706.03762.

Bottom-up: attention (section 3.2), layers and stacks (3.1), models. Positions (3.5) and losses (5.4) have their own
files.

Shapes: B batch, S source length, T target length, L either, P cached positions, h heads, d model width, d_k key width,
d_v value width, V target vocabulary, K classes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPastAndCrossAttentions,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    SequenceClassifierOutput,
)
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .checks_vanilla_transformer import (
    LAYER_ARGUMENTS,
    NEUTRAL_ARGUMENTS,
    PAD_SOURCES,
    PASS_LABELS,
    check_arguments,
    check_batch_sizes,
    check_id_range,
    check_mask,
    check_neutral,
    check_states,
    check_target,
    check_tensor,
    to_integer_ids,
)
from .compat_vanilla_transformer import CACHE, cache_argument
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .generation_vanilla_transformer import VanillaTransformerGenerationMixin
from .loss_vanilla_transformer import (
    check_labels,
    classification_loss,
    mean_over_labels,
    move_padding_right,
    restore_padding,
    shift_tokens_right,
    summed_loss,
)
from .masks_vanilla_transformer import bidirectional_mask, causal_mask, hidden_keys, match_batch_size
from .positions_vanilla_transformer import (
    POSITION_EMBEDDINGS,
    VanillaTransformerSinusoidalPositions,
    count_leading_padding,
)
from .pretrained_vanilla_transformer import VanillaTransformerPreTrainedModel

# cuDNN attention builds a plan for every new shape (0.4 s on an H100, where a training step takes 0.08 s) and returns
# arbitrary outputs for queries without visible keys. PyTorch's other fused kernels cover all its cases.
torch.backends.cuda.enable_cudnn_sdp(False)


class ForwardOptions(TypedDict, total=False):
    """Keyword arguments of every model's `forward`."""

    output_attentions: bool | None
    output_hidden_states: bool | None
    return_dict: bool | None


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

    Maps `query` (B, h, T, d_k), `key` (B, h, S, d_k) and `value` (B, h, S, d_v) to the output (B, T, h, d_v) and the
    weights (B, h, T, S). The mask is additive, or boolean with true at visible keys; None hides no key. Weights are
    dropped only while `module` trains. Other implementations take more arguments, which are ignored.
    """
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is None:
        weights = scores.softmax(-1)
    else:
        hidden = hidden_keys(attention_mask)
        if attention_mask.dtype != torch.bool:
            scores = scores + attention_mask
        # A query without visible keys outputs 0, as in every other implementation. Its scores stay finite before the
        # softmax: a row of -inf would make the gradients NaN.
        weights = scores.masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(-1).masked_fill(hidden, 0)
    weights = F.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2), weights


def split_heads(x: Tensor, head_dim: int) -> Tensor:
    """Split (B, L, h * d_k) into (B, h, L, d_k)."""
    rows, length, width = x.shape
    return x.view(rows, length, width // head_dim, head_dim).transpose(1, 2)


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
        cache: Cache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `hidden_states` (B, T, d) to themselves, or to `encoder_hidden_states` (B, S, d) if given."""
        query = split_heads(self.q_proj(hidden_states), self.head_dim)
        key, value = self._keys_values(hidden_states, encoder_hidden_states, cache_argument(past_key_values, cache))
        attend: Any = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, eager_attention)
        dropout = self.config.attention_dropout if self.training else 0.0
        out, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling, dropout=dropout, **kwargs)
        return self.out_proj(out.flatten(2)), weights

    def _keys_values(self, states: Tensor, encoder_states: Tensor | None, cache: Any) -> tuple[Tensor, Tensor]:
        """Return keys (B, h, S, d_k) and values (B, h, S, d_v), including cached ones; project encoder states once."""
        kv_cache: Any = getattr(cache, "self_attention_cache", cache)
        if encoder_states is not None:
            kv_cache, states = getattr(cache, "cross_attention_cache", None), encoder_states
            if kv_cache is not None:
                if cache.is_updated.get(self.layer_idx):
                    return kv_cache.layers[self.layer_idx].keys, kv_cache.layers[self.layer_idx].values
                cache.is_updated[self.layer_idx] = True
        key = split_heads(self.k_proj(states), self.head_dim)
        value = split_heads(self.v_proj(states), self.value_head_dim)
        return (key, value) if kv_cache is None else kv_cache.update(key, value, self.layer_idx)


def layer_norm(config: VanillaTransformerConfig, is_used: bool) -> nn.Module:
    """Return a layer normalization if it `is_used`, else the identity."""
    return nn.LayerNorm(config.d_model, eps=config.layer_norm_eps) if is_used else nn.Identity()


class VanillaTransformerLayer(GradientCheckpointingLayer):
    """Self-attention, encoder-decoder attention (in a decoder), feed-forward. Section 3.1, figure 1."""

    def __init__(self, config: VanillaTransformerConfig, layer_idx: int, heads: int, ffn_dim: int, is_decoder: bool):
        super().__init__()
        self.config, self.is_pre_norm = config, config.norm_position == "pre"
        has_norms = config.norm_position != "none"
        self.self_attn = VanillaTransformerAttention(config, heads, layer_idx, is_causal=is_decoder)
        self.self_attn_layer_norm = layer_norm(config, has_norms)
        if is_decoder:
            self.encoder_attn = VanillaTransformerAttention(config, heads, layer_idx)
            self.encoder_attn_layer_norm = layer_norm(config, has_norms)
        self.has_feed_forward = bool(ffn_dim)
        if self.has_feed_forward:
            self.activation_fn = ACT2FN[config.activation_function]
            self.fc1 = nn.Linear(config.d_model, ffn_dim)
            self.fc2 = nn.Linear(ffn_dim, config.d_model)
            self.final_layer_norm = layer_norm(config, has_norms)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """Map (B, L, d) to (B, L, d); skip encoder-decoder attention without `encoder_hidden_states` (B, S, d)."""
        # Self-attention
        x = self._residual(
            hidden_states, self.self_attn_layer_norm, self.self_attn, attention_mask=attention_mask, **kwargs
        )
        # Encoder-decoder attention
        if encoder_hidden_states is not None:
            source = {"encoder_hidden_states": encoder_hidden_states, "attention_mask": encoder_attention_mask}
            x = self._residual(x, self.encoder_attn_layer_norm, self.encoder_attn, **source, **kwargs)
        # Feed-forward
        if self.has_feed_forward:
            x = self._residual(x, self.final_layer_norm, self._feed_forward)
        return x

    def _residual(self, x: Tensor, norm: nn.Module, sublayer: Callable[..., tuple], **kwargs: Any) -> Tensor:
        """LayerNorm(x + Dropout(Sublayer(x))) (sections 3.1, 5.4), or x + Dropout(Sublayer(LayerNorm(x))) if "pre"."""
        output = sublayer(norm(x) if self.is_pre_norm else x, **kwargs)[0]
        x = x + F.dropout(output, self.config.dropout, self.training)
        return x if self.is_pre_norm else norm(x)

    def _feed_forward(self, hidden_states: Tensor) -> tuple[Tensor, None]:
        """FFN(x) = max(0, x W1 + b1) W2 + b2, with any activation. Section 3.3, eq. 2."""
        inner = self.activation_fn(self.fc1(hidden_states))
        return self.fc2(F.dropout(inner, self.config.activation_dropout, self.training)), None


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

    # For error messages: the prefix of this side's argument names, and the remedy for -100 in its ids.
    input_prefix, padding_remedy = "", PAD_SOURCES
    # Keyword arguments that the layers accept.
    layer_arguments = LAYER_ARGUMENTS

    def __init__(self, config: VanillaTransformerConfig, vocab_size: int, layers: Sequence[VanillaTransformerLayer]):
        super().__init__(config)
        self.embed_tokens: nn.Module = nn.Embedding(vocab_size, config.d_model, config.pad_token_id)
        self.embed_positions = POSITION_EMBEDDINGS[config.position_embedding_type](config)
        self.layers = nn.ModuleList(layers)
        self.layernorm_embedding = layer_norm(config, config.embedding_layer_norm)
        self.layer_norm = layer_norm(config, config.final_layer_norm)
        self.gradient_checkpointing = False
        self.register_load_state_dict_post_hook(restore_positions)
        self.post_init()

    @property
    def num_embeddings(self) -> int | None:
        """Vocabulary size; None if hidden by a wrapper such as LoRA."""
        return getattr(self.embed_tokens, "num_embeddings", None)

    def _embed(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        mask: Tensor | None,
        others: Mapping[str, Any],
        cache: Cache | None = None,
    ) -> Tensor:
        """Return the first layer's input (B, L, d): scaled embeddings plus positions, normalized if configured.

        `others` are further arguments of `forward`, to check.
        """
        past = 0 if cache is None else cache.get_seq_length()
        embeds = self._scaled_embeddings(input_ids, inputs_embeds)
        check_mask(mask, embeds, past, f"`{self.input_prefix}attention_mask`", cache)
        leading_padding = count_leading_padding(mask)
        check_neutral(others, None if cache is None else past, leading_padding)
        return self._add_positions(embeds, self.embed_positions(past, embeds.shape[1], leading_padding))

    def _scaled_embeddings(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("pass exactly one of `input_ids` and `inputs_embeds`.")
        # None if hidden by a wrapper such as LoRA.
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
        return embeds * math.sqrt(self.config.d_model) if self.config.scale_embedding else embeds

    def _add_positions(self, embeds: Tensor, positions: Tensor) -> Tensor:
        embeds = self.layernorm_embedding(embeds + positions.to(embeds))
        return F.dropout(embeds, self.config.dropout, self.training)

    def _apply_layers(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Run (B, L, d) through all layers, which get the remaining arguments, and the final norm."""
        kwargs = {name: value for name, value in kwargs.items() if name not in NEUTRAL_ARGUMENTS}
        check_arguments(kwargs, self.layer_arguments, self.config)
        for layer in self.layers:
            hidden_states = layer(hidden_states, *args, **kwargs)
        return self.layer_norm(hidden_states)


@torch.no_grad()
def restore_positions(stack: VanillaTransformerStack, _: Any) -> None:
    """Compute sinusoidal positions once `load_state_dict` has loaded the weights."""
    positions = stack.embed_positions
    if isinstance(positions, VanillaTransformerSinusoidalPositions) and stack.device.type != "meta":
        positions.restore(stack.device)


class VanillaTransformerEncoder(VanillaTransformerStack):
    """Stack of N encoder layers over embedded source tokens. Section 3.1."""

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
            ValueError: Inputs are inconsistent or longer than the learned positions.
        """
        hidden_states = self._embed(input_ids, inputs_embeds, attention_mask, kwargs)
        mask = bidirectional_mask(self.config, hidden_states, attention_mask)
        return BaseModelOutput(last_hidden_state=self._apply_layers(hidden_states, mask, **kwargs))


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
        cache: Cache | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        """Decode `input_ids` (B, T) or `inputs_embeds` (B, T, d) over `encoder_hidden_states` (B, S, d) to (B, T, d).

        `attention_mask` (B, P + T) and `encoder_attention_mask` (B, S) are 1 at tokens; attention is causal regardless
        (section 3.2.3). The target may have k consecutive rows per source: (B * k, T) over (B, S, d).

        Raises:
            ValueError: Inputs are inconsistent or longer than the learned positions.
        """
        past: Any = cache_argument(past_key_values, cache)
        if use_cache and past is None:
            past = EncoderDecoderCache(DynamicCache(config=self.config), DynamicCache(config=self.config))
        hidden_states = self._embed(input_ids, inputs_embeds, attention_mask, kwargs, past)
        mask = causal_mask(self.config, hidden_states, attention_mask, past)
        source: tuple[Any, ...] = (None, None)
        if encoder_hidden_states is not None:
            check_states(encoder_hidden_states, self.config.d_model, "the encoder's output", hidden_states)
            check_mask(encoder_attention_mask, encoder_hidden_states, 0, "`attention_mask`")
            source = self._prepare_source(hidden_states, encoder_hidden_states, encoder_attention_mask, past)
        hidden_states = self._apply_layers(hidden_states, mask, *source, **{CACHE: past}, **kwargs)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=hidden_states, **{CACHE: past})

    def _prepare_source(
        self, hidden_states: Tensor, encoder_states: Tensor, mask: Tensor | None, cache: Any
    ) -> tuple[Tensor, Any]:
        """Return the encoder states with one row per target row, and their attention mask."""
        rows = hidden_states.shape[0]
        check_batch_sizes(rows, encoder_states.shape[0])
        encoder_states, mask = match_batch_size(encoder_states, rows), match_batch_size(mask, rows)
        return encoder_states, bidirectional_mask(self.config, hidden_states, mask, encoder_states)


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
        """Return the tied weights; embeddings are shared regardless of `tie_word_embeddings`."""
        return super().get_expanded_tied_weights_keys(True) if all_submodels else dict(self._tied_weights_keys or {})

    @property
    def shared(self) -> nn.Module | None:
        """The embeddings that both sides share, or None."""
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
        cache: Cache | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> Seq2SeqModelOutput:
        """Encode the source (B, S), unless `encoder_outputs` are given, and decode the target (B, T) to (B, T, d).

        Raises:
            ValueError: Inputs are inconsistent or longer than the learned positions.
        """
        check_target(decoder_input_ids, decoder_inputs_embeds)
        encoded: Any = encoder_outputs
        if encoded is None:
            encoded = self.encoder(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        elif not isinstance(encoded, BaseModelOutput):
            encoded = BaseModelOutput(*encoded)
        if encoded.last_hidden_state is None:
            raise ValueError("`encoder_outputs` is empty; pass the encoder's output, or `input_ids` instead.")
        decoded = self.decoder(
            decoder_input_ids,
            decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            past_key_values=cache_argument(past_key_values, cache),
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
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

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Return the decoder input (B, T) for `labels` (B, T); called by data collators.

        Left padding stays -100, which `forward` accepts unless it fills a cache.
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
        cache: Cache | None = None,
        **kwargs: Unpack[ForwardOptions],
    ) -> Seq2SeqLMOutput:
        """Return the logits (B, T, V) of the next target token, and the loss if `labels` (B, T) are given.

        Args:
            input_ids: Source tokens (B, S).
            attention_mask: 1 at source tokens, 0 at padding, (B, S).
            decoder_input_ids: Target tokens (B, T); by default `labels` shifted right. Without a cache, rows may be
                left-padded with -100.
            decoder_attention_mask: 1 at target tokens, 0 at padding, (B, P + T).
            encoder_outputs: Outputs of the encoder, to skip running it.
            past_key_values: Cached keys and values of earlier target tokens, from a previous output.
            inputs_embeds: Unscaled source embeddings (B, S, d) instead of `input_ids`.
            decoder_inputs_embeds: Unscaled target embeddings (B, T, d) instead of `decoder_input_ids`.
            labels: Target tokens to predict (B, T); the loss ignores -100.
            use_cache: Whether to return `past_key_values` (`cache` from transformers 5.24 on); never with `labels`.
            logits_to_keep: Number of last positions, or indices of positions, to compute logits for; 0 for all.
                Ignored with `labels`.
            num_items_in_batch: Number of labels to divide the summed loss by, counted over all accumulated batches; by
                default those of this batch.
            smoothing: Epsilon of label smoothing (section 5.4), in [0, 1). The name avoids "label", by which `Trainer`
                recognizes labels.
            skip_logits: Whether to return only the loss; `logits` is None then and need not be materialized.
            cache: `past_key_values` under its name from transformers 5.24 on.
            **kwargs: `ForwardOptions`, and arguments of the attention function.

        Raises:
            ValueError: Inputs are inconsistent, out of range, or longer than the learned positions.
        """
        if labels is not None:
            check_tensor(labels, 2, "`labels`", getattr(self.lm_head, "weight", None))
            use_cache, labels = False, check_labels(labels, self.get_decoder().num_embeddings)
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self._shift_right(labels, **kwargs)
        past, order = cache_argument(past_key_values, cache), None
        fills_cache = past is not None or (self.config.use_cache if use_cache is None else use_cache)
        # A cache would store moved padding.
        if decoder_input_ids is not None and (labels is not None or not fills_cache):
            decoder_input_ids, order = move_padding_right(decoder_input_ids, decoder_attention_mask)
        outputs = self.model(
            input_ids,
            attention_mask,
            decoder_input_ids,
            decoder_attention_mask,
            encoder_outputs,
            past_key_values=past,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        if order is not None:
            restore_padding(outputs, order)
        states, loss = outputs.last_hidden_state, None
        if labels is None:
            positions = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
            logits: Tensor | None = self._project(states[:, positions, :])
        else:
            summed, logits = self._summed_loss(states, labels, smoothing, skip_logits)
            loss = mean_over_labels(summed, labels, num_items_in_batch)
        others = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **others)

    def _shift_right(self, labels: Tensor, **kwargs: Any) -> Tensor:
        return self.prepare_decoder_input_ids_from_labels(labels)

    def _project(self, states: Tensor) -> Tensor:
        """Return the logits (B, T, V) of `states` (B, T, d)."""
        return self.lm_head(states)

    def _summed_loss(
        self, states: Tensor, labels: Tensor, smoothing: float, skip_logits: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Return the summed loss, and the logits (B, T, V) unless skipped."""
        logits = self._project(states)
        return summed_loss(logits, labels, smoothing), None if skip_logits else logits


class VanillaTransformerEncoderModel(VanillaTransformerPreTrainedModel):
    """The encoder alone; also loads from encoder-decoder checkpoints.

    What it saves loads with `AutoModel` too, and so in sentence-transformers.
    """

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
            labels: Depending on `config.problem_type`: classes (B) for "single_label_classification", 0 or 1 per class
                (B, K) for "multi_label_classification", numbers (B) or (B, K) for "regression". If the type is None,
                it is inferred from `num_labels` and the labels' dtype.
            num_items_in_batch: Number of labels to divide the summed loss by, counted over all accumulated batches; by
                default those of this batch.
            **kwargs: `ForwardOptions`, and arguments of the attention function.

        Raises:
            ValueError: Not exactly one input is given, or the labels do not fit the problem type.
        """
        if kwargs.get("packing") is not None:
            raise ValueError("`packing` is set, but classifiers do not support packed sequences; pad them instead.")
        encoded = self.model(input_ids, attention_mask, inputs_embeds, return_dict=True, **kwargs)
        states = F.dropout(encoded.last_hidden_state, p=self.config.dropout, training=self.training)
        logits = self.classifier(mean_over_tokens(states, attention_mask))
        loss = None if labels is None else classification_loss(logits, labels, self.config, num_items_in_batch)
        return SequenceClassifierOutput(
            loss=loss, logits=logits, hidden_states=encoded.hidden_states, attentions=encoded.attentions
        )


def mean_over_tokens(states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Average `states` (B, S, d) over positions where `attention_mask` (B, S) is not 0; rows of padding give 0."""
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
