r"""Train a translation model from scratch on parallel text.

From two text files, where line n of one translates line n of the other:

    vanilla-transformer train --train_source_file train.en --train_target_file train.de \
        --validation_split_size 1000 --preset auto --output_dir my-model

A .yaml or .json file of options may come first; options that follow override it:

    vanilla-transformer train scripts/recipes/multi30k.yaml --output_dir my-model

On several devices:

    accelerate launch -m hf_vanilla_transformer train --train_source_file train.en ...

--output_dir then holds model, tokenizer, generation settings, all_results.json, plots and a model card.
`vanilla-transformer translate --model my-model` uses it.
"""

import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from inspect import get_annotations
from pathlib import Path
from typing import Any

from ..data.arguments import DataArguments
from ..errors import did_you_mean
from ..files import is_yaml_null, read_yaml, yaml_items
from ..training.options import ModelOptions, TrainingOptions
from .options import OneLineParser, add_fields, importing, parse_dataclasses

ARGUMENT_FILES = (".yaml", ".yml", ".json")

# The fields that --help shows.
MAIN_OPTIONS: dict[str, tuple[Any, Sequence[str]]] = {
    "text": (
        DataArguments,
        ("train_source_file", "train_target_file", "train_file", "corpora", "dataset_name", "validation_split_size"),
    ),
    "model and tokenizer": (ModelOptions, ("preset", "config_overrides", "vocab_size")),
    "training": (
        TrainingOptions,
        (
            "output_dir",
            "num_train_epochs",
            "time_budget",
            "warmup_steps",
            "max_tokens",
            "bf16_if_fast",
            "resume_from_checkpoint",
        ),
    ),
}

MODEL_FIELDS = (
    "preset", "config_overrides", "model_name_or_path", "extend_vocab", "trust_remote_code", "attn_implementation",
)  # fmt: skip  # a table, not an expression
INHERITED = "inherited from transformers.Seq2SeqTrainingArguments"


def add_arguments(parser: OneLineParser) -> None:
    parser.usage = "%(prog)s [options.yaml] [options]"
    if not parser.shows_all:
        # Skip the imports for all options, which take seconds.
        for title, (kind, names) in MAIN_OPTIONS.items():
            add_main_options(parser, title, kind, names)
        return
    model, data, training = _dataclasses()
    add_fields(parser, data, {}, "text")
    add_fields(parser, model, {"model": MODEL_FIELDS}, "tokenizer")
    add_fields(parser, training, {"training": get_annotations(TrainingOptions)}, INHERITED)
    # Tell unset switches from false ones.
    parser.set_defaults(do_train=None, do_eval=None)


def add_main_options(parser: OneLineParser, title: str, kind: Any, names: Sequence[str]) -> None:
    """Add a group of options for the short help."""
    group = parser.add_argument_group(title)
    for field in fields(kind):
        if field.name in names:
            metavar = "" if field.default is False else field.name.rpartition("_")[2].upper()
            group.add_argument(f"--{field.name}", metavar=metavar, help=field.metadata["help"])


def _dataclasses() -> tuple[Any, ...]:
    with importing():
        from ..training.arguments import ModelArguments, VanillaTransformerTrainingArguments
    return ModelArguments, DataArguments, VanillaTransformerTrainingArguments


def parse(parser: OneLineParser, words: list[str]) -> Namespace:
    """Parse the command line; an argument file may come first, and later options override it."""
    if words and words[0].endswith(ARGUMENT_FILES):
        known = [option.removeprefix("--") for action in parser._actions for option in action.option_strings]
        words = [*read_argument_file(words[0], known), *words[1:]]
    return parser.parse_args(words)


def read_argument_file(path: str, known: Sequence[str]) -> list[str]:
    """Return a .yaml or .json file of known options as command-line words."""
    # JSON is YAML too. Values stay strings: the parser converts them.
    with importing():
        root = read_yaml(path)
    words: list[str] = []
    for name, line, value in yaml_items(root, path):
        where = f"{path}, line {line}"
        if name not in known:
            raise ValueError(f"{where}: unknown argument {name}{did_you_mean(name, known)}")
        if value.id == "mapping":
            raise ValueError(f"{where}: {name} is a mapping; write it as a JSON string in quotes")
        if value.id == "scalar":
            words += [] if is_yaml_null(value) else [f"--{name}={value.value}"]
            continue
        if any(item.id != "scalar" or item.value.startswith("--") for item in value.value):
            raise ValueError(f"{where}: {name} is a list with an item that is not a value; write one value per item")
        words += [f"--{name}", *(item.value for item in value.value)]
    return words


def run(arguments: Namespace) -> None:
    with importing():
        from ..training.experiment import train_translation
    with training_arguments(arguments) as (model_args, data_args, args):
        train_translation(model_args, data_args, args)


@contextmanager
def training_arguments(arguments: Namespace) -> Iterator[tuple[Any, Any, Any]]:
    """Yield model, data and training arguments; on Ctrl-C or SIGTERM, say how to continue training."""
    with importing():
        import datasets
        from transformers.utils.logging import disable_progress_bar

        from ..training.checkpoints import newest_checkpoint
    # Bars for reading and writing checkpoints are noise: it takes a moment.
    disable_progress_bar()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    try:
        model_args, data_args, args = parse_dataclasses(_dataclasses(), arguments)
        _check_training_is_wanted(args)
        # Check before any folder is created.
        if not data_args.names_data:
            raise ValueError(
                "no data is named; give --train_source_file and --train_target_file, --train_file, --corpora, "
                "--dataset_name or --toy_corpus"
            )
        yield model_args, data_args, args
    except KeyboardInterrupt as interrupt:
        if str(interrupt):
            # It already holds advice from before training.
            raise
        advice = "there is no checkpoint yet, so the same command starts again"
        if newest_checkpoint(arguments.output_dir):
            advice = "--resume_from_checkpoint last continues from the last checkpoint"
        elif Path(arguments.output_dir, "config.json").exists():
            advice = f"{arguments.output_dir} holds the trained model, not evaluated yet"
        raise type(interrupt)(advice) from None


def _check_training_is_wanted(args: Any) -> None:
    """Refuse switches that make transformers' example scripts skip training: this command always trains."""
    flags = [f"--{name}" for name in ("do_eval", "do_predict") if getattr(args, name)]
    if args.do_train is False or (flags and not args.do_train):
        switches = " and ".join(flags) + " without --do_train" if flags else "--do_train false"
        raise ValueError(
            f"{switches}: this command always trains and then evaluates; add --do_train, or, for a trained model, use "
            "the commands translate and evaluate"
        )
    args.do_train, args.do_eval = True, args.eval_strategy != "no"
