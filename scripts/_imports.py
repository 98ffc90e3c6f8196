"""Import guard of the scripts: a missing package, or Ctrl-C during the slow imports, ends in one line."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

USAGE_ERROR = 2
INTERRUPTED = 130

_main = sys.modules["__main__"]
if Path(getattr(_main, "__file__", None) or "").resolve().parent == Path(__file__).resolve().parent:
    # See hf_vanilla_transformer/__init__.py: models are registered later, by `register()`.
    _main.IS_VANILLA_TRANSFORMER_COMMAND = True  # type: ignore[attr-defined]  # marks the running script


@contextmanager
def importing() -> Iterator[None]:
    """Exit with one line if a package is missing (status 2), and silently on Ctrl-C (status 130)."""
    try:
        from hf_vanilla_transformer.cli import options

        with options.importing():
            yield
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    except ModuleNotFoundError as error:
        _stop(
            f"{sys.executable} has no package {error.name}; activate the environment that this package is installed "
            f'in, or install it here: pip install "{Path(__file__).parents[1]}[train]"'
        )
    except ImportError as error:
        _stop(" ".join(str(error).split()))


def command(name: str, file: str) -> Callable[..., None]:
    """Return a `main` that runs a command of `vanilla-transformer` under this script's name."""

    def main(argv: Sequence[str] | None = None) -> None:
        with importing():
            from hf_vanilla_transformer.cli.main import main as run
        run([name, *(sys.argv[1:] if argv is None else argv)], prog=Path(file).name)

    return main


def _stop(message: str) -> None:
    print(f"{Path(sys.argv[0]).name}: error: {message}", file=sys.stderr)
    raise SystemExit(USAGE_ERROR)
