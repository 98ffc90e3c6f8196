"""Shared parts of figures: creation, style, curves, fonts, saving."""

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
    from matplotlib.figure import Figure
    from matplotlib.text import Text
except ImportError as error:
    raise ImportError(
        f'{__name__} needs matplotlib; install it with `pip install "hf-vanilla-transformer[plot]"`'
    ) from error

logger = logging.get_logger(__name__)

_OWN_FONT = "DejaVu Sans"
# Tried first, if installed, for characters that it lacks.
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
    """Draw a series, if it has points; with `best`, mark its best point and name it in the legend."""
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
    """Return a curve's default marker: a single point is invisible without one."""
    return "o" if points == 1 else None


def style_axes(axes: Axes) -> None:
    """Give a panel a light grid and no frame above and to the right."""
    axes.grid(color="0.9", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def to_array(values: Any, name: str) -> np.ndarray:
    """Convert a tensor of any device and dtype, or anything array-like, to float64."""
    if isinstance(values, torch.Tensor):
        values = values.detach().to("cpu", torch.float64)
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"`{name}` must be a tensor or an array of numbers, not {type(values).__name__}") from None


def finish_figure(figure: Figure, title: str, path: str | PathLike[str] | None) -> Figure:
    """Add the title and choose fonts; given a path, save the figure and create missing folders."""
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
    """Return font families that together cover the characters, matplotlib's own first, and the characters left out."""
    families = [_OWN_FONT]
    missing = {each for each in characters if each.isprintable()} - _characters(font_manager.findfont(_OWN_FONT))
    if missing:
        _find_new_fonts()
        # Without an upright font of normal weight, matplotlib would draw another one of the family and log it.
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
    """Add fonts to matplotlib's list that were installed after it was made."""
    known = {font.fname for font in font_manager.fontManager.ttflist}
    for path in set(font_manager.findSystemFonts()) - known:
        # matplotlib does not list fonts that it cannot read, such as bitmaps, either.
        with suppress(Exception):
            font_manager.fontManager.addfont(path)


@cache
def _characters(path: str) -> frozenset[str]:
    """Return the characters with glyphs in a font."""
    with suppress(RuntimeError, OSError):
        return frozenset(map(chr, font_manager.get_font(path).get_charmap()))
    return frozenset()
