"""A prompt on the terminal: lines that are answered at once."""

import sys
from collections.abc import Callable
from contextlib import suppress

from .options import Terminated

PROMPT = "> "


def answer_lines(answer: Callable[[str], str]) -> None:
    """Print the answer to each line that is typed, until Ctrl-D.

    Ctrl-C gives up the line, or its answer; a line that cannot be answered is told why. Standard output has answers
    only.
    """
    # Gives `input` a history and an editable line, on systems that have it.
    with suppress(ImportError):
        import readline  # noqa: F401 - importing it is all that it takes
    while True:
        try:
            if (line := _read_line()).strip():
                _print_answer(answer, line)
        except EOFError:
            print(file=sys.stderr)
            return
        except Terminated:
            raise
        except KeyboardInterrupt:
            print(file=sys.stderr)


def _print_answer(answer: Callable[[str], str], line: str) -> None:
    try:
        print(answer(line), flush=True)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)


def _read_line() -> str:
    if sys.stdout.isatty():
        return input(PROMPT)
    # Where standard output is a pipe or a file, `input` would write the prompt into it.
    print(PROMPT, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
