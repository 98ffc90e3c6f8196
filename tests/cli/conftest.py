"""Commands that are refused."""

from collections.abc import Callable

import pytest

from hf_vanilla_transformer.cli.main import main


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a command that must end with status 2 and one line on standard error; return that line."""

    def run(*words: object) -> str:
        with pytest.raises(SystemExit) as stop:
            main([str(word) for word in words])
        printed = capsys.readouterr()
        assert stop.value.code == 2 and printed.out == ""
        assert printed.err.count("\n") == 1, "one line, no traceback"
        return printed.err

    return run
