"""Reports of a run: summaries on the screen; results, pictures and the model card in its folder."""

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
from transformers import PreTrainedModel
from transformers.utils import logging

from ..data.arguments import DataArguments
from ..data.corpora import Part, corpora_of
from ..data.encoding import PairCounts
from ..data.inspection import oddities
from ..data.reading import headerless_tsv_files
from ..errors import one_line
from ..files import atomic_update, atomic_write
from ..inference.translation import cross_attention
from ..model.tokenization_vanilla_transformer import UNKNOWN_TAG, tag_token
from ..pretrained.output_limits import EXTRA_OUTPUT_TOKENS
from ..text.facts import inactive_rules
from .arguments import UNDECIDED_STEPS, VanillaTransformerTrainingArguments, peak_learning_rate
from .callbacks import METRICS
from .evaluation import Results
from .metrics import ALL_METRIC_NAMES, ERROR_RATES, METRIC_NAMES, tested_metrics
from .model_card import scored_directions, write_model_card
from .run_folder import save_final
from .setup import Experiment
from .text_facts import long_targets
from .text_splits import part_numbers
from .tokenizer import vocabulary_sizes
from .trainer import VanillaTransformerTrainer
from .wording import wording_of

logger = logging.get_logger(__name__)

RESULTS_FILE = "all_results.json"

# Fraction of a short run to spend on warm-up.
GOOD_WARMUP = 0.25

# Display names of the metrics that can select a model, by key.
CHOOSING_METRICS = {**ALL_METRIC_NAMES, "exact_match": "exact match", "loss": "loss"}

# Maximum characters of a sentence in the summary, and number of tags.
SHOWN_WIDTH, SHOWN_TAGS = 40, 5


def start_summary(experiment: Experiment) -> str:
    """Describe the run that is about to start, in one screen."""
    trainer, args = experiment.trainer, experiment.plan.args
    model = cast(PreTrainedModel, trainer.model)
    config: Any = model.config
    source_size, target_size = vocabulary_sizes(experiment.tokenizer)
    size = f"{args.max_tokens} tokens" if args.max_tokens else f"{args.per_device_train_batch_size} sentences"
    parameters = f"{model.num_parameters() / 1e6:.1f} M parameters"
    lines = [
        *_data_lines(experiment.ids.counts, experiment.plan.data_args),
        *_part_lines(experiment),
        *_oddity_lines(experiment),
        *experiment.plan.reasons,
        *_feature_lines(experiment),
        f"vocabulary   {source_size} source, {target_size} target tokens",
        f"model        {config.model_type}, {parameters}, width {config.hidden_size}",
        f"batches      {size} x {args.gradient_accumulation_steps} accumulated x {args.world_size} processes",
        *_length_lines(experiment),
        *_schedule_lines(trainer),
        *_metric_lines(experiment),
    ]
    return "\n".join(lines)


def _data_lines(counts: dict[str, PairCounts], data_args: DataArguments) -> list[str]:
    """Describe the splits, and show first pairs that may be headers."""
    lines = [f"{split:<12} {count}" if count.read else f"{split:<12} streamed" for split, count in counts.items()]
    if "validation" not in counts:
        lines.append("validation   none, so no evaluation during training")
    texts = [corpus.text for entries in corpora_of(data_args).entries.values() for corpus in entries]
    for name, pair in headerless_tsv_files(texts):
        first = " -> ".join(repr(text[:SHOWN_WIDTH]) for text in pair.values())
        lines.append(f"first pair   {first} (if {name} has a header, set source_column and target_column)")
    return lines


def _part_lines(experiment: Experiment) -> list[str]:
    """List the number of pairs of each corpus and direction, in total and per epoch."""
    text, rows = experiment.text, experiment.trainer.epoch_rows
    if len(text.parts) == 1 or not isinstance(experiment.ids.train, datasets.Dataset):
        return []
    sizes = np.bincount(part_numbers(experiment.ids.train), minlength=len(text.parts)).tolist()
    numbers = rows.numbers if rows else sizes
    return [
        f"  {_name_of(part)}: {size} pairs, {number} per epoch"
        for part, size, number in zip(text.parts, sizes, numbers, strict=True)
        if size
    ]


