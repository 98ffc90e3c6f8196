"""The wheel holds every module and data file, and its commands work outside the checkout."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

from hf_vanilla_transformer.cli.main import COMMANDS
from paths import ROOT

PACKAGE = "hf_vanilla_transformer"
BUILD = "from setuptools.build_meta import build_wheel; print(build_wheel('.'))"
SIDES = {"en": "one two three four", "de": "eins zwei drei vier"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy to keep the checkout clean."""
    source = tmp_path_factory.mktemp("source")
    shutil.copytree(ROOT / PACKAGE, source / PACKAGE, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return next(source.glob("*.whl"))


def test_files_of_the_wheel(wheel: Path) -> None:
    expected = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / PACKAGE).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    for name in ("py.typed", "training/model_card_template.md", "data/toy_corpus.tsv.bz2", "cli/main.py"):
        assert f"{PACKAGE}/{name}" in expected
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        (entry_points,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert f"vanilla-transformer = {PACKAGE}.cli.main:main" in archive.read(entry_points).decode()
    assert names == expected


class Environment:
    """A virtual environment with the wheel and requirements, but without the checkout.

    The requirements are those installed here or, given `extras`, what pip downloads for the wheel.
    """

    def __init__(self, folder: Path, wheel: Path, extras: str = ""):
        venv.create(folder / "venv", with_pip=False)
        self.folder = folder
        self.bin = folder / "venv" / "bin"
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "install", "--quiet"]
        if extras:
            pins = ["--constraint", str(ROOT / "constraints.txt"), "--disable-pip-version-check"]
            subprocess.run([*pip, *pins, f"{wheel}[{extras}]"], check=True)
            return
        # A path in a .pth file is searched, but .pth files in it, as of an editable install, are not read.
        paths = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
        packages = Path(sysconfig.get_path("purelib", vars=paths))
        (packages / "requirements.pth").write_text(sysconfig.get_path("purelib") + "\n")
        options = ["--no-deps", "--no-index", "--ignore-installed", "--disable-pip-version-check"]
        subprocess.run([*pip, *options, str(wheel)], check=True)

    def run(self, program: str, *words: str) -> str:
        """Run a program of the environment and return its output."""
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        done = subprocess.run(
            [str(self.bin / program), *words], cwd=self.folder, capture_output=True, text=True, env=environment
        )
        assert done.returncode == 0, f"{program} {' '.join(words)}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def command(self, line: str) -> str:
        """Run a `vanilla-transformer` command line."""
        return self.run("vanilla-transformer", *line.split())


def corpus_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elsewhere")
    for language, words in SIDES.items():
        lines = [" ".join(words.split()[: 1 + i % 4]) + f" {i}" for i in range(40)]
        (folder / f"train.{language}").write_text("\n".join(lines) + "\n", encoding="utf-8")
        (folder / f"test.{language}").write_text("\n".join(lines[:6]) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(corpus_folder(tmp_path_factory), wheel)


@pytest.mark.slow  # downloads PyTorch
def test_installed_as_the_readme_says(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """`pip install ".[train,plot]"` in an empty environment is all that training and translating need."""
    (line,) = re.findall(r'`pip install "\.\[(.*?)\]"`', (ROOT / "README.md").read_text(encoding="utf-8"))
    environment = Environment(corpus_folder(tmp_path_factory), wheel, extras=line)
    environment.command(
        "train --train_source_file train.en --train_target_file train.de --validation_split_size 8 --preset auto "
        "--max_steps 2 --use_cpu --output_dir model"
    )
    assert (environment.folder / "model" / "training_curve.png").is_file()
    environment.command("translate --model model --input test.en --output test.hyp")
    assert (environment.folder / "test.hyp").read_text(encoding="utf-8").count("\n") == 6
    # What is missing is named, as pip knows it.
    done = subprocess.run(
        [
            str(environment.bin / "vanilla-transformer"),
            "export",
            "--model",
            "model",
            "--to",
            "onnx",
            "--output_dir",
            "o",
        ],
        cwd=environment.folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2 and "pip install onnx onnxscript onnxruntime" in done.stderr


@pytest.mark.slow  # a virtual environment, and PyTorch imported by a dozen programs
def test_every_command_outside_the_checkout(environment: Environment) -> None:
    where = environment.run("python", "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)")
    assert where.startswith(str(environment.folder))
    for command in ("", *COMMANDS):
        assert environment.command(f"{command} --help").startswith("usage: vanilla-transformer ")
    environment.command("tokenizer --source_files train.en --target_files train.de --vocab_size 300 --output_dir tok")
    environment.command(
        "train --train_source_file train.en --train_target_file train.de --validation_split_size 8 --preset tiny "
        "--config_overrides encoder_layers=1,decoder_layers=1,d_model=32 --tokenizer_name_or_path tok --max_steps 4 "
        "--eval_strategy steps --eval_steps 2 --max_tokens 256 --warmup_steps 1 --final_num_beams 1 --use_cpu "
        "--output_dir model"
    )
    card = (environment.folder / "model" / "README.md").read_text(encoding="utf-8")
    assert "vanilla-transformer train --train_source_file train.en" in card and str(environment.folder) not in card
    environment.command("translate --model model --input test.en --output test.hyp")
    assert "BLEU" in environment.command("evaluate --predictions test.hyp --references test.de")
    assert environment.command("score --model model --source test.en --target test.de").count("\n") == 6
    assert "checkpoint-4" in environment.command("average --run_dir model --output_dir averaged")
    assert "nothing was uploaded" in environment.command("publish --model model --repo_id me/model --dry_run")
    environment.command("export --model model --to marian --output_dir marian")
    assert "layout marian" in environment.command("convert --source marian --output_dir converted")
    if find_spec("ctranslate2"):
        environment.command("export --model model --to ctranslate2 --output_dir ct2")
        environment.command("translate --backend ctranslate2 --model ct2 --input test.en --output test.ct2")
        assert (environment.folder / "test.ct2").read_text().count("\n") == 6
    corpus = (
        f"from {PACKAGE}.data.toy_corpus import load_toy_corpus; print(len(load_toy_corpus(500, num_test=9)['train']))"
    )
    assert environment.run("python", "-c", corpus) == "500\n"
