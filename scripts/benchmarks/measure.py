"""Implementations of the same work, timed in alternating rounds.

Whatever slows the machine for a while then slows all of them; what counts is the ratio of their costs within a round,
and its median over the rounds.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, quantiles
from typing import Any, NamedTuple

import numpy as np
from tqdm.auto import tqdm

from .machine import gpu_peak, synchronize
from .roofline import Roofline

OURS = "ours"
# Idle OpenMP threads spin for up to 0.2 s by default.
SETTLE_SECONDS = 0.3
# Seconds to measure each peak again within a round.
PEAK_SECONDS = 0.1
# Of latencies.
PERCENTILES = (50, 95, 99)


class Disagreement(ValueError):
    """Implementations give different results, so comparing their speed would mean nothing."""


@dataclass(frozen=True)
class Sample:
    """A measurement that an implementation takes of itself; it replaces the time of the call.

    Attributes:
        cost: Seconds or bytes.
        units: Units of work done.
        flops: Minimum FLOPs of that work; 0 if irrelevant.
        latencies: Seconds that each answer took, if there were several.
        memory: Peak of a GPU's memory above that before the call, in bytes; 0 on a CPU.
    """

    cost: float
    units: float = 1.0
    flops: float = 0.0
    latencies: Sequence[float] = ()
    memory: int = 0


@dataclass(frozen=True)
class Case:
    """One comparison.

    Attributes:
        benchmark: The benchmark it belongs to.
        name: What is compared.
        implementations: Functions to time by name, "ours" first; each may return a `Sample`.
        units: Units of work per call.
        unit: Name of the unit, such as "tokens".
        dtype: Data type of the roofline.
        quantity: "seconds" or "bytes".
        flops: Minimum FLOPs of a call; 0 if irrelevant.
        bytes: Minimum bytes read by a call; 0 if irrelevant.
        axis: Name and value of the size, if the case is one of several sizes.
        notes: Anything else for the table.
        rounds: Number of rounds, if the case fixes it.
        warm_up: Whether an untimed round comes first.
        other_dtype: Implementations that compute in another data type, so that this roofline does not apply.
        settle: Whether to wait before each call until the threads of the one before are idle; in vain if all share
            theirs.
    """

    benchmark: str
    name: str
    implementations: Mapping[str, Callable[[], Any]]
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
    other_dtype: frozenset[str] = frozenset()
    settle: bool = True


@dataclass
class Measurement:
    """The result of a case; fields not listed are the case's.

    Attributes:
        costs: Cost of every round by implementation.
        rates: Median units per second (or byte) by implementation.
        ratios: How many times faster (or smaller) ours is, by baseline: the median over the rounds.
        quartiles: Lower and upper quartiles of the same.
        utilization: Median fraction 0..1 of the roofline that an implementation reaches, where the roofline applies.
        latencies: Percentiles 50, 95 and 99 of the seconds of the answers in all rounds, where there are any.
        memory: Peak bytes of a GPU above those before a call, by implementation.
    """

    benchmark: str
    name: str
    unit: str
    dtype: str
    quantity: str
    costs: dict[str, list[float]]
    rates: dict[str, float]
    ratios: dict[str, float]
    quartiles: dict[str, tuple[float, float]]
    utilization: dict[str, float]
    axis: tuple[str, float] | None = None
    notes: str = ""
    latencies: dict[str, dict[int, float]] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)


class _Peaks(NamedTuple):
    """FLOP/s and bytes/s that the machine reaches in a round; 0 if irrelevant."""

    flops: float = 0.0
    bandwidth: float = 0.0


class _Round(NamedTuple):
    samples: dict[str, Sample]
    peaks: _Peaks


def measure(case: Case, rounds: int, roofline: Roofline | None = None, show_progress: bool = False) -> Measurement:
    """Time the implementations of a case in alternating rounds.

    Args:
        case: What to compare.
        rounds: Timed rounds; an untimed one comes first.
        roofline: The machine's peaks, measured again in every round if the case states its minimum work.
        show_progress: Whether to show a progress bar.
    """
    device = roofline.device if roofline else "cpu"
    warm_up = int(case.warm_up)
    timed: list[_Round] = []
    title = f"{case.benchmark}: {case.name}"
    for number in tqdm(range((case.rounds or rounds) + warm_up), desc=title, disable=not show_progress, leave=False):
        samples = {name: _sample(work, case, device) for name, work in case.implementations.items()}
        if number >= warm_up:
            timed.append(_Round(samples, _current_peaks(case, samples, roofline)))
    return _summarize(case, timed)


def _sample(work: Callable[[], Any], case: Case, device: str) -> Sample:
    synchronize(device)
    if case.settle and device == "cpu":
        time.sleep(SETTLE_SECONDS)
    start = time.perf_counter()
    result, memory = gpu_peak(work, device)
    synchronize(device)
    seconds = time.perf_counter() - start
    sample = result if isinstance(result, Sample) else Sample(seconds, case.units, case.flops)
    return replace(sample, memory=memory)


def _current_peaks(case: Case, samples: Mapping[str, Sample], roofline: Roofline | None) -> _Peaks:
    if roofline is None or case.dtype not in roofline.flops:
        return _Peaks()
    needed = any(sample.flops for sample in samples.values())
    flops = roofline.current_flops(case.dtype, PEAK_SECONDS) if needed else 0.0
    return _Peaks(flops, roofline.current_bandwidth(PEAK_SECONDS) if case.bytes else 0.0)


def _summarize(case: Case, timed: Sequence[_Round]) -> Measurement:
    costs, rates, utilization, memory = {}, {}, {}, {}
    for name in case.implementations:
        samples = [each.samples[name] for each in timed]
        costs[name] = [sample.cost for sample in samples]
        rates[name] = [sample.units / sample.cost for sample in samples]
        reached = median(
            _roofline_seconds(each.samples[name], case, each.peaks) / each.samples[name].cost for each in timed
        )
        if reached and name not in case.other_dtype:
            utilization[name] = reached
        if peak := max(sample.memory for sample in samples):
            memory[name] = peak
    ratios = {
        name: [ours / other for ours, other in zip(rates[OURS], each, strict=True)]
        for name, each in rates.items()
        if name != OURS
    }
    return Measurement(
        case.benchmark,
        case.name,
        case.unit,
        case.dtype,
        case.quantity,
        costs,
        {name: median(each) for name, each in rates.items()},
        {name: median(each) for name, each in ratios.items()},
        {name: _quartiles(each) for name, each in ratios.items()},
        utilization,
        case.axis,
        case.notes,
        _latencies(timed),
        memory,
    )


def _latencies(timed: Sequence[_Round]) -> dict[str, dict[int, float]]:
    seconds: dict[str, list[float]] = {}
    for each in timed:
        for name, sample in each.samples.items():
            seconds.setdefault(name, []).extend(sample.latencies)
    return {
        name: dict(zip(PERCENTILES, np.percentile(values, PERCENTILES).tolist(), strict=True))
        for name, values in seconds.items()
        if values
    }


def _roofline_seconds(sample: Sample, case: Case, peaks: _Peaks) -> float:
    """Minimum time for the same work at the machine's peaks; 0 if they are unknown."""
    compute = sample.flops / peaks.flops if peaks.flops else 0.0
    return max(compute, case.bytes / peaks.bandwidth if peaks.bandwidth else 0.0)


def _quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    low, _, high = quantiles(values, n=4, method="inclusive")
    return low, high


__all__ = ["OURS", "Case", "Disagreement", "Measurement", "Sample", "measure"]
