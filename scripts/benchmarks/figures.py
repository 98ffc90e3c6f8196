"""Figures of costs over sizes and of ratios to baselines."""

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from hf_vanilla_transformer.inference.figures import finish_figure, new_figure, style_axes

RATIO_TICKS = (0.1, 0.2, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 50, 100)


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


def plot_growth(panels: Sequence[Panel], path: str | PathLike[str] | None = None, title: str = "Growth") -> Figure:
    """Plot costs over sizes on logarithmic axes, each with its power law.

    Args:
        panels: What to plot, a panel each.
        path: Where to save the figure, if anywhere.
        title: The figure's title.

    Returns:
        The figure.

    Raises:
        ValueError: There are no panels.
    """
    if not panels:
        raise ValueError("there must be at least one panel to plot")
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


class Ratio(NamedTuple):
    """How many times better than a baseline ours is in a case.

    Attributes:
        case: Name of the case.
        baseline: Name of the baseline.
        value: The ratio, above 0.
        quartiles: Its lower and upper quartiles.
    """

    case: str
    baseline: str
    value: float
    quartiles: tuple[float, float]


def plot_ratios(
    ratios: Sequence[Ratio],
    utilization: Mapping[str, float] | None = None,
    path: str | PathLike[str] | None = None,
    title: str = "Comparison",
) -> Figure:
    """Plot ratios as horizontal bars that start at 1, with their quartiles as whiskers.

    Args:
        ratios: Ratios, those of a case next to each other.
        utilization: Fraction 0..1 of the roofline by case; shown below its name.
        path: Where to save the figure, if anywhere.
        title: The figure's title.

    Returns:
        The figure.

    Raises:
        ValueError: There are no ratios, or one is not above 0.
    """
    if not ratios or not all(ratio.value > 0 and ratio.quartiles[0] > 0 for ratio in ratios):
        raise ValueError("ratios to plot must be above 0, and there must be at least one")
    cases = list(dict.fromkeys(ratio.case for ratio in ratios))
    baselines = dict.fromkeys(ratio.baseline for ratio in ratios)
    colors = {baseline: f"C{index}" for index, baseline in enumerate(baselines)}
    # Top to bottom, with a gap of one bar between cases.
    positions = [float(index + cases.index(ratio.case)) for index, ratio in enumerate(ratios)]
    figure = new_figure(10, 0.32 * (positions[-1] + 2) + 1.4)
    axes = figure.subplots()
    axes.set_xscale("log")
    for position, ratio in zip(positions, ratios, strict=True):
        _draw_bar(axes, position, ratio, colors[ratio.baseline])
    axes.axvline(1, color="0.25", linewidth=1)
    _set_ratio_axis(axes, ratios)
    axes.set_ylim(positions[-1] + 0.9, -0.9)
    _label_cases(axes, cases, ratios, positions, utilization or {})
    handles: list[Any] = [axes.barh(0, 0, color=color, alpha=0.85) for color in colors.values()]
    figure.legend(handles, list(colors), loc="outside lower center", ncols=4, frameon=False)
    return finish_figure(figure, title, path)


def _draw_bar(axes: Axes, position: float, ratio: Ratio, color: str) -> None:
    value, (low, high) = ratio.value, ratio.quartiles
    errors = [[max(0.0, value - low)], [max(0.0, high - value)]]
    style: dict[str, Any] = {"color": color, "ecolor": "0.25", "capsize": 2.5, "alpha": 0.85}
    axes.barh(position, value - 1, height=0.8, left=1, xerr=errors, error_kw={"elinewidth": 1}, **style)
    end, offset, align = (max(value, high), 5, "left") if value >= 1 else (min(value, low), -5, "right")
    label: dict[str, Any] = {"textcoords": "offset points", "ha": align, "va": "center", "fontsize": 8}
    axes.annotate(f"{value:.2f}", (end, position), (offset, 0), **label)


def _set_ratio_axis(axes: Axes, ratios: Sequence[Ratio]) -> None:
    ends = [1.0, *(end for ratio in ratios for end in (ratio.value, *ratio.quartiles))]
    low, high = 0.8 * min(ends), 1.25 * max(ends)
    ticks = [tick for tick in RATIO_TICKS if low <= tick <= high]
    axes.set(xlim=(low, high), xlabel="times better than the baseline (whiskers: quartiles)")
    axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _label_cases(
    axes: Axes,
    cases: Sequence[str],
    ratios: Sequence[Ratio],
    positions: Sequence[float],
    utilization: Mapping[str, float],
) -> None:
    placed = list(zip(positions, ratios, strict=True))
    middles = [np.mean([position for position, ratio in placed if ratio.case == case]) for case in cases]
    labels = [f"{case}\n{utilization[case]:.0%} utilization" if case in utilization else case for case in cases]
    axes.set_yticks(middles, labels=labels, fontsize=8.5, parse_math=False)
    axes.tick_params(axis="y", length=0)
    style_axes(axes)
    axes.grid(visible=False, axis="y")


__all__ = ["Panel", "Ratio", "plot_growth", "plot_ratios"]
