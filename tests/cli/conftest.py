"""Fixtures: commands that fail, and files of pairs."""

from collections.abc import Callable
from pathlib import Path

import pytest

from hf_vanilla_transformer.cli.main import main
from translators import ENGLISH, SPANISH


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must exit with status 2 and one line on standard error; return that line."""

    def run(*words: object) -> str:
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        assert stop.value.code == 2 and printed.out == ""
        assert printed.err.count("\n") == 1, "one line, no traceback"
        return printed.err

    return run


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Write files of sentences and translations, and return the options that name them."""
    paths = []
    for name, lines in (("source", ENGLISH), ("target", SPANISH)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        paths += [f"--{name}", str(tmp_path / name)]
    return paths
