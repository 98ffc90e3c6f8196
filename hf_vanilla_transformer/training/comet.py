"""COMET, a learned metric, computed by the program of the package `unbabel-comet`.

The package needs transformers 4 and therefore its own environment: it cannot be installed alongside transformers 5,
with which its models fail.
"""

import json
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from .metrics import check_counts

PROGRAM = "comet-score"

# For the old releases it depends on: torchmetrics imports pkg_resources, and NumPy has no wheels for new Pythons.
INSTALLATION = 'uv tool install unbabel-comet --with "setuptools<81" --python 3.11'


def comet_scores(
    systems: Mapping[str, Sequence[str]], sources: Sequence[str], references: Sequence[Sequence[str]], model: str
) -> dict[str, float]:
    """Score the translations of each system with a COMET model, on a GPU if there is one.

    COMET takes one reference at a time; a score is the mean over all pairs of translation and reference. The model is
    a Hub name or a .ckpt file.

    Raises:
        ValueError: The numbers of sentences differ, or the program is not installed or cannot use the model.
    """
    for translations in systems.values():
        check_counts(translations, references)
    program = comet_program()
    counts = [len(row) for row in references]
    with TemporaryDirectory() as folder:
        paths = {name: Path(folder, str(number)) for number, name in enumerate(systems)}
        for name, translations in systems.items():
            _write(paths[name], _repeated(translations, counts))
        source, reference, scores = (Path(folder, name) for name in ("sources", "references", "scores.json"))
        _write(source, _repeated(sources, counts))
        _write(reference, (text for row in references for text in row))
        words = [program, "--quiet", "--only_system", "-t", *paths.values(), "-s", source, "-r", reference]
        words += ["--model", model, "--gpus", int(torch.cuda.is_available()), "--to_json", scores]
        try:
            done = subprocess.run([str(word) for word in words], capture_output=True, text=True, errors="replace")
            if not done.returncode:
                by_path = json.loads(scores.read_text(encoding="utf-8"))
                return {name: _mean(by_path[str(path)], sum(counts)) for name, path in paths.items()}
        # The program or its output is damaged, missing or in another format.
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"`comet`: {PROGRAM} gave no scores ({error!r}); reinstall it: {INSTALLATION}") from error
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ValueError(
            f"`comet` {model}: {PROGRAM} failed ({reason}); name a COMET model on the Hub or a .ckpt file"
        )


def comet_program() -> str:
    """Return the path of the program; raises ValueError if it is not installed."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise ValueError(
            f"`comet` needs the program {PROGRAM} of unbabel-comet, in its own environment because it needs "
            f"transformers 4: {INSTALLATION}"
        )
    return program


def _repeated(texts: Iterable[str], counts: Iterable[int]) -> Iterable[str]:
    return (text for text, count in zip(texts, counts, strict=True) for _ in range(count))


def _write(path: Path, texts: Iterable[str]) -> None:
    # A carriage return within a text would end a line.
    path.write_text("".join(f"{' '.join(text.split())}\n" for text in texts), encoding="utf-8")


def _mean(segments: Sequence[Mapping[str, float]], number: int) -> float:
    if len(segments) != number:
        raise ValueError(f"{len(segments)} scores for {number} segments")
    return sum(segment["COMET"] for segment in segments) / number
