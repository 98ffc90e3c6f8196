"""Implementations of the same work, timed in alternating rounds.

A temporary slowdown of the machine then affects all of them; the result is the median over the rounds of the ratio of
their costs within a round.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from statistics import median
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from .machine import gpu_peak, synchronize
from .roofline import BANDWIDTH, Roofline

OURS = "ours"
# Idle OpenMP threads spin for up to 0.2 s by default.
SETTLE_SECONDS = 0.3
# Seconds to remeasure each peak in a round.
PEAK_SECONDS = 0.1
# Percentiles of latencies.
PERCENTILES = (50, 95, 99)


class Disagreement(ValueError):
    """Implementations give different results, so comparing their speed would be meaningless."""


@dataclass(frozen=True)
class Sample:
    """A measurement that an implementation takes itself, which replaces the duration of the call."""

    # Seconds or bytes.
    cost: float
    # Units of work done, and its minimum FLOPs; 0 if irrelevant.
    units: float = 1.0
    flops: float = 0.0
    # Seconds of each response, if there were several.
    latencies: Sequence[float] = ()
    # Peak bytes of GPU memory above those before the call; 0 on a CPU.
    memory: int = 0


@dataclass(frozen=True)
class Case:
    """One comparison."""

    benchmark: str
    name: str
    # Functions to time by name, "ours" first; each may return a `Sample`.
    implementations: Mapping[str, Callable[[], Any]]
    # Units of work per call.
    units: float = 1.0
    unit: str = "calls"
    # Selects the roofline.
    dtype: str = "float32"
    # "seconds" or "bytes".
    quantity: str = "seconds"
    # Minimum FLOPs, and bytes read, of a call; 0 if irrelevant.
    flops: float = 0.0
    bytes: float = 0.0
    # Name and value of the size, if the case belongs to a series of sizes.
    axis: tuple[str, float] | None = None
    notes: str = ""
    # Fixed number of rounds, if any.
    rounds: int | None = None
    # Whether an untimed round comes first.
    warm_up: bool = True
    # Implementations that compute in another data type, to which this roofline does not apply.
    other_dtype: frozenset[str] = frozenset()
    # Wait before each call until the previous one's threads are idle; useless if all share the same threads.
    settle: bool = True


@dataclass
class Measurement:
    """The result of a case, by implementation; fields without a comment are the case's."""

    benchmark: str
    name: str
    unit: str
    dtype: str
    quantity: str
    # One for each round.
    costs: dict[str, list[float]]
    # Median units per second (or byte).
    rates: dict[str, float]
    # How many times faster (or smaller) ours is than a baseline: median over the rounds, lower and upper quartiles.
    ratios: dict[str, float]
    quartiles: dict[str, list[float]]
    # Median fraction 0..1 of the roofline, where it applies.
    utilization: dict[str, float]
    axis: tuple[str, float] | None = None
    notes: str = ""
    # `PERCENTILES` of the latencies in seconds of all rounds, if measured.
    latencies: dict[str, dict[int, float]] = field(default_factory=dict)
    # Peak bytes of GPU memory above those before a call.
    memory: dict[str, int] = field(default_factory=dict)


def measure(case: Case, rounds: int, roofline: Roofline | None = None, show_progress: bool = False) -> Measurement:
    """Time the implementations of a case in alternating rounds, after an untimed one.

    If the case states its minimum work, every round remeasures the machine's peaks.
    """
    device = roofline.device if roofline else "cpu"
    warm_up = int(case.warm_up)
    timed: dict[str, list[Sample]] = {name: [] for name in case.implementations}
    utilization: dict[str, list[float]] = {name: [] for name in case.implementations}
    title = f"{case.benchmark}: {case.name}"
    for number in tqdm(range((case.rounds or rounds) + warm_up), desc=title, disable=not show_progress, leave=False):
        samples = {name: _sample(work, case, device) for name, work in case.implementations.items()}
        if number < warm_up:
            continue
        flops, bandwidth = _current_peaks(case, samples, roofline)
        for name, sample in samples.items():
            timed[name].append(sample)
            least = max(sample.flops / flops, case.bytes / bandwidth)
            utilization[name].append(least / sample.cost)
    return _summarize(case, timed, utilization)


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


def _current_peaks(case: Case, samples: Mapping[str, Sample], roofline: Roofline | None) -> tuple[float, float]:
    """Return the FLOP/s and bytes/s of this round; infinite if unknown or irrelevant."""
    if roofline is None or case.dtype not in roofline.rates:
        return math.inf, math.inf
    needed = any(sample.flops for sample in samples.values())
    return (
        roofline.current_rate(case.dtype, PEAK_SECONDS) if needed else math.inf,
        roofline.current_rate(BANDWIDTH, PEAK_SECONDS) if case.bytes else math.inf,
    )


def _summarize(case: Case, timed: Mapping[str, list[Sample]], utilization: Mapping[str, list[float]]) -> Measurement:
    rates = {name: [sample.units / sample.cost for sample in samples] for name, samples in timed.items()}
    ratios = {
        name: [ours / other for ours, other in zip(rates[OURS], others, strict=True)]
        for name, others in rates.items()
        if name != OURS
    }
    reached = {name: median(values) for name, values in utilization.items() if name not in case.other_dtype}
    latencies = {name: list(chain.from_iterable(sample.latencies for sample in timed[name])) for name in timed}
    memory = {name: max(sample.memory for sample in samples) for name, samples in timed.items()}
    return Measurement(
        case.benchmark,
        case.name,
        case.unit,
        case.dtype,
        case.quantity,
        {name: [sample.cost for sample in samples] for name, samples in timed.items()},
        {name: median(values) for name, values in rates.items()},
        {name: median(values) for name, values in ratios.items()},
        {name: np.percentile(values, (25, 75)).tolist() for name, values in ratios.items()},
        {name: value for name, value in reached.items() if value},
        case.axis,
        case.notes,
        {
            name: dict(zip(PERCENTILES, np.percentile(values, PERCENTILES).tolist(), strict=True))
            for name, values in latencies.items()
            if values
        },
        {name: peak for name, peak in memory.items() if peak},
    )
