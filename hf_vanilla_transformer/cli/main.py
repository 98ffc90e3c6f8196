"""The program `vanilla-transformer`: finds the command, parses its options and runs it."""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from .. import __version__
from ..errors import did_you_mean
from .options import HELP_ALL, USAGE_ERROR, OneLineParser, importing, one_line_errors

PROGRAM = "vanilla-transformer"

# Each is a module of this folder with `add_arguments(parser)` and `run(arguments)`; its docstring is the help text.
COMMANDS = ("train", "translate", "evaluate", "score", "convert", "export", "publish", "average", "tokenizer")

HELP = f"""usage: {PROGRAM} COMMAND [options]

The Transformer of "Attention Is All You Need" as a Hugging Face model.

commands:
{{commands}}

`{PROGRAM} COMMAND --help` shows the main options of a command, with examples; `--help-all` shows all of them.
`{PROGRAM} --version` shows the version.

For example:

    {PROGRAM} train --train_source_file train.en --train_target_file train.de \\
        --validation_split_size 1000 --preset small --output_dir my-model
    {PROGRAM} translate --model my-model --input test.en --output test.hyp
    {PROGRAM} evaluate --predictions test.hyp --references test.de
"""


def main(argv: Sequence[str] | None = None, prog: str | None = None) -> None:
    """Run a command; a mistake in its input ends the program with one line on standard error and status 2.

    Args:
        argv: The command and its options; by default those of the process.
        prog: Name of the program in messages; by default that of the program and the command.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    name = words[0] if words else ""
    if name in COMMANDS:
        _run(name, words[1:], prog or f"{PROGRAM} {name}")
    elif name in ("-h", "--help", HELP_ALL):
        print(HELP.format(commands="\n".join(f"  {each:10}  {_summary(each)}" for each in COMMANDS)), end="")
    elif name == "--version":
        print(f"{PROGRAM} {__version__}")
    else:
        problem = f"unknown command {name}{did_you_mean(name, COMMANDS)}" if name else "no command is given"
        print(f"{PROGRAM}: error: {problem}; --help lists the commands", file=sys.stderr)
        raise SystemExit(USAGE_ERROR)


def _summary(command: str) -> str:
    return (_module(command).__doc__ or "").partition("\n")[0]


def _module(command: str) -> Any:
    return import_module(f".{command}", __package__)


def _run(name: str, words: list[str], prog: str) -> None:
    command = _module(name)
    options = words[: words.index("--")] if "--" in words else words
    parser = OneLineParser(prog, command.__doc__, shows_all=not {"-h", "--help"}.intersection(options))
    with one_line_errors(parser):
        command.add_arguments(parser)
        parser.add_help_options()
        arguments = command.parse(parser, words) if hasattr(command, "parse") else parser.parse_args(words)
        with importing():
            from ..registration import register

            register()
        try:
            command.run(arguments)
        except BrokenPipeError:
            # The reader (`head`, for example) has closed the pipe; Python would complain when it flushes at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


__all__ = ["COMMANDS", "PROGRAM", "main"]
