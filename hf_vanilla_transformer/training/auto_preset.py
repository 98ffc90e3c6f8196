"""`--preset auto`: model, vocabulary and training settings by corpus size."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import datasets

from ..data.arguments import AUTO, NONE, DataArguments
from ..data.augmentation import DEFAULT
from ..presets import AUTO_PRESET, preset_config
from .arguments import (
    PRESET_DEFAULTS,
    ModelArguments,
    VanillaTransformerTrainingArguments,
    join_overrides,
    parse_overrides,
    with_fields,
)

# Pairs sampled to estimate the number of words.
SAMPLE = 100_000

# UTF-8 bytes of a word and its space: about 6 in English, German and Spanish. Also used for text without spaces.
BYTES_PER_WORD = 6

# Maximum mean length of a word and its space, in characters, for text with spaces between words. Finnish has about 9;
# text with spaces only between clauses has more.
MAX_WORD_LENGTH = 20


@dataclass(frozen=True)
class Tier:
    """Settings for a corpus of up to `words` words, both sides counted, to train on about `words_in_all` words.

    The vocabulary has at most `vocab_size` tokens. `overrides` replace fields of the preset; `training` has fields of
    `VanillaTransformerTrainingArguments` and `DataArguments`.
    """

    words: float
    words_in_all: float
    preset: str
    vocab_size: int
    overrides: dict[str, Any]
    training: dict[str, Any]

    def settings(self, words: float, distinct_words: float) -> dict[str, Any]:
        """Return the settings for a corpus of this size; `distinct_words` excludes reversed copies of pairs."""
        epochs = min(max(round(self.words_in_all / words), MIN_EPOCHS), MAX_EPOCHS)
        vocab_size = min(max(round(distinct_words / WORDS_PER_TOKEN, -3), MIN_VOCAB_SIZE), self.vocab_size)
        return {"vocab_size": int(vocab_size), "num_train_epochs": epochs, **self.overrides, **self.training}


# Multi30k scores higher with 8,000 tokens than with 4,000, Tatoeba with 16,000 than with 8,000 (docs/choosing.md).
WORDS_PER_TOKEN = 80
MIN_VOCAB_SIZE = 4000

# Batch tokens per word of both sides, padding included, on Multi30k.
TOKENS_PER_WORD = 1.4

# Fewer epochs underfit; more overfit.
MIN_EPOCHS, MAX_EPOCHS = 10, 60

_AS_TYPED = {"augment": DEFAULT}
_PAPER = _AS_TYPED | {"warmup_steps": 4000}
_SMALL_CORPUS = _AS_TYPED | {
    "guided_alignment": AUTO,
    "muon": True,
    "learning_rate": 0.003,
    "warmup_steps": 600,
    "lr_scheduler_type": "cosine",
    "max_tokens": 2048,
}

# On Multi30k, the first tier is the recipe `multi30k`; the last two are the paper's models.
TIERS = (
    Tier(2_000_000, 14_000_000, "deep-encoder", 16000, {"dropout": 0.3}, _SMALL_CORPUS),
    Tier(20_000_000, 50_000_000, "deep-encoder", 16000, {"dropout": 0.1}, _SMALL_CORPUS | {"max_tokens": 4096}),
    Tier(200_000_000, 2_000_000_000, "base", 16000, {"dropout": 0.1}, _PAPER),
    Tier(float("inf"), 2_000_000_000, "big", 37000, {"dropout": 0.3}, _PAPER),
)

# Why a setting differs from the paper.
REASONS = {
    "vocab_size": "{per_token:.1f} words per token",
    "num_train_epochs": "{millions:.2g} million words in total",
    "dropout": "few pairs, many epochs",
    "guided_alignment": "an attention head learns word alignment sooner",
    "muon": "learns faster than Adam in short runs",
    "learning_rate": "a short run needs a higher rate than the paper's",
    "warmup_steps": "the paper's 4,000 steps are for a run of 100,000",
    "lr_scheduler_type": "a short run does better if the rate decays to zero",
    "max_tokens": "small batches, for more steps",
    "augment": "people do not type the way corpora are written",
}


def resolve_auto_preset(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
    train: Any,
    distinct: float = 1.0,
) -> tuple[ModelArguments, DataArguments, VanillaTransformerTrainingArguments, list[str]]:
    """Return arguments with settings for the corpus size for the preset `auto`, and summary lines on each setting.

    Settings that were given stay. `distinct` is the share of pairs that are not reversed copies of others.
    """
    if model_args.preset != AUTO_PRESET:
        return model_args, data_args, args, []
    if not isinstance(train, datasets.Dataset):
        raise ValueError("`preset=auto` needs the size of the training text; with `streaming`, name a preset")
    words = count_words(train)
    tier = next(tier for tier in TIERS if words <= tier.words)
    settings, overrides = tier.settings(words, distinct * words), parse_overrides(model_args.config_overrides)
    stays = {name: f"{value}, as given" for name, value in (overrides | _given(model_args, data_args, args)).items()}
    stays = {name: f"{NONE}: {reason}" for name, reason in _obstacles(args, train).items()} | stays
    vocab_size = settings["vocab_size"] if model_args.vocab_size is None else model_args.vocab_size
    joined = join_overrides(tier.overrides | overrides)
    model_args = with_fields(model_args, preset=tier.preset, vocab_size=vocab_size, config_overrides=joined)
    chosen = {name: settings[name] for name in {"num_train_epochs", *tier.training} - stays.keys()}
    data_args = with_fields(data_args, **{name: chosen.pop(name) for name in vars(data_args).keys() & chosen})
    args = with_fields(args, **chosen)
    # The paper's values, which a tier may keep.
    paper = {"dropout": preset_config(tier.preset).dropout, "warmup_steps": PRESET_DEFAULTS["warmup_steps"]}
    if settings["warmup_steps"] != paper["warmup_steps"] and "warmup_steps" not in stays:
        settings["warmup_steps"] = _warmup_steps(words, len(train), args)
        args = with_fields(args, warmup_steps=settings["warmup_steps"])
    facts = {"per_token": distinct * words / settings["vocab_size"], "millions": words * args.num_train_epochs / 1e6}
    lines = [f"preset       {tier.preset}, by auto: {words / 1e6:.2g} million words in {len(train)} pairs"]
    for name, value in settings.items():
        reason = "the paper's" if value == paper.get(name) else REASONS[name].format(**facts)
        lines.append(f"  {name} {stays.get(name) or f'{value}: {reason}'}")
    return model_args, data_args, args, lines


def _warmup_steps(words: float, pairs: int, args: VanillaTransformerTrainingArguments) -> int:
    """Return the warm-up that `args` holds, capped at a tenth of the estimated steps."""
    batches = words * TOKENS_PER_WORD / args.max_tokens if args.max_tokens else pairs / args.train_batch_size
    steps = batches * args.num_train_epochs / args.gradient_accumulation_steps / args.world_size
    return max(1, int(min(args.warmup_steps, (args.max_steps if args.max_steps > 0 else steps) / 10)))


def count_words(train: datasets.Dataset) -> float:
    """Estimate the number of words on both sides from the number of bytes."""
    sample = _sample(train)
    size = sum(len(text.encode()) for side in ("source", "target") for text in sample[side])
    return size * len(train) / len(sample) / BYTES_PER_WORD


def _sample(train: datasets.Dataset) -> datasets.Dataset:
    return train.select(range(0, len(train), -(-len(train) // SAMPLE)))


def _obstacles(args: VanillaTransformerTrainingArguments, train: datasets.Dataset) -> dict[str, str]:
    """Return why guided alignment or noise is impossible, by setting."""
    sample, reasons = _sample(train), {}
    if not all(_has_spaced_words(sample[side]) for side in ("source", "target")):
        reasons = dict.fromkeys(("guided_alignment", "augment"), "words are not separated by white space")
    if args.packing:
        reasons["guided_alignment"] = "not with `packing`"
    if not args.max_tokens:
        reasons["augment"] = "needs `max_tokens`"
    return reasons


def _has_spaced_words(sentences: Sequence[str]) -> bool:
    words = sum(len(sentence.split()) for sentence in sentences)
    return words >= 2 * len(sentences) and sum(map(len, sentences)) <= MAX_WORD_LENGTH * words


def _given(
    model_args: ModelArguments, data_args: DataArguments, args: VanillaTransformerTrainingArguments
) -> dict[str, Any]:
    """Return the settings that were given, even as their defaults, or assigned another value since."""
    settings = {
        "vocab_size": "the tokenizer's" if model_args.tokenizer_name_or_path else model_args.vocab_size,
        "guided_alignment": data_args.guided_alignment,
        **{name: getattr(args, name) for name in {*PRESET_DEFAULTS, "learning_rate"} - args.not_given},
    }
    if args.lr_scheduler_kwargs:
        # They are specific to a schedule.
        settings["lr_scheduler_type"] = args.lr_scheduler_type
    if args.max_steps > 0:
        settings["num_train_epochs"] = f"{args.max_steps} steps"
    return {name: getattr(value, "value", value) for name, value in settings.items() if value is not None}
