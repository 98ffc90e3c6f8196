"""Tiny translators of several families, and their tokenizers, for the tests of decoding."""

import torch
from transformers import BartConfig, BartForConditionalGeneration, MarianConfig, MarianMTModel, PreTrainedModel

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerTokenizer,
    train_tokenizer,
)

ENGLISH = ["a red house", "the small cat sleeps", "two dogs run in the street", "we see a cat", "no"]
SPANISH = ["una casa roja", "el gato duerme", "dos perros corren por la calle ancha", "vemos un gato", "no"]
SHARED = train_tokenizer(ENGLISH + SPANISH, algorithm="word", min_frequency=1)
PAIR = VanillaTransformerTokenizer.from_pair(
    train_tokenizer(ENGLISH, algorithm="word", min_frequency=1),
    train_tokenizer(SPANISH, algorithm="word", min_frequency=1),
)
SIZES = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}
SHAPE = {"d_model": 16} | {f"{side}_{name}": SIZES[name] for side in ("encoder", "decoder") for name in SIZES}


def build(kind: str) -> tuple[PreTrainedModel, object]:
    """Return a translator of the kind "shared", "pair", "learned", "marian" or "bart", and its tokenizer."""
    torch.manual_seed(5)
    tokenizer = PAIR if kind == "pair" else SHARED
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    others = {**SHAPE, **ids, "vocab_size": len(tokenizer), "init_std": 1.0, "max_position_embeddings": 64}
    if kind == "marian":
        return MarianMTModel(
            MarianConfig(**others, decoder_start_token_id=0, forced_eos_token_id=None)
        ).eval(), tokenizer
    if kind == "bart":
        config = BartConfig(**others, decoder_start_token_id=2, forced_bos_token_id=1, forced_eos_token_id=None)
        return BartForConditionalGeneration(config).eval(), tokenizer
    config = VanillaTransformerConfig(
        **SHAPE,
        vocab_size=len(tokenizer),
        decoder_vocab_size=getattr(tokenizer, "target_vocab_size", len(tokenizer)),
        share_encoder_decoder_embeddings=False,
        tie_word_embeddings=False,
        lm_head_bias=True,
        position_embedding_type="learned" if kind == "learned" else "sinusoidal",
        max_position_embeddings=64,
    )
    return VanillaTransformerForConditionalGeneration(config).eval(), tokenizer
