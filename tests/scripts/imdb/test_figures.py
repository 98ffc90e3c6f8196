import numpy as np
import pytest
from matplotlib.image import imread

from drawings import panels, tick_labels
from imdb.figures import plot_accuracies, plot_learning_curves


def test_accuracies_are_bars_with_intervals(tmp_path):
    intervals = [(0.86, 0.90), (0.80, 0.91)]
    accuracies = {"a": (0.88, intervals[0]), "b": (0.85, intervals[1])}
    figure = plot_accuracies(accuracies, tmp_path / "bars.png", ("paper", 0.93748))
    (axes,) = panels(figure)
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([88, 85])
    assert tick_labels(axes.xaxis) == ["a", "b"]
    (bars,) = (each for each in axes.containers if hasattr(each, "errorbar"))
    ends = np.sort(bars.errorbar[2][0].get_segments(), axis=1)[:, :, 1]
    assert ends == pytest.approx(100 * np.array(intervals))
    assert axes.get_legend().get_texts()[0].get_text() == "paper (93.7%)"
    assert imread(tmp_path / "bars.png").std() > 0.05


def test_learning_curves_by_epoch(tmp_path):
    log = [{"epoch": 0.5, "loss": 0.7}, {"epoch": 1.0, "eval_accuracy": 0.8}, {"epoch": 2.0, "eval_accuracy": 0.85}]
    other = [{"epoch": 1.0, "loss": 0.4}, {"epoch": 1.0, "eval_accuracy": 0.9}]
    figure = plot_learning_curves({"a": log, "b": other}, tmp_path / "curves.png", {"c": 0.88})
    loss_axes, accuracy_axes = panels(figure)
    assert [line.get_xydata().tolist() for line in loss_axes.lines] == [[[0.5, 0.7]], [[1.0, 0.4]]]
    assert accuracy_axes.lines[0].get_xydata() == pytest.approx(np.array([[1, 80], [2, 85]]))
    assert accuracy_axes.lines[2].get_ydata() == pytest.approx([88, 88])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert imread(tmp_path / "curves.png").std() > 0.02
