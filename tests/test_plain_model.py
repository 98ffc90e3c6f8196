"""The plain model alone, without the package `fast`."""

import os
import shutil
import subprocess
import sys

import pytest

from paths import ROOT


@pytest.mark.slow
def test_the_tests_of_the_model_pass_without_the_fast_folder(tmp_path):
    for name in ("hf_vanilla_transformer", "tests"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copyfile(ROOT / "pyproject.toml", tmp_path / "pyproject.toml")
    shutil.rmtree(tmp_path / "hf_vanilla_transformer" / "fast")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider", "tests/model"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment)
    assert done.returncode == 0, done.stdout[-2000:]
    assert " passed" in done.stdout
