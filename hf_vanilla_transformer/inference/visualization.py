"""Figures of attention weights, position encodings, training curves and comparisons.

Every function returns a `matplotlib.figure.Figure` and, given a path, saves it; the suffix sets the format (.png, .pdf
or .svg, ...). The figures belong to no window, so any backend of matplotlib or none will do.

Legend: S source length, T target length, h heads, d_model model width.
"""

import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.utils import logging

try:
    from matplotlib import font_manager
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis, XAxis
    from matplotlib.figure import Figure
    from matplotlib.text import Text
    from matplotlib.ticker import LogLocator
except ImportError as error:
    raise ImportError(
        f'{__name__} needs matplotlib; install it with `pip install "hf-vanilla-transformer[plot]"`'
    ) from error

logger = logging.get_logger(__name__)

_OWN_FONT = "DejaVu Sans"
# Of the installed fonts that have the characters which it lacks, those that are tried first.
_PREFERRED_FONTS = (
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Source Han Sans",
    "WenQuanYi Zen Hei",
    "Hiragino Sans",
    "Microsoft YaHei",
    "Malgun Gothic",
    "Arial Unicode MS",
    "Noto Sans",
)
# Fonts of boxes for every character, and of bitmaps, which matplotlib cannot draw.
_NO_GLYPHS = ("LastResort", "Last Resort", "Color Emoji")
_DPI = 150
# Inches: the longest side of an attention figure's panels, and the room that a token gets until they reach it.
_MAX_SIDE, _CELL = 24.0, 0.3
# Characters of a token that are drawn, and those that have no glyph but are drawn as boxes or break the line.
_LABEL_LENGTH = 24
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plot_attention(
    attentions: Any,
    source_tokens: Sequence[str],
    target_tokens: Sequence[str],
    path: str | PathLike[str] | None = None,
    title: str = "Attention",
    limit: float = 1.0,
    keys: str = "source",
    queries: str = "target",
) -> Figure:
    """Draw attention weights as heat maps: queries (target tokens) down, keys (source tokens) across.

    A row of the decoder is labelled by the token that it predicts, as in `translation.cross_attention`.

    Args:
        attentions: Weights after the softmax, 0..1, as a tensor or array of shape (T, S), or (h, T, S) for one panel
            a head; of a model's output, `outputs.cross_attentions[layer][row]`.
        source_tokens: S readable tokens.
        target_tokens: T readable tokens.
        path: Where to save the figure, if anywhere.
        title: The figure's title.
        limit: The weight of the darkest colour; less than 1 tells weights apart that are all small.
        keys: What is attended to; names the axis.
        queries: What attends; in self-attention the same as `keys`.

    Returns:
        The figure.

    Raises:
        ValueError: The shape does not fit the tokens, or a weight lies outside 0..1.
    """
    weights = _attention_array(attentions, source_tokens, target_tokens)
    heads = len(weights)
    rows = math.ceil(heads / 4)
    columns = math.ceil(heads / rows)
    width = min(max(_CELL * len(source_tokens), 1.8), _MAX_SIDE / columns)
    height = min(max(_CELL * len(target_tokens), 1.8), _MAX_SIDE / rows)
    figure = Figure(figsize=(columns * width + 2.4, rows * height + 1.8), dpi=_DPI, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for head, axes in enumerate(panels[:heads]):
        image = axes.imshow(weights[head], cmap="Blues", vmin=0, vmax=limit, aspect="auto", interpolation="nearest")
        if heads > 1:
            axes.set_title(f"head {head + 1}", fontsize=9)
        # Only the outer panels carry tokens; a panel over an empty place is an outer one too.
        _label_tokens(axes.xaxis, source_tokens if head + columns >= heads else None, width)
        _label_tokens(axes.yaxis, target_tokens if head % columns == 0 else None, height)
    for axes in panels[heads:]:
        axes.set_visible(False)
    figure.colorbar(image, ax=panels, label="attention weight", aspect=6 * rows * height, pad=0.02)
    figure.supxlabel(f"{keys} (keys)", fontsize=10)
    figure.supylabel(f"{queries} (queries)", fontsize=10)
    return _finish(figure, title, path)


def _attention_array(attentions: Any, source_tokens: Sequence[str], target_tokens: Sequence[str]) -> np.ndarray:
    """Return checked weights of shape (h, T, S)."""
    weights = _to_array(attentions, "attentions")
    shape = (len(target_tokens), len(source_tokens))
    if weights.ndim not in (2, 3) or weights.shape[-2:] != shape or weights.size == 0:
        raise ValueError(
            f"attentions of shape {weights.shape} do not fit {shape[0]} target and {shape[1]} source tokens; "
            f"pass {shape} or (heads, {shape[0]}, {shape[1]}), such as outputs.cross_attentions[layer][row]"
        )
    # Half precision leaves weights a little above 1.
    if not (weights.min() >= 0 and weights.max() <= 1.01):
        raise ValueError(
            f"attentions must lie in 0..1, not in {weights.min():.3g}..{weights.max():.3g}; "
            "pass the weights after the softmax"
        )
    return weights.reshape(-1, *shape)


def _label_tokens(axis: Axis, tokens: Sequence[str] | None, inches: float) -> None:
    """Write tokens along a heat map's side of that many inches, in the largest size that fits; None writes nothing."""
    axis.set_tick_params(length=0)
    if tokens is None:
        axis.set_ticks([])
        return
    points = 72 * inches / len(tokens)
    style: dict[str, Any] = {"fontsize": min(9.0, max(3.0, 0.75 * points))}
    if isinstance(axis, XAxis) and points < 16:
        style.update(rotation=90)
    elif isinstance(axis, XAxis):
        style.update(rotation=45, ha="right", rotation_mode="anchor")
    # A "$" among the tokens would otherwise start a formula.
    axis.set_ticks(range(len(tokens)), labels=[_label(token) for token in tokens], parse_math=False, **style)


def _label(token: str) -> str:
    """Return a token on one line, short enough to leave room for the panels."""
    line = _CONTROL.sub(lambda found: repr(found[0])[1:-1], token)
    return line if len(line) <= _LABEL_LENGTH else f"{line[: _LABEL_LENGTH - 1]}…"


def plot_position_encoding(encoding: Any, path: str | PathLike[str] | None = None) -> Figure:
    """Draw a table of position encodings as an image, and a few of its dimensions as curves over the positions.

    Args:
        encoding: Tensor or array of shape (positions, d_model), sinusoidal or learned.
        path: Where to save the figure, if anywhere.

    Returns:
        The figure.

    Raises:
        ValueError: The shape is not that of a matrix, or a value is not finite.
    """
    table = _to_array(encoding, "encoding")
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
        raise ValueError(f"encoding must be finite numbers of shape (positions, d_model), not of shape {table.shape}")
    positions, d_model = table.shape
    limit = float(np.abs(table).max()) or 1.0
    figure = Figure(figsize=(11, 4.2), dpi=_DPI, layout="constrained")
    image_axes, curve_axes = figure.subplots(1, 2)
    image = image_axes.imshow(table, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    image_axes.set(xlabel="dimension", ylabel="position", title="all dimensions")
    for axis in (image_axes.xaxis, image_axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=image_axes, label="value")
    # A sinusoidal table is all but constant in its later dimensions, so these lie closer at the beginning.
    for dimension in sorted({0, *(d_model // divisor for divisor in (8, 4, 2))}):
        curve_axes.plot(table[:, dimension], label=str(dimension), linewidth=1.4, marker=_marker(positions))
    curve_axes.set(xlabel="position", ylabel="value", title="some dimensions", xlim=(0, max(positions - 1, 1)))
    _tidy(curve_axes)
    figure.legend(title="dimension", loc="outside right center", frameon=False)
    return _finish(figure, "Position encoding", path)


def plot_training_curve(log_history: Sequence[Mapping[str, Any]], path: str | PathLike[str] | None = None) -> Figure:
    """Draw a training run: losses over the steps and, where logged, BLEU and the learning rate below them.

    Args:
        log_history: `trainer.state.log_history`, or the list of that name in a checkpoint's `trainer_state.json`.
            Read are `loss`, `eval_loss`, `eval_bleu` (0..100) and `learning_rate`, each with its `step`.
        path: Where to save the figure, if anywhere.

    Returns:
        The figure.

    Raises:
        ValueError: An entry has no step, or no loss was logged.
    """
    series = {key: _series(log_history, key) for key in ("loss", "eval_loss", "eval_bleu", "learning_rate")}
    if not series["loss"] and not series["eval_loss"]:
        raise ValueError("log_history holds neither 'loss' nor 'eval_loss'; pass trainer.state.log_history of a run")
    extra = [key for key in ("eval_bleu", "learning_rate") if series[key]]
    heights = [3.0] + [{"eval_bleu": 2.0, "learning_rate": 1.0}[key] for key in extra]
    figure = Figure(figsize=(8, 1.3 * sum(heights) + 1), dpi=_DPI, layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    loss_axes, extra_axes = panels[0], dict(zip(extra, panels[1:], strict=True))
    _curve(loss_axes, series["loss"], "training", color="tab:blue", linewidth=1.2)
    _curve(
        loss_axes, series["eval_loss"], "validation", color="tab:orange", marker="o", markersize=3, best=np.nanargmin
    )
    loss_axes.set_ylabel("loss")
    loss_axes.legend(frameon=False)
    if "eval_bleu" in extra_axes:
        axes = extra_axes["eval_bleu"]
        _curve(axes, series["eval_bleu"], "validation", color="tab:green", marker="o", markersize=3, best=np.nanargmax)
        axes.set_ylabel("BLEU")
        axes.legend(frameon=False)
    if "learning_rate" in extra_axes:
        _curve(extra_axes["learning_rate"], series["learning_rate"], "learning rate", color="0.4")
        extra_axes["learning_rate"].set_ylabel("learning\nrate")
        extra_axes["learning_rate"].ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    for axes in panels:
        _tidy(axes)
    panels[-1].set_xlabel("step")
    return _finish(figure, "Training", path)


def plot_accuracies(
    names: Sequence[str],
    accuracies: Sequence[float],
    intervals: Sequence[tuple[float, float]],
    path: str | PathLike[str] | None = None,
    reference: tuple[str, float] | None = None,
) -> Figure:
    """Draw accuracies as bars with their confidence intervals.

    Args:
        names: A name for each bar.
        accuracies: Fractions 0..1.
        intervals: Lower and upper end of each one's interval, 0..1.
        path: Where to save the figure, if anywhere.
        reference: Name and accuracy of a line to compare with.

    Returns:
        The figure.

    Raises:
        ValueError: The sequences are empty or differ in length.
    """
    if not names or not len(names) == len(accuracies) == len(intervals):
        raise ValueError(
            f"{len(names)} names, {len(accuracies)} accuracies and {len(intervals)} intervals; give one of each for "
            "every bar, and at least one"
        )
    figure = Figure(figsize=(2.5 * len(names) + 2, 4.5), dpi=_DPI, layout="constrained")
    axes = figure.subplots()
    percent = 100 * np.asarray(accuracies)
    errors = np.abs(100 * np.asarray(intervals).T - percent)
    bars = axes.bar(names, percent, yerr=errors, width=0.5, capsize=5, color="tab:blue", alpha=0.8)
    axes.bar_label(bars, [f"{value:.1f} %" for value in percent], padding=3)
    if reference is not None:
        axes.axhline(100 * reference[1], color="0.4", linestyle="--", label=f"{reference[0]} ({reference[1]:.1%})")
        axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    # Guessing gives one half, so a bar starts there.
    axes.set(ylabel="accuracy in %", ylim=(50, 100))
    _tidy(axes)
    return _finish(figure, "Accuracy on the test texts", path)


def plot_learning_curves(
    logs: Mapping[str, Sequence[Mapping[str, Any]]],
    path: str | PathLike[str] | None = None,
    levels: Mapping[str, float] | None = None,
) -> Figure:
    """Draw several training runs over their epochs: training loss on the left, accuracy on the right.

    Args:
        logs: `trainer.state.log_history` by the name of the run; read are `loss` and `eval_accuracy` (0..1), each
            with its `epoch`.
        path: Where to save the figure, if anywhere.
        levels: Accuracies 0..1 without epochs, by name, drawn as lines.

    Returns:
        The figure.

    Raises:
        ValueError: There is no run, or an entry has no epoch.
    """
    if not logs:
        raise ValueError("there is no run to draw; pass trainer.state.log_history by the name of the run")
    figure = Figure(figsize=(11, 4.2), dpi=_DPI, layout="constrained")
    loss_axes, accuracy_axes = figure.subplots(1, 2)
    for number, (name, log) in enumerate(logs.items()):
        color = f"C{number}"
        _curve(loss_axes, _series(log, "loss", "epoch"), name, color=color, linewidth=1.2)
        points = [(epoch, 100 * value) for epoch, value in _series(log, "eval_accuracy", "epoch")]
        _curve(accuracy_axes, points, name, color=color, marker="o", markersize=4)
    for number, (name, level) in enumerate((levels or {}).items(), start=len(logs)):
        accuracy_axes.axhline(100 * level, color=f"C{number}", linestyle="--", label=name)
    loss_axes.set(xlabel="epoch", ylabel="training loss")
    accuracy_axes.set(xlabel="epoch", ylabel="accuracy on the test texts in %")
    accuracy_axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in (loss_axes, accuracy_axes):
        _tidy(axes)
    figure.legend(*accuracy_axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return _finish(figure, "Learning curves", path)


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
    figure = Figure(figsize=(10, 3.6 * rows + 0.5), dpi=_DPI, layout="constrained")
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
        _tidy(axes)
    for axes in places[len(panels) :]:
        axes.set_visible(False)
    return _finish(figure, title, path)


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
    figure = Figure(figsize=(10, 0.32 * (places[-1] + 2) + 1.4), dpi=_DPI, layout="constrained")
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
    _tidy(axes)
    axes.grid(visible=False, axis="y")
    handles: list[Any] = [axes.barh(0, 0, color=color, alpha=0.85) for color in colors.values()]
    figure.legend(handles, list(colors), loc="outside lower center", ncols=4, frameon=False)
    return _finish(figure, title, path)


def _series(log_history: Sequence[Mapping[str, Any]], key: str, over: str = "step") -> list[tuple[float, float]]:
    """Return the (step, value) pairs of the entries that log `key`, or (epoch, value)."""
    for index, entry in enumerate(log_history):
        if not isinstance(entry, Mapping) or over not in entry:
            raise ValueError(f"log_history[{index}] has no {over!r}: {entry!r}; pass trainer.state.log_history")
    return [(entry[over], float(entry[key])) for entry in log_history if key in entry]


def _curve(
    axes: Axes,
    series: list[tuple[float, float]],
    label: str,
    best: Callable[[np.ndarray], np.intp] | None = None,
    **style: Any,
) -> None:
    """Draw one series, if it has points, and name its best point's value and step in the legend."""
    if not series:
        return
    steps, values = np.array(series).T
    if best is not None and np.isfinite(values).any():
        index = best(np.where(np.isfinite(values), values, np.nan))
        label = f"{label} (best {values[index]:.4g} at step {steps[index]:.0f})"
        axes.plot(steps[index], values[index], marker="o", markersize=8, markerfacecolor="none", color=style["color"])
    axes.plot(steps, values, label=label, **{"marker": _marker(len(steps)), **style})


def _marker(points: int) -> str | None:
    """Return the marker of a curve: without one a single point would not be seen."""
    return "o" if points == 1 else None


def _tidy(axes: Axes) -> None:
    """Give a panel of curves a light grid and no frame above and to the right."""
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _to_array(values: Any, name: str) -> np.ndarray:
    """Convert a tensor of any device and precision, or anything array-like, to float64."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64)
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a tensor or an array of numbers, not {type(values).__name__}") from None


def _finish(figure: Figure, title: str, path: str | PathLike[str] | None) -> Figure:
    """Add the title, and save the figure where a path is given; missing folders are made."""
    figure.suptitle(title, fontsize=12, parse_math=False)
    _choose_fonts(figure, title)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            # `_choose_fonts` has said it in one line.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(path)
    return figure


def _choose_fonts(figure: Figure, title: str) -> None:
    """Give texts with characters that matplotlib's own font lacks the installed fonts that have them."""
    texts: list[Any] = figure.findobj(lambda artist: isinstance(artist, Text) and bool(artist.get_text().strip()))
    families, missing = _fonts_for({character for text in texts for character in text.get_text()})
    for text in texts:
        text.set_fontfamily(families)
    if missing:
        scripts = sorted({unicodedata.name(character, "unnamed").split()[0] for character in missing})
        logger.warning(
            f"figure {title!r}: no installed font has {''.join(sorted(missing)[:5])} ({', '.join(scripts)}), so boxes "
            "are drawn; install the script's Noto font (for CJK on Debian or Ubuntu: fonts-noto-cjk)"
        )


def _fonts_for(characters: set[str]) -> tuple[list[str], set[str]]:
    """Return font families that together have the characters, matplotlib's own first, and what none of them has."""
    families = [_OWN_FONT]
    missing = {each for each in characters if each.isprintable()} - _characters(font_manager.findfont(_OWN_FONT))
    if missing:
        _find_new_fonts()
        # Of a family that has no upright font of normal weight, matplotlib would draw another, and log it.
        files = {
            font.name: font.fname
            for font in font_manager.fontManager.ttflist
            if font.style == "normal" and font.weight in (400, "normal", "regular")
        }
        preferred = [name for name in _PREFERRED_FONTS if name in files]
        for family in dict.fromkeys([*preferred, *sorted(files)]):
            if any(word in family for word in _NO_GLYPHS):
                continue
            if found := missing & _characters(files[family]):
                families.append(family)
                missing -= found
    return families, missing


@cache
def _find_new_fonts() -> None:
    """Make known to matplotlib the fonts that were installed after it first listed them."""
    known = {font.fname for font in font_manager.fontManager.ttflist}
    for path in set(font_manager.findSystemFonts()) - known:
        # What matplotlib cannot read, such as fonts of bitmaps, it does not list either.
        with suppress(Exception):
            font_manager.fontManager.addfont(path)


@cache
def _characters(path: str) -> frozenset[str]:
    """Return the characters that a font has glyphs for."""
    with suppress(RuntimeError, OSError):
        return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
    return frozenset()
