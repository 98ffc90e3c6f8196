"""What the scripts share: arguments from dataclasses, and one line instead of a stack trace for a mistake."""

import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import takewhile
from typing import Any, NoReturn

from transformers import HfArgumentParser

USAGE_ERROR = 2
INTERRUPTED = 130


class OneLineParser(HfArgumentParser):
    """Reports a mistake in one line, and names the option that is nearest to an unknown one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; a word that is no argument ends the program, since to ignore it would give another result."""
        words = sys.argv[1:] if args is None else list(args)
        known = self._option_string_actions
        # Before argparse, to which a misspelt option that is required is one that is missing.
        for name in (word.partition("=")[0] for word in takewhile(lambda word: word != "--", words)):
            # The beginning of an option stands for it; with a blank in it, it is a value.
            if name.startswith("--") and " " not in name and not any(option.startswith(name) for option in known):
                self.error(f"unknown option {name}{did_you_mean(name, known)}")
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"{unknown[0]} belongs to no option")
        return parsed, unknown

    def error(self, message: str) -> NoReturn:
        """End the program with one line, where argparse shows the usage of all options first."""
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}; --help lists the options\n")


def argument_parser(kinds: Any, description: str | None, **options: Any) -> OneLineParser:
    """Return a parser of the fields of one dataclass or several, which shows the description as it is laid out."""
    return OneLineParser(kinds, description=description, **{"formatter_class": RawDescriptionHelpFormatter, **options})


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return "; did you mean ...?" with the known name that is nearest, or nothing if none is near."""
    near = get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else ""


@contextmanager
def one_line_errors(parser: HfArgumentParser, going_on: Callable[[], str] | str | None = None) -> Iterator[None]:
    """End the program with one line on standard error and status 2 where input or arguments cannot be used.

    Args:
        parser: The parser of the arguments.
        going_on: How to go on after Ctrl-C, which ends the program with status 130; called then, if it is a function.
    """
    try:
        yield
    except KeyboardInterrupt:
        advice = going_on() if callable(going_on) else going_on
        parser.exit(INTERRUPTED, f"interrupted; {advice}\n" if advice else "interrupted\n")
    except (ValueError, OSError, ImportError) as error:
        # A closed pipe is no mistake of the user's; the script decides what becomes of it.
        if isinstance(error, BrokenPipeError):
            raise
        parser.exit(USAGE_ERROR, f"{parser.prog}: error: {' '.join(str(error).split())}\n")


__all__ = ["argument_parser", "did_you_mean", "one_line_errors"]
