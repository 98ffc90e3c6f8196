"""Importing a program that is no part of a package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_file(path: Path, name: str) -> ModuleType:
    """Import a Python file under a name of its own, to call its functions in this process."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Where dataclasses look for the types that fields name.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
