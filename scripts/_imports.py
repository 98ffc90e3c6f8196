"""The imports of the scripts, which take seconds: Ctrl-C and a missing package end them without a stack trace."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

USAGE_ERROR = 2
INTERRUPTED = 130


@contextmanager
def importing() -> Iterator[None]:
    """End the program with one line where a package is missing (status 2), and quietly after Ctrl-C (status 130)."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        # An exception could be raised, and lost, in a callback of the import system.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    try:
        yield
    except ModuleNotFoundError as error:
        _stop(
            f"{sys.executable} has no package {error.name}; activate the environment that this package is installed "
            'in, or install it there: pip install "hf-vanilla-transformer[train]"'
        )
    except ImportError as error:
        _stop(" ".join(str(error).split()))
    finally:
        if handler is signal.default_int_handler:
            signal.signal(signal.SIGINT, handler)


def _stop(message: str) -> None:
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    raise SystemExit(USAGE_ERROR)