def _name_of(part: Part) -> str:
    return " ".join(["-".join(code or "?" for code in part.direction), *filter(None, [part.tag])])


def _oddity_lines(experiment: Experiment) -> list[str]:
    text, corpora = experiment.text, [("", experiment.text.train)]
    if len(text.parts) > 1 and isinstance(text.train, datasets.Dataset):
        numbers = part_numbers(text.train)
        own = [(part, np.flatnonzero(numbers == i)) for i, part in enumerate(text.parts) if not part.is_reversed]
        # Several corpora may have the same direction.
        corpora = [(f"{_name_of(part)}: ", text.train.select(rows)) for part, rows in own if len(rows)]
    return [
        f"warning      {name}{'; '.join(map(str, odd))} (`vanilla-transformer inspect` shows them)"
        for name, pairs in corpora
        if (odd := oddities(pairs, experiment.tokenizer))
    ]


def _feature_lines(experiment: Experiment) -> list[str]:
    """Count the tags: too many if `feature_separator` is missing."""
    if not (features := experiment.text.features):
        return []
    tokens = sorted({*experiment.tokenizer.get_added_vocab()} - {tag_token(UNKNOWN_TAG)})
    tags = [token.removeprefix(tag_token("")) for token in tokens if token.startswith(tag_token(""))]
    shown = ", ".join([*map(repr, tags[:SHOWN_TAGS]), *["..."] * (len(tags) > SHOWN_TAGS)])
    return [f"features     {len(tags)} tags in {features.feature_columns} column(s): {shown}"]


def _length_lines(experiment: Experiment) -> list[str]:
    """State how many targets exceed the paper's output limit."""
    if not (number := long_targets(experiment.ids)):
        return []
    longest = f"{number} of {experiment.ids.counts['train'].kept} targets are over {EXTRA_OUTPUT_TOKENS} tokens longer"
    return [f"length       {longest} than their source, the paper's limit; outputs may be as long as such targets"]


