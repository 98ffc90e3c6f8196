"""`--preset auto`: tokens, model and training settings by the notation of both sides and the size of the corpus."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, cast

import datasets

from ..data.arguments import AUTO, NONE, DataArguments
from ..data.augmentation import COPIES, DEFAULT
from ..data.features import texts_of
from ..data.reading import spread
from ..model.tokenization_vanilla_transformer import tags_of
from ..presets import AUTO_PRESET, preset_config
from ..text.notation import PROSE, Notation, find_notation, share_symbols, split_into_symbols
from .arguments import (
    PRESET_DEFAULTS,
    ModelArguments,
    VanillaTransformerTrainingArguments,
    join_overrides,
    parse_overrides,
    with_fields,
)
from .search_tuning import why_not_tuned
from .text_splits import TextSplits

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

    The vocabulary has at most `vocab_size` tokens. `overrides` replace fields of the preset, whose dropout otherwise
    follows from the epochs; `training` has fields of `VanillaTransformerTrainingArguments` and `DataArguments`. For
    sequences, symbols are counted instead of words.
    """

    words: float
    words_in_all: float
    preset: str
    vocab_size: int
    overrides: dict[str, Any]
    training: dict[str, Any]
    # Fewer epochs underfit; more overfit.
    epochs: range = range(10, 61)

    def settings(self, words: float, distinct_words: float, distinct_pairs: float = float("inf")) -> dict[str, Any]:
        """Return the settings for a corpus of this size; distinct are pairs that are neither repeated nor reversed."""
        epochs = min(max(round(self.words_in_all / words), self.epochs[0]), self.epochs[-1])
        tokens = min(distinct_words / WORDS_PER_TOKEN, distinct_pairs / PAIRS_PER_TOKEN)
        vocab_size = min(max(round(tokens, -3), MIN_VOCAB_SIZE), self.vocab_size)
        return {"vocab_size": int(vocab_size), "num_train_epochs": epochs, **self.overrides, **self.training}


# Less dropout learns more in a few epochs, and learns the pairs by heart in many
# (docs/measurements/small_languages.md#dropout).
MANY_EPOCHS = 15


def dropout_of(epochs: float) -> float:
    """Return the dropout of a run of this many epochs on a small corpus."""
    return 0.3 if epochs >= MANY_EPOCHS else 0.1


# Multi30k scores higher with 8,000 tokens than with 4,000, Tatoeba with 16,000 than with 8,000 (docs/choosing.md), but
# Guaraní, whose fewer sentences have as many words, with 4,000 (docs/measurements/small_languages.md).
WORDS_PER_TOKEN = 80
PAIRS_PER_TOKEN = 3.6
MIN_VOCAB_SIZE = 4000

# Batch tokens per word of both sides, padding included, on Multi30k.
TOKENS_PER_WORD = 1.4

# Few pairs gain from targets that are their own sources, 1,000 and 3,000, but not 14,000
# (docs/measurements/small_languages.md#copied-targets). The model must be able to tell them from sources.
# By words, 94 % of the texts of 1,000 pairs in Spanish and Nahuatl can be told apart, but 86 % of captions with five
# typos and without.
COPIED_SHARE, MAX_COPIED_PAIRS, MIN_TOLD_APART = 0.5, 5000, 0.9

_PROSE = {"augment": DEFAULT, "tune_search": True}
_PAPER = _PROSE | {"warmup_steps": 4000}
_SMALL_CORPUS = _PROSE | {
    "guided_alignment": AUTO,
    "muon": True,
    "learning_rate": 0.003,
    "warmup_steps": 600,
    "lr_scheduler_type": "cosine",
    "max_tokens": 2048,
}

# For pairs of which a side is not prose (docs/measurements/sequences.md).
_SEQUENCES = {
    "muon": True,
    "learning_rate": 0.003,
    "warmup_steps": 600,
    "lr_scheduler_type": "cosine",
    "max_tokens": 4096,
    "per_device_eval_batch_size": 256,
}
# Few pairs without tags need more steps; with tags, small batches generalize worse to new combinations of them.
FEW_PAIRS, SMALL_BATCH = 20_000, 1536
# Fewer pairs are learned by heart with less dropout; more are learned sooner with less.
VERY_FEW_PAIRS = 10_000
SYMBOLS_PER_ROOT = 10_000
SEQUENCE_EPOCHS = range(11, 101)
EVALUATIONS = 10

