"""The first model card of a trained model."""

import json
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData
from huggingface_hub.repocard_data import EvalResult
from jinja2 import Environment, TemplateSyntaxError
from transformers import __version__ as transformers_version

from ..data.arguments import DataArguments
from ..errors import without_secrets

SECONDS_PER_MINUTE = 60

# Jinja template of the card, part of the package.
TEMPLATE = Path(str(files(__package__) / "model_card_template.md"))

# What the Hub takes for a language: ISO 639, perhaps with a region or a script.
LANGUAGE_CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z]+)?")


def check_template(template: str | Path) -> None:
    """Raise a ValueError if a template of the model card cannot be read, so that it is known before training."""
    try:
        Environment().parse(Path(template).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, TemplateSyntaxError) as error:
        raise ValueError(f"{template}: not a readable template of the model card ({error}); mend it") from error


def write_model_card(
    folder: str | Path,
    template: str | Path,
    data_args: DataArguments,
    args: Any,
    samples: Sequence[Mapping[str, str]],
    results: Mapping[str, Any],
) -> Path:
    """Write `README.md`, the model card, into the folder of a trained model and return its path.

    Args:
        folder: The model's folder.
        template: Jinja template of the card.
        data_args: Where the text came from.
        args: Training arguments.
        samples: Rows with `source`, `reference` and `translation`; they may be none.
        results: What `train_translation` returned; `sample_split` says where the samples are from.

    Raises:
        ValueError: The template cannot be read.
    """
    check_template(template)
    name = Path(folder).resolve().name
    languages = [language for language in (data_args.source_lang, data_args.target_lang) if language]
    codes = [language for language in languages if LANGUAGE_CODE.fullmatch(language)]
    data = data_args.description
    card_data = ModelCardData(
        language=codes or None,
        library_name="transformers",
        pipeline_tag="translation",
        tags=["vanilla_transformer", "attention-is-all-you-need"],
        datasets=[data_args.dataset_name] if data_args.dataset_name else None,
        model_name=name,
        eval_results=_eval_results(data, results) or None,
    )
    card = ModelCard.from_template(
        card_data,
        template_path=str(template),
        model_name=name,
        data=data,
        direction=" to ".join(languages),
        samples=[{name: " ".join(text.split()) for name, text in sample.items()} for sample in samples],
        # A JSON string is a Python string, whatever quotes and backslashes are in it.
        example=json.dumps(samples[0]["source"] if samples else "...", ensure_ascii=False),
        results=results,
        minutes=results["train_runtime"] / SECONDS_PER_MINUTE,
        hyperparameters=_hyperparameters(args),
        command=shlex.join(["python", *without_secrets(sys.argv, args.hub_token)]),
        versions=f"torch {torch.__version__}, transformers {transformers_version}",
    )
    path = Path(folder, "README.md")
    card.save(path)
    return path


def _eval_results(data: str, results: Mapping[str, Any]) -> list[EvalResult]:
    return [
        EvalResult(
            task_type="translation",
            dataset_type=data,
            dataset_name=data,
            dataset_split="test",
            metric_type=metric,
            metric_name=f"{metric} ({results[f'test_{metric}_signature']})",
            metric_value=round(results[f"test_{metric}"], 2),
        )
        for metric in ("bleu", "chrf")
        if f"test_{metric}" in results
    ]


def _hyperparameters(args: Any) -> dict[str, Any]:
    names = (
        "learning_rate", "lr_scheduler_type", "warmup_steps", "optim", "adam_beta1", "adam_beta2", "adam_epsilon",
        "label_smoothing_factor", "max_grad_norm", "max_tokens" if args.max_tokens else "per_device_train_batch_size",
        "gradient_accumulation_steps", "max_steps" if args.max_steps > 0 else "num_train_epochs", "bf16", "fp16",
        "seed", "average_last_checkpoints", "final_num_beams", "final_length_penalty",
    )  # fmt: skip  # a table by topic, not a column
    values = {name: getattr(args, name) for name in names}
    values = {name: getattr(value, "value", value) for name, value in values.items()}
    return {name: f"{value:g}" if isinstance(value, float) else value for name, value in values.items()}


__all__ = ["check_template", "write_model_card"]
