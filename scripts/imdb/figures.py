"""Figures of classifiers: accuracies with confidence intervals, and learning curves."""

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from hf_vanilla_transformer.training.visualization import (
    draw_curve,
    finish_figure,
    logged_values,
    new_figure,
    style_axes,
)

StrPath = str | PathLike[str]


def plot_accuracies(
    accuracies: Mapping[str, tuple[float, tuple[float, float]]], path: StrPath, reference: tuple[str, float]
) -> Figure:
    """Plot accuracies (0..1) as bars with confidence intervals, and `reference`, a name and accuracy, as a line."""
    names, percent = [*accuracies], 100 * np.array([accuracy for accuracy, _ in accuracies.values()])
    ends = 100 * np.array([interval for _, interval in accuracies.values()]).T
    figure = new_figure(2.5 * len(names) + 2, 4.5)
    axes = figure.subplots()
    bars = axes.bar(names, percent, yerr=np.abs(ends - percent), width=0.5, capsize=5, color="tab:blue", alpha=0.8)
    axes.bar_label(bars, [f"{value:.1f} %" for value in percent], padding=3)
    axes.axhline(100 * reference[1], color="0.4", linestyle="--", label=f"{reference[0]} ({reference[1]:.1%})")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    # Bars start at chance level.
    axes.set(ylabel="accuracy in %", ylim=(50, 100))
    style_axes(axes)
    return finish_figure(figure, "Accuracy on the test texts", path)


def plot_learning_curves(
    logs: Mapping[str, Sequence[Mapping[str, Any]]], path: StrPath, levels: Mapping[str, float]
) -> Figure:
    """Plot training logs by epoch: training loss on the left, accuracy on the right.

    `levels` are accuracies 0..1 of classifiers without epochs, drawn as horizontal lines.
    """
    figure = new_figure(11, 4.2)
    loss_axes, accuracy_axes = figure.subplots(1, 2)
    for number, (name, log) in enumerate(logs.items()):
        color = f"C{number}"
        draw_curve(loss_axes, logged_values(log, "loss", "epoch"), name, color=color, linewidth=1.2)
        points = [(epoch, 100 * value) for epoch, value in logged_values(log, "eval_accuracy", "epoch")]
        draw_curve(accuracy_axes, points, name, color=color, marker="o", markersize=4)
    for number, (name, level) in enumerate(levels.items(), start=len(logs)):
        accuracy_axes.axhline(100 * level, color=f"C{number}", linestyle="--", label=name)
    loss_axes.set(xlabel="epoch", ylabel="training loss")
    accuracy_axes.set(xlabel="epoch", ylabel="accuracy on the test texts in %")
    accuracy_axes.xaxis.get_major_locator().set_params(integer=True)
    for axes in (loss_axes, accuracy_axes):
        style_axes(axes)
    figure.legend(*accuracy_axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    return finish_figure(figure, "Learning curves", path)
