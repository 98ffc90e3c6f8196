"""Registry and runner of the tutorials.

Results count only the output of `generate()`, never words predicted with teacher forcing.
"""

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path

import torch
import transformers

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.training.run_folder import make_folder

from .attention import reproduce_attention
from .common import TutorialArguments, TutorialResult
from .complexity import reproduce_complexity
from .copy_task import reproduce_copy
from .encoder_decoder import reproduce_encoder_decoder
from .opus_books import reproduce_opus_books
from .phrases import reproduce_phrases, reproduce_statquest

Tutorial = Callable[[TutorialArguments, DataArguments], TutorialResult]

TUTORIALS: dict[str, Tutorial] = {
    "phrases": reproduce_phrases,
    "attention": reproduce_attention,
    "copy": reproduce_copy,
    "opus_books": reproduce_opus_books,
    "statquest": reproduce_statquest,
    "encoder_decoder": reproduce_encoder_decoder,
    "complexity": reproduce_complexity,
}


def reproduce(
    tutorials: Mapping[str, Tutorial], args: TutorialArguments, data_args: DataArguments
) -> list[TutorialResult]:
    """Reproduce tutorials; print each result and write it as JSON to `args.output_dir`.

    A tutorial that fails, for example because its data is missing, does not stop the others.

    Raises:
        ValueError: Tutorials failed; raised at the end, naming all of them.
    """
    make_folder(Path(args.output_dir))
    results, errors = [], []
    for name, tutorial in tutorials.items():
        start = time.perf_counter()
        try:
            result = tutorial(args, data_args)
        except (ValueError, OSError) as error:
            errors.append(f"{name}: {error}")
            continue
        write_result(result, time.perf_counter() - start, Path(args.output_dir, f"{name}.json"))
        results.append(result)
    if errors:
        raise ValueError("; ".join(errors))
    return results


def write_result(result: TutorialResult, seconds: float, file: Path) -> None:
    """Print a result as a table row, and write it with its duration, machine and versions."""
    report = {
        **asdict(result),
        "seconds": seconds,
        "machine": {"python": platform.python_version(), "processor": platform.machine()},
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
    }
    file.write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"| {result.tutorial} | {result.claim} | {result.result} |", flush=True)
    if not result.reproduced:
        print(f"{result.tutorial}: not reproduced; see {file}", flush=True)
