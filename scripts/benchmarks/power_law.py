"""Power laws fitted to costs over sizes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from .measure import OURS, Measurement


@dataclass(frozen=True)
class ScalingFit:
    """How the cost of our implementation scales with the size named `axis`."""

    axis: str
    name: str
    # "seconds" or "bytes".
    quantity: str
    sizes: list[float]
    # Medians.
    costs: list[float]
    # Exponents of the fitted power laws, ours and the baselines'.
    exponent: float
    baselines: dict[str, float]


def fit_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Fit a x^b by least squares of the logarithms; return the exponent b."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def fit_scaling(measurements: Iterable[Measurement]) -> list[ScalingFit]:
    """Fit a power law to each axis measured at two or more sizes."""
    series: dict[tuple[str, str, str], list[Measurement]] = {}
    for measurement in measurements:
        if measurement.axis:
            series.setdefault((measurement.axis[0], measurement.notes, measurement.quantity), []).append(measurement)
    fits = []
    for (axis, notes, quantity), points in series.items():
        sizes = [point.axis[1] for point in points if point.axis]
        if len(set(sizes)) < 2:
            continue
        costs = {name: [median(point.costs[name]) for point in points] for name in points[0].costs}
        exponents = {name: fit_exponent(sizes, series_costs) for name, series_costs in costs.items()}
        fits.append(ScalingFit(axis, notes, quantity, sizes, costs[OURS], exponents.pop(OURS), exponents))
    return fits
