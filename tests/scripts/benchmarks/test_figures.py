import numpy as np
import pytest

from benchmarks.figures import Panel, Ratio, plot_growth, plot_ratios
from drawings import panels


def test_growth_is_drawn_with_its_power_law(tmp_path):
    sizes = [64, 128, 256]
    time = Panel("n", sizes, "seconds", [n**2 / 1e6 for n in sizes], exponent=2.0, expected=2)
    memory = Panel("d", sizes, "bytes", [5 * n for n in sizes], exponent=1.0)
    drawn = panels(plot_growth([time, memory, time], tmp_path / "growth.png"))
    assert len(drawn) == 3
    for axes, panel in zip(drawn, (time, memory), strict=False):
        fit, measured = (line.get_xydata() for line in axes.lines)
        assert measured == pytest.approx(np.stack([sizes, panel.costs], axis=1)) and fit == pytest.approx(measured)
        assert axes.get_xscale() == axes.get_yscale() == "log"
    legends = [axes.get_legend().get_texts()[0].get_text() for axes in drawn[:2]]
    assert legends == ["exponent 2.00 (in theory 2)", "exponent 1.00"]


def test_growth_needs_a_panel():
    with pytest.raises(ValueError, match="at least one panel"):
        plot_growth([])


def test_ratios_are_bars_from_one(tmp_path):
    ratios = [
        Ratio("a", "x", 2.0, (1.5, 2.5)),
        Ratio("a", "y", 0.5, (0.4, 0.6)),
        Ratio("b", "x", 4.0, (4.0, 4.0)),
    ]
    figure = plot_ratios(ratios, {"a": 0.25}, tmp_path / "ratios.png", title="Ratios")
    (axes,) = figure.axes
    bars = [bar for bar in axes.patches if bar.get_width()]
    assert [bar.get_x() for bar in bars] == [1, 1, 1]
    assert [bar.get_x() + bar.get_width() for bar in bars] == pytest.approx([2.0, 0.5, 4.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a\n25% utilization", "b"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["x", "y"]
    assert [text.get_text() for text in axes.texts] == ["2.00", "0.50", "4.00"]
    errorbars = [bar.errorbar for bar in axes.containers if getattr(bar, "errorbar", None)]
    whiskers = [bar[2][0].get_segments()[0][:, 0] for bar in errorbars]
    assert [each.tolist() for each in whiskers[:2]] == [pytest.approx([1.5, 2.5]), pytest.approx([0.4, 0.6])]
    assert (tmp_path / "ratios.png").stat().st_size > 5000


@pytest.mark.parametrize("ratios", [[], [Ratio("a", "x", 0.0, (0.0, 0.0))]])
def test_ratios_must_be_above_zero(ratios):
    with pytest.raises(ValueError, match="must be above 0, and there must be at least one"):
        plot_ratios(ratios)
