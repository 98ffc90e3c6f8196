"""Evaluating a trained model: choice between it and an average, test scores, sample translations."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
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
from ..inference.languages import has_tags, set_languages
from ..inference.loading import load_model
from ..inference.teacher_forcing import tightest_limit
from ..inference.translation import translate
from .arguments import VanillaTransformerTrainingArguments
from .best_model import METRICS, TIE_BREAKERS
from .checkpoints import average_checkpoints, complete_checkpoints
from .direction_scores import numbers, scores_by_direction
from .metrics import METRIC_NAMES, bleu_fault
from .results import Results, Sample
from .setup import TokenizedSplits
from .text_splits import Direction, TextSplits, part_numbers
from .trainer import VanillaTransformerTrainer

# Number of samples, and the longest side of one in tokens: people read them.
SAMPLE_TRANSLATIONS, SAMPLE_TOKENS = 10, 256

# Validation pairs to choose the heads that align words by, and training pairs for the statistics: a few seconds.
ALIGNED_PAIRS, STATISTICS_PAIRS = 300, 10_000


def training_results(
    trainer: VanillaTransformerTrainer, metrics: dict[str, float], ids: TokenizedSplits
) -> dict[str, Any]:
    """Summarize a finished training over all of its sessions, as `all_results.json` has it.

    Args:
        trainer: Trainer of the last session.
        metrics: Those of its `TrainOutput`, which cover all sessions.
        ids: Tokenized pairs.

    Returns:
        Pairs kept of each split, time in seconds, mean loss, epochs, parameters, steps (skipped ones included),
        skipped steps, source and target tokens a second (evaluation included; none for a stream) and, if the run
        ended with the best checkpoint, its name and the metric that chose it.
    """
    state, record, seconds = trainer.state, trainer.run_record, metrics["train_runtime"]
    pairs = {split: count.kept for split, count in ids.counts.items() if count.read}
    if "train" not in pairs and record.train_pairs is not None:
        # A stream, of which this session had nothing left to read.
        pairs = {"train": record.train_pairs, **pairs}
    results: dict[str, Any] = {
        **{f"{split}_pairs": count for split, count in pairs.items()},
        "train_runtime": seconds,
        "train_loss": metrics["train_loss"],
        "epoch": state.epoch,
        "parameters": cast(PreTrainedModel, trainer.model).num_parameters(),
        "steps": state.global_step,
        "skipped_steps": record.skipped_steps,
    }
    if isinstance(ids.train, datasets.Dataset) and seconds > 0:
        lengths = np.array(token_lengths(ids.train), np.int64).sum(0)
        tokens = float(lengths.sum()) if trainer.epoch_rows is None else trainer.epoch_rows.mean_sum(lengths)
        results["train_tokens_per_second"] = tokens * (cast(float, state.epoch) - record.since_epoch) / seconds
    if trainer.args.load_best_model_at_end and state.best_model_checkpoint:
        results["best_checkpoint"] = Path(state.best_model_checkpoint).name
        results["best_checkpoint_metric"] = trainer.args.metric_for_best_model
    return results


@dataclass(frozen=True)
class Evaluation:
    """What a trained model is evaluated on, and how.

    Attributes:
        text: Sentence pairs.
        tokenizer: Of the model.
        args: Training arguments: folder, metrics, device.
        limits: Sources are truncated as in training.
        trust_remote_code: Whether to run Python code that comes with the model.
    """

    text: TextSplits
    tokenizer: PreTrainedTokenizerBase
    args: VanillaTransformerTrainingArguments
    limits: LengthLimits = NO_LIMITS
    trust_remote_code: bool = False

    def results(self, training: dict[str, Any]) -> Results:
        """Choose the model, score it on the test pairs, and translate samples.

        Args:
            training: Entries of the results on the training.
        """
        model, chosen = self.choose_model()
        self.choose_alignment_heads(model)
        translations, scores, fault = self.score_test(model)
        split, samples = self.translate_samples(model)
        entries = {**training, **chosen, **scores, "sample_split": split}
        if has_tags(self.tokenizer):
            tokenizer: Any = self.tokenizer
            entries["sample_languages"] = [tokenizer.src_lang, tokenizer.tgt_lang]
        return Results(entries, model, samples, translations, fault)

    def choose_model(self) -> tuple[PreTrainedModel, dict[str, Any]]:
        """Compare the saved model with the average of its last checkpoints on the validation pairs.

        By the metric of the best model or, if that is the loss, by the one that suits the text; other scores decide
        where it ties. The average wins ties of all, and runs without validation pairs.

        Returns:
            The better one, and entries of the results: the number of checkpoints in the average, the scores of each
            candidate, the metric, and the name of the model, "trained" or "averaged".
        """
        args, validation = self.args, self.text.validation
        models = {"trained": load_model(args.output_dir, trust_remote_code=self.trust_remote_code)}
        number, entries = args.average_last_checkpoints, dict[str, Any]()
        checkpoints = complete_checkpoints(args.output_dir)[-number:] if args.save_strategy != "no" else []
        if number > 1 and len(checkpoints) > 1:
            models["averaged"] = average_checkpoints(checkpoints, self.trust_remote_code)
            models["averaged"].generation_config = models["trained"].generation_config
            entries["averaged_checkpoints"] = len(checkpoints)
        metric = None
        for name, model in models.items():
            model.to(args.device)  # type: ignore[arg-type]  # mypy loses the signature that transformers wraps
            if validation is not None:
                metric = args.metric_for_best_model
                if metric not in METRICS:
                    metric = "chrf" if bleu_fault(validation["target"][:], args.bleu_tokenize) else "bleu"
                translations = self.translations(model, validation)
                found = scores_by_direction(self.text, validation, translations, args.bleu_tokenize)
                entries |= {f"validation_{name}_{each}": value for each, value in numbers(found).items()}

        def rank(name: str) -> tuple[float, ...]:
            known = [entries[f"validation_{name}_{each}"] for each in (metric, *TIE_BREAKERS)] if metric else []
            return (*known, name == "averaged")

        best = max(models, key=rank)
        return models[best], entries | ({"chosen_model_metric": metric} if metric else {}) | {"chosen_model": best}

    def choose_alignment_heads(self, model: PreTrainedModel) -> None:
        """Set the heads that align words, unless they are known: those that agree most with statistics of the corpus.

        Needs validation pairs, training pairs in memory, and a fast tokenizer.
        """
        train, validation, tokenizer = self.text.train, self.text.validation, self.tokenizer
        known = getattr(model.generation_config, "alignment_heads", None)
        if known or validation is None or not isinstance(train, datasets.Dataset) or not tokenizer.is_fast:
            return
        direction, rows = next(iter(self.text.rows_by_direction(validation).items()))
        tried = validation.select(rows[:ALIGNED_PAIRS])
        self.select_direction(direction)
        # Too few pairs have no statistics.
        others = train.select(self.text.rows_by_direction(train).get(direction, rows[:0])[:STATISTICS_PAIRS])
        sources, targets = tried["source"][:], tried["target"][:]
        links = align_corpus(sources + others["source"][:], targets + others["target"][:])[: len(tried)]
        if any(links):
            set_alignment_heads(model, find_alignment_heads(model, tokenizer, sources, targets, links)[0])

    def translations(self, model: PreTrainedModel, pairs: datasets.Dataset) -> list[str]:
        """Translate the sources of pairs with the model's own generation settings."""
        options: dict[str, Any] = {
            "max_source_length": self.limits.source,
            "show_progress": not self.args.disable_tqdm,
        }
        if has_tags(self.tokenizer):
            directions = [self.text.parts[number].direction for number in part_numbers(pairs)]
            options |= dict(zip(("src_lang", "tgt_lang"), zip(*directions, strict=True), strict=True))
        found = translate(model, self.tokenizer, pairs["source"][:], **options)
        return [hypotheses[0].text for hypotheses in found]

    def select_direction(self, direction: Direction) -> None:
        """Make the tokenizer begin sources as the direction needs."""
        if has_tags(self.tokenizer):
            set_languages(self.tokenizer, *direction)

    def score_test(self, model: PreTrainedModel) -> tuple[list[str] | None, dict[str, Any], str | None]:
        """Translate the test pairs, if any; return translations, scores by every metric, and why BLEU says little."""
        test, tokenize = self.text.test, self.args.bleu_tokenize
        if test is None:
            return None, {}, None
        translations = self.translations(model, test)
        scores = scores_by_direction(self.text, test, translations, tokenize, METRIC_NAMES)
        entries = {f"test_{name}": value for name, value in scores.items()}
        return translations, entries, bleu_fault(test["target"][:], tokenize)

    def translate_samples(self, model: PreTrainedModel) -> tuple[str, list[Sample]]:
        """Translate some pairs; return the name of their split, and the samples.

        The direction of the first one stays selected.
        """
        split, pairs = self.choose_samples()
        if not pairs:
            return split, []
        outputs = self.translations(model, datasets.Dataset.from_list(pairs))
        directions = [self.text.part_of(pair).direction for pair in pairs]
        self.select_direction(directions[0])
        names = [" to ".join(map(str, each)) if has_tags(self.tokenizer) else "" for each in directions]
        return split, [
            Sample(pair["source"], pair["target"], output, name)
            for pair, output, name in zip(pairs, outputs, names, strict=True)
        ]

    def choose_samples(self) -> tuple[str, list[dict[str, Any]]]:
        """Choose pairs within the limits from the test split, else from the validation or the training split."""
        source, target = (tightest_limit(limit, SAMPLE_TOKENS) for limit in self.limits[:2])
        limits = self.limits._replace(source=source, target=target)

        def is_usable(pair: dict[str, Any]) -> bool:
            return all(within_limits({side: [pair[side]] for side in PAIR_FEATURES}, self.tokenizer, limits))

        for split, pairs in reversed(self.text.present().items()):
            if samples := list(islice(_spread_pairs(pairs, is_usable), SAMPLE_TRANSLATIONS)):
                return split, samples
        return SPLITS[0], []


def _spread_pairs(pairs: Any, is_usable: Callable[[dict[str, Any]], bool]) -> Iterator[dict[str, Any]]:
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
