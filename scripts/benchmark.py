"""Benchmark speed and memory against other implementations and the machine's roofline.

    python scripts/benchmark.py train --dtype float32 bfloat16 --preset small \
        --train_source_file train.en --train_target_file train.de
    python scripts/benchmark.py generate --preset base --batch_size 32 --num_beams 1 4
    python scripts/benchmark.py memory startup
    python scripts/benchmark.py all --device cuda --dtype bfloat16 --preset base

Benchmarks: train (steps on identical batches, and on real text in each implementation's own batches), data
(tokenizing, batching), generate (greedy and beam search), memory (peak of a training step), profile (what takes
longest in our training steps and decoding), loss (beside the fused losses of other libraries), products (each CPU
routine for products and attention), scaling (cost over size, a long stream), startup (import, first translation).
Implementations are timed in alternating rounds, and only if they compute the same; what counts is the median of the
ratios, since other programs slow all of them down alike. The text is the built-in corpus by default.

The output folder holds results.json and table.md, after Ctrl-C too.
"""

import sys
from typing import Any

from _imports import importing

with importing():
    import datasets
    import transformers

    from benchmarks.arguments import BenchmarkArguments
    from benchmarks.run import ABOUT_THE_CPU, BENCHMARKS, run_benchmarks
    from hf_vanilla_transformer.cli.options import dataclass_parser, one_line_errors, parse_dataclasses
    from hf_vanilla_transformer.data.arguments import DataArguments
    from hf_vanilla_transformer.registration import register

    register()


def main(argv: list[str] | None = None) -> None:
    """Run the benchmarks; a mistake in the input ends with one line on standard error and status 2."""
    kinds: Any = (BenchmarkArguments, DataArguments)
    parser = dataclass_parser(kinds, __doc__)
    parser.add_argument(
        "benchmarks",
        nargs="+",
        choices=[*BENCHMARKS, "all"],
        metavar="benchmark",
        help=", ".join([*BENCHMARKS, "all"]),
    )
    transformers.logging.disable_progress_bar()
    datasets.disable_progress_bars()
    show_progress = sys.stderr.isatty()
    with one_line_errors(parser, advice="what was measured is in the output folder"):
        chosen = parser.parse_args(argv)
        args, data_args = parse_dataclasses(kinds, chosen)
        known = [name for name in BENCHMARKS if args.device == "cpu" or name not in ABOUT_THE_CPU]
        names = known if "all" in chosen.benchmarks else list(dict.fromkeys(chosen.benchmarks))
        run_benchmarks({name: BENCHMARKS[name] for name in names}, args, data_args, show_progress)


if __name__ == "__main__":
    main()
