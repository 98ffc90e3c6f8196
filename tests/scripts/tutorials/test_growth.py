import numpy as np
import pytest

from drawings import panels
from tutorials.growth import Panel, plot_growth


def test_growth_is_drawn_with_its_power_law(tmp_path):
    sizes = [64, 128, 256]
    time = Panel("n", sizes, "seconds", [n**2 / 1e6 for n in sizes], exponent=2.0, expected=2)
    memory = Panel("d", sizes, "bytes", [5 * n for n in sizes], exponent=1.0)
    drawn = panels(plot_growth([time, memory, time], tmp_path / "growth.png", "Growth"))
    assert len(drawn) == 3
    for axes, panel in zip(drawn, (time, memory), strict=False):
        fit, measured = (line.get_xydata() for line in axes.lines)
        assert measured == pytest.approx(np.stack([sizes, panel.costs], axis=1)) and fit == pytest.approx(measured)
        assert axes.get_xscale() == axes.get_yscale() == "log"
    legends = [axes.get_legend().get_texts()[0].get_text() for axes in drawn[:2]]
    assert legends == ["exponent 2.00 (in theory 2)", "exponent 1.00"]
