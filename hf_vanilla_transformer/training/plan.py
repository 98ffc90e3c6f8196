"""The plan of a run: its settings, and the reasons for those that were not given."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import datasets

from ..data.arguments import DataArguments
from ..errors import DataError
from ..presets import AUTO_PRESET, get_preset
from .arguments import (
    SHARE_BETWEEN_EVALUATIONS,
    UNDECIDED_STEPS,
    ModelArguments,
    VanillaTransformerTrainingArguments,
    with_fields,
)
from .auto_preset import resolve_auto_preset
from .checkpoints import trained_with
from .metrics import bleu_fault, metrics_for, usable_tokenizer
from .options import AUTO_METRIC, LOWER_IS_BETTER
from .resuming import DROPOUT
from .search_tuning import why_not_tuned
from .text_facts import TrainingText, supported_noise
from .text_splits import TextSplits

# Evaluations of a run on a stream, which has no epochs.
STREAM_EVALUATIONS = 20


@dataclass(frozen=True)
class RunPlan:
    """Settings of a run, made by `plan_run`.

    Attributes:
        model_args: Model and tokenizer, without the preset `auto`.
        data_args: Parallel text.
        args: Training; the learning rate is None until there is a model, unless one was given.
        checkpoint: Checkpoint to resume from; None for a new run.
        reasons: Summary lines on settings that were not given.
        bleu_fault: Why BLEU says little about the validation pairs, if so.
    """

    model_args: ModelArguments
    data_args: DataArguments
    args: VanillaTransformerTrainingArguments
    checkpoint: str | None
    reasons: tuple[str, ...]
    bleu_fault: str | None

    @property
    def source(self) -> ModelArguments:
        """Model and tokenizer to load or build: those of the checkpoint in a resumed run."""
        if not self.checkpoint:
            return self.model_args
        return ModelArguments(
            model_name_or_path=self.checkpoint,
            attn_implementation=self.model_args.attn_implementation,
            trust_remote_code=self.model_args.trust_remote_code,
        )


def plan_run(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
    training: TrainingText,
    checkpoint: str | None = None,
) -> RunPlan:
    """Decide what the arguments leave open, by the text, the preset and the checkpoint to resume from.

    The arguments themselves stay as they are.

    Raises:
        ValueError: The arguments do not suit the text (`DataError`), or `auto` gets a stream.
    """
    recorded = (trained_with(checkpoint) or {}) if checkpoint else {}
    args = with_fields(args, **decided_earlier(model_args, args, recorded))
    model_args, data_args, args, reasons = resolve_auto_preset(
        model_args, data_args, args, training.text, earlier_choices(recorded)
    )
    data_args = with_fields(data_args, drop_repeated=bool(data_args.drop_repeated))
    if data_args.drop_repeated:
        training = training.without_repeats
    text = training.text
    augment, faults = supported_noise(args.augment, training.evidence)
    reasons += [f"noise        without {kind}: {why}" for kind, why in faults.items()]
    metrics, fault = suitable_metrics(args, text)
    chosen = {**preset_smoothing(args, model_args), **possible_schedule(args, text), **metrics}
    if args.tune_search and (obstacle := why_not_tuned(text)):
        chosen["tune_search"] = False
        reasons.append(f"search       not tuned: {obstacle}")
    args = with_fields(args, augment=augment, **chosen)
    return RunPlan(model_args, data_args, args, checkpoint, tuple(reasons), fault)


def decided_earlier(
    model_args: ModelArguments, args: VanillaTransformerTrainingArguments, recorded: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what an earlier session derived from the length of the run, and the length itself with a time budget."""
    names: set[str] = set()
    if model_args.preset == AUTO_PRESET or args.time_budget:
        names |= {"warmup_steps"} & args.not_given
    if args.time_budget and args.time_budget == recorded.get("time_budget"):
        names.add("max_steps")
        if args.eval_steps == SHARE_BETWEEN_EVALUATIONS:
            names |= {"eval_steps", "save_steps"}
    return {name: recorded[name] for name in names & recorded.keys()}


def earlier_choices(recorded: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the preset `auto` cannot choose again in a resumed run; nothing without a record."""
    if not recorded:
        return {}
    choices = {name: recorded[name] for name in {"augment"} & recorded.keys()}
    choices["drop_repeated"] = bool(recorded.get("drop_repeated"))
    if DROPOUT in recorded and recorded.get("max_steps") != UNDECIDED_STEPS:
        choices["dropout"] = recorded[DROPOUT]
    return choices


def preset_smoothing(args: VanillaTransformerTrainingArguments, model_args: ModelArguments) -> dict[str, Any]:
    """Return the label smoothing of the preset, unless one was given or the model is not from a preset."""
    if "label_smoothing_factor" not in args.not_given or model_args.model_name_or_path:
        return {}
    return {"label_smoothing_factor": get_preset(model_args.preset).label_smoothing}


def possible_schedule(args: VanillaTransformerTrainingArguments, text: TextSplits) -> dict[str, Any]:
    """Disable evaluation if there are no validation pairs; for a stream, schedule by steps instead of epochs."""
    chosen = dict[str, Any]()
    if text.validation is None:
        if args.early_stopping_patience is not None:
            raise DataError(
                "`early_stopping_patience` needs validation pairs; set `validation_split_size` or give a file"
            )
        chosen = {"eval_strategy": "no", "load_best_model_at_end": False}
    if not isinstance(text.train, datasets.Dataset):
        every = args.eval_steps or max(1, args.max_steps // STREAM_EVALUATIONS)
        if args.eval_strategy == "epoch" and text.validation is not None:
            chosen |= {"eval_strategy": "steps", "eval_steps": every}
        if args.save_strategy == "epoch":
            chosen |= {"save_strategy": "steps", "save_steps": every}
    return chosen


def suitable_metrics(args: VanillaTransformerTrainingArguments, text: TextSplits) -> tuple[dict[str, Any], str | None]:
    """Return BLEU's tokenizer, the metric of the best model, if it was not given, and why BLEU says little, if so.

    Targets that are no prose have no BLEU, unless it was given.
    """
    tokenize = bleu_tokenizer(args, text)
    chosen: dict[str, Any] = {"bleu_tokenize": tokenize}
    if text.validation is None:
        return chosen, None
    has_bleu = "bleu" in metrics_for(text.target_notation, args.metric_for_best_model)
    fault = bleu_fault(text.validation["target"][:], tokenize) if has_bleu else None
    metric = args.metric_for_best_model
    if metric == AUTO_METRIC:
        suitable = "wer" if not has_bleu else "chrf" if fault else "bleu"
        metric = suitable if args.predict_with_generate else "loss"
    # Also for a metric that replaced another in a copy of the arguments.
    chosen |= {"metric_for_best_model": metric, "greater_is_better": metric not in LOWER_IS_BETTER}
    return chosen, fault


def bleu_tokenizer(args: VanillaTransformerTrainingArguments, text: TextSplits) -> str | None:
    """Return BLEU's tokenizer: the one given, or by the target languages; None if they need different ones."""
    if args.bleu_tokenize is not None:
        return args.bleu_tokenize
    tokenizers = {usable_tokenizer(language) for language in {part.target_lang for part in text.parts}}
    return tokenizers.pop() if len(tokenizers) == 1 else None
