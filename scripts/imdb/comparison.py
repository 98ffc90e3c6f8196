"""Train and measure classifiers alike; write their models, table, figures and JSON."""

import json
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import pipeline

from hf_vanilla_transformer.training.run_folder import check_same_run

from .arguments import ComparisonArguments
from .classifiers import (
    ClassificationTask,
    Outcome,
    load_bert_tokenizer,
    tokenize,
    train_bert,
    train_from_scratch,
    train_tfidf,
)
from .labelled_text import LabelledTextArguments, count_overlap, load_labelled_text

TRAIN: dict[str, Callable[[ClassificationTask], Outcome]] = {
    "bert": train_bert,
    "from_scratch": train_from_scratch,
    "tfidf": train_tfidf,
}
TITLES = {
    "bert": "BERT, fine-tuned",
    "from_scratch": "Transformer encoder, from scratch",
    "tfidf": "TF-IDF + logistic regression",
}
RESULT_FILE = "result.json"

# Results of google-bert/bert-base-uncased in the original notebook, on its GPU.
NOTEBOOK_ACCURACY = (0.92436, 0.93424, 0.93748)
NOTEBOOK_SECONDS = 2985.8906
NOTEBOOK_SAMPLES_PER_SECOND = 25.118
NOTEBOOK_SENTENCE = (
    "This was a masterpiece. Not completely faithful to the books, but enthralling from beginning to end. Might be my "
    "favorite of the three."
)


def compare_classifiers(
    data_args: LabelledTextArguments, args: ComparisonArguments, show_progress: bool = False
) -> dict[str, Any]:
    """Train the classifiers `args.models`; write models, table, figures and JSON to `args.output_dir`.

    Returns the content of `results.json`: data statistics, outcomes, and the notebook's figures.
    """
    check_output(data_args, args)
    tokenizer = load_bert_tokenizer(args)
    splits = load_labelled_text(data_args)
    repeated = count_overlap(splits)
    ids, truncated = tokenize(splits, tokenizer, args.max_length)
    data = {
        "train": len(ids["train"]),
        "test": len(ids["test"]),
        "duplicates": repeated,
        "truncated": truncated,
        "max_length": args.max_length,
    }
    print(
        f"texts        {data['train']} for training, {data['test']} for testing; {repeated['train']} repeated in "
        f"train, {repeated['test']} repeated in test, {repeated['both']} texts in both\n"
        f"truncated    {truncated['train']:.1%} and {truncated['test']:.1%} of them, to {args.max_length} tokens",
        flush=True,
    )
    task = ClassificationTask(tokenizer, ids["train"], ids["test"], args, show_progress)
    outcomes = [train_once(name, task) for name in args.models]
    saved = [outcome.name for outcome in outcomes if outcome.epochs]
    answers = {
        name: pipeline("text-classification", model=str(Path(args.output_dir, name)))(NOTEBOOK_SENTENCE)[0]
        for name in saved
    }
    results = {
        "data": data,
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "notebook": {"accuracy": NOTEBOOK_ACCURACY, "samples_per_second": NOTEBOOK_SAMPLES_PER_SECOND},
        "sentence": answers,
    }
    write_report(results, outcomes, Path(args.output_dir))
    print(outcomes_table(outcomes))
    for name, answer in answers.items():
        print(f"{name}: {answer['label']} ({answer['score']:.4f}) for the notebook's sentence")
    return results


def check_output(data_args: LabelledTextArguments, args: ComparisonArguments) -> None:
    """Create the output folder; raises ValueError if it holds another run, or the same one without `resume`."""
    folder = Path(args.output_dir)
    existing = [name for name in args.models if (folder / name).exists()]
    if existing and not args.resume:
        raise ValueError(
            f"`output_dir` {folder} already holds a run of {', '.join(existing)}; resume it with `resume`, or choose "
            "another folder"
        )
    # A resumed run may train other classifiers, and its folder may have moved.
    free = ("models", "compare", "resume", "output_dir")
    settings = {name: value for name, value in {**asdict(data_args), **asdict(args)}.items() if name not in free}
    check_same_run(folder, settings)


def train_once(name: str, task: ClassificationTask) -> Outcome:
    """Train a classifier, or read the outcome of a finished run from its file."""
    file = Path(task.args.output_dir, name, RESULT_FILE)
    if file.is_file():
        return Outcome(**json.loads(file.read_text(encoding="utf-8")))
    print(f"{name:<12} {TITLES[name]}", flush=True)
    outcome = TRAIN[name](task)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(outcome), indent=2) + "\n", encoding="utf-8")
    return outcome


def outcomes_table(outcomes: list[Outcome]) -> str:
    """Format the outcomes as a Markdown table, with the notebook's figures in the last row."""
    lines = [
        "| model | accuracy (95 % interval) | parameters | training | texts/s training | texts/s inference | size |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for outcome in outcomes:
        low, high = outcome.interval
        lines.append(
            f"| {TITLES[outcome.name]} | {outcome.accuracy:.2%} ({low:.2%} to {high:.2%}) "
            f"| {outcome.parameters / 1e6:.2f} M | {outcome.training_seconds / 60:.1f} min "
            f"| {outcome.training_samples_per_second:.1f} | {outcome.inference_samples_per_second:.1f} "
            f"| {outcome.megabytes:.1f} MB |"
        )
    epochs = ", ".join(f"{accuracy:.3%}" for accuracy in NOTEBOOK_ACCURACY)
    lines.append(
        f"| the notebook's bert-base, its GPU, 25,000 texts | {epochs} after epochs 1 to 3 | 109.48 M "
        f"| {NOTEBOOK_SECONDS / 60:.1f} min with evaluations | {NOTEBOOK_SAMPLES_PER_SECOND} | | |"
    )
    return "\n".join(lines)


def write_report(results: dict[str, Any], outcomes: list[Outcome], folder: Path) -> None:
    """Write the JSON, the table and, if matplotlib is installed, the figures."""
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(outcomes_table(outcomes) + "\n", encoding="utf-8")
    if not find_spec("matplotlib"):
        return
    from .figures import plot_accuracies, plot_learning_curves  # matplotlib is optional

    accuracies = {TITLES[outcome.name]: (outcome.accuracy, outcome.interval) for outcome in outcomes}
    plot_accuracies(accuracies, folder / "accuracy.png", ("bert-base in the notebook", NOTEBOOK_ACCURACY[-1]))
    if curves := {TITLES[outcome.name]: outcome.log_history for outcome in outcomes if outcome.log_history}:
        levels = {TITLES[outcome.name]: outcome.accuracy for outcome in outcomes if not outcome.log_history}
        plot_learning_curves(curves, folder / "learning_curves.png", levels)
