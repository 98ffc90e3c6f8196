"""The model card of a trained model."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData, get_token
from huggingface_hub.repocard_data import EvalResult
from jinja2 import Environment, TemplateSyntaxError
from transformers import __version__ as transformers_version

from ..data.arguments import DataArguments
from ..data.corpora import corpora_of
from ..data.features import Features
from ..errors import one_line, redacted, without_secrets
from ..files import atomic_write
from ..pretrained.cards import LIBRARY, base_models
from ..text.facts import inactive_rules
from ..text.notation import SYMBOLS, WORDS
from .arguments import PRESET_DEFAULTS, VanillaTransformerTrainingArguments
from .evaluation import Results
from .metrics import ALL_METRIC_NAMES, tested_metrics
from .synthetic import CORPORA_FILE
from .wording import TRANSLATION, wording_of

TEMPLATE = Path(str(files(__package__) / "model_card_template.md"))

# Characters that a dataset name on the Hub may not contain.
NOT_IN_NAMES = re.compile(r"[^\w.-]+")

# A language code as on the Hub: ISO 639, optionally with a region or a script.
LANGUAGE_CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z]+)?")

# The Hub's identifiers of the metrics.
METRIC_TYPES = {"wer": "wer", "bleu": "bleu", "lowercase_bleu": "bleu", "chrf": "chrf", "chrfpp": "chrf", "ter": "ter"}

# That of the symbol error rate, by what a symbol is: a phone, in most such texts, or a character.
SER_TYPES = {SYMBOLS: "per", WORDS: "cer"}

# Extensions beyond the paper; off unless set.
EXTRAS = ("muon", "augment", "ema_decay")

HYPERPARAMETERS = (
    "learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "adam_beta1", "adam_beta2", "adam_epsilon",
    "label_smoothing_factor", "max_grad_norm", "max_tokens", "per_device_train_batch_size",
    "gradient_accumulation_steps", "max_steps", "num_train_epochs", "bf16", "fp16", "seed",
    *EXTRAS, "average_last_checkpoints", "final_num_beams", "final_length_penalty",
)  # fmt: skip  # a table by topic, not a column

# Sections are added before this heading.
TRAINING_HEADING = "## Training\n"


def check_template(template: str | Path) -> None:
    try:
        Environment().parse(Path(template).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, TemplateSyntaxError) as error:
        raise ValueError(f"{template}: not a readable model card template ({error}); fix it") from error


def write_model_card(
    results: Results,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
    template: str | Path = TEMPLATE,
    starts_from: str | None = None,
) -> Path:
    """Write the model card, `README.md`, into `args.output_dir` from a Jinja template, and return its path.

    `starts_from` is the model that training started from, a folder or a name on the Hub.
    """
    name, words = Path(args.output_dir).resolve().name, wording_of(results.entries)
    directions = results.entries["directions"]
    codes = [language for language in dict.fromkeys(chain(*directions)) if LANGUAGE_CODE.fullmatch(language)]
    data = data_args.description
    if data_args.corpora and data_args.corpora == str(Path(args.output_dir, CORPORA_FILE)):
        data += " and synthetic pairs"
    elif data_args.corpora:
        listed = Path(data_args.corpora).name
        others = "" if data == listed else f"{data} and "
        data = f"{others}the corpora of {listed}"
    datasets = dict.fromkeys(filter(None, (data_args.dataset_name, data_args.test_dataset_name)))
    card_data = ModelCardData(
        language=codes or None,
        base_model=base_models([starts_from]) or None if starts_from else None,
        library_name=LIBRARY,
        pipeline_tag=words.pipeline,
        tags=["vanilla_transformer", "attention-is-all-you-need", *([] if words is TRANSLATION else [words.task])],
        datasets=[*datasets] or None,
        model_name=name,
        eval_results=None if results.translations is None else _eval_results(data_args, results.entries),
    )
    samples = results.samples
    card = ModelCard.from_template(
        card_data,
        template_path=str(template),
        model_name=name,
        data=data,
        direction=", ".join(" to ".join(pair) for pair in directions),
        languages=results.entries.get("sample_languages"),
        tested=scored_directions(results.entries),
        samples=[sample.lines(words.output) for sample in samples],
        # A JSON string is a Python string, whatever quotes and backslashes it contains.
        features=Features.named_by(data_args),
        source_column=data_args.source_column,
        feature_columns=shlex.join(data_args.feature_columns or ()),
        example=json.dumps(samples[0].source if samples else "...", ensure_ascii=False),
        results=results.entries,
        rules_on=[name for name, rule in results.entries.get("text_rules", {}).items() if rule["is_on"]],
        rules_off=inactive_rules(results.entries.get("text_rules", {})),
        words=words,
        metric_names=tested_metrics(results.entries),
        direction_metrics=tested_metrics(results.entries, fast=True),
        bleu_fault=results.bleu_fault,
        minutes=results.entries["train_runtime"] / 60,
        hyperparameters=_hyperparameters(args, data_args.links) | _decided(results.entries),
        command=command_line(args.hub_token),
        versions=f"torch {torch.__version__}, transformers {transformers_version}",
    )
    path = Path(args.output_dir, "README.md")
    path.write_text(redacted(str(card), args.hub_token, get_token()), encoding="utf-8")
    return path


def scored_directions(entries: Mapping[str, Any]) -> list[str]:
    """Return the directions with test scores of their own, such as "en-de"; none if there is only one."""
    prefix = "test_exact_match_"
    return [name.removeprefix(prefix) for name in entries if name.startswith(prefix)]


def add_spread(card: str | Path, runs: Sequence[Mapping[str, Any]]) -> None:
    """Add a table of mean, lowest and highest scores over several seeds to a card, replacing an earlier one.

    `runs` differ only in their seed and are given as contents of `all_results.json`; scores missing from any of them
    are left out.

    Raises:
        ValueError: The card has no section `## Training`.
    """
    table = f"| on the test pairs | mean of {len(runs)} runs | lowest | highest |\n|---|---:|---:|---:|\n"
    for key, name in {**ALL_METRIC_NAMES, "exact_match": "exact match, %"}.items():
        scores = [run[f"test_{key}"] for run in runs if f"test_{key}" in run]
        if len(scores) == len(runs):
            table += f"| {name} | {mean(scores):.2f} | {min(scores):.2f} | {max(scores):.2f} |\n"
    add_section(card, "Over several seeds", table)


def add_section(card: str | Path, title: str, content: str) -> None:
    """Add a section to a card, before `## Training`, replacing an earlier one with this title."""
    heading = f"## {title}\n\n"
    text = re.sub(f"^{re.escape(heading)}.*?(?=^## )", "", read_card(card), flags=re.DOTALL | re.MULTILINE)
    before, training, after = text.partition(TRAINING_HEADING)
    with atomic_write(card) as file:
        file.write(f"{before}{heading}{content}\n{training}{after}".encode())


def read_card(card: str | Path) -> str:
    """Read a card to add sections to; raises ValueError if it is unreadable or has no section `## Training`."""
    try:
        text = Path(card).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(
            f"{card}: not a readable model card ({one_line(error)}); name one that training wrote"
        ) from error
    if TRAINING_HEADING not in text:
        raise ValueError(f"{card}: no section `## Training`; use a card that training wrote")
    return text


def _test_dataset(data_args: DataArguments) -> str | None:
    """`DataArguments.test_dataset`, unless a list of corpora has test pairs too."""
    if data_args.corpora and data_args.test_dataset:
        listed = any(corpus.where for corpus in corpora_of(data_args).entries.get("test", ()))
        return data_args.test_dataset_name if listed else data_args.test_dataset
    return data_args.test_dataset


def _eval_results(data_args: DataArguments, entries: dict[str, Any]) -> list[EvalResult]:
    data, dataset = data_args.description, _test_dataset(data_args)
    return [
        EvalResult(
            task_type=wording_of(entries).task,
            dataset_type=dataset or NOT_IN_NAMES.sub("-", data).strip("-"),
            dataset_name=dataset or data,
            dataset_config=data_args.dataset_config_name,
            dataset_split="test",
            metric_type=metric,
            metric_name=name,
            metric_value=value,
        )
        for metric, name, value in _metrics(entries)
    ]


def _metrics(entries: dict[str, Any]) -> list[tuple[str, str, float]]:
    """Return type, name and value of each metric."""
    types = METRIC_TYPES | {"ser": SER_TYPES.get(entries.get("target_notation", ""), "ser")}
    return [
        (types[key], f"{key} ({entries[f'test_{key}_signature']})", round(entries[f"test_{key}"], 2))
        for key in tested_metrics(entries)
    ]


def command_line(secret: str | None = None) -> str:
    """Return the command line of this process, without secrets."""
    program, *words = without_secrets(sys.argv, secret)
    path = Path(program)
    if path.name == "__main__.py":
        return shlex.join(["python", "-m", path.parent.name, *words])
    return shlex.join([*(["python", program] if path.suffix == ".py" else [path.name]), *words])


def _decided(entries: Mapping[str, Any]) -> dict[str, str]:
    """Return the dropout, which may depend on the length of the run, and the tuned settings of the search."""
    dropout = {"dropout": f"{entries['dropout']:g}"} if "dropout" in entries else {}
    tuned = {name: f"{setting['value']:g}, tuned" for name, setting in entries.get("tuned_search", {}).items()}
    search = {"final_length_penalty" if name == "length_penalty" else name: value for name, value in tuned.items()}
    return dropout | search


def _hyperparameters(args: VanillaTransformerTrainingArguments, links: str | None) -> dict[str, Any]:
    """Return the hyperparameters that had an effect, formatted; a file of alignments is shown by name only."""
    unused = {
        "per_device_train_batch_size" if args.max_tokens else "max_tokens",
        "num_train_epochs" if args.max_steps > 0 else "max_steps",
        *(name for name in EXTRAS if getattr(args, name) == PRESET_DEFAULTS.get(name, getattr(type(args), name))),
        *(["optim"] if args.muon else []),
    }
    values = {name: getattr(args, name) for name in HYPERPARAMETERS if name not in unused}
    if links:
        values |= {"guided_alignment": Path(links).name, "guided_alignment_weight": args.guided_alignment_weight}
    values = {name: getattr(value, "value", value) for name, value in values.items()}
    return {name: f"{value:g}" if isinstance(value, float) else value for name, value in values.items()}
