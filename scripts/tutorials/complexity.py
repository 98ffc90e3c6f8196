"""How time and memory of self-attention grow with length and width."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.power_law import fit_exponent
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.model.modeling_vanilla_transformer import eager_attention

from .common import TutorialArguments, TutorialResult
from .growth import Panel, plot_growth

# Table 1 of the paper: a layer of self-attention takes O(n^2 d) operations, and keeps n x n weights.
# From 32 MiB of weights (n = 2,896) on, memory comes fresh from the system page by page, which costs more; lengths on
# both sides of that limit would not lie on one line.
LENGTHS, AT_WIDTH = (3072, 4096, 6144, 8192), 64
WIDTHS, AT_LENGTH = (256, 512, 1024, 2048), 1024
ROUNDS = 9


@dataclass(frozen=True)
class Cost:
    """The cost of self-attention of one head at a size.

    Attributes:
        n: Length.
        d: Width.
        seconds: Median time of a forward pass.
        bytes: Memory kept for the backward pass.
    """

    n: int
    d: int
    seconds: float
    bytes: int


@dataclass(frozen=True)
class Curve:
    """One cost over one size, and the exponent in the paper's table."""

    size: str
    sizes: tuple[int, ...]
    cost: str
    exponent: int | None


LENGTH, WIDTH = f"length n (d = {AT_WIDTH})", f"width d (n = {AT_LENGTH})"
SECONDS, BYTES = "seconds, forward", "bytes kept for backward"
CURVES = {
    "time_n": Curve(LENGTH, LENGTHS, SECONDS, 2),
    "time_d": Curve(WIDTH, WIDTHS, SECONDS, 1),
    "memory_n": Curve(LENGTH, LENGTHS, BYTES, 2),
    "memory_d": Curve(WIDTH, WIDTHS, BYTES, None),
}


def reproduce_complexity(args: TutorialArguments, data_args: DataArguments) -> TutorialResult:
    """Measure time and memory of self-attention over lengths and widths, and fit a power law to each."""
    measured = measure_attention([(n, AT_WIDTH) for n in LENGTHS] + [(AT_LENGTH, d) for d in WIDTHS])
    by_size = {LENGTH: measured[: len(LENGTHS)], WIDTH: measured[len(LENGTHS) :]}
    panels = {}
    for name, curve in CURVES.items():
        costs = [each.seconds if curve.cost == SECONDS else each.bytes for each in by_size[curve.size]]
        exponent = fit_exponent(curve.sizes, costs)
        panels[name] = Panel(curve.size, curve.sizes, curve.cost, costs, exponent, curve.exponent)
    path = Path(args.output_dir, "complexity", "complexity.png")
    plot_growth(list(panels.values()), path, title="Self-attention: cost over length and width")
    exponents = {name: panel.exponent for name, panel in panels.items()}
    table = {name: curve.exponent for name, curve in CURVES.items()}
    return TutorialResult(
        "complexity",
        "the paper's table: self-attention takes O(n^2 d) operations per layer",
        f"time ~ n^{exponents['time_n']:.2f} and d^{exponents['time_d']:.2f}; memory ~ n^{exponents['memory_n']:.2f} "
        f"and d^{exponents['memory_d']:.2f}, being n^2 + 3 n d numbers",
        {
            "exponents": exponents,
            "table": table,
            "measured": [asdict(each) for each in measured],
            "threads": torch.get_num_threads(),
        },
        all(abs(exponents[name] - exponent) < 0.35 for name, exponent in table.items() if exponent),
    )


def measure_attention(sizes: Sequence[tuple[int, int]]) -> list[Cost]:
    """Measure the cost of self-attention for lengths n and widths d.

    Sizes alternate in rounds, so that whatever slows the machine for a while slows all of them.
    """
    module = torch.nn.Identity().eval()
    # Queries, keys and values (3, n, d) of one sentence and one head.
    inputs = [torch.randn(3, n, d, requires_grad=True) for n, d in sizes]
    seconds: list[list[float]] = [[] for _ in sizes]

    def attend(x: Tensor) -> Tensor:
        query, key, value = x[:, None, None]
        return eager_attention(module, query, key, value, None, x.shape[-1] ** -0.5)[0]

    with torch.no_grad():
        for _ in range(ROUNDS + 1):
            for x, times in zip(inputs, seconds, strict=True):
                start = time.perf_counter()
                attend(x)
                times.append(time.perf_counter() - start)
    return [
        # The first round warms up.
        Cost(n, d, float(np.median(times[1:])), saved_bytes(attend, x))
        for (n, d), x, times in zip(sizes, inputs, seconds, strict=True)
    ]


def saved_bytes(function: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return the memory that `function(x)` saves for its backward pass, each storage counted once."""
    storages = {}

    def record(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        output = function(x)
    del output
    return sum(storages.values())