def _schedule_lines(trainer: VanillaTransformerTrainer) -> list[str]:
    args = trainer.args
    if args.max_steps == UNDECIDED_STEPS:
        return _budget_lines(args)
    steps, epochs = args.max_steps, ""
    if isinstance(trainer.train_dataset, datasets.Dataset):
        per_epoch = -(-len(trainer.get_train_dataloader()) // args.gradient_accumulation_steps)
        steps = steps if steps > 0 else math.ceil(args.num_train_epochs * per_epoch)
        epochs = f", {per_epoch} per epoch"
    warmup = args.get_warmup_steps(steps)
    schedule = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    lines = [
        f"steps        {steps}{epochs}",
        f"learning     up to {args.learning_rate:.3g} after {warmup} steps, then {schedule}",
        f"output       {args.output_dir}",
    ]
    if warmup > steps / 2:
        width = cast(Any, trainer.model).config.hidden_size
        lines.append(f"warning      {warmup_advice(args, width, warmup, steps)}")
    return lines


def _budget_lines(args: VanillaTransformerTrainingArguments) -> list[str]:
    """Describe the schedule of a run whose length is not decided yet."""
    schedule = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    warmup = f"{args.warmup_steps:g}" if args.warmup_steps >= 1 else f"{args.warmup_steps:.0%} of the"
    cap = "" if args.is_given("warmup_steps") else ", or a tenth of all"
    return [
        f"budget       {args.time_budget:g} minutes, which will set the number of steps once their speed is measured",
        f"learning     up to {args.learning_rate:.3g} after {warmup} steps{cap}, then {schedule}",
        f"output       {args.output_dir}",
    ]


def _metric_lines(experiment: Experiment) -> list[str]:
    """State which metric selects the best model, and why BLEU is unsuitable, if so."""
    notation = experiment.text.target_notation
    args, fault = experiment.plan.args, experiment.plan.bleu_fault
    if experiment.text.validation is None:
        return []
    key = str(args.metric_for_best_model)
    name = CHOOSING_METRICS[key] + (f" ({args.bleu_tokenize})" if key == "bleu" and args.bleu_tokenize else "")
    if key in ERROR_RATES and not notation.is_prose:
        return [f"best model   by {name} on the validation pairs; targets have {notation.reason}"]
    if not fault or key == "loss":
        return [f"best model   by {name} on the validation pairs"]
    if key == "bleu":
        remedy = "leave `metric_for_best_model` out, or set chrf or exact_match"
        return [f"warning      {name} chooses the best model, but {fault}; {remedy}"]
    return [f"best model   by {name} on the validation pairs; not by BLEU: {fault}"]


def warmup_advice(args: VanillaTransformerTrainingArguments, d_model: int, warmup: int, steps: int) -> str:
    """Suggest a shorter warm-up for a run that would spend most of its steps on it."""
    shorter = max(1, int(steps * GOOD_WARMUP))
    rate = cast(float, args.learning_rate)
    better = peak_learning_rate(d_model, shorter) if rate == peak_learning_rate(d_model, warmup) else rate
    return (
        f"warmup_steps {warmup} is more than half of the {steps} steps, so the learning rate peaks at "
        f"{rate * min(1, steps / warmup):.2g}; with warmup_steps {shorter}, it peaks at {better:.2g}"
    )


def end_summary(results: Results, output_dir: str) -> str:
    """Describe a finished run in one screen: sample translations, scores, time, folder."""
    entries, output = results.entries, wording_of(results.entries).output
    lines = [f"{output}s of {entries['sample_split']} pairs", ""] if results.samples else []
    for sample in results.samples:
        lines += [f"{name:<12} {text}" for name, text in sample.lines(output).items()] + [""]
    if results.translations is not None:
        main_metrics = tested_metrics(entries, fast=True)
        for key, name in tested_metrics(entries).items():
            lines.append(f"test {name:<17} {entries[f'test_{key}']:7.2f}  {entries[f'test_{key}_signature']}")
        lines.append(f"test {'exact match':<17} {entries['test_exact_match']:7.2f}  %")
        for name in scored_directions(entries):
            scores = (f"{entries[f'test_{key}_{name}']:.2f} {title}" for key, title in main_metrics.items())
            lines.append(f"  {name:<20} {', '.join(scores)}")
        lines.append(f"             of {output}s by `vanilla-transformer translate` with its defaults")
        faults = {"are empty": entries.get("test_empty_outputs"), "loop": entries.get("test_loops")}
        if found := [f"{number} {what}" for what, number in faults.items() if number]:
            lines.append(f"             of {len(results.translations)} {output}s, {' and '.join(found)}")
    if results.bleu_fault:
        lines.append(f"note         BLEU says little about this text: {results.bleu_fault}")
    lines += search_lines(entries)
    lines += rule_lines(entries.get("text_rules", {}))
    tokens = entries.get("train_tokens_per_second")
    speed = f", {tokens:.0f} tokens per second" if tokens else ""
    if skipped := entries["skipped_steps"]:
        lines.append(f"skipped      {skipped} of {entries['steps']} steps: loss or gradient not finite")
    lines.append(f"training     {entries['train_runtime'] / 60:.1f} minutes{speed}")
    if "minutes_used" in entries:
        lines.append(f"time         {entries['minutes_used']:.1f} of {entries['time_budget']:g} minutes")
    name = entries["chosen_model"]
    metric = entries.get("chosen_model_metric") if "averaged_checkpoints" in entries else None
    chosen = f"the {name} weights"
    if name == "trained" and entries.get("best_checkpoint_metric"):
        chosen, metric = f"{chosen} of {entries['best_checkpoint']}", entries["best_checkpoint_metric"]
    by = f", by {CHOOSING_METRICS[metric]}" if metric else ""
    return "\n".join([*lines, f"model        {output_dir} ({chosen}{by})"])


def search_lines(entries: Mapping[str, Any]) -> list[str]:
    """List the settings of the search that were tuned, with the scores before and after."""
    if "tuned_search" not in entries:
        return []
    lines = []
    for name, setting in entries["tuned_search"].items():
        before, after = setting["before"], setting["after"]
        gains = (
            f"{METRIC_NAMES[key]} {before[key]:.2f} to {after[key]:.2f} (p = {p_value:.3f})"
            for key, p_value in setting["p_values"].items()
        )
        of_pairs = f"on {setting['pairs']} validation pairs"
        lines.append(f"search       {name} {setting['value']:g}: {', '.join(gains)}, {of_pairs}")
    return lines or [
        "search       unchanged: no setting worth trying was significantly better on the validation pairs"
    ]


def rule_lines(rules: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """List the rules for user text that act, and those that do not, by reason."""
    active = [name for name, rule in rules.items() if rule["is_on"]]
    return [f"text rules   on: {', '.join(active) or 'none'}", *(f"  off: {line}" for line in inactive_rules(rules))]


def save_results(results: Results, trainer: VanillaTransformerTrainer) -> None:
    """Write model, test translations, results and training log to the run's folder."""
    folder = Path(trainer.args.output_dir)
    save_final(results.model, folder)
    # Together, so that scores and translations always belong to the same model; if killed before, there are none.
    with atomic_update(folder, last=RESULTS_FILE) as partial:
        if results.translations is not None:
            lines = "".join(f"{' '.join(line.splitlines())}\n" for line in results.translations)
            (partial / "test_translations.txt").write_text(lines, encoding="utf-8")
        trainer.state.save_to_json(str(partial / "trainer_state.json"))
        (partial / RESULTS_FILE).write_text(_json(results), encoding="utf-8")


def save_entries(results: Results, output_dir: str) -> None:
    """Replace the entries in the run's folder."""
    with atomic_write(Path(output_dir, RESULTS_FILE)) as file:
        file.write(_json(results).encode())


def _json(results: Results) -> str:
    return json.dumps(results.entries, indent=2, ensure_ascii=False) + "\n"


def save_pictures(results: Results, experiment: Experiment) -> None:
    """Draw the training curve and the attention of a sample, if matplotlib is installed."""
    if not find_spec("matplotlib"):
        return
    from .visualization import plot_attention, plot_training_curve  # matplotlib is optional

    trainer = experiment.trainer
    folder = Path(trainer.args.output_dir)
    with _warn_on_failure("training_curve.png"):
        config: Any = results.model.config
        default = "wer" if "target_notation" in results.entries else "bleu"
        plot_training_curve(
            trainer.state.log_history,
            folder / "training_curve.png",
            label_smoothing=trainer.args.label_smoothing_factor or 0.0,
            dropout=getattr(config, "dropout", 0.0),
            vocab_size=vocabulary_sizes(experiment.tokenizer)[1],
            metric=metric if (metric := trainer.args.metric_for_best_model) in METRICS else default,
        )
    for sample in results.samples[:1]:
        with _warn_on_failure("attention.png"):
            weights, sources, targets = cross_attention(results.model, experiment.tokenizer, sample.source)
            plot_attention(weights, sources, targets, folder / "attention.png", title="Cross-attention")


def save_card(
    results: Results,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
    template: str | Path,
    starts_from: str | None = None,
) -> None:
    """Write the model card."""
    with _warn_on_failure("the model card"):
        write_model_card(results, data_args, args, template, starts_from)


@contextmanager
def _warn_on_failure(what: str) -> Iterator[None]:
    """Turn a failure into a warning: a finished run is worth more than its pictures."""
    try:
        yield
    except Exception as error:
        logger.warning(f"{what} could not be written ({type(error).__name__}: {one_line(error)})")
