"""What a benchmark has measured: its files, its tables and its pictures."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from hf_vanilla_transformer.files import atomic_write

from .roofline import Limits, fitted_exponent

OURS = "ours"


@dataclass
class Measurement:
    """What came of a case.

    Attributes:
        suite: The case's.
        name: The case's.
        unit: The case's.
        dtype: The case's.
        quantity: The case's.
        costs: Costs of the turns, by contestant.
        rates: Median of the units a second (or a byte), by contestant.
        ratios: How many times ours is faster (or smaller), by peer: the median over the turns.
        quartiles: Lower and upper quartile of the same.
        shares: Part of the machine's limit that a contestant reaches, 0..1, the median over the turns; left out where
            no limit is known.
        axis: The case's.
        notes: The case's.
    """

    suite: str
    name: str
    unit: str
    dtype: str
    quantity: str
    costs: dict[str, list[float]]
    rates: dict[str, float]
    ratios: dict[str, float]
    quartiles: dict[str, tuple[float, float]]
    shares: dict[str, float]
    axis: tuple[str, float] | None = None
    notes: str = ""

    @property
    def cost(self) -> float:
        """The median cost of ours."""
        return median(self.costs[OURS])


# Growth


@dataclass(frozen=True)
class Growth:
    """How the cost of ours grows with a size.

    Attributes:
        axis: The size's name.
        name: Of what.
        quantity: "seconds" or "bytes".
        sizes: Ascending.
        costs: Median costs.
        exponent: Of the power of the size that fits best.
        peers: The same of the peers, by name.
    """

    axis: str
    name: str
    quantity: str
    sizes: list[float]
    costs: list[float]
    exponent: float
    peers: dict[str, float]


def growths(measurements: Iterable[Measurement]) -> list[Growth]:
    """Return the growth along each axis that has at least two sizes."""
    along: dict[tuple[str, str, str], list[Measurement]] = {}
    for each in measurements:
        if each.axis:
            along.setdefault((each.axis[0], each.notes, each.quantity), []).append(each)
    grown = []
    for (axis, notes, quantity), points in along.items():
        sizes = [point.axis[1] for point in points if point.axis]
        if len(set(sizes)) < 2:
            continue
        costs = {name: [median(point.costs[name]) for point in points] for name in points[0].costs}
        exponents = {name: fitted_exponent(sizes, each) for name, each in costs.items()}
        own = exponents.pop(OURS)
        grown.append(Growth(axis, notes, quantity, sizes, costs[OURS], own, exponents))
    return grown


# For people


def amount(value: float, unit: str) -> str:
    """Return a number with a prefix, for example "12.3 k tokens/s"."""
    value = float(f"{value:.3g}")
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{'' if unit in ('B', 'B/s', 'FLOP/s') else ' '}{unit}"
    return f"{value:.3g} {unit}"


def speed(measurement: Measurement, contestant: str) -> str:
    """Return how fast a contestant is, or how much memory it takes."""
    if measurement.quantity == "bytes":
        return amount(median(measurement.costs[contestant]), "B")
    if measurement.unit == "calls":
        return f"{median(measurement.costs[contestant]):.3g} s"
    return amount(measurement.rates[contestant], f"{measurement.unit}/s")


def lines(measurement: Measurement) -> list[str]:
    """Return a line for each comparison of a case."""
    own = f"{measurement.suite:<9} {measurement.name}: ours {speed(measurement, OURS)}"
    if OURS in measurement.shares:
        own += f" ({measurement.shares[OURS]:.0%} of the machine's limit)"
    compared = [
        f"{'':<9} {ratio:.2f} times {peer} ({speed(measurement, peer)}), quartiles {low:.2f} to {high:.2f}"
        for peer, ratio in measurement.ratios.items()
        for low, high in [measurement.quartiles[peer]]
    ]
    notes = [f"{'':<9} {measurement.notes}"] if measurement.notes else []
    return [own, *compared, *notes]


def limit_lines(limits: Limits) -> list[str]:
    """Return a line for each of the machine's limits."""
    found = [
        f"{dtype} products {amount(flops, 'FLOP/s')} ({limits.ways[dtype]})" for dtype, flops in limits.flops.items()
    ]
    found.append(f"memory {amount(limits.bandwidth, 'B/s')} ({limits.ways['bandwidth']})")
    return [f"{'limit':<9} {each}" for each in found]


