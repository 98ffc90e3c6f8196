"""Evaluating a trained model: choice between it and an average, test scores, sample translations."""

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.arguments import SPLITS
from ..data.batching import token_lengths
from ..data.encoding import NO_LIMITS, LengthLimits, within_limits
from ..data.reading import PAIR_FEATURES
from ..data.word_alignment import align_corpus
from ..inference.alignment import find_alignment_heads, set_alignment_heads
from ..inference.loading import load_model
from ..inference.teacher_forcing import tightest_limit
from ..inference.translation import translate
from .arguments import VanillaTransformerTrainingArguments
from .best_model import METRICS, TIE_BREAKERS
from .checkpoints import average_checkpoints, complete_checkpoints
from .metrics import METRIC_NAMES, bleu_fault, translation_scores
from .results import FinalScores, ModelChoice, Sample, TrainingResults
from .setup import TextSplits, TokenizedSplits
from .trainer import VanillaTransformerTrainer

# Number of samples, and the longest side of one in tokens: people read them.
SAMPLE_TRANSLATIONS, SAMPLE_TOKENS = 10, 256

# Validation pairs to choose the heads that align words by, and training pairs for the statistics: a few seconds.
ALIGNED_PAIRS, STATISTICS_PAIRS = 300, 10_000


def training_results(
    trainer: VanillaTransformerTrainer, metrics: dict[str, float], ids: TokenizedSplits
) -> TrainingResults:
    """Summarize a finished training over all of its sessions.

    Args:
        trainer: Trainer of the last session.
        metrics: Those of its `TrainOutput`, which cover all sessions.
        ids: Tokenized pairs.
    """
    state, seconds, speed = trainer.state, metrics["train_runtime"], None
    best = state.best_model_checkpoint if trainer.args.load_best_model_at_end else None
    if isinstance(ids.train, datasets.Dataset) and seconds > 0:
        tokens = float(np.sum(token_lengths(ids.train), dtype=np.int64))
        speed = tokens * (cast(float, state.epoch) - trainer.run_record.since_epoch) / seconds
    pairs = {split: count.kept for split, count in ids.counts.items() if count.read}
    if "train" not in pairs and trainer.run_record.train_pairs is not None:
        # A stream, of which this session had nothing left to read.
        pairs = {"train": trainer.run_record.train_pairs, **pairs}
    return TrainingResults(
        pairs=pairs,
        seconds=seconds,
        loss=metrics["train_loss"],
        epoch=state.epoch,
        parameters=cast(PreTrainedModel, trainer.model).num_parameters(),
        steps=state.global_step,
        skipped_steps=trainer.skipped_steps.total,
        tokens_per_second=speed,
        best_checkpoint=Path(best).name if best else None,
        best_metric=trainer.args.metric_for_best_model if best else None,
    )


def choose_model(
    tokenizer: PreTrainedTokenizerBase,
    text: TextSplits,
    args: VanillaTransformerTrainingArguments,
    trust_remote_code: bool = False,
    limits: LengthLimits = NO_LIMITS,
) -> ModelChoice:
    """Compare the saved model with the average of its last checkpoints on the validation pairs.

    By the metric of the best model or, if that is the loss, by the one that suits the text; other scores decide where
    it ties. The average wins ties of all, and runs without validation pairs.
    """
    models = {"trained": load_model(args.output_dir, trust_remote_code=trust_remote_code)}
    number, averaged = args.average_last_checkpoints, None
    checkpoints = complete_checkpoints(args.output_dir)[-number:] if args.save_strategy != "no" else []
    if number > 1 and len(checkpoints) > 1:
        models["averaged"] = average_checkpoints(checkpoints, trust_remote_code)
        models["averaged"].generation_config = models["trained"].generation_config
        averaged = len(checkpoints)
    scores, metric = {}, None
    for name, model in models.items():
        model.to(args.device)  # type: ignore[arg-type]  # mypy loses the signature that transformers wraps
        if text.validation is not None:
            references = text.validation["target"][:]
            metric = args.metric_for_best_model
            if metric not in METRICS:
                metric = "chrf" if bleu_fault(references, args.bleu_tokenize) else "bleu"
            translations = best_translations(model, tokenizer, text.validation["source"][:], args, limits)
            found = translation_scores(translations, references, tokenize=args.bleu_tokenize)
            scores[name] = {metric: cast(float, found[metric]) for metric in METRICS}

    def rank(name: str) -> tuple[float, ...]:
        known = [scores[name][each] for each in (metric, *TIE_BREAKERS)] if metric else []
        return (*known, name == "averaged")

    best = max(models, key=rank)
    return ModelChoice(best, models[best], scores, averaged, metric)