# On Multi30k, the first tier is the recipe `multi30k`; the last two are the paper's models.
TIERS = (
    Tier(2_000_000, 14_000_000, "deep-encoder", 16000, {}, _SMALL_CORPUS),
    Tier(20_000_000, 50_000_000, "deep-encoder", 16000, {"dropout": 0.1}, _SMALL_CORPUS | {"max_tokens": 4096}),
    Tier(200_000_000, 2_000_000_000, "base", 16000, {"dropout": 0.1}, _PAPER),
    Tier(float("inf"), 2_000_000_000, "big", 37000, {"dropout": 0.3}, _PAPER),
)

# Why a setting differs from the paper.
REASONS = {
    "vocab_size": "{words:.0f} words and {pairs:.1f} pairs per token, without repeats",
    "num_train_epochs": "{millions:.2g} million words in total",
    "dropout": "few pairs, many epochs",
    "guided_alignment": "an attention head learns word alignment sooner",
    "muon": "learns faster than Adam in short runs",
    "learning_rate": "a short run needs a higher rate than the paper's",
    "warmup_steps": "the paper's 4,000 steps are for a run of 100,000",
    "lr_scheduler_type": "a short run does better if the rate decays to zero",
    "max_tokens": "small batches, for more steps",
    "drop_repeated": "repeats would take time from other pairs",
    "augment": "people do not type the way corpora are written",
    "tune_search": "translations may loop or be too short; validation pairs decide",
    "eval_steps": "about ten evaluations",
}
SEQUENCE_REASONS = REASONS | {
    "norm_position": "learns in fewer steps than the paper's post-norm",
    "vocab_size": "the most a side may have",
    "num_train_epochs": "{millions:.2g} million symbols in total",
    "per_device_eval_batch_size": "short sequences",
}


def resolve_auto_preset(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
    text: TextSplits,
    earlier: Mapping[str, Any] | None = None,
) -> tuple[ModelArguments, DataArguments, VanillaTransformerTrainingArguments, list[str]]:
    """Return arguments with settings for the texts for the preset `auto`, and summary lines on each setting.

    Settings that were given stay, and so do `earlier` ones, those of the checkpoint to resume from.
    """
    if model_args.preset != AUTO_PRESET:
        return model_args, data_args, args, []
    if not isinstance(text.train, datasets.Dataset):
        raise ValueError("`preset=auto` needs the size of the training text; with `streaming`, name a preset")
    earlier = earlier or {}
    overrides = parse_overrides(model_args.config_overrides)
    given = overrides | _given(model_args, data_args, args)
    data_args, text, corpus = _drop_repeats(data_args, text, earlier)
    stays = _obstacles(args, text)
    stays |= {name: f"{value}, the checkpoint's" for name, value in earlier.items()}
    stays |= {name: f"{value}, as given" for name, value in given.items()}
    distinct = text.distinct_share()
    tier, size = tier_of(corpus), corpus.size
    settings = tier.settings(size, distinct * size, distinct * corpus.pairs if corpus.is_prose else float("inf"))
    vocab_size = settings["vocab_size"] if model_args.vocab_size is None else model_args.vocab_size
    model_args = with_fields(model_args, preset=tier.preset, vocab_size=vocab_size)
    model_args, lines = choose_tokens(model_args, corpus)
    if "augment" in settings and corpus.pairs <= MAX_COPIED_PAIRS and _can_copy(model_args, text):
        settings["augment"] += f",{COPIES}={COPIED_SHARE}"
    chosen = {name: settings[name] for name in {"num_train_epochs", *tier.training} - stays.keys()}
    chosen |= {name: earlier[name] for name in {"augment"} & earlier.keys() - given.keys()}
    data_args = with_fields(data_args, **{name: chosen.pop(name) for name in vars(data_args).keys() & chosen})
    args = with_fields(args, **chosen)
    fixed = {**tier.overrides, **earlier, **overrides}
    args, dropout, later = _with_dropout(args, fixed, _epochs(corpus, args))
    settings["dropout"] = dropout
    if later:
        stays["dropout"] = later
    joined = join_overrides(tier.overrides | {"dropout": dropout} | overrides)
    model_args = with_fields(model_args, config_overrides=joined)
    # The paper's values, which a tier may keep.
    paper = {"dropout": preset_config(tier.preset).dropout, "warmup_steps": PRESET_DEFAULTS["warmup_steps"]}
    shortens_warmup = settings["warmup_steps"] != paper["warmup_steps"] and "warmup_steps" not in stays
    args, scheduled = _with_schedule(args, _steps(corpus, args), shortens_warmup)
    settings |= scheduled
    if text.validation is None:
        settings.pop("eval_steps", None)
    if text.repeated or "drop_repeated" in given:
        settings["drop_repeated"] = data_args.drop_repeated
    reasons = _reasons(corpus, distinct, settings, args.num_train_epochs)
    for name, value in settings.items():
        reason = "the paper's" if value == paper.get(name) else reasons[name]
        lines.append(f"  {name} {stays.get(name) or f'{value}: {reason}'}")
    head = f"preset       {tier.preset}, by auto: {size / 1e6:.2g} million {corpus.unit} in {corpus.pairs} pairs"
    return model_args, data_args, args, [head, *lines]