def table(measurements: Iterable[Measurement], limits: Limits) -> str:
    """Return measurements as tables in Markdown: the comparisons, what grows, and the machine's limits."""
    rows = [
        "| suite | case | ours | of the limit | peer | of the limit | ours is better by (quartiles) | notes |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    measurements = list(measurements)
    for each in measurements:
        for peer in each.ratios or [""]:
            low, high = each.quartiles.get(peer, (0.0, 0.0))
            rows.append(
                f"| {each.suite} | {each.name} | {speed(each, OURS)} | {_share(each, OURS)} "
                f"| {f'{peer}: {speed(each, peer)}' if peer else ''} | {_share(each, peer)} "
                f"| {f'{each.ratios[peer]:.2f} ({low:.2f} to {high:.2f})' if peer else ''} | {each.notes} |"
            )
    if grown := growths(measurements):
        rows += ["", "| cost | over | exponent of ours | of the peers |", "|---|---|---:|---|"]
        for one in grown:
            others = ", ".join(f"{name} {exponent:.2f}" for name, exponent in one.peers.items())
            rows.append(f"| {one.quantity}, {one.name} | {one.axis} | {one.exponent:.2f} | {others} |")
    return "\n".join([*rows, "", *(f"- {each}" for each in limit_lines(limits))])


def _share(measurement: Measurement, contestant: str) -> str:
    return f"{measurement.shares[contestant]:.0%}" if contestant in measurement.shares else ""


# Files


class Report:
    """The measurements of a run, and the files that hold them."""

    def __init__(self, folder: Path, about: dict[str, Any], limits: Limits):
        """Begin with nothing measured."""
        self.folder, self.about, self.limits = folder, about, limits
        self.measurements: list[Measurement] = []
        self.failed: list[str] = []

    def add(self, measurement: Measurement) -> None:
        """Take a measurement, and write all of them."""
        self.measurements.append(measurement)
        self.save()

    def save(self) -> None:
        """Write `results.json` and `table.md`."""
        results = {
            **self.about,
            "limits": self.limits.facts(),
            "failed": self.failed,
            "measurements": [asdict(each) for each in self.measurements],
            "growth": [asdict(each) for each in growths(self.measurements)],
        }
        files = {
            "results.json": json.dumps(results, indent=2, ensure_ascii=False),
            "table.md": table(self.measurements, self.limits),
        }
        for name, text in files.items():
            with atomic_write(self.folder / name) as file:
                file.write(f"{text}\n".encode())

    def draw(self) -> None:
        """Draw the ratios and the growth, where matplotlib is installed."""
        if not find_spec("matplotlib"):
            return
        from .figures import plot_growth, plot_ratios  # matplotlib is optional

        by_suite: dict[str, list[Measurement]] = {}
        for each in self.measurements:
            if each.ratios and each.axis is None:
                by_suite.setdefault(each.suite, []).append(each)
        for suite, cases in by_suite.items():
            plot_ratios(
                [
                    (case.name, peer, ratio, case.quartiles[peer])
                    for case in cases
                    for peer, ratio in case.ratios.items()
                ],
                {case.name: case.shares[OURS] for case in cases if OURS in case.shares},
                self.folder / f"{suite}.png",
                title=TITLES.get(suite, suite),
            )
        if grown := growths(self.measurements):
            panels = [(one.axis, one.sizes, f"{one.quantity} ({one.name})", one.costs) for one in grown]
            exponents = [one.exponent for one in grown]
            plot_growth(panels, exponents, self.folder / "scaling.png", title="Cost over size")


TITLES = {
    "train": "Training: how many times faster than the peers",
    "data": "Preparing the data: how many times faster than the usual way",
    "generate": "Decoding: how many times faster than the peers",
    "memory": "A training step's memory: how many times less than the peers'",
    "startup": "Starting: how many times faster than the peers",
}


__all__ = ["OURS", "Growth", "Measurement", "Report", "growths", "limit_lines", "lines", "table"]
