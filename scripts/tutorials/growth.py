"""Figures of costs over sizes."""

import math
from collections.abc import Sequence
from os import PathLike
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from hf_vanilla_transformer.inference.figures import finish_figure, new_figure, style_axes


class Panel(NamedTuple):
    """Measured costs over sizes, all above 0, and the exponent of the power law that fits them.

    Attributes:
        size: Name of the size.
        sizes: Measured sizes.
        cost: Name of the cost.
        costs: Cost at each size.
        exponent: The fitted exponent.
        expected: The exponent in theory, if any.
    """

    size: str
    sizes: Sequence[float]
    cost: str
    costs: Sequence[float]
    exponent: float
    expected: float | None = None


def plot_growth(panels: Sequence[Panel], path: str | PathLike[str], title: str) -> Figure:
    """Plot costs over sizes on logarithmic axes, each with its power law, and save the figure."""
    rows = math.ceil(len(panels) / 2)
    figure = new_figure(10, 3.6 * rows + 0.5)
    all_axes = figure.subplots(rows, 2, squeeze=False).flatten()
    for axes, panel in zip(all_axes, panels, strict=False):
        _draw_growth(axes, panel)
    for axes in all_axes[len(panels) :]:
        axes.set_visible(False)
    return finish_figure(figure, title, path)


def _draw_growth(axes: Axes, panel: Panel) -> None:
    sizes, costs = np.asarray(panel.sizes, dtype=float), np.asarray(panel.costs, dtype=float)
    # The least-squares line of the logarithms goes through their means.
    fit = np.exp(np.log(costs).mean() + panel.exponent * (np.log(sizes) - np.log(sizes).mean()))
    theory = "" if panel.expected is None else f" (in theory {panel.expected:g})"
    axes.loglog(sizes, fit, color="0.5", linestyle="--", label=f"exponent {panel.exponent:.2f}{theory}")
    axes.loglog(sizes, costs, "o", color="tab:blue", label="measured")
    axes.set_xticks(sizes, labels=[f"{size:g}" for size in sizes])
    # Span a factor of 3 at least: small changes look small, and the axis has ticks.
    axes.set_ylim(min(*costs, costs.max() / 3) * 0.8, max(*costs, costs.min() * 3) * 1.25)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set(xlabel=panel.size, ylabel=panel.cost)
    axes.legend(frameon=False)
    style_axes(axes)


__all__ = ["Panel", "plot_growth"]
