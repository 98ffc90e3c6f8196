"""Growth of self-attention's time and memory with length and width."""

from collections.abc import Callable
from functools import partial
from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor

from benchmarks.machine import timer
from benchmarks.power_law import fit_exponent
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.model.modeling_vanilla_transformer import eager_attention
from hf_vanilla_transformer.training.visualization import finish_figure, new_figure, style_axes

from .common import TutorialArguments, TutorialResult

# Table 1 of the paper: a self-attention layer takes O(n^2 d) operations; it also stores n x n weights.
# From 32 MiB of weights (n = 2,896), the allocator gets fresh pages from the system each time, which costs more, so
# lengths on both sides of that limit would not fit one power law.
LENGTHS, AT_WIDTH = (3072, 4096, 6144, 8192), 64
WIDTHS, AT_LENGTH = (256, 512, 1024, 2048), 1024
# Seconds of repeated forward passes.
SECONDS = 1.0


class Cost(NamedTuple):
    """Median time of one head's forward pass at length n and width d, and bytes saved for the backward pass."""

    n: int
    d: int
    seconds: float
    bytes: int


class Curve(NamedTuple):
    """A cost over a size, with the exponent of the power law fitted to the measured costs."""

    # "n" or "d".
    axis: str
    # "seconds" or "bytes".
    cost: str
    # The exponent in the paper's Table 1, if given.
    expected: int | None
    sizes: tuple[int, ...] = ()
    costs: tuple[float, ...] = ()

    @property
    def exponent(self) -> float:
        return fit_exponent(self.sizes, self.costs)


CURVES = {
    "time_n": Curve("n", "seconds", 2),
    "time_d": Curve("d", "seconds", 1),
    "memory_n": Curve("n", "bytes", 2),
    "memory_d": Curve("d", "bytes", None),
}
LABELS = {
    "n": f"length n (d = {AT_WIDTH})",
    "d": f"width d (n = {AT_LENGTH})",
    "seconds": "seconds, forward",
    "bytes": "bytes saved for backward",
}


def reproduce_complexity(args: TutorialArguments, data_args: DataArguments) -> TutorialResult:
    """Measure self-attention's time and memory over lengths and widths, and fit a power law to each."""
    by_axis = {
        "n": [measure_attention(n, AT_WIDTH) for n in LENGTHS],
        "d": [measure_attention(AT_LENGTH, d) for d in WIDTHS],
    }
    curves = {}
    for name, curve in CURVES.items():
        points = [(getattr(point, curve.axis), getattr(point, curve.cost)) for point in by_axis[curve.axis]]
        sizes, costs = zip(*points, strict=True)
        curves[name] = curve._replace(sizes=sizes, costs=costs)
    plot_growth(curves, Path(args.output_dir, "complexity", "complexity.png"))
    exponents = {name: curve.exponent for name, curve in curves.items()}
    return TutorialResult(
        "complexity",
        "the paper's table: self-attention takes O(n^2 d) operations per layer",
        f"time ~ n^{exponents['time_n']:.2f} and d^{exponents['time_d']:.2f}; memory ~ n^{exponents['memory_n']:.2f} "
        f"and d^{exponents['memory_d']:.2f}, being n^2 + 3 n d numbers",
        {
            "exponents": exponents,
            "table": {name: curve.expected for name, curve in CURVES.items()},
            "measured": [point._asdict() for axis in by_axis.values() for point in axis],
            "threads": torch.get_num_threads(),
        },
        all(abs(curve.exponent - curve.expected) < 0.35 for curve in curves.values() if curve.expected),
    )


def measure_attention(n: int, d: int) -> Cost:
    module = torch.nn.Identity().eval()
    # Queries, keys and values of one head and one sentence.
    x = torch.randn(3, n, d, requires_grad=True)

    def attend(x: Tensor) -> Tensor:
        query, key, value = x[:, None, None]
        return eager_attention(module, query, key, value, None, d**-0.5)[0]

    forward = torch.no_grad()(partial(attend, x))
    return Cost(n, d, timer(forward).blocked_autorange(min_run_time=SECONDS).median, saved_bytes(attend, x))


def saved_bytes(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return the bytes that `function(x)` saves for its backward pass, counting each storage once."""
    storages = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        output = function(x)
    del output
    return sum(storages.values())


def plot_growth(curves: dict[str, Curve], path: str | PathLike[str]) -> Figure:
    """Plot costs over sizes with their power laws on logarithmic axes, and save the figure."""
    figure = new_figure(10, 7.7)
    for axes, curve in zip(figure.subplots(2, 2).flatten(), curves.values(), strict=True):
        _draw_growth(axes, curve)
    return finish_figure(figure, "Self-attention: cost over length and width", path)


def _draw_growth(axes: Axes, curve: Curve) -> None:
    sizes, costs = np.asarray(curve.sizes, dtype=float), np.asarray(curve.costs, dtype=float)
    # The least-squares line passes through the means of the logarithms.
    fit = np.exp(np.log(costs).mean() + curve.exponent * (np.log(sizes) - np.log(sizes).mean()))
    theory = "" if curve.expected is None else f" (in theory {curve.expected})"
    axes.loglog(sizes, fit, color="0.5", linestyle="--", label=f"exponent {curve.exponent:.2f}{theory}")
    axes.loglog(sizes, costs, "o", color="tab:blue", label="measured")
    axes.set_xticks(sizes, labels=[f"{size:g}" for size in sizes])
    # Span at least a factor of 3, so that small changes look small and the axis has ticks.
    axes.set_ylim(min(*costs, costs.max() / 3) * 0.8, max(*costs, costs.min() * 3) * 1.25)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set(xlabel=LABELS[curve.axis], ylabel=LABELS[curve.cost])
    axes.legend(frameon=False)
    style_axes(axes)
