"""Measurements as a table and as JSON."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from hf_vanilla_transformer.files import atomic_write

from .measure import OURS, Measurement
from .power_law import fit_scaling
from .roofline import BANDWIDTH, Roofline

HEADER = (
    "| benchmark | case | ours | utilization | baseline | utilization | ours is better by (quartiles) | notes |",
    "|---|---|---:|---:|---:|---:|---:|---|",
)


def with_prefix(value: float, unit: str) -> str:
    """Format a number with a metric prefix, such as "12.3 k tokens/s"."""
    value = float(f"{value:.3g}")
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{'' if unit in ('B', 'B/s', 'FLOP/s') else ' '}{unit}"
    return f"{value:.3g} {unit}"


def format_cost(measurement: Measurement, implementation: str) -> str:
    """Format an implementation's speed or memory."""
    if measurement.quantity == "bytes":
        return with_prefix(median(measurement.costs[implementation]), "B")
    if measurement.unit == "calls":
        return f"{median(measurement.costs[implementation]):.3g} s"
    return with_prefix(measurement.rates[implementation], f"{measurement.unit}/s")


def format_notes(measurement: Measurement) -> str:
    """Format our latencies and peaks of GPU memory, if any, and the notes."""
    latencies = [f"p{percent} {1000 * time:,.0f} ms" for percent, time in measurement.latencies.get(OURS, {}).items()]
    memory = [f"peak memory of {name} {with_prefix(peak, 'B')}" for name, peak in measurement.memory.items()]
    return ", ".join([*latencies, *memory, *filter(None, [measurement.notes])])


def roofline_lines(roofline: Roofline) -> list[str]:
    """Describe each of the machine's peaks in one line."""
    return [
        f"roofline of {name}: {with_prefix(rate, unit)} ({roofline.probes[name].name})"
        for name, rate in roofline.rates.items()
        for unit in ["B/s" if name == BANDWIDTH else "FLOP/s"]
    ]


def results_table(measurements: Iterable[Measurement], roofline: Roofline) -> str:
    """Format measurements as Markdown: comparisons, scaling, and the roofline."""
    measurements = list(measurements)
    lines = [*HEADER, *(row for measurement in measurements for row in table_rows(measurement))]
    if fits := fit_scaling(measurements):
        lines += ["", "| cost | over | our exponent | baselines |", "|---|---|---:|---|"]
        for fit in fits:
            baselines = ", ".join(f"{name} {exponent:.2f}" for name, exponent in fit.baselines.items())
            lines.append(f"| {fit.quantity}, {fit.name} | {fit.axis} | {fit.exponent:.2f} | {baselines} |")
    return "\n".join([*lines, "", *(f"- {line}" for line in roofline_lines(roofline))])


def table_rows(measurement: Measurement) -> list[str]:
    """Format a measurement as rows of Markdown, one for each baseline."""
    return [_table_row(measurement, baseline) for baseline in measurement.ratios or [None]]


def _table_row(measurement: Measurement, baseline: str | None) -> str:
    cells = [measurement.benchmark, measurement.name, format_cost(measurement, OURS), _utilization(measurement, OURS)]
    if baseline is None:
        cells += ["", "", ""]
    else:
        low, high = measurement.quartiles[baseline]
        cells += [
            f"{baseline}: {format_cost(measurement, baseline)}",
            _utilization(measurement, baseline),
            f"{measurement.ratios[baseline]:.2f} ({low:.2f} to {high:.2f})",
        ]
    return f"| {' | '.join([*cells, format_notes(measurement)])} |"


def _utilization(measurement: Measurement, implementation: str) -> str:
    value = measurement.utilization.get(implementation)
    return "" if value is None else f"{value:.0%}"


class Report:
    """The measurements of a run, written to its folder after every change."""

    def __init__(self, folder: Path, about: dict[str, Any], roofline: Roofline):
        self.folder, self.about, self.roofline = folder, about, roofline
        self.measurements: list[Measurement] = []
        self.failed: list[str] = []
        self.save()

    def add(self, measurement: Measurement) -> None:
        self.measurements.append(measurement)
        self.save()

    def add_failure(self, message: str) -> None:
        self.failed.append(message)
        self.save()

    def save(self) -> None:
        results = {
            **self.about,
            "roofline": self.roofline.as_json(),
            "failed": self.failed,
            "measurements": [asdict(measurement) for measurement in self.measurements],
            "scaling": [asdict(fit) for fit in fit_scaling(self.measurements)],
        }
        files = {
            "results.json": json.dumps(results, indent=2, ensure_ascii=False),
            "table.md": results_table(self.measurements, self.roofline),
        }
        for name, text in files.items():
            with atomic_write(self.folder / name) as file:
                file.write(f"{text}\n".encode())
