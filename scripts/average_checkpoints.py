"""Average the weights of checkpoints of one run into one model, as section 6.1 of Attention Is All You Need does.

The result translates better than its last checkpoint at no cost. For example:

    python scripts/average_checkpoints.py --run_dir my-model --last 5 --output_dir my-model-averaged
    python scripts/average_checkpoints.py --checkpoints run/checkpoint-800 run/checkpoint-900 --output_dir mean

The folder then holds model and tokenizer, with the configuration and generation settings of the last checkpoint.
"""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from _imports import importing

with importing():
    from transformers.utils.logging import disable_progress_bar

    import hf_vanilla_transformer  # noqa: F401  # registers the model with the Auto classes
    from hf_vanilla_transformer.cli.options import argument_parser, one_line_errors
    from hf_vanilla_transformer.files import check_output_folder
    from hf_vanilla_transformer.hub import check_safetensors
    from hf_vanilla_transformer.inference.loading import load_tokenizer
    from hf_vanilla_transformer.training.checkpoints import average_checkpoints, last_checkpoints

TOKENIZER_FILE = "tokenizer_config.json"


@dataclass
class Arguments:
    """What to average, and where to put it."""

    output_dir: str = field(metadata={"help": "Folder of the averaged model; new or empty."})
    checkpoints: list[str] = field(default_factory=list, metadata={"help": "Folders to average, the newest last."})
    run_dir: str | None = field(default=None, metadata={"help": "Or: average the last checkpoints of this run."})
    last: int = field(default=5, metadata={"help": "How many of the run's checkpoints (default and paper: 5)."})


def main(argv: list[str] | None = None) -> None:
    """Average and save; a mistake in the input ends with one line on standard error and status 2."""
    parser = argument_parser(Arguments, __doc__)
    if not sys.stderr.isatty():
        disable_progress_bar()
    with one_line_errors(parser):
        (arguments,) = parser.parse_args_into_dataclasses(argv)
        checkpoints = _checkpoints(arguments)
        output = check_output_folder(arguments.output_dir)
        tokenizer = load_tokenizer(_tokenizer_folder(checkpoints[-1]))
        average_checkpoints(checkpoints).save_pretrained(output)
        tokenizer.save_pretrained(output)
        print(f"{output}: the average of {', '.join(map(str, checkpoints))}")


def _checkpoints(arguments: Arguments) -> list[Path]:
    """Return the folders to average, once it is sure that each holds weights that can be read safely."""
    if bool(arguments.checkpoints) == bool(arguments.run_dir):
        raise ValueError("give either --checkpoints or --run_dir")
    if arguments.last < 1:
        raise ValueError(f"--last {arguments.last} leaves nothing to average; set at least 1")
    if arguments.run_dir:
        checkpoints = last_checkpoints(arguments.run_dir, arguments.last)
    else:
        checkpoints = [Path(name) for name in arguments.checkpoints]
    for folder in checkpoints:
        files = list(folder.glob("model*.safetensors"))
        if not files:
            raise ValueError(f"{folder} holds no model.safetensors; only checkpoints in safetensors are averaged")
        for file in files:
            check_safetensors(file, remedy="leave this checkpoint out")
    return checkpoints


def _tokenizer_folder(checkpoint: Path) -> Path:
    """Return where the tokenizer is: with the checkpoint, or with the run that it belongs to."""
    for folder in (checkpoint, checkpoint.resolve().parent):
        if (folder / TOKENIZER_FILE).is_file():
            return folder
    raise ValueError(f"{checkpoint} holds no {TOKENIZER_FILE}, nor does its run; copy the tokenizer's files there")


if __name__ == "__main__":
    main()
