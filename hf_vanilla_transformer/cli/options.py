"""What the scripts share: arguments from dataclasses, and one line instead of a stack trace for a mistake."""

import re
import sys
from argparse import RawDescriptionHelpFormatter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from transformers import HfArgumentParser

from ..errors import SECRET_OPTION, did_you_mean, one_line, without_secrets

USAGE_ERROR = 2
INTERRUPTED = 130


class OneLineParser(HfArgumentParser):
    """Reports a mistake in one line, and names the option that is nearest to an unknown one."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; a word that is no argument ends the program, since to ignore it would give another result."""
        words = sys.argv[1:] if args is None else list(args)
        # Before argparse, which shows values, and to which a misspelt option that is required is one that is missing.
        end = words.index("--") if "--" in words else len(words)
        words[:end] = map(self._spelt_out, words[:end])
        parsed, unknown = super().parse_known_args(words, namespace)
        if unknown:
            word = without_secrets(words)[words.index(unknown[0])]
            self.error(f"{re.split('[= ]' if word.startswith('-') else '=', word)[0]} belongs to no option")
        return parsed, unknown

    def _spelt_out(self, word: str) -> str:
        """Return a word with the option that it abbreviates in full; end the program if that is none or several.

        No message shows a value: it may be that of a misspelt `--hub_token`.
        """
        name, equals, value = word.partition("=")
        known = self._option_string_actions
        # A negative number, a single "-" and a text with blanks are values.
        if name in known or not re.match(r"-[^\d.]", name) or " " in name:
            return word
        # Most options have two spellings.
        meant = {action: option for option, action in reversed(known.items()) if option.startswith(name)}
        if len(meant) == 1:
            return f"{meant.popitem()[1]}{equals}{value}"
        if meant:
            self.error(f"ambiguous option: {name} could match {', '.join(reversed(meant.values()))}")
        # A value without "=" or blank before it.
        glued = (option for option in known if name.startswith(option) and SECRET_OPTION.fullmatch(option))
        name = next(glued, re.split(r"[^\w-]", name)[0])
        self.error(f"unknown option {name}{did_you_mean(name, known)}")

    def error(self, message: str) -> NoReturn:
        """End the program with one line, where argparse shows the usage of all options first."""
        self.exit(USAGE_ERROR, f"{self.prog}: error: {message}; --help lists the options\n")


def argument_parser(kinds: Any, description: str | None, **options: Any) -> OneLineParser:
    """Return a parser of the fields of one dataclass or several, which shows the description as it is laid out."""
    return OneLineParser(kinds, description=description, **{"formatter_class": RawDescriptionHelpFormatter, **options})


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
        parser.exit(USAGE_ERROR, f"{parser.prog}: error: {one_line(error)}\n")


__all__ = ["argument_parser", "one_line_errors"]
