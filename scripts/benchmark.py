"""Benchmark speed and memory against other implementations and the machine's roofline.

    python scripts/benchmark.py train --dtype float32 bfloat16 --preset small \
        --train_source_file train.en --train_target_file train.de
    python scripts/benchmark.py generate --preset base --batch_size 32 --num_beams 1 4
    python scripts/benchmark.py memory startup
    python scripts/benchmark.py all --device cuda --dtype bfloat16 --preset base

Benchmarks: train (steps on identical batches, and on real text in each implementation's own batches), words (training
and decoding of short sequences of symbols), data (tokenizing, batching), generate (greedy and beam search), memory
(peak of a training step), profile (the slowest operations of our training steps and decoding), loss (against the fused
losses of other libraries), products (each CPU routine for products and attention), scaling (cost over size, a long
stream), startup (import, first translation), serve (throughput and latency of the server), soak (its memory over many
requests). Implementations that compute the same results are timed in alternating rounds; the median ratio within a
round is what counts, since background load slows all of them alike. The default text is the built-in corpus.

The output folder gets results.json and table.md, which survive Ctrl-C.
"""

import sys
from typing import Any

from _imports import importing

with importing():
    import datasets
    import transformers

    from benchmarks.arguments import BenchmarkArguments
    from benchmarks.run import BENCHMARKS, CPU_ONLY, run_benchmarks
    from hf_vanilla_transformer.cli.options import dataclass_parser, one_line_errors, parse_dataclasses
    from hf_vanilla_transformer.data.arguments import DataArguments
    from hf_vanilla_transformer.registration import register

    register()


def main(argv: list[str] | None = None) -> None:
    """Run the benchmarks; invalid input exits with status 2 and one line on standard error."""
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
    with one_line_errors(parser, advice="the results so far are in the output folder"):
        chosen = parser.parse_args(argv)
        args, data_args = parse_dataclasses(kinds, chosen)
        known = [name for name in BENCHMARKS if args.device == "cpu" or name not in CPU_ONLY]
        names = known if "all" in chosen.benchmarks else list(dict.fromkeys(chosen.benchmarks))
        run_benchmarks({name: BENCHMARKS[name] for name in names}, args, data_args, show_progress)


if __name__ == "__main__":
    main()
