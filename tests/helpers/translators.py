"""Tiny translators of several families with tokenizers, for the tests of decoding."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    MBart50Tokenizer,
    MBartConfig,
    MBartForConditionalGeneration,
    PreTrainedModel,
)

from devices import same_numbers
from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerMultilingualTokenizer,
    VanillaTransformerTokenizer,
    train_tokenizer,
)
from hf_vanilla_transformer.pretrained.languages import set_language_ids

ENGLISH = ["a red house", "the small cat sleeps", "two dogs run in the street", "we see a cat", "no"]
SPANISH = ["una casa roja", "el gato duerme", "dos perros corren por la calle ancha", "vemos un gato", "no"]
SHARED = train_tokenizer(ENGLISH + SPANISH, algorithm="word", min_frequency=1)
PAIR = VanillaTransformerTokenizer.from_pair(
    train_tokenizer(ENGLISH, algorithm="word", min_frequency=1),
    train_tokenizer(SPANISH, algorithm="word", min_frequency=1),
)
# There is no German text.
DIRECTIONS = [("en", "es"), ("es", "en"), ("en", "de")]
SIZES = {"layers": 2, "attention_heads": 2, "ffn_dim": 32}
SHAPE: dict[str, Any] = {"d_model": 16} | {
    f"{side}_{name}": SIZES[name] for side in ("encoder", "decoder") for name in SIZES
}

IDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
# Models and configurations of other families, with fields beyond the common ones.
OTHERS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "marian": (MarianMTModel, MarianConfig, {
        "init_std": 1.0, "decoder_start_token_id": 0, "forced_eos_token_id": None,
    }),
    "bart": (BartForConditionalGeneration, BartConfig, {
        "init_std": 1.0, "decoder_start_token_id": 2, "forced_bos_token_id": 1, "forced_eos_token_id": None,
    }),
    # Has no method that shifts labels.
    "m2m100": (M2M100ForConditionalGeneration, M2M100Config, {
        "init_std": 0.5, "decoder_start_token_id": 2, "max_position_embeddings": 1024,
    }),
}  # fmt: skip  # a table


@same_numbers
def build(kind: str, **changes: Any) -> tuple[PreTrainedModel, Any]:
    """Return a translator and its tokenizer, with changed configuration fields.

    `kind` is "shared", "pair", "multilingual" or "learned" for this package, or "marian", "bart" or "m2m100".
    """
    torch.manual_seed(5)
    tokenizer = PAIR if kind == "pair" else SHARED
    if kind == "multilingual":
        # A new one, since tests change its languages.
        tokenizer = VanillaTransformerMultilingualTokenizer.from_shared(SHARED, DIRECTIONS)
    if kind in OTHERS:
        model_class, config_class, settings = OTHERS[kind]
        sizes = {**SHAPE, **IDS, "vocab_size": len(tokenizer), "max_position_embeddings": 64}
        return model_class(config_class(**{**sizes, **settings, **changes})).eval(), tokenizer
    fields = {
        "vocab_size": len(tokenizer),
        "decoder_vocab_size": getattr(tokenizer, "target_vocab_size", len(tokenizer)),
        "share_encoder_decoder_embeddings": False,
        "tie_word_embeddings": False,
        "lm_head_bias": True,
        "position_embedding_type": "learned" if kind == "learned" else "sinusoidal",
        "max_position_embeddings": 64,
    }
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**{**SHAPE, **fields, **changes}))
    if kind == "multilingual":
        set_language_ids(model, tokenizer)
        with torch.no_grad():
            # An untrained model would otherwise hardly react to the language tokens.
            model.get_input_embeddings().weight[list(tokenizer.lang_code_to_id.values())] *= 8
    return model.eval(), tokenizer


@same_numbers
def several_languages():
    """Return an mBART and its tokenizer, whose first target token names the language."""
    words = sorted({f"▁{word}" for text in ENGLISH + SPANISH for word in text.split()})
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    tokenizer = MBart50Tokenizer(vocab=[(word, 0.0) for word in special] + [(word, -2.0) for word in words])
    ids = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2}
    torch.manual_seed(5)
    config = MBartConfig(vocab_size=len(tokenizer), **SHAPE, **ids, forced_eos_token_id=None, init_std=1.0)
    return MBartForConditionalGeneration(config).eval(), tokenizer


def save_translator(kind: str, folder: Path, **settings: Any) -> tuple[Any, Any]:
    """Save a model with its tokenizer and additional generation settings, and return both."""
    model, tokenizer = build(kind)
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.generation_config.update(**settings)
    if kind == "multilingual":
        set_language_ids(model, tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def save_publishable(kind: str, folder: Path, **settings: Any) -> Path:
    """Save a translator with a model card, and return its folder."""
    save_translator(kind, folder, **settings)
    (folder / "README.md").write_text("# A model\n", encoding="utf-8")
    return folder


@same_numbers
def trained(tokenizer, sources, targets, steps=700, rows=96):
    """Return a small model trained for `steps` batches of pairs of similar length."""
    config = VanillaTransformerConfig(
        vocab_size=len(tokenizer), d_model=128, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=512, decoder_ffn_dim=512,
    )  # fmt: skip  # one field a line would fill the screen
    model = VanillaTransformerForConditionalGeneration(config)
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    batches = [order[i : i + rows] for i in range(0, len(order), rows)]
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps, pct_start=0.2)
    for _ in range(steps):
        batch = batches[int(torch.randint(len(batches), ()))]
        sides = {"text": [sources[i] for i in batch], "text_target": [targets[i] for i in batch]}
        inputs = tokenizer(**sides, padding=True, return_tensors="pt", return_token_type_ids=False)
        labels = inputs["labels"].masked_fill(inputs["labels"] == tokenizer.pad_token_id, -100)
        with torch.autocast("cpu", torch.bfloat16):
            loss = model(inputs["input_ids"], inputs["attention_mask"], labels=labels, skip_logits=True).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    return model.eval()


def set_end_bias(model: Any, bias: float) -> Any:
    """Make a model's outputs end early, late or never, and return it."""
    biases = model.final_logits_bias[0] if hasattr(model, "final_logits_bias") else model.lm_head.bias.data
    biases[IDS["eos_token_id"]] = bias
    return model


def texts(results: Any) -> list[list[str]]:
    """Return the texts of `translate`'s results."""
    return [[each.text for each in hypotheses] for hypotheses in results]


def assert_alike(found: Any, expected: Any, **tolerance: float) -> None:
    """Check that results of `translate` have equal texts, and scores within a tolerance."""
    assert texts(found) == texts(expected)
    own, others = ([each.score for hypotheses in results for each in hypotheses] for results in (found, expected))
    if None in others:
        assert own == others
    else:
        assert own == pytest.approx(others, **tolerance)


def hypotheses_of(translated):
    """Return the hypotheses of every sentence of texts that a server translated."""
    return [hypotheses for text in translated for hypotheses in text.hypotheses]
