"""What the scripts share: arguments from dataclasses, and one line instead of a traceback for a mistake."""

from argparse import RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import HfArgumentParser

USAGE_ERROR = 2
INTERRUPTED = 130


def argument_parser(kinds: Any, description: str | None, **options: Any) -> HfArgumentParser:
    """Return a parser of the fields of one dataclass or several, which shows the description as it is laid out."""
    return HfArgumentParser(
        kinds, description=description, **{"formatter_class": RawDescriptionHelpFormatter, **options}
    )


@contextmanager
def one_line_errors(parser: HfArgumentParser, going_on: str | None = None) -> Iterator[None]:
    """End the program with one line on standard error and status 2 where input or arguments cannot be used.

    Args:
        parser: The parser of the arguments.
        going_on: How to go on after Ctrl-C, which then ends the program with this line and status 130.
    """
    try:
        yield
    except KeyboardInterrupt:
        if going_on is None:
            raise
        parser.exit(INTERRUPTED, f"interrupted; {going_on}\n")
    except (ValueError, OSError) as error:
        # A closed pipe is no mistake of the user's; the script decides what becomes of it.
        if isinstance(error, BrokenPipeError):
            raise
        parser.exit(USAGE_ERROR, f"{parser.prog}: error: {' '.join(str(error).split())}\n")


__all__ = ["argument_parser", "one_line_errors"]
