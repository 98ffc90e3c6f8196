"""The script that reproduces tutorials."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest


@pytest.fixture(scope="package")
def run(load_script: Callable[[str], ModuleType]) -> Callable[..., dict[str, Any]]:
    """Reproduce one tutorial and return its result from the output folder."""
    main = load_script("reproduce_tutorials").main

    def start(name: str, output: Path, *arguments: str) -> dict[str, Any]:
        main([name, "--output_dir", str(output), *arguments])
        return json.loads((output / f"{name}.json").read_text(encoding="utf-8"))

    return start
