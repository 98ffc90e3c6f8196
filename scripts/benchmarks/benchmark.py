"""Speed and memory beside the peers', and beside the limit of the machine, in one run.

Contestants take turns, so that what slows the machine for a while slows all of them alike; what counts is the ratio of
their costs in one turn, and its median over the turns. A suite checks that its contestants agree before it hands them
over to be timed. What was measured is written after every case.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import torch
from tqdm.auto import tqdm

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.presets import preset_config
from hf_vanilla_transformer.training.run_folder import make_folder

from .report import OURS, Measurement, Report, limit_lines, lines
from .roofline import DTYPES, Limits, facts, measure_limits, synchronize

# Idle threads of an OpenMP library wait at full speed for up to 0.2 s by default.
SETTLE_SECONDS = 0.3
# Seconds for a limit within a turn.
PEAK_SECONDS = 0.1

PEERS = ("marian", "bart", "tutorial", "ctranslate2")
DEVICES = ("cpu", "cuda")
MAY_BE_ZERO = ("label_smoothing_factor", "limit_seconds", "seed", "steps", "tokens")


@dataclass
class BenchmarkArguments:
    """What to measure, and how; for `transformers.HfArgumentParser`.

    Raises:
        ValueError: A value cannot be; names the argument.
    """

    output_dir: str = field(
        default="runs/benchmark", metadata={"help": "Folder of results.json, table.md and the pictures."}
    )
    device: str = field(default="cpu", metadata={"help": "cpu or cuda."})
    dtype: list[str] = field(
        default_factory=lambda: ["float32"],
        metadata={"help": f"Of {', '.join(DTYPES)}; several are measured in turn."},
    )
    preset: list[str] = field(
        default_factory=lambda: ["small"], metadata={"help": "Model shapes: small, base, big or a row of Table 3."}
    )
    vocab_size: list[int] = field(
        default_factory=lambda: [8000, 32000],
        metadata={"help": "Vocabularies of the steps on identical batches; memory and scaling take the last one."},
    )
    peers: list[str] = field(
        default_factory=lambda: list(PEERS), metadata={"help": f"Whom to compare with, of {', '.join(PEERS)}."}
    )
    rounds: int = field(default=7, metadata={"help": "Turns of each contestant, after one that warms up."})
    threads: int | None = field(default=None, metadata={"help": "Threads of the CPU; by default torch's choice."})
    batch_size: list[int] = field(
        default_factory=lambda: [1, 32, 128], metadata={"help": "generate: sentences decoded at a time."}
    )
    num_beams: list[int] = field(default_factory=lambda: [1, 4], metadata={"help": "generate: 1 is greedy."})
    length: int = field(
        default=32, metadata={"help": "Tokens of a source, of a target and of an output, where they are made up."}
    )
    tokens: int = field(
        default=2048, metadata={"help": "train: target tokens of an identical batch; 0: no such batches."}
    )
    memory_tokens: int = field(default=8192, metadata={"help": "memory: target tokens of the step."})
    max_tokens: int = field(
        default=4096, metadata={"help": "train, data: tokens of our batches of real text, padding included."}
    )
    label_smoothing_factor: float = field(
        default=0.0, metadata={"help": "train: smoothing on real text, of all alike; peers pay more for it."}
    )
    steps: int = field(default=10, metadata={"help": "train: steps on real text in one turn; 0: none."})
    tutorial_length: int = field(default=350, metadata={"help": "train: what the tutorials pad every sentence to."})
    tutorial_batch_size: int = field(default=8, metadata={"help": "train: pairs in a batch of the tutorials."})
    text_vocab_size: int = field(default=8000, metadata={"help": "train, data: tokens of the vocabulary of the text."})
    scales: list[int] = field(
        default_factory=lambda: [1, 2, 4, 8, 16, 32, 64],
        metadata={
            "help": "scaling: factors. 32 times each is a length of the source, each a batch, the first four beams "
            "and layers, 1,000 times each a vocabulary."
        },
    )
    stream_pairs: int = field(default=10_000_000, metadata={"help": "scaling: pairs that stream past."})
    limit_seconds: float = field(
        default=0.5, metadata={"help": "Seconds for each way to the machine's matrix peak and memory bandwidth."}
    )
    seed: int = field(default=0, metadata={"help": "Seed of weights and batches."})

    def __post_init__(self) -> None:
        """Refuse what cannot be, before anything is measured."""
        for name, known in (("dtype", DTYPES), ("peers", PEERS)):
            for value in getattr(self, name):
                if value not in known:
                    raise ValueError(f"--{name} {value} is unknown; use some of {', '.join(known)}")
        if self.device not in DEVICES:
            raise ValueError(f"--device {self.device} is unknown; use one of {', '.join(DEVICES)}")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("--device cuda: torch finds no such device; use --device cpu")
        for name in self.preset:
            preset_config(name)
        for name, value in vars(self).items():
            self._check_numbers(name, value if isinstance(value, list) else [value])

    def _check_numbers(self, name: str, values: list[Any]) -> None:
        least = 0 if name in MAY_BE_ZERO else 1
        if not values:
            raise ValueError(f"--{name} is empty; give at least one")
        for value in values:
            if isinstance(value, (int, float)) and not value >= least:
                raise ValueError(f"--{name} {value} is too small; set at least {least}")


# One comparison


@dataclass(frozen=True)
class Sample:
    """What a contestant measured of itself in one turn, where the time of the call is not what counts.

    Attributes:
        cost: Seconds or bytes.
        units: How many units it worked through.
        flops: Floating-point operations that the same work takes at the least; 0 where they say nothing.
    """

    cost: float
    units: float = 1.0
    flops: float = 0.0


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        suite: The suite it belongs to.
        name: What is compared, for people.
        contestants: By name, what to time, "ours" first; a call returns a `Sample`, or anything.
        units: How many of `unit` one call works through.
        unit: For example "tokens".
        dtype: The data type whose products limit it.
        quantity: Of the cost: "seconds" or "bytes".
        flops: Floating-point operations of one call at the least, 0 where they say nothing.
        bytes: Bytes that one call reads at the least, likewise.
        axis: A name and a size, where the case is one of several sizes.
        notes: What else there is to say of the case, for the table.
        rounds: Turns, where it is not for the arguments to say.
        warm_up: Whether a turn that does not count comes first.
        other_limit: Contestants that compute in another data type, so that the limit of this one is not theirs.
    """

    suite: str
    name: str
    contestants: Mapping[str, Callable[[], Any]]
    units: float = 1.0
    unit: str = "calls"
    dtype: str = "float32"
    quantity: str = "seconds"
    flops: float = 0.0
    bytes: float = 0.0
    axis: tuple[str, float] | None = None
    notes: str = ""
    rounds: int | None = None
    warm_up: bool = True
    other_limit: frozenset[str] = frozenset()


