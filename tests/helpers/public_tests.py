"""Stand-ins for what evaluation downloads: sacreBLEU's test sets and COMET models."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from sacrebleu import utils
from sacrebleu.dataset import DATASETS, base
from sacrebleu.dataset.plain_text import PlainTextDataset

from parallel_text import lines, write


class _PublicSet(PlainTextDataset):
    """Text files with any number of references."""

    def fieldnames(self, langpair: str) -> list[str]:
        return ["src", *(f"ref:{number}" for number in range(len(self.langpairs[langpair]) - 1))]


class PublicSets:
    """Creates test sets under sacreBLEU's names, which it "downloads" from local files to the test's folder."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.monkeypatch = folder, monkeypatch
        (folder / "online").mkdir()
        for module in (utils, base):
            monkeypatch.setattr(module, "SACREBLEU_DIR", str(folder / "sacrebleu"))

    def __call__(self, name: str, langpair: str, *references: Sequence[str], **changes: Any) -> Path:
        """Create a test set, and return the folder that it will be downloaded to."""
        sources = [f"source {number} of {name}" for number in range(len(references[0]))]
        files = [f"{name.replace('/', '-')}.{number}" for number in range(len(references) + 1)]
        for file, column in zip(files, [sources, *references], strict=True):
            write(self.folder / "online" / file, lines(column))
        options = {
            "data": [(self.folder / "online" / file).as_uri() for file in files],
            "langpairs": {langpair: [f"{name.replace('/', '_')}.{file}" for file in files]},
            **changes,
        }
        self.monkeypatch.setitem(DATASETS, name, _PublicSet(name, **options))
        return self.folder / "sacrebleu" / name


# Scores 1 for a translation equal to its reference, else 0; has the options and output of unbabel-comet 2.2.7.
COMET_SCORE = """#!{python}
import argparse, json, os, sys

parser = argparse.ArgumentParser()
for option in ("-s", "-r", "--model", "--to_json"):
    parser.add_argument(option)
parser.add_argument("-t", nargs="+")
parser.add_argument("--gpus", type=int)
for option in ("--quiet", "--only_system"):
    parser.add_argument(option, action="store_true")
given = parser.parse_args()
if given.model != "Unbabel/wmt22-comet-da" and not os.path.exists(given.model):
    raise KeyError(f"Model {{given.model}} not supported by COMET.")


def read(path):
    with open(path, encoding="utf-8") as file:
        return [line.strip() for line in file.readlines()]


scores = {{
    path: [
        {{"src": src, "mt": mt, "ref": ref, "COMET": float(mt == ref)}}
        for src, mt, ref in zip(read(given.s), read(path), read(given.r), strict=True)
    ]
    for path in given.t
}}
print("a score")
print("a warning", file=sys.stderr)
with open(given.to_json, "w", encoding="utf-8") as file:
    json.dump(scores, file, ensure_ascii=False)
"""


def install_comet(folder: Path) -> None:
    """Write a stand-in for unbabel-comet's program to a folder."""
    program = folder / "comet-score"
    program.write_text(COMET_SCORE.format(python=sys.executable), encoding="utf-8")
    program.chmod(0o755)
