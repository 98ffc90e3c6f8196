"""Evaluation of a trained model: scores by direction, choice between it and an average, sample translations."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple, cast

import datasets
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.trainer_utils import EvalPrediction

from ..data.arguments import SPLITS
from ..data.augmentation import has_placeholders, protect_pairs
from ..data.batching import token_lengths
from ..data.encoding import NO_LIMITS, LengthLimits, within_limits
from ..data.features import split_features, texts_of
from ..data.reading import PAIR_FEATURES, spread
from ..data.word_alignment import align_corpus
from ..inference.alignment import find_alignment_heads, set_alignment_heads
from ..inference.translation import remarks_logger, translate
from ..pretrained.languages import DIRECTLY, has_tags, pivot_of, set_languages
from ..pretrained.loading import load_model
from ..pretrained.teacher_forcing import tightest_limit
from ..pretrained.text_facts import set_pivots
from ..text.facts import TextFacts
from .arguments import VanillaTransformerTrainingArguments
from .callbacks import METRICS, TIE_BREAKERS, gain
from .checkpoints import average_checkpoints, complete_checkpoints
from .metrics import FAST_METRICS, bleu_fault, metrics_for, translation_scores, usable_tokenizer
from .proof import PAIRS, HeldOut, prove_rules
from .search_tuning import PAIRS as SEARCHED_PAIRS
from .search_tuning import TunedSetting, tune_search
from .text_splits import TextSplits, TokenizedSplits, part_numbers
from .trainer import VanillaTransformerTrainer
from .trainer_loss import replaced

# Number of samples, and the maximum tokens of each side, so that people can read them.
SAMPLE_TRANSLATIONS, SAMPLE_TOKENS = 10, 256

# Validation pairs for choosing alignment heads, and training pairs for their word statistics: a few seconds.
ALIGNED_PAIRS, STATISTICS_PAIRS = 300, 10_000

# Validation pairs of a direction for choosing whether it goes through another language.
PIVOTED_PAIRS = 200


class Sample(NamedTuple):
    """A sentence pair and its translation; `direction`, such as "en to de", only if the model has several."""

    source: str
    reference: str
    translation: str
    direction: str = ""

    def lines(self, output: str = "translation") -> dict[str, str]:
        """Fields to show, by name, each on one line, with the direction first and the translation as `output`."""
        texts = {"direction": self.direction, "source": self.source, "reference": self.reference}
        texts[output] = self.translation
        return {name: _on_one_line(text) for name, text in texts.items() if text or name != "direction"}


@dataclass(frozen=True)
class Results:
    """Results of an experiment.

    Attributes:
        entries: Contents of `all_results.json`: data, training, the chosen model and its scores.
        model: The chosen model.
        samples: Some pairs with their translations; may be empty.
        translations: Translations of the test pairs; None without such pairs.
        bleu_fault: Why BLEU says little about the test pairs, if so.
    """

    entries: dict[str, Any]
    model: PreTrainedModel
    samples: list[Sample]
    translations: list[str] | None = None
    bleu_fault: str | None = None


def corpus_scorer(
    tokenizer: PreTrainedTokenizerBase,
    text: TextSplits,
    pairs: datasets.Dataset,
    args: VanillaTransformerTrainingArguments,
) -> Any:
    """Return a `compute_metrics` that scores generated ids against the targets of pairs, by direction."""
    columns, metrics = pairs[:], metrics_for(text.target_notation, args.metric_for_best_model)
    references = (protect_pairs(columns, text.features) if has_placeholders(tokenizer) else columns)["target"]

    def score(prediction: EvalPrediction) -> dict[str, float]:
        ids = cast(np.ndarray, prediction.predictions)
        texts = tokenizer.batch_decode(ids.clip(min=0), skip_special_tokens=True)  # -100 pads short rows
        return numbers(
            scores_by_direction(text, pairs, cast(list[str], texts), args.bleu_tokenize, metrics, references)
        )

    return score


def scores_by_direction(
    text: TextSplits,
    pairs: datasets.Dataset,
    translations: Sequence[str],
    tokenize: str | None,
    metrics: Iterable[str] = FAST_METRICS,
    references: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Score translations with `translation_scores`; with several directions, each (`bleu_en-de`) and their mean.

    By default, BLEU's tokenizer suits each target language, and references are the targets of the pairs.
    """
    sources, references = pairs["source"][:], pairs["target"][:] if references is None else references
    by_direction = {
        direction: translation_scores(
            [translations[row] for row in rows],
            [references[row] for row in rows],
            tokenize=tokenize or usable_tokenizer(direction[1]),
            metrics=metrics,
            sources=[sources[row] for row in rows],
            symbols=text.target_notation.algorithm,
        )
        for direction, rows in text.rows_by_direction(pairs).items()
    }
    first = next(iter(by_direction.values()))
    if len(by_direction) == 1:
        return first
    scores: dict[str, Any] = {}
    for name, value in first.items():
        column: list[Any] = [own[name] for own in by_direction.values()]
        # Signatures differ between languages with different tokenizers.
        scores[name] = " and ".join(dict.fromkeys(column)) if isinstance(value, str) else mean(column)
    for direction, own in by_direction.items():
        scores |= {f"{name}_{'-'.join(map(str, direction))}": value for name, value in own.items()}
    return scores


def numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return scores without their signatures."""
    return {name: value for name, value in scores.items() if not isinstance(value, str)}


def training_results(
    trainer: VanillaTransformerTrainer, metrics: dict[str, float], ids: TokenizedSplits
) -> dict[str, Any]:
    """Summarize a finished run over all of its sessions, for `all_results.json`.

    `metrics`, from `TrainOutput`, cover all sessions too. Steps include skipped ones. Tokens per second, absent for a
    stream, include the time of evaluations.
    """
    state, record, seconds = trainer.state, trainer.run_record, metrics["train_runtime"]
    pairs = {split: count.kept for split, count in ids.counts.items() if count.read}
    if "train" not in pairs and record.train_pairs is not None:
        # This session had nothing left to read from the stream.
        pairs = {"train": record.train_pairs, **pairs}
    model = cast(PreTrainedModel, trainer.model)
    results: dict[str, Any] = {
        **{f"{split}_pairs": count for split, count in pairs.items()},
        "train_runtime": seconds,
        "train_loss": metrics["train_loss"],
        "epoch": state.epoch,
        "parameters": model.num_parameters(),
        "steps": state.global_step,
        "skipped_steps": record.skipped_steps,
    }
    if hasattr(model.config, "dropout"):
        # `auto` may have chosen it by the speed of the machine.
        results["dropout"] = model.config.dropout
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
    """Evaluation of a trained model.

    Attributes:
        text: Sentence pairs.
        tokenizer: The model's tokenizer.
        args: Training arguments: folder, metrics, device.
        limits: Length limits of training, for samples.
        trust_remote_code: Whether to run Python code shipped with the model.
    """

    text: TextSplits
    tokenizer: PreTrainedTokenizerBase
    args: VanillaTransformerTrainingArguments
    limits: LengthLimits = NO_LIMITS
    trust_remote_code: bool = False

    def results(self, training: dict[str, Any]) -> Results:
        """Choose the model, score it on the test pairs, and translate samples; `training` are the entries so far."""
        trained = self._candidates[0]["trained"]
        self.choose_alignment_heads(trained)
        facts = self.prove_rules(trained)
        model, chosen = self.choose_model()
        self.choose_pivots(model)
        tuned = self.tune_search(model)
        translations, scores, fault = self.score_test(model)
        split, samples = self.translate_samples(model)
        rules = {name: rule._asdict() for name, rule in facts.rules.items()}
        entries = {**training, **chosen, **scores, "text_rules": rules, "sample_split": split}
        if self.args.tune_search:
            entries["tuned_search"] = {name: setting._asdict() for name, setting in tuned.items()}
        if not self.text.target_notation.is_prose:
            entries["target_notation"] = self.text.target_notation.algorithm
        if has_tags(self.tokenizer):
            tokenizer: Any = self.tokenizer
            entries["sample_languages"] = [tokenizer.src_lang, tokenizer.tgt_lang]
        return Results(entries, model, samples, translations, fault)

    @cached_property
    def _candidates(self) -> tuple[dict[str, PreTrainedModel], dict[str, Any]]:
        """Return the saved model and the average of its last checkpoints, by name, and result entries.

        They share their generation settings.
        """
        args = self.args
        models = {"trained": load_model(args.output_dir, trust_remote_code=self.trust_remote_code)}
        number, entries = args.average_last_checkpoints, dict[str, Any]()
        # Reads and verifies whole checkpoints.
        checkpoints = complete_checkpoints(args.output_dir) if number > 1 and args.save_strategy != "no" else []
        if len(checkpoints := checkpoints[-number:]) > 1:
            models["averaged"] = average_checkpoints(checkpoints, self.trust_remote_code)
            models["averaged"].generation_config = models["trained"].generation_config
            entries["averaged_checkpoints"] = len(checkpoints)
        for model in models.values():
            model.to(args.device)  # type: ignore[arg-type]  # mypy loses the signature that transformers wraps
        return models, entries

    def choose_model(self) -> tuple[PreTrainedModel, dict[str, Any]]:
        """Compare the saved model with the average of its last checkpoints on the validation pairs.

        Returns the better model, and result entries on both. The metric of the best model decides or, if that is the
        loss, BLEU, chrF or WER, whichever suits the text; other scores break ties. The average wins if all scores tie,
        or without validation pairs.
        """
        args, validation, (models, averaged) = self.args, self.text.validation, self._candidates
        entries = dict(averaged)
        metric = None if validation is None else self.deciding_metric(validation)
        for name, model in models.items():
            if validation is not None:
                translations = self.translations(model, validation)
                scores = scores_by_direction(self.text, validation, translations, args.bleu_tokenize, self.metrics())
                entries |= {f"validation_{name}_{key}": value for key, value in numbers(scores).items()}

        def rank(name: str) -> tuple[float, ...]:
            keys = (metric, *TIE_BREAKERS) if metric else ()
            known = [gain(key, entries, f"validation_{name}_") for key in keys]
            return (*known, name == "averaged")

        best = max(models, key=rank)
        if metric:
            entries["chosen_model_metric"] = metric
        return models[best], entries | {"chosen_model": best}

    def deciding_metric(self, pairs: datasets.Dataset) -> str:
        """Return the metric of the best model or, if that is the loss, one that suits the pairs: BLEU, chrF or WER."""
        if (metric := self.args.metric_for_best_model) in METRICS:
            return cast(str, metric)
        if not self.text.target_notation.is_prose:
            return "wer"
        return "chrf" if bleu_fault(pairs["target"][:], self.args.bleu_tokenize) else "bleu"

    def metrics(self, final: bool = False) -> tuple[str, ...]:
        return metrics_for(self.text.target_notation, self.args.metric_for_best_model, final)

    def choose_pivots(self, model: PreTrainedModel) -> dict[str, str]:
        """Record which directions without training pairs are better translated through another language.

        Returns the choice for each such direction of the validation pairs, as for `pivot_of`. The model keeps its own
        if there is none.
        """
        validation, pivots = self.text.validation, dict[str, str]()
        if validation is None or not has_tags(self.tokenizer):
            return pivots
        metric, tokenize = self.deciding_metric(validation), self.args.bleu_tokenize
        for (source, target), rows in self.text.rows_by_direction(validation).items():
            if source and target and (pivot := pivot_of(self.tokenizer, (source, target), {})):
                tried = validation.select(rows[:PIVOTED_PAIRS])
                outputs = [self.translations(model, tried, way) for way in (pivot, DIRECTLY)]
                scores = [scores_by_direction(self.text, tried, texts, tokenize, self.metrics()) for texts in outputs]
                through, directly = (gain(metric, numbers(score)) for score in scores)
                pivots[f"{source}-{target}"] = pivot if through >= directly else ""
        if pivots:
            set_pivots(model, self.tokenizer, pivots)
        return pivots

    def tune_search(self, model: PreTrainedModel) -> dict[str, TunedSetting]:
        """Set what improves the search on the validation pairs, if asked to."""
        if not self.args.tune_search:
            return {}
        pairs = spread(cast(datasets.Dataset, self.text.validation), SEARCHED_PAIRS)
        directions = self.directions(pairs)

        def translations(**options: Any) -> list[str]:
            return self._translated(model, pairs["source"][:], directions, **options)

        given = {"length_penalty"} if self.args.is_given("final_length_penalty") else set[str]()
        return tune_search(model, pairs["source"][:], pairs["target"][:], translations, self.args.bleu_tokenize, given)

    def choose_alignment_heads(self, model: PreTrainedModel) -> None:
        """Set the heads that best agree with statistical word alignments, unless alignment heads are already set.

        Needs validation pairs, training pairs in memory, and a fast tokenizer.
        """
        train, validation, tokenizer = self.text.train, self.text.validation, self.tokenizer
        known = getattr(model.generation_config, "alignment_heads", None)
        if known or validation is None or not isinstance(train, datasets.Dataset) or not tokenizer.is_fast:
            return
        direction, rows = next(iter(self.text.rows_by_direction(validation).items()))
        tried = validation.select(rows[:ALIGNED_PAIRS])
        self.select_direction(direction)
        # Training pairs, because a few pairs alone yield no statistics.
        others = train.select(self.text.rows_by_direction(train).get(direction, rows[:0])[:STATISTICS_PAIRS])
        sources, targets = tried["source"][:], tried["target"][:]
        texts = texts_of(sources + others["source"][:], self.text.features)
        links = align_corpus(texts, targets + others["target"][:])[: len(tried)]
        if any(links):
            set_alignment_heads(model, find_alignment_heads(model, tokenizer, sources, targets, links)[0])

    def prove_rules(self, model: PreTrainedModel) -> TextFacts:
        """Switch off the rules for user text that do not help on validation pairs or, without them, training pairs."""
        pairs = self.text.train if self.text.validation is None else self.text.validation
        if not isinstance(pairs, datasets.Dataset):
            pairs = datasets.Dataset.from_list([*pairs.take(PAIRS)])
        pairs = spread(pairs, PAIRS)
        usable = within_limits({side: pairs[side][:] for side in PAIR_FEATURES}, self.tokenizer, self.limits)
        pairs = pairs.select([i for i, is_usable in enumerate(usable) if is_usable])
        sources = [split_features(source, self.text.features) for source in pairs["source"]]
        rows = zip(sources, pairs["target"][:], self.directions(pairs) or [None] * len(pairs), strict=True)
        held_out = [HeldOut(source, target, direction, cells) for (source, cells), target, direction in rows]

        def translations(chosen: Sequence[HeldOut], **options: Any) -> list[str]:
            sources, directions = [pair.source + pair.cells for pair in chosen], [pair.direction for pair in chosen]
            return self._translated(model, sources, directions, **options)

        return prove_rules(model, self.tokenizer, held_out, translations)

    def directions(self, pairs: datasets.Dataset) -> list[Any]:
        """Return the direction of each pair; none if sources have no tags."""
        if not has_tags(self.tokenizer):
            return []
        return [self.text.parts[number].direction for number in part_numbers(pairs)]

    def translations(self, model: PreTrainedModel, pairs: datasets.Dataset, pivot: str | None = None) -> list[str]:
        """Translate the sources of pairs as `translate` does by default."""
        return self._translated(model, pairs["source"][:], self.directions(pairs), pivot=pivot)

    def _translated(
        self, model: PreTrainedModel, sources: Sequence[str], directions: Sequence[Any], **options: Any
    ) -> list[str]:
        if any(directions):
            options |= zip(("src_lang", "tgt_lang"), zip(*directions, strict=True), strict=True)
        options["show_progress"] = not self.args.disable_tqdm
        with replaced(remarks_logger, "disabled", True):
            return [hypotheses[0].text for hypotheses in translate(model, self.tokenizer, sources, **options)]

    def select_direction(self, direction: tuple[str | None, str | None]) -> None:
        """Set the tokenizer's languages, and so its source prefix, to the direction."""
        if has_tags(self.tokenizer):
            set_languages(self.tokenizer, *direction)

    def score_test(self, model: PreTrainedModel) -> tuple[list[str] | None, dict[str, Any], str | None]:
        """Translate the test pairs, if any; return translations, scores by all suitable metrics, and `bleu_fault`."""
        test, tokenize, metrics = self.text.test, self.args.bleu_tokenize, self.metrics(final=True)
        if test is None:
            return None, {}, None
        translations = self.translations(model, test)
        scores = scores_by_direction(self.text, test, translations, tokenize, metrics)
        entries = {f"test_{name}": value for name, value in scores.items()}
        facts, pairs = TextFacts.of(model.generation_config), [*zip(test["source"], translations, strict=True)]
        entries["test_empty_outputs"] = sum(bool(source.strip()) and not text.strip() for source, text in pairs)
        entries["test_loops"] = sum(facts.is_loop(source, text) for source, text in pairs)
        return translations, entries, bleu_fault(test["target"][:], tokenize) if "bleu" in metrics else None

    def translate_samples(self, model: PreTrainedModel) -> tuple[str, list[Sample]]:
        """Return a split and translations of some of its pairs; the direction of the first one stays selected."""
        split, pairs = self.choose_samples()
        if not pairs:
            return split, []
        chosen = datasets.Dataset.from_list(pairs)
        outputs, directions = self.translations(model, chosen), self.directions(chosen)
        if directions:
            self.select_direction(directions[0])
        names = [" to ".join(map(str, direction)) for direction in directions] or [""] * len(pairs)
        return split, [
            Sample(pair["source"], pair["target"], output, name)
            for pair, output, name in zip(pairs, outputs, names, strict=True)
        ]

    def choose_samples(self) -> tuple[str, list[dict[str, Any]]]:
        """Choose pairs within the limits from the test split, or else the validation or training split."""
        source, target = (tightest_limit(limit, SAMPLE_TOKENS) for limit in self.limits[:2])
        limits = self.limits._replace(source=source, target=target)

        def is_usable(pair: dict[str, Any]) -> bool:
            return all(within_limits({side: [pair[side]] for side in PAIR_FEATURES}, self.tokenizer, limits))

        for split, pairs in reversed(self.text.present().items()):
            if samples := list(islice(_spread_pairs(pairs, is_usable), SAMPLE_TRANSLATIONS)):
                return split, samples
        return SPLITS[0], []


def _on_one_line(text: str) -> str:
    """Return a text with single spaces; tabs, which separate features, stay."""
    return "\t".join(" ".join(cell.split()) for cell in text.split("\t"))


def _spread_pairs(pairs: Any, is_usable: Callable[[dict[str, Any]], bool]) -> Iterator[dict[str, Any]]:
    """Yield the first usable pair of each of `SAMPLE_TRANSLATIONS` stretches, since corpora are often sorted.

    For a stream, yield all usable pairs.
    """
    if not isinstance(pairs, datasets.Dataset):
        yield from filter(is_usable, pairs)
        return
    stretch = -(-len(pairs) // SAMPLE_TRANSLATIONS)
    for start in range(0, len(pairs), stretch):
        rows = (pairs[i] for i in range(start, min(start + stretch, len(pairs))))
        yield from islice(filter(is_usable, rows), 1)