class Disagreement(ValueError):
    """Contestants do not compute the same, so comparing their speed would mean nothing."""


def measure(case: Case, rounds: int, limits: Limits | None = None, show_progress: bool = False) -> Measurement:
    """Let the contestants of a case take turns.

    Args:
        case: What to compare.
        rounds: Turns that count; one more comes first and warms up.
        limits: Of the machine, measured again in every turn where the case says what it takes at the least.
        show_progress: Whether to draw a bar.
    """
    rounds = case.rounds or rounds
    turns: list[dict[str, Sample]] = []
    peaks: list[tuple[float, float]] = []
    device = limits.device if limits else "cpu"
    skipped = int(case.warm_up)
    for turn in tqdm(
        range(rounds + skipped), desc=f"{case.suite}: {case.name}", disable=not show_progress, leave=False
    ):
        samples = {name: _sample(work, case, device) for name, work in case.contestants.items()}
        if turn >= skipped:
            turns.append(samples)
            peaks.append(_peaks(case, samples, limits))
    rates = {name: [turn[name].units / turn[name].cost for turn in turns] for name in case.contestants}
    ratios = {name: _ratios(rates[OURS], each) for name, each in rates.items() if name != OURS}
    shares = {
        name: median(_floor(turn[name], case, peak) / turn[name].cost for turn, peak in zip(turns, peaks, strict=True))
        for name in case.contestants
        if name not in case.other_limit
    }
    return Measurement(
        case.suite,
        case.name,
        case.unit,
        case.dtype,
        case.quantity,
        {name: [turn[name].cost for turn in turns] for name in case.contestants},
        {name: median(each) for name, each in rates.items()},
        {name: median(each) for name, each in ratios.items()},
        {name: _quartiles(each) for name, each in ratios.items()},
        {name: share for name, share in shares.items() if share},
        case.axis,
        case.notes,
    )


