"""Figures of attention weights, position encodings and training curves.

Every function returns a `matplotlib.figure.Figure` and, given a path, saves it in the format of its suffix (.png,
.pdf, ...). Figures have no window, so any backend of matplotlib works.

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

from ..extras import install_command

try:
    from matplotlib import font_manager
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis, XAxis
    from matplotlib.figure import Figure
    from matplotlib.text import Text
except ImportError as error:
    raise ImportError(f"{__name__} needs matplotlib; install it with `{install_command('plot')}`") from error

logger = logging.get_logger(__name__)

_OWN_FONT = "DejaVu Sans"
# Tried first, if installed, for characters that the default font lacks.
_PREFERRED_FONTS = (
    "Noto Sans CJK JP", "Noto Sans CJK SC", "Source Han Sans", "WenQuanYi Zen Hei", "Hiragino Sans",
    "Microsoft YaHei", "Malgun Gothic", "Arial Unicode MS", "Noto Sans",
)  # fmt: skip  # a table, not an expression
# Fonts that draw a box for every character, and bitmap fonts, which matplotlib cannot draw.
_NO_GLYPHS = ("LastResort", "Last Resort", "Color Emoji")
_DPI = 150

# Most tokens per axis that are still legible.
MAX_TOKENS = 60
# Inches: longest side of all panels of an attention figure together, and the size of a token's cell below that.
_MAX_SIDE, _CELL = 24.0, 0.3
SCORE_LABELS = {
    "bleu": "BLEU", "chrf": "chrF2", "exact_match": "exact match, %", "wer": "WER, %", "ser": "SER, %",
}  # fmt: skip  # a table
_ERROR_RATES = ("wer", "ser")
# Most characters of a token to draw; control characters, which would break the line or appear as boxes.
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
    """Plot attention weights as heat maps: queries (target tokens) down, keys (source tokens) across.

    A decoder row is labelled with the token it predicts, as in `translation.cross_attention`. Only the first
    `MAX_TOKENS` per axis are drawn; the title says so.

    Args:
        attentions: Weights after the softmax, 0..1, as a tensor or array of shape (T, S), or (h, T, S) for one panel
            per head; from a model's output, `outputs.cross_attentions[layer][row]`.
        source_tokens: S readable tokens.
        target_tokens: T readable tokens.
        path: Where to save the figure, if anywhere.
        title: The figure's title.
        limit: Weight of the darkest colour; below 1 to tell small weights apart.
        keys: Name of the key axis.
        queries: Name of the query axis; in self-attention the same as `keys`.

    Returns:
        The figure.

    Raises:
        ValueError: The shape does not match the tokens, or a weight is outside 0..1.
    """
    weights = _attention_array(attentions, source_tokens, target_tokens)[:, :MAX_TOKENS, :MAX_TOKENS]
    if left_out := [
        f"the first {MAX_TOKENS} of {len(tokens)} {name} tokens"
        for name, tokens in {queries: target_tokens, keys: source_tokens}.items()
        if len(tokens) > MAX_TOKENS
    ]:
        title = f"{title}\n{' and '.join(left_out)}"
    source_tokens, target_tokens = source_tokens[:MAX_TOKENS], target_tokens[:MAX_TOKENS]
    heads = len(weights)
    rows = math.ceil(heads / 4)
    columns = math.ceil(heads / rows)
    width = min(max(_CELL * len(source_tokens), 1.8), _MAX_SIDE / columns)
    height = min(max(_CELL * len(target_tokens), 1.8), _MAX_SIDE / rows)
    figure = new_figure(columns * width + 2.4, rows * height + 1.8)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for head, axes in enumerate(panels[:heads]):
        image = axes.imshow(weights[head], cmap="Blues", vmin=0, vmax=limit, aspect="auto", interpolation="nearest")
        if heads > 1:
            axes.set_title(f"head {head + 1}", fontsize=9)
        # Only outer panels have tokens, including those above an empty slot.
        _label_tokens(axes.xaxis, source_tokens if head + columns >= heads else None, width)
        _label_tokens(axes.yaxis, target_tokens if head % columns == 0 else None, height)
    for axes in panels[heads:]:
        axes.set_visible(False)
    figure.colorbar(image, ax=panels, label="attention weight", aspect=6 * rows * height, pad=0.02)
    figure.supxlabel(f"{keys} (keys)", fontsize=10)
    figure.supylabel(f"{queries} (queries)", fontsize=10)
    return finish_figure(figure, title, path)


def _attention_array(attentions: Any, source_tokens: Sequence[str], target_tokens: Sequence[str]) -> np.ndarray:
    """Return checked weights, (h, T, S)."""
    weights = to_array(attentions, "attentions")
    shape = (len(target_tokens), len(source_tokens))
    if weights.ndim not in (2, 3) or weights.shape[-2:] != shape or weights.size == 0:
        raise ValueError(
            f"`attentions` of shape {weights.shape} do not match {shape[0]} target and {shape[1]} source tokens; "
            f"pass {shape} or (heads, {shape[0]}, {shape[1]}), such as outputs.cross_attentions[layer][row]"
        )
    # Rounding in half precision may give weights slightly above 1.
    if not (weights.min() >= 0 and weights.max() <= 1.01):
        raise ValueError(
            f"`attentions` must lie in 0..1, not in {weights.min():.3g}..{weights.max():.3g}; "
            "pass the weights after the softmax"
        )
    return weights.reshape(-1, *shape)


def _label_tokens(axis: Axis, tokens: Sequence[str] | None, inches: float) -> None:
    """Label an axis of a heat map, `inches` long, with tokens in the largest size that fits; None for no labels."""
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
    # A "$" in a token would otherwise start a formula.
    axis.set_ticks(range(len(tokens)), labels=[_label(token) for token in tokens], parse_math=False, **style)


def _label(token: str) -> str:
    """Return a token on one line, truncated to leave room for the panels."""
    line = _CONTROL.sub(lambda match: repr(match[0])[1:-1], token)
    return line if len(line) <= _LABEL_LENGTH else f"{line[: _LABEL_LENGTH - 1]}…"


def plot_position_encoding(encoding: Any, path: str | PathLike[str] | None = None) -> Figure:
    """Plot position encodings as an image, and some dimensions as curves over positions.

    Args:
        encoding: Tensor or array of shape (positions, d_model), sinusoidal or learned.
        path: Where to save the figure, if anywhere.

    Returns:
        The figure.

    Raises:
        ValueError: The encoding is not a matrix, or a value is not finite.
    """
    table = to_array(encoding, "encoding")
    if table.ndim != 2 or table.size == 0 or not np.isfinite(table).all():
        raise ValueError(
            f"`encoding` must be finite numbers of shape (positions, d_model), not of shape {table.shape}"
        )
    positions, d_model = table.shape
    limit = float(np.abs(table).max()) or 1.0
    figure = new_figure(11, 4.2)
    image_axes, curve_axes = figure.subplots(1, 2)
    image = image_axes.imshow(table, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto", interpolation="nearest")
    image_axes.set(xlabel="dimension", ylabel="position", title="all dimensions")
    for axis in (image_axes.xaxis, image_axes.yaxis):
        axis.get_major_locator().set_params(integer=True)
    figure.colorbar(image, ax=image_axes, label="value")
    # Later dimensions of sinusoids are almost constant, so the first ones are sampled more densely.
    for dimension in sorted({0, *(d_model // divisor for divisor in (8, 4, 2))}):
        curve_axes.plot(table[:, dimension], label=str(dimension), linewidth=1.4, marker=marker(positions))
    curve_axes.set(xlabel="position", ylabel="value", title="some dimensions", xlim=(0, max(positions - 1, 1)))
    style_axes(curve_axes)
    figure.legend(title="dimension", loc="outside right center", frameon=False)
    return finish_figure(figure, "Position encoding", path)


def plot_training_curve(
    log_history: Sequence[Mapping[str, Any]],
    path: str | PathLike[str] | None = None,
    *,
    label_smoothing: float = 0.0,
    dropout: float = 0.0,
    vocab_size: int | None = None,
    metric: str = "bleu",
) -> Figure:
    """Plot a training run: losses over steps and, where logged, a score and the learning rate below.

    The training loss has label smoothing and dropout, the validation loss neither: the legend says so, and a dotted
    line shows the lower bound of the smoothed loss, the entropy of the smoothed labels.

    Args:
        log_history: `trainer.state.log_history`, also found in a checkpoint's `trainer_state.json`. Reads `loss`,
            `eval_loss`, the score (0..100) and `learning_rate`, each with its `step`.
        path: Where to save the figure, if anywhere.
        label_smoothing: Label smoothing of the training loss.
        dropout: Dropout during training.
        vocab_size: Number of target tokens, over which labels are smoothed; None for no dotted line.
        metric: The score: "bleu", "chrf", "exact_match", "wer" or "ser".

    Returns:
        The figure.

    Raises:
        ValueError: An entry has no step, or no loss was logged.
    """
    score = f"eval_{metric}"
    series = {key: logged_values(log_history, key) for key in ("loss", "eval_loss", score, "learning_rate")}
    if not series["loss"] and not series["eval_loss"]:
        raise ValueError("`log_history` has neither 'loss' nor 'eval_loss'; pass trainer.state.log_history of a run")
    heights = {"loss": 3.0, score: 2.0, "learning_rate": 1.0}
    heights = {key: height for key, height in heights.items() if key == "loss" or series[key]}
    figure = new_figure(8, 1.3 * sum(heights.values()) + 1)
    grid = figure.subplots(len(heights), 1, sharex=True, height_ratios=list(heights.values()), squeeze=False)
    panels = dict(zip(heights, grid[:, 0], strict=True))
    dots = {"marker": "o", "markersize": 3}
    extras = {"label smoothing": label_smoothing, "dropout": dropout}
    with_extras = " and ".join(f"{name} {value:g}" for name, value in extras.items() if value)
    training, validation = f"training, with {with_extras}", "validation, without"
    if not with_extras:
        training, validation = "training", "validation"
    draw_curve(panels["loss"], series["loss"], training, color="tab:blue", linewidth=1.2)
    draw_curve(panels["loss"], series["eval_loss"], validation, best=np.nanargmin, color="tab:orange", **dots)
    if series["loss"] and label_smoothing and vocab_size:
        least = _entropy_of_smoothed_labels(label_smoothing, vocab_size)
        label = f"lower bound of training, due to label smoothing ({least:.3g})"
        panels["loss"].axhline(least, color="tab:blue", linewidth=1, linestyle=":", label=label)
    panels["loss"].set_ylabel("loss, nats per token")
    panels["loss"].legend(frameon=False)
    if axes := panels.get(score):
        best = np.nanargmin if metric in _ERROR_RATES else np.nanargmax
        draw_curve(axes, series[score], "validation", best=best, color="tab:green", **dots)
        axes.set_ylabel(SCORE_LABELS[metric])
        axes.legend(frameon=False)
    if axes := panels.get("learning_rate"):
        draw_curve(axes, series["learning_rate"], "learning rate", color="0.4")
        axes.set_ylabel("learning\nrate")
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    for axes in panels.values():
        style_axes(axes)
        # Start at 0, to keep differences in proportion.
        axes.set_ylim(bottom=0)
    grid[-1, 0].set_xlabel("step")
    return finish_figure(figure, "Training", path)


def _entropy_of_smoothed_labels(smoothing: float, vocab_size: int) -> float:
    """Return the entropy, in nats, of a label with `smoothing` of its probability spread over all tokens."""
    other = smoothing / vocab_size
    right = 1 - smoothing + other
    return -right * math.log(right) - (vocab_size - 1) * other * math.log(other)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure; width and height in inches."""
    return Figure(figsize=(width, height), dpi=_DPI, layout="constrained")


