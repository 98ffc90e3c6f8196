"""Measure speed and memory beside other implementations, and beside what the machine can do at the most.

    python scripts/benchmark.py train --dtype float32 bfloat16 --preset small \
        --train_source_file train.en --train_target_file train.de
    python scripts/benchmark.py generate --preset base --batch_size 32 --num_beams 1 4
    python scripts/benchmark.py memory startup
    python scripts/benchmark.py all --device cuda --dtype bfloat16 --preset base

The suites: train (steps on identical batches, and real text by everybody's own batches), data (tokenizing, batches),
generate (greedy and beams), memory (peak of a training step), scaling (cost over sizes, a long stream), startup
(import, first translation). Contestants take turns, and are compared only if they compute the same; what counts is
the median of the ratios, since other programs slow all of them alike. Text is the built-in corpus unless it is named.

The folder then holds results.json, table.md and a picture of each suite, also after Ctrl-C.
"""

import sys
from typing import Any

from _imports import importing

with importing():
    import datasets
    import transformers

    from benchmarks.benchmark import BenchmarkArguments, run_suites
    from benchmarks.model_benchmarks import SUITES
    from hf_vanilla_transformer.cli.options import argument_parser, one_line_errors
    from hf_vanilla_transformer.data.arguments import DataArguments


def main(argv: list[str] | None = None) -> None:
    """Measure; a mistake in the input ends with one line on standard error and status 2."""
    kinds: Any = (BenchmarkArguments, DataArguments)
    parser = argument_parser(kinds, __doc__)
    parser.add_argument(
        "suites", nargs="+", choices=[*SUITES, "all"], metavar="suite", help=", ".join([*SUITES, "all"])
    )
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    show_progress = sys.stderr.isatty()
    with one_line_errors(parser, going_on="what was measured is in the output folder"):
        args, data_args, chosen = parser.parse_args_into_dataclasses(argv)
        names = list(SUITES) if "all" in chosen.suites else list(dict.fromkeys(chosen.suites))
        run_suites(names, SUITES, args, data_args, show_progress)


if __name__ == "__main__":
    main()
