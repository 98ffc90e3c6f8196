"""Entry point of `vanilla-transformer`: finds the command, parses its options and runs it."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .. import __version__
from ..errors import DataError, did_you_mean
from ..files import disk_errors
from .options import HELP, HELP_ALL, USAGE_ERROR, OneLineParser, help_option, importing, one_line_errors

PROGRAM = "vanilla-transformer"

# Modules of this package with `add_arguments(parser)` and `run(arguments)`; the docstring is the help text.
COMMANDS = (
    "train", "distill", "translate", "serve", "evaluate", "score", "align", "convert", "export", "publish", "average",
    "tokenizer", "inspect",
)  # fmt: skip  # a table, not an expression

# Capacity of the kernel caches of oneDNN and of PyTorch's wrapper around it, one entry per matmul shape. Shapes rarely
# recur, so the default of 1,024 takes a gigabyte and is no faster.
ROUTINES_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
MAX_ROUTINES = "64"

USAGE = f"""usage: {PROGRAM} COMMAND [options]

The Transformer of "Attention Is All You Need" as a Hugging Face model.

commands:
{{commands}}

`{PROGRAM} COMMAND --help` shows the main options of a command with examples, `--help-all` shows all options.
`{PROGRAM} --version` shows the version.

For example:

    {PROGRAM} train --train_source_file train.en --train_target_file train.de \\
        --validation_split_size 1000 --preset auto --output_dir my-model
    {PROGRAM} translate --model my-model --input test.en --output test.hyp
    {PROGRAM} evaluate --predictions test.hyp --references test.de
"""


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Run a command; invalid input exits with status 2 and one line on standard error.

    Args:
        argv: The command and its options. Default: `sys.argv[1:]`.
        prog: Program name in messages. Default: `vanilla-transformer COMMAND`.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        with disk_errors("standard output", "make room"):
            _dispatch(words, prog)
            _flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as `head` does.
        pass
    except DataError as error:
        print(f"{prog or PROGRAM}: error: {error}", file=sys.stderr)
        raise SystemExit(USAGE_ERROR) from None
    finally:
        _discard_unwritten()


def limit_routines() -> None:
    """Limit the kernel caches of PyTorch and oneDNN unless the environment does; call before the first matmul."""
    for variable in ROUTINES_VARIABLES:
        os.environ.setdefault(variable, MAX_ROUTINES)


def _flush() -> None:
    """Flush standard output now: at exit, a closed pipe or a full disk could no longer be reported."""
    # None if the process was started without standard output.
    if sys.stdout is not None:
        sys.stdout.flush()


def _discard_unwritten() -> None:
    """Discard output that cannot be written, which would change the exit status."""
    try:
        _flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _dispatch(words: list[str], prog: str | None) -> None:
    name = words[0] if words else ""
    if name in COMMANDS:
        _run(name, words[1:], prog or f"{PROGRAM} {name}")
    elif help_option([name]):
        summaries = {command: (_module(command).__doc__ or "").partition("\n")[0] for command in COMMANDS}
        listing = "\n".join(f"  {command:10}  {text}" for command, text in summaries.items())
        print(USAGE.format(commands=listing), end="")
    elif name == "--version":
        print(f"{PROGRAM} {__version__}")
    else:
        problem = _unknown(name) if name else "no command given"
        print(f"{PROGRAM}: error: {problem}; --help lists the commands", file=sys.stderr)
        raise SystemExit(USAGE_ERROR)


def _unknown(word: str) -> str:
    if not word.startswith("-"):
        return f"unknown command {word}{did_you_mean(word, COMMANDS)}"
    # Drop the value, which may be a secret.
    option = word.partition("=")[0]
    return f"unknown option {option}{did_you_mean(option, (HELP, HELP_ALL, '--version'))}; the command comes first"


def _module(command: str) -> Any:
    return import_module(f".{command}", __package__)


def _run(name: str, words: list[str], prog: str) -> None:
    command = _module(name)
    asked = help_option(words)
    parser = OneLineParser(prog, command.__doc__, shows_all=asked != HELP)
    with one_line_errors(parser):
        command.add_arguments(parser)
        parser.add_help_options()
        if asked:
            # Skip parsing: the short help defines only the main options.
            print(parser.format_help(), end="")
            _flush()
            parser.exit()
        arguments = command.parse(parser, words) if hasattr(command, "parse") else parser.parse_args(words)
        limit_routines()
        with importing():
            from ..registration import register

            register()
        command.run(arguments)
        _flush()