def choose_alignment_heads(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, text: TextSplits) -> None:
    """Set the heads that align words, unless they are known: those that agree most with statistics of the corpus.

    Needs validation pairs, training pairs in memory, and a fast tokenizer.
    """
    known = getattr(model.generation_config, "alignment_heads", None)
    if known or text.validation is None or not isinstance(text.train, datasets.Dataset) or not tokenizer.is_fast:
        return
    tried = text.validation.select(range(min(ALIGNED_PAIRS, len(text.validation))))
    # Too few pairs have no statistics.
    others = text.train.select(range(min(STATISTICS_PAIRS, len(text.train))))
    sources, targets = tried["source"][:], tried["target"][:]
    links = align_corpus(sources + others["source"][:], targets + others["target"][:])[: len(tried)]
    if any(links):
        set_alignment_heads(model, find_alignment_heads(model, tokenizer, sources, targets, links)[0])


def best_translations(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: list[str],
    args: VanillaTransformerTrainingArguments,
    limits: LengthLimits = NO_LIMITS,
) -> list[str]:
    """Translate with the model's own generation settings, sources truncated as in training."""
    options: Any = {"max_source_length": limits.source, "show_progress": not args.disable_tqdm}
    hypotheses = translate(model, tokenizer, sources, **options)
    return [candidates[0].text for candidates in hypotheses]


def score_test(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: TextSplits,
    args: VanillaTransformerTrainingArguments,
    limits: LengthLimits = NO_LIMITS,
) -> FinalScores | None:
    """Translate the test pairs, if any, and score them by every metric."""
    if text.test is None:
        return None
    references = text.test["target"][:]
    translations = best_translations(model, tokenizer, text.test["source"][:], args, limits)
    scores = translation_scores(translations, references, tokenize=args.bleu_tokenize, metrics=METRIC_NAMES)
    return FinalScores(translations, scores, bleu_fault(references, args.bleu_tokenize))


def translate_samples(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: TextSplits,
    args: VanillaTransformerTrainingArguments,
    limits: LengthLimits = NO_LIMITS,
) -> tuple[str, list[Sample]]:
    """Translate some pairs; return the name of their split, and the samples."""
    split, pairs = choose_samples(text, tokenizer, limits)
    outputs = best_translations(model, tokenizer, [pair["source"] for pair in pairs], args)
    return split, [Sample(pair["source"], pair["target"], out) for pair, out in zip(pairs, outputs, strict=True)]


def choose_samples(
    text: TextSplits, tokenizer: PreTrainedTokenizerBase, limits: LengthLimits = NO_LIMITS
) -> tuple[str, list[dict[str, str]]]:
    """Choose pairs within the limits from the test split, else from the validation or the training split."""
    source, target = (tightest_limit(limit, SAMPLE_TOKENS) for limit in limits[:2])
    limits = limits._replace(source=source, target=target)

    def is_usable(pair: dict[str, str]) -> bool:
        return all(within_limits({side: [pair[side]] for side in PAIR_FEATURES}, tokenizer, limits))

    for split, pairs in reversed(text.present().items()):
        if samples := list(islice(_spread_pairs(pairs, is_usable), SAMPLE_TRANSLATIONS)):
            return split, samples
    return SPLITS[0], []


def _spread_pairs(pairs: Any, is_usable: Callable[[dict[str, str]], bool]) -> Iterator[dict[str, str]]:
    """Yield the first usable pair of each of `SAMPLE_TRANSLATIONS` stretches, as corpora are often sorted.

    Of a stream, yield all usable pairs.
    """
    if not isinstance(pairs, datasets.Dataset):
        yield from filter(is_usable, pairs)
        return
    stretch = -(-len(pairs) // SAMPLE_TRANSLATIONS)
    for start in range(0, len(pairs), stretch):
        rows = (pairs[i] for i in range(start, min(start + stretch, len(pairs))))
        yield from islice(filter(is_usable, rows), 1)


__all__ = ["choose_model", "choose_samples", "score_test", "training_results", "translate_samples"]