def logged_values(log_history: Sequence[Mapping[str, Any]], key: str, over: str = "step") -> list[tuple[float, float]]:
    """Return the (step, value) pairs of entries that log `key`, or (epoch, value) pairs."""
    for index, entry in enumerate(log_history):
        if not isinstance(entry, Mapping) or over not in entry:
            raise ValueError(f"log_history[{index}] has no {over!r}: {entry!r}; pass trainer.state.log_history")
    return [(entry[over], float(entry[key])) for entry in log_history if key in entry]


def draw_curve(
    axes: Axes,
    series: list[tuple[float, float]],
    label: str,
    best: Callable[[np.ndarray], np.intp] | None = None,
    **style: Any,
) -> None:
    """Draw a series, if it has points; `best` returns the index of a point to mark and to name in the legend."""
    if not series:
        return
    steps, values = np.array(series).T
    if best is not None and np.isfinite(values).any():
        index = best(np.where(np.isfinite(values), values, np.nan))
        label = f"{label} (best {values[index]:.4g} at step {steps[index]:.0f})"
        ring = {"marker": "o", "markersize": 8, "markerfacecolor": "none", "color": style["color"]}
        axes.plot(steps[index], values[index], clip_on=False, **ring)
    axes.plot(steps, values, label=label, **{"marker": marker(len(steps)), **style})


