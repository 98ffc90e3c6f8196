"""Registry and runner of the benchmarks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

import torch

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.training.run_folder import make_folder

from .arguments import BenchmarkArguments
from .data import data_benchmark
from .generate import generate_benchmark
from .loss import loss_benchmark
from .machine import machine_info
from .measure import Case, measure
from .memory import memory_benchmark
from .products import products_benchmark
from .profile import profile_benchmark
from .report import HEADER, Report, roofline_lines, table_rows
from .roofline import measure_roofline
from .scaling import scaling_benchmark
from .serving import serve_benchmark, soak_benchmark
from .startup import startup_benchmark
from .train import train_benchmark
from .words import words_benchmark

# Builds implementations, checks that they agree, and yields cases to measure.
Benchmark = Callable[[BenchmarkArguments, DataArguments], Iterator[Case]]

BENCHMARKS: dict[str, Benchmark] = {
    "train": train_benchmark,
    "words": words_benchmark,
    "data": data_benchmark,
    "generate": generate_benchmark,
    "memory": memory_benchmark,
    "profile": profile_benchmark,
    "loss": loss_benchmark,
    "products": products_benchmark,
    "scaling": scaling_benchmark,
    "startup": startup_benchmark,
    "serve": serve_benchmark,
    "soak": soak_benchmark,
}

CPU_ONLY = ("products",)


def run_benchmarks(
    benchmarks: Mapping[str, Benchmark],
    args: BenchmarkArguments,
    data_args: DataArguments,
    show_progress: bool = False,
) -> Report:
    """Run benchmarks, print the table row by row, and write it and the results to `args.output_dir`.

    A failed benchmark does not stop the others, and an interruption keeps the measurements so far.

    Raises:
        ValueError: Benchmarks failed, or their implementations disagree; raised at the end, naming all of them.
    """
    report = _start_report(args, data_args)
    for name, benchmark in benchmarks.items():
        try:
            for case in benchmark(args, data_args):
                measurement = measure(case, args.rounds, report.roofline, show_progress)
                # Free the models of a case before the next one is built.
                del case
                report.add(measurement)
                print(*table_rows(measurement), sep="\n", flush=True)
        except (ValueError, OSError) as error:
            report.add_failure(f"{name}: {error}")
    if report.failed:
        raise ValueError("; ".join(report.failed))
    return report


def _start_report(args: BenchmarkArguments, data_args: DataArguments) -> Report:
    folder = Path(args.output_dir)
    make_folder(folder)
    if args.threads:
        torch.set_num_threads(args.threads)
    roofline = measure_roofline(args.device, args.dtype, args.roofline_seconds)
    about = {"machine": machine_info(args.device), "arguments": asdict(args), "data": asdict(data_args)}
    report = Report(folder, about, roofline)
    print(*roofline_lines(roofline), "", *HEADER, sep="\n", flush=True)
    return report
