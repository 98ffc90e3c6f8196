"""One thread for the scripts' small models, and their error lines."""

from collections.abc import Callable

import pytest


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    pass


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run a `main` that must exit with status 2; return its last line on standard error."""

    def run(main: Callable[..., None], *words: object) -> str:
        with pytest.raises(SystemExit) as stop:
            main(*words)
        assert stop.value.code == 2
        return capsys.readouterr().err.splitlines()[-1]

    return run