def _drop_repeats(
    data_args: DataArguments, text: TextSplits, earlier: Mapping[str, Any]
) -> tuple[DataArguments, TextSplits, "Corpus"]:
    """Return the pairs to train on and a look at them: of prose each pair once, unless repeats were asked for."""
    corpus = look_at(text)
    if data_args.drop_repeated is None:
        # Of words and symbols, the more frequent pairs are the more usual ones.
        is_prose = corpus.is_prose and text.target_notation.is_prose
        data_args = with_fields(data_args, drop_repeated=earlier.get("drop_repeated", is_prose))
    if data_args.drop_repeated:
        text = text.without_repeats
        corpus = look_at(text)
    return data_args, text, corpus


@dataclass(frozen=True)
class Corpus:
    """What `auto` sees of the training pairs.

    Attributes:
        source: Notation of the sources.
        target: Notation of the targets.
        share_symbols: Whether the targets are written with the symbols of the sources.
        pairs: Number of pairs.
        size: Estimated number of words of both sides or, if one is not prose, of symbols, end tokens included.
        has_features: Whether sources have tags.
    """

    source: Notation
    target: Notation
    share_symbols: bool
    pairs: int
    size: float
    has_features: bool = False

    @property
    def is_prose(self) -> bool:
        """Whether both sides are prose, or several directions share a vocabulary of subwords."""
        return self.source.is_prose and self.target.is_prose

    @property
    def unit(self) -> str:
        return "words" if self.is_prose else "symbols"


def look_at(text: TextSplits) -> Corpus:
    """Sample the training pairs."""
    train = cast(datasets.Dataset, text.train)
    sample = _sample(train)
    sources, targets = texts_of(sample["source"], text.features), sample["target"][:]
    # Targets are never decomposed.
    source, target = find_notation(sources), find_notation(targets)._replace(decomposed=False)
    if text.has_several_directions or (source.is_prose and target.is_prose):
        prose = Notation(PROSE, "several directions")
        return Corpus(prose, prose, True, len(train), count_words(train))
    is_shared = source.algorithm == target.algorithm and share_symbols(sources, targets, source)
    symbols = _count_symbols(source, sources) + _count_symbols(target, targets)
    if text.features:
        separator = text.features.feature_separator
        symbols += sum(len(tags_of(line, separator)[1]) for line in sample["source"])
    size = symbols * len(train) / len(sample)
    return Corpus(source, target, is_shared, len(train), size, has_features=text.features is not None)


def _count_symbols(notation: Notation, texts: Sequence[str]) -> int:
    split = split_into_symbols(notation.algorithm)
    return sum(len(split(notation.spelled(text))) + 1 for text in texts)


def tier_of(corpus: Corpus) -> Tier:
    """Return the settings for a corpus."""
    if corpus.is_prose:
        return next(tier for tier in TIERS if corpus.size <= tier.words)
    has_small_batches = corpus.pairs <= FEW_PAIRS and not corpus.has_features
    training = _SEQUENCES | ({"max_tokens": SMALL_BATCH} if has_small_batches else {})
    total = SYMBOLS_PER_ROOT * corpus.size**0.5
    overrides = {"dropout": 0.3 if corpus.pairs <= VERY_FEW_PAIRS else 0.1, "norm_position": "pre"}
    return Tier(float("inf"), total, "small", 16_000, overrides, training, SEQUENCE_EPOCHS)


