"""Figures of benchmarks: costs over sizes, and ratios to the baselines."""

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from hf_vanilla_transformer.inference.figures import finish_figure, new_figure, style_axes


def plot_growth(
    panels: Sequence[tuple[str, Sequence[float], str, Sequence[float]]],
    exponents: Sequence[float],
    path: str | PathLike[str] | None = None,
    title: str = "Growth",
    expected: Sequence[float | None] = (),
) -> Figure:
    """Draw measured costs over sizes on logarithmic axes, each with the power that fits it.

    Args:
        panels: Name of the size, sizes, name of the cost and costs, all above 0, of each panel.
        exponents: The fitted exponent of each panel.
        path: Where to save the figure, if anywhere.
        title: The figure's title.
        expected: The exponent that each panel should have, None where nothing is expected.

    Returns:
        The figure.

    Raises:
        ValueError: There is no panel, or there are more or fewer exponents.
    """
    expected = expected or [None] * len(exponents)
    if not panels or not len(panels) == len(exponents) == len(expected):
        raise ValueError(f"{len(panels)} panels and {len(exponents)} exponents; give one of each, and at least one")
    rows = math.ceil(len(panels) / 2)
    figure = new_figure(10, 3.6 * rows + 0.5)
    places = figure.subplots(rows, 2, squeeze=False).flatten()
    for axes, (xlabel, x, ylabel, y), exponent, other in zip(places, panels, exponents, expected, strict=False):
        sizes, costs = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
        # The least-squares line of the logarithms goes through their means.
        fit = np.exp(np.log(costs).mean() + exponent * (np.log(sizes) - np.log(sizes).mean()))
        beside = "" if other is None else f" (in theory {other:g})"
        axes.loglog(sizes, fit, color="0.5", linestyle="--", label=f"exponent {exponent:.2f}{beside}")
        axes.loglog(sizes, costs, "o", color="tab:blue", label="measured")
        axes.set_xticks(sizes, labels=[f"{size:g}" for size in sizes])
        # What hardly changes shall look so, and a short axis have numbers.
        axes.set_ylim(min(*costs, costs.max() / 3) * 0.8, max(*costs, costs.min() * 3) * 1.25)
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.minorticks_off()
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.legend(frameon=False)
        style_axes(axes)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    return finish_figure(figure, title, path)


def plot_ratios(
    rows: Sequence[tuple[str, str, float, tuple[float, float]]],
    shares: Mapping[str, float] | None = None,
    path: str | PathLike[str] | None = None,
    title: str = "Comparison",
) -> Figure:
    """Draw how many times better than its peers something is: a bar from 1 for every case and peer.

    Args:
        rows: Case, peer, ratio above 0, and the quartiles of the ratio; the rows of a case follow each other.
        shares: Part of the machine's limit, 0..1, by case; written beside it.
        path: Where to save the figure, if anywhere.
        title: The figure's title.

    Returns:
        The figure.

    Raises:
        ValueError: There is no row, or a ratio is not above 0.
    """
    if not rows or not all(low > 0 and ratio > 0 for _, _, ratio, (low, _) in rows):
        raise ValueError("the ratios to draw must be above 0, and at least one")
    shares = shares or {}
    cases = list(dict.fromkeys(case for case, *_ in rows))
    colors = {peer: f"C{number}" for number, peer in enumerate(dict.fromkeys(peer for _, peer, *_ in rows))}
    # Cases from top to bottom, with a gap of one bar between them.
    places = [float(number + cases.index(case)) for number, (case, *_) in enumerate(rows)]
    figure = new_figure(10, 0.32 * (places[-1] + 2) + 1.4)
    axes = figure.subplots()
    axes.set_xscale("log")
    for place, (_, peer, ratio, (low, high)) in zip(places, rows, strict=True):
        errors = [[max(0.0, ratio - low)], [max(0.0, high - ratio)]]
        style: dict[str, Any] = {"color": colors[peer], "ecolor": "0.25", "capsize": 2.5, "alpha": 0.85}
        axes.barh(place, ratio - 1, height=0.8, left=1, xerr=errors, error_kw={"elinewidth": 1}, **style)
        end, (shift, side) = (max(ratio, high), (5, "left")) if ratio >= 1 else (min(ratio, low), (-5, "right"))
        label: dict[str, Any] = {"textcoords": "offset points", "ha": side, "va": "center", "fontsize": 8}
        axes.annotate(f"{ratio:.2f}", (end, place), (shift, 0), **label)
    axes.axvline(1, color="0.25", linewidth=1)
    ends = [value for _, _, ratio, quartiles in rows for value in (ratio, *quartiles, 1.0)]
    limits = 0.8 * min(ends), 1.25 * max(ends)
    axes.set(xlim=limits, ylim=(places[-1] + 0.9, -0.9), xlabel="times better than the peer (quartiles as whiskers)")
    ticks = [
        tick for tick in (0.1, 0.2, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 20, 50, 100) if limits[0] <= tick <= limits[1]
    ]
    axes.set_xticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    axes.minorticks_off()
    middles = [np.mean([place for place, row in zip(places, rows, strict=True) if row[0] == case]) for case in cases]
    names = [f"{case}\n{shares[case]:.0%} of the machine's limit" if case in shares else case for case in cases]
    axes.set_yticks(middles, labels=names, fontsize=8.5, parse_math=False)
    axes.tick_params(axis="y", length=0)
    style_axes(axes)
    axes.grid(visible=False, axis="y")
    handles: list[Any] = [axes.barh(0, 0, color=color, alpha=0.85) for color in colors.values()]
    figure.legend(handles, list(colors), loc="outside lower center", ncols=4, frameon=False)
    return finish_figure(figure, title, path)


__all__ = ["plot_growth", "plot_ratios"]