def marker(points: int) -> str | None:
    """Return a curve's default marker; a single point is invisible without one."""
    return "o" if points == 1 else None


def style_axes(axes: Axes) -> None:
    """Give a panel a light grid, and no frame at the top and right."""
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def to_array(values: Any, name: str) -> np.ndarray:
    """Convert a tensor of any device and dtype, or anything array-like, to a float64 array."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64)
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be a tensor or an array of numbers, not {type(values).__name__}") from None


def finish_figure(figure: Figure, title: str, path: str | PathLike[str] | None) -> Figure:
    """Add the title and choose fonts; given a path, save the figure, creating missing folders."""
    figure.suptitle(title, fontsize=12, parse_math=False)
    _choose_fonts(figure, title)
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with warnings.catch_warnings():
            # `_choose_fonts` has already warned, in one line.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            figure.savefig(path)
    return figure


def _choose_fonts(figure: Figure, title: str) -> None:
    """Fall back on installed fonts for characters that matplotlib's own font lacks."""
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
    """Return font families that together cover the characters, matplotlib's own first, and characters in no font."""
    families = [_OWN_FONT]
    missing = {*filter(str.isprintable, characters)} - _characters(font_manager.findfont(_OWN_FONT))
    if missing:
        _find_new_fonts()
        # For families without a regular font, matplotlib would use another style and log it.
        files = {
            font.name: font.fname
            for font in font_manager.fontManager.ttflist
            if font.style == "normal" and font.weight in (400, "normal", "regular")
        }
        preferred = [name for name in _PREFERRED_FONTS if name in files]
        for family in dict.fromkeys([*preferred, *sorted(files)]):
            if any(word in family for word in _NO_GLYPHS):
                continue
            if covered := missing & _characters(files[family]):
                families.append(family)
                missing -= covered
    return families, missing


@cache
def _find_new_fonts() -> None:
    """Add fonts installed after matplotlib built its cached list."""
    known = {font.fname for font in font_manager.fontManager.ttflist}
    for path in set(font_manager.findSystemFonts()) - known:
        # matplotlib also omits fonts that it cannot read, such as bitmap fonts.
        with suppress(Exception):
            font_manager.fontManager.addfont(path)


@cache
def _characters(path: str) -> frozenset[str]:
    """Return the characters with glyphs in a font."""
    with suppress(RuntimeError, OSError):
        return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
    return frozenset()