def choose_tokens(model_args: ModelArguments, corpus: Corpus) -> tuple[ModelArguments, list[str]]:
    """Choose the tokens of each side by its notation, unless they were given, and say why."""
    lines: list[str] = []
    fields = {"tokenizer_algorithm": model_args.tokenizer_algorithm or PROSE}
    if model_args.tokenizer_name_or_path:
        return model_args, lines
    for side, notation in (("source", corpus.source), ("target", corpus.target)) if not corpus.is_prose else ():
        name = f"{side}_tokenizer_algorithm"
        given = getattr(model_args, name) or model_args.tokenizer_algorithm
        fields[name] = given or notation.algorithm
        lines.append(f"  {name} {f'{given}, as given' if given else f'{notation.algorithm}: {notation.reason}'}")
    if corpus.source.decomposed and not (model_args.normalization or model_args.source_normalization):
        fields["source_normalization"] = "NFD"
        lines.append("  source_normalization NFD: many or new characters in held-out texts, of few and known parts")
    chosen = with_fields(model_args, **fields)
    if chosen.source_tokenizer != chosen.target_tokenizer:
        is_separate, reason = True, "different tokens"
    elif model_args.separate_vocabularies is not None:
        is_separate, reason = model_args.separate_vocabularies, "as given"
    else:
        is_separate = not corpus.share_symbols
        reason = f"{'few' if is_separate else 'most'} symbols in common"
    if not corpus.is_prose:
        lines.append(f"  separate_vocabularies {is_separate}: {reason}")
    return with_fields(chosen, separate_vocabularies=is_separate), lines


def _reasons(corpus: Corpus, distinct: float, settings: Mapping[str, Any], epochs: float) -> dict[str, str]:
    """Return why each setting differs from the paper."""
    vocab_size = settings["vocab_size"]
    facts = {name: distinct * n / vocab_size for name, n in (("words", corpus.size), ("pairs", corpus.pairs))}
    facts["millions"] = corpus.size * epochs / 1e6
    reasons = REASONS if corpus.is_prose else SEQUENCE_REASONS
    if COPIES in settings.get("augment", ""):
        reasons = reasons | {"augment": f"{reasons['augment']}, and few pairs gain from copied targets"}
    if corpus.is_prose and vocab_size == MIN_VOCAB_SIZE:
        reasons = reasons | {"vocab_size": "the minimum"}
    return {name: reason.format(**facts) for name, reason in reasons.items()}


def _with_dropout(
    args: VanillaTransformerTrainingArguments, fixed: Mapping[str, Any], epochs: float
) -> tuple[VanillaTransformerTrainingArguments, float, str | None]:
    """Return the dropout, fixed or by the epochs, and what to say if a time budget decides it later."""
    if "dropout" in fixed or not args.time_budget:
        return args, fixed.get("dropout", dropout_of(epochs)), None
    now, later = dropout_of(0), dropout_of(MANY_EPOCHS)
    args = with_fields(args, dropout_is_open=True)
    return args, now, f"{now}, or {later} if the budget allows {MANY_EPOCHS} epochs"


def _with_schedule(
    args: VanillaTransformerTrainingArguments, steps: float, shortens_warmup: bool
) -> tuple[VanillaTransformerTrainingArguments, dict[str, Any]]:
    """Fit warm-up and evaluations to the number of steps; also return what was set.

    Evaluate about `EVALUATIONS` times, or every `eval_steps`: epochs of a small corpus take seconds. The last models
    of a schedule that decays to zero are the best, so nothing is lost between the evaluations.
    """
    settings: dict[str, Any] = {}
    if shortens_warmup:
        settings["warmup_steps"] = max(1, int(min(args.warmup_steps, steps / 10)))
    if args.lr_scheduler_type == "cosine" and "eval_strategy" in args.not_given and not args.saving_is_given:
        settings["eval_steps"] = args.eval_steps or max(1, round(steps / EVALUATIONS))
        every = {"eval_strategy": "steps", "save_strategy": "steps", "save_steps": settings["eval_steps"]}
        args = with_fields(args, **every)
    return with_fields(args, **settings), settings


def _steps(corpus: Corpus, args: VanillaTransformerTrainingArguments) -> float:
    """Estimate the number of optimizer steps."""
    return args.max_steps if args.max_steps > 0 else args.num_train_epochs * _steps_of_epoch(corpus, args)


