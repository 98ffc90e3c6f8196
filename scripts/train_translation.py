"""Train a translation model from scratch on parallel text.

Two text files, line n of one translating line n of the other:

    python scripts/train_translation.py --train_source_file train.en --train_target_file train.de \
        --validation_split_size 1000 --preset small --output_dir my-model

Arguments can also stand in a .yaml or .json file, given first; what follows on the command line has priority:

    python scripts/train_translation.py scripts/recipes/multi30k.yaml --output_dir my-model

The folder then holds model, tokenizer, generation settings, all_results.json, pictures and a model card;
`scripts/translate.py --model my-model` uses it.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _imports import importing

with importing():
    import datasets
    import transformers
    import yaml
    from transformers import HfArgumentParser

    from hf_vanilla_transformer.cli.options import argument_parser, one_line_errors
    from hf_vanilla_transformer.data.arguments import DataArguments
    from hf_vanilla_transformer.errors import did_you_mean
    from hf_vanilla_transformer.training.arguments import ModelArguments, VanillaTransformerTrainingArguments
    from hf_vanilla_transformer.training.checkpoints import newest_checkpoint
    from hf_vanilla_transformer.training.experiment import train_translation

USAGE = "%(prog)s [arguments.yaml] [--argument value ...] (--help lists the arguments)"


def read_argument_file(path: str, known: Sequence[str]) -> list[str]:
    """Return what stands in a .yaml or .json file as it would stand on the command line."""
    try:
        # Of JSON every file is YAML too; plain strings, because the parser knows what the arguments are.
        arguments = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        # Its own text quotes the line, which may hold a token.
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise ValueError(f"{path} cannot be read: line {line}: {error.problem}") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    if not isinstance(arguments, dict):
        raise ValueError(f"{path} holds no mapping of argument names to values")
    words = []
    for name, value in arguments.items():
        if name not in known:
            raise ValueError(f"{path}: unknown argument {name}{did_you_mean(str(name), known)}")
        if isinstance(value, dict):
            raise ValueError(f"{path}: {name} is a mapping; write it as a JSON string in quotes")
        if value not in ("", "null", "~"):
            words += [f"--{name}", *value] if isinstance(value, list) else [f"--{name}={value}"]
    return words


def parse_arguments(parser: HfArgumentParser, argv: list[str]) -> tuple[Any, ...]:
    """Return the arguments of the command line, over those of an argument file that comes first."""
    if argv and argv[0].endswith((".yaml", ".yml", ".json")):
        known = [action.dest for action in parser._actions]
        argv = [*read_argument_file(argv[0], known), *argv[1:]]
    return parser.parse_args_into_dataclasses(argv)


def check_training_is_wanted(args: VanillaTransformerTrainingArguments) -> None:
    """Refuse switches that, in the example programs of transformers, leave training out, as nothing here does."""
    given = [f"--{name}" for name in ("do_eval", "do_predict") if getattr(args, name)]
    if args.do_train is False or (given and not args.do_train):
        switches = " and ".join(given) + " without --do_train" if given else "--do_train false"
        raise ValueError(
            f"{switches}: this program always trains, and then evaluates; add --do_train, or, for a model that is "
            "trained, use translate.py and evaluate_translation.py"
        )
    args.do_train, args.do_eval = True, args.eval_strategy != "no"


def main(argv: list[str] | None = None) -> None:
    """Train; a mistake in the input ends with one line on standard error and status 2."""
    kinds: Any = (ModelArguments, DataArguments, VanillaTransformerTrainingArguments)
    parser = argument_parser(kinds, __doc__, usage=USAGE)
    # So that a switch that is given can be told from one that is not.
    parser.set_defaults(do_train=None, do_eval=None)
    # Reading and writing a checkpoint takes a moment and is no news.
    transformers.logging.disable_progress_bar()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    args: Any = None

    def going_on() -> str:
        if args is not None and newest_checkpoint(args.output_dir):
            return "--resume_from_checkpoint last goes on from the last checkpoint"
        return "there is no checkpoint yet, so the same command starts again"

    with one_line_errors(parser, going_on):
        model_args, data_args, args = parse_arguments(parser, sys.argv[1:] if argv is None else argv)
        check_training_is_wanted(args)
        train_translation(model_args, data_args, args)


if __name__ == "__main__":
    main()