def _sample(work: Callable[[], Any], case: Case, device: str) -> Sample:
    synchronize(device)
    time.sleep(SETTLE_SECONDS)
    start = time.perf_counter()
    result = work()
    synchronize(device)
    seconds = time.perf_counter() - start
    return result if isinstance(result, Sample) else Sample(seconds, case.units, case.flops)


def _ratios(ours: Sequence[float], peer: Sequence[float]) -> list[float]:
    return [own / other for own, other in zip(ours, peer, strict=True)]


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


def _peaks(case: Case, samples: Mapping[str, Sample], limits: Limits | None) -> tuple[float, float]:
    """Return the operations and bytes a second that the machine has to give in this turn; 0 where nobody asks."""
    if limits is None or case.dtype not in limits.flops:
        return 0.0, 0.0
    needed = any(sample.flops for sample in samples.values())
    flops = limits.try_product(case.dtype, PEAK_SECONDS) if needed else 0.0
    return flops, limits.try_memory(PEAK_SECONDS) if case.bytes else 0.0


def _floor(sample: Sample, case: Case, peaks: tuple[float, float]) -> float:
    """Return the seconds that the machine needs for the same at the least; 0 where they are unknown."""
    flops, bandwidth = peaks
    by_products = sample.flops / flops if flops else 0.0
    return max(by_products, case.bytes / bandwidth if bandwidth else 0.0)


# All of them

Suite = Callable[[BenchmarkArguments, DataArguments], Iterator[Case]]


def run_suites(
    names: Iterable[str],
    suites: Mapping[str, Suite],
    args: BenchmarkArguments,
    data_args: DataArguments,
    show_progress: bool = False,
) -> Report:
    """Measure suites, print a line for every comparison, and leave results, table and pictures in the folder.

    A suite that fails does not keep the others from being measured. What was measured until an interruption stays.

    Args:
        names: Of `suites`.
        suites: Functions that yield the cases.
        args: How to measure.
        data_args: Real text, for the suites that want it; the built-in corpus unless it is named.
        show_progress: Whether to draw bars.

    Raises:
        ValueError: Suites could not be measured, or contestants disagree (`Disagreement`); names the suites.
    """
    folder = Path(args.output_dir)
    make_folder(folder)
    if args.threads:
        torch.set_num_threads(args.threads)
    limits = measure_limits(args.device, args.dtype, args.limit_seconds)
    about = {"machine": facts(args.device), "arguments": asdict(args), "data": asdict(data_args)}
    report = Report(folder, about, limits)
    report.save()
    print("\n".join(limit_lines(limits)), flush=True)
    errors = []
    try:
        for name in names:
            try:
                for case in suites[name](args, data_args):
                    report.add(measure(case, args.rounds, limits, show_progress))
                    print("\n".join(lines(report.measurements[-1])), flush=True)
                    del case
            except (ValueError, OSError) as error:
                errors.append(f"{name}: {error}")
                report.failed.append(errors[-1])
                report.save()
    finally:
        report.draw()
    if errors:
        raise ValueError("; ".join(errors))
    return report


def skip(what: str, why: str) -> None:
    """Say on standard error that something is not measured."""
    print(f"{what}: not measured, {why}", file=sys.stderr, flush=True)


__all__ = [
    "OURS",
    "BenchmarkArguments",
    "Case",
    "Disagreement",
    "Measurement",
    "Report",
    "Sample",
    "Suite",
    "measure",
    "run_suites",
]