def _epochs(corpus: Corpus, args: VanillaTransformerTrainingArguments) -> float:
    """Estimate the number of epochs."""
    return args.max_steps / _steps_of_epoch(corpus, args) if args.max_steps > 0 else args.num_train_epochs


def _steps_of_epoch(corpus: Corpus, args: VanillaTransformerTrainingArguments) -> float:
    tokens = corpus.size * (TOKENS_PER_WORD if corpus.is_prose else 1)
    batches = tokens / args.max_tokens if args.max_tokens else corpus.pairs / args.train_batch_size
    return batches / args.gradient_accumulation_steps / args.world_size


def count_words(train: datasets.Dataset) -> float:
    """Estimate the number of words on both sides from the number of bytes."""
    sample = _sample(train)
    size = sum(len(text.encode()) for side in ("source", "target") for text in sample[side])
    return size * len(train) / len(sample) / BYTES_PER_WORD


def _sample(train: datasets.Dataset) -> datasets.Dataset:
    return spread(train, SAMPLE)


def _obstacles(args: VanillaTransformerTrainingArguments, text: TextSplits) -> dict[str, str]:
    """Return guided alignment, noise or tuning, if impossible, and why."""
    sample, reasons = _sample(cast(datasets.Dataset, text.train)), {}
    if not all(_has_spaced_words(sample[side]) for side in ("source", "target")):
        reasons = dict.fromkeys(("guided_alignment", "augment"), f"{NONE}: words are not separated by white space")
    if args.packing:
        reasons["guided_alignment"] = f"{NONE}: not with `packing`"
    if not args.max_tokens:
        reasons["augment"] = f"{NONE}: needs `max_tokens`"
    if obstacle := why_not_tuned(text):
        reasons["tune_search"] = f"{False}: {obstacle}"
    return reasons


def _has_spaced_words(sentences: Sequence[str]) -> bool:
    words = sum(len(sentence.split()) for sentence in sentences)
    return words >= 2 * len(sentences) and sum(map(len, sentences)) <= MAX_WORD_LENGTH * words


def _can_copy(model_args: ModelArguments, text: TextSplits) -> bool:
    """Whether targets can be sources: both have one new vocabulary and no tags, and can be told apart."""
    has_other_vocabulary = model_args.tokenizer_name_or_path or model_args.separate_vocabularies
    if has_other_vocabulary or text.features or text.has_several_directions:
        return False
    sample = _sample(cast(datasets.Dataset, text.train))
    return told_apart(sample["source"], sample["target"]) >= MIN_TOLD_APART


def told_apart(sources: Sequence[str], targets: Sequence[str]) -> float:
    """Return how often a naive Bayes classifier finds the side of a text, learned from the other half of the pairs."""
    half, right = len(sources) // 2, 0
    sides = [[text.casefold().split() for text in texts] for texts in (sources, targets)]
    for own, other in ((slice(half), slice(half, None)), (slice(half, None), slice(half))):
        counts = [Counter(word for words in texts[other] for word in words) for texts in sides]
        totals = [max(1, count.total()) for count in counts]
        log_odds = {
            word: log((counts[1][word] + 0.5) / totals[1]) - log((counts[0][word] + 0.5) / totals[0])
            for word in counts[0] | counts[1]
        }
        for sign, texts in zip((-1, 1), sides, strict=True):
            right += sum(sign * sum(log_odds.get(word, 0.0) for word in words) > 0 for words in texts[own])
    return right / (len(sources) + len(targets))


def _given(
    model_args: ModelArguments, data_args: DataArguments, args: VanillaTransformerTrainingArguments
) -> dict[str, Any]:
    """Return the settings that were given, even as their defaults, or assigned another value since."""
    settings = {
        "vocab_size": "the tokenizer's" if model_args.tokenizer_name_or_path else model_args.vocab_size,
        "guided_alignment": data_args.guided_alignment,
        "drop_repeated": data_args.drop_repeated,
        "eval_steps": args.eval_steps,
        **{name: getattr(args, name) for name in {*PRESET_DEFAULTS, "learning_rate"} - args.not_given},
    }
    if args.lr_scheduler_kwargs:
        # They are specific to a schedule.
        settings["lr_scheduler_type"] = args.lr_scheduler_type
    if args.max_steps > 0:
        length = f"{args.time_budget:g} minutes" if args.time_budget else f"{args.max_steps} steps"
        settings["num_train_epochs"] = length
    return {name: getattr(value, "value", value) for name, value in settings.items() if value is not None}
