"""Interactive prompt on the terminal."""

import sys
from collections.abc import Callable
from contextlib import suppress

from .options import Terminated

PROMPT = "> "


def answer_lines(answer: Callable[[str], str]) -> None:
    """Print the answer to each typed line until Ctrl-D.

    Ctrl-C discards the line or its answer. Errors go to standard error: standard output gets only answers.
    """
    # Gives `input` history and line editing where available.
    with suppress(ImportError):
        import readline  # noqa: F401 - the import alone takes effect
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
    # With standard output redirected, `input` would write the prompt there.
    print(PROMPT, end="", file=sys.stderr, flush=True)
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.removesuffix("\n")
