"""Benchmark arguments that finish in seconds."""

import json
import random
from pathlib import Path
from typing import Any

from benchmarks.arguments import BenchmarkArguments

SMALL: dict[str, Any] = {
    "preset": ["tiny"], "vocab_size": [300, 320], "text_vocab_size": 300, "rounds": 2, "batch_size": [3],
    "num_beams": [1, 2], "length": 6, "tokens": 24, "memory_tokens": 24, "max_tokens": 256, "steps": 2,
    "tutorial_length": 40, "tutorial_batch_size": 2, "scales": [1, 2], "stream_pairs": 2000, "roofline_seconds": 0.0,
}  # fmt: skip  # one option a line would fill the screen


def small_arguments(folder: Path = Path("runs"), **changes: Any) -> BenchmarkArguments:
    return BenchmarkArguments(output_dir=str(folder), **{**SMALL, **changes})


def small_options(**changes: Any) -> list[str]:
    """The same arguments as command-line words."""
    words: list[str] = []
    for name, value in {**SMALL, **changes}.items():
        words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
    return words


def write_pairs(folder: Path, number: int) -> str:
    """Write a TSV file of pairs of 2 to 12 words."""
    draw = random.Random(0)
    words = [first + second for first in ("ba", "de", "fi", "go", "lu") for second in ("ma", "ne", "pi", "ro", "tu")]
    rows = [[" ".join(draw.choices(words, k=draw.randint(2, 12))) for _ in range(2)] for _ in range(number)]
    file = folder / "pairs.tsv"
    file.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))
