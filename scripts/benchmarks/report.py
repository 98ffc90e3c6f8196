"""Measurements as text, tables, JSON and plots."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from hf_vanilla_transformer.files import atomic_write

from .measure import OURS, Measurement
from .power_law import fit_scaling
from .roofline import Roofline

TITLES = {
    "train": "Training: speed-up over the baselines",
    "data": "Data preparation: speed-up over the usual way",
    "generate": "Decoding: speed-up over the baselines",
    "loss": "Loss and its gradients: speed-up, and reduction of memory",
    "memory": "Memory of a training step: reduction over the baselines",
    "serve": "Serving: throughput relative to offline translation",
    "startup": "Start-up: speed-up over the baselines",
}


def with_prefix(value: float, unit: str) -> str:
    """Format a number with a metric prefix, such as "12.3 k tokens/s"."""
    value = float(f"{value:.3g}")
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{'' if unit in ('B', 'B/s', 'FLOP/s') else ' '}{unit}"
    return f"{value:.3g} {unit}"


def format_cost(measurement: Measurement, implementation: str) -> str:
    """Format an implementation's speed, or the memory it takes."""
    if measurement.quantity == "bytes":
        return with_prefix(median(measurement.costs[implementation]), "B")
    if measurement.unit == "calls":
        return f"{median(measurement.costs[implementation]):.3g} s"
    return with_prefix(measurement.rates[implementation], f"{measurement.unit}/s")


def measurement_lines(measurement: Measurement) -> list[str]:
    """Describe our result, then each baseline's, in one line each."""
    ours = f"{measurement.benchmark:<9} {measurement.name}: ours {format_cost(measurement, OURS)}"
    if utilization := _utilization(measurement, OURS):
        ours += f" ({utilization} utilization)"
    indent = " " * 9
    baselines = [
        f"{indent} {ratio:.2f}x {name} ({format_cost(measurement, name)}), quartiles {low:.2f} to {high:.2f}"
        for name, ratio in measurement.ratios.items()
        for low, high in [measurement.quartiles[name]]
    ]
    notes = format_notes(measurement)
    return [ours, *baselines, *([f"{indent} {notes}"] if notes else [])]


def format_notes(measurement: Measurement) -> str:
    """Format the latencies of our implementation, peaks of a GPU's memory, if any, and the notes."""
    latencies = [f"p{percent} {1000 * each:,.0f} ms" for percent, each in measurement.latencies.get(OURS, {}).items()]
    memory = [f"peak memory of {name} {with_prefix(each, 'B')}" for name, each in measurement.memory.items()]
    return ", ".join([*latencies, *memory, *filter(None, [measurement.notes])])


def roofline_lines(roofline: Roofline) -> list[str]:
    """Describe each of the machine's peaks in one line."""
    peaks = {f"{dtype} products": with_prefix(flops, "FLOP/s") for dtype, flops in roofline.flops.items()}
    peaks["memory"] = with_prefix(roofline.bandwidth, "B/s")
    probes = [roofline.probes[name].name for name in (*roofline.flops, "bandwidth")]
    return [
        f"{'roofline':<9} {name} {peak} ({probe})" for (name, peak), probe in zip(peaks.items(), probes, strict=True)
    ]


def results_table(measurements: Iterable[Measurement], roofline: Roofline) -> str:
    """Format measurements as Markdown: comparisons, scaling, and the roofline."""
    measurements = list(measurements)
    lines = [
        "| benchmark | case | ours | utilization | baseline | utilization | ours is better by (quartiles) | notes |",
        "|---|---|---:|---:|---:|---:|---:|---|",
        *(_table_line(each, baseline) for each in measurements for baseline in each.ratios or [None]),
    ]
    if fits := fit_scaling(measurements):
        lines += ["", "| cost | over | our exponent | baselines |", "|---|---|---:|---|"]
        for fit in fits:
            baselines = ", ".join(f"{name} {exponent:.2f}" for name, exponent in fit.baselines.items())
            lines.append(f"| {fit.quantity}, {fit.name} | {fit.axis} | {fit.exponent:.2f} | {baselines} |")
    return "\n".join([*lines, "", *(f"- {each}" for each in roofline_lines(roofline))])


def _table_line(measurement: Measurement, baseline: str | None) -> str:
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
    """The measurements of a run, written to its folder after each."""

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
        """Write `results.json` and `table.md`."""
        results = {
            **self.about,
            "roofline": self.roofline.as_json(),
            "failed": self.failed,
            "measurements": [asdict(each) for each in self.measurements],
            "scaling": [asdict(each) for each in fit_scaling(self.measurements)],
        }
        files = {
            "results.json": json.dumps(results, indent=2, ensure_ascii=False),
            "table.md": results_table(self.measurements, self.roofline),
        }
        for name, text in files.items():
            with atomic_write(self.folder / name) as file:
                file.write(f"{text}\n".encode())

    def draw(self) -> None:
        """Plot ratios and scaling if matplotlib is installed."""
        if not find_spec("matplotlib"):
            return
        from .figures import Panel, Ratio, plot_growth, plot_ratios  # matplotlib is optional

        by_benchmark: dict[str, list[Measurement]] = {}
        for each in self.measurements:
            if each.ratios and each.axis is None:
                by_benchmark.setdefault(each.benchmark, []).append(each)
        for benchmark, cases in by_benchmark.items():
            plot_ratios(
                [
                    Ratio(case.name, name, case.ratios[name], case.quartiles[name])
                    for case in cases
                    for name in case.ratios
                ],
                {case.name: case.utilization[OURS] for case in cases if OURS in case.utilization},
                self.folder / f"{benchmark}.png",
                title=TITLES.get(benchmark, benchmark),
            )
        if fits := fit_scaling(self.measurements):
            panels = [
                Panel(fit.axis, fit.sizes, f"{fit.quantity} ({fit.name})", fit.costs, fit.exponent) for fit in fits
            ]
            plot_growth(panels, self.folder / "scaling.png", title="Cost over size")


__all__ = ["Report", "measurement_lines", "results_table", "roofline_lines"]
