"""The plain model alone, without the package `fast`."""

import os
import shutil
import subprocess
import sys
from functools import partial

import pytest

from paths import ROOT

WITHOUT_EDITABLE = """import sys

sys.meta_path[:] = [finder for finder in sys.meta_path if not finder.__module__.startswith("__editable__")]
"""


@pytest.mark.slow
def test_the_tests_of_the_model_pass_without_the_fast_folder(tmp_path):
    for name in ("hf_vanilla_transformer", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    shutil.rmtree(tmp_path / "hf_vanilla_transformer" / "fast")
    # An editable installation would find the folder in the checkout.
    (tmp_path / "sitecustomize.py").write_text(WITHOUT_EDITABLE)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    run = partial(subprocess.run, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert "No module named" in run([sys.executable, "-c", "import hf_vanilla_transformer.fast"]).stderr
    done = run([sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "tests/model"])
    assert done.returncode == 0, done.stdout[-2000:]
    assert " passed" in done.stdout
