import numpy as np
import pytest
import torch
from matplotlib.image import imread

from drawings import panels
from hf_vanilla_transformer.data.arguments import DataArguments
from tutorials import complexity
from tutorials.common import TutorialArguments
from tutorials.complexity import CURVES, Cost, measure_attention, plot_growth, reproduce_complexity, saved_bytes


def test_attention_saves_its_weights_and_its_inputs(monkeypatch):
    monkeypatch.setattr(complexity, "SECONDS", 0.0)
    measured = measure_attention(48, 8)
    # The attention weights, stored once, and queries, keys and values.
    assert measured.bytes == 4 * (48 * 48 + 3 * 48 * 8)
    assert measured.seconds > 0


@pytest.mark.parametrize(("function", "size"), [(lambda x: x * x, 40), (lambda x: x.exp(), 40), (lambda x: x + 1, 0)])
def test_saved_bytes_count_each_storage_once(function, size):
    assert saved_bytes(function, torch.randn(10, requires_grad=True)) == size


@pytest.mark.parametrize(("power", "reproduced"), [(1, True), (2, False)])
def test_exponents_are_compared_with_the_tables(monkeypatch, tmp_path, power, reproduced):
    monkeypatch.setattr(complexity, "measure_attention", lambda n, d: Cost(n, d, 1e-9 * n**2 * d**power, 4 * n**2))
    result = reproduce_complexity(TutorialArguments(output_dir=str(tmp_path)), DataArguments())
    expected = {"time_n": 2, "time_d": power, "memory_n": 2, "memory_d": 0}
    assert result.figures["exponents"] == pytest.approx(expected, abs=1e-9)
    assert result.reproduced is reproduced


def test_growth_is_drawn_with_its_power_law(tmp_path):
    sizes = (64, 128, 256)
    curves = {name: curve._replace(sizes=sizes, costs=[n**2 / 1e6 for n in sizes]) for name, curve in CURVES.items()}
    drawn = panels(plot_growth(curves, tmp_path / "growth.png"))
    for axes, curve in zip(drawn, curves.values(), strict=True):
        fit, measured = (line.get_xydata() for line in axes.lines)
        assert measured == pytest.approx(np.stack([sizes, curve.costs], axis=1)) and fit == pytest.approx(measured)
        assert axes.get_xscale() == axes.get_yscale() == "log"
    legends = [axes.get_legend().get_texts()[0].get_text() for axes in drawn[2:]]
    assert legends == ["exponent 2.00 (in theory 2)", "exponent 2.00"]


@pytest.mark.slow
def test_complexity_is_the_tables(run, tmp_path):
    exponents = run("complexity", tmp_path)["figures"]["exponents"]
    assert exponents["memory_n"] == pytest.approx(2, abs=0.1)
    assert exponents["time_n"] > 1.4 and exponents["time_d"] > 0.4, "a machine under load still shows growth"
    assert imread(tmp_path / "complexity" / "complexity.png").std() > 0.02
