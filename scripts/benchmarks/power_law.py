"""Power laws fitted to costs over sizes."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from .measure import OURS, Measurement


@dataclass(frozen=True)
class ScalingFit:
    """How the cost of our implementation scales with a size.

    Attributes:
        axis: Name of the size.
        name: What was measured.
        quantity: "seconds" or "bytes".
        sizes: Measured sizes.
        costs: Median cost at each size.
        exponent: Exponent of the best-fitting power of the size.
        baselines: Exponents of the baselines by name.
    """

    axis: str
    name: str
    quantity: str
    sizes: list[float]
    costs: list[float]
    exponent: float
    baselines: dict[str, float]


def fit_exponent(sizes: Sequence[float], costs: Sequence[float]) -> float:
    """Return the exponent b of the best-fitting a x^b, by least squares of the logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(costs), 1)[0])


def fit_scaling(measurements: Iterable[Measurement]) -> list[ScalingFit]:
    """Fit each axis that was measured at two sizes or more."""
    series: dict[tuple[str, str, str], list[Measurement]] = {}
    for each in measurements:
        if each.axis:
            series.setdefault((each.axis[0], each.notes, each.quantity), []).append(each)
    fits = []
    for (axis, notes, quantity), points in series.items():
        sizes = [point.axis[1] for point in points if point.axis]
        if len(set(sizes)) < 2:
            continue
        costs = {name: [median(point.costs[name]) for point in points] for name in points[0].costs}
        exponents = {name: fit_exponent(sizes, each) for name, each in costs.items()}
        fits.append(ScalingFit(axis, notes, quantity, sizes, costs[OURS], exponents.pop(OURS), exponents))
    return fits
