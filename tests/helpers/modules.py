"""Import of scripts outside any package."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_file(path: Path, name: str) -> ModuleType:
    """Import a Python file under a chosen name."""
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses resolve the types of fields there.
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
