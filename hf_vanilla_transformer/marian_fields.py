"""Configuration fields with the same meaning in `VanillaTransformerConfig` and transformers' `MarianConfig`."""

HEAD_FIELDS = ("encoder_attention_heads", "decoder_attention_heads")
# Determined by the shapes of the weights.
SHAPE_FIELDS = (
    "vocab_size", "decoder_vocab_size", "d_model", "encoder_layers", "decoder_layers", "encoder_ffn_dim",
    "decoder_ffn_dim",
)  # fmt: skip  # a table, not an expression
# Not determined by the weights.
BEHAVIOR_FIELDS = (
    *HEAD_FIELDS, "activation_function", "dropout", "attention_dropout", "activation_dropout", "scale_embedding",
    "pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id",
)  # fmt: skip  # as above
MARIAN_FIELDS = (
    *SHAPE_FIELDS, *BEHAVIOR_FIELDS, "max_position_embeddings", "share_encoder_decoder_embeddings",
    "tie_word_embeddings", "use_cache",
)  # fmt: skip  # as above
