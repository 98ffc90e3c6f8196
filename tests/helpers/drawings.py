"""Accessors of figures for tests."""

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure


def attention(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).softmax(-1)


def panels(figure: Figure) -> list:
    return [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]


def tick_labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def visible(axes: Axes) -> list:
    """Return the curves that have a line or a marker."""
    return [line for line in axes.lines if len(line.get_xdata()) > 1 or line.get_marker() not in ("None", None)]
