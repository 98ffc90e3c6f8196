"""Figures that benchmarks, tutorials and the comparison of classifiers draw."""

import numpy as np
import pytest
from matplotlib.image import imread

from benchmarks.figures import plot_growth, plot_ratios
from drawings import panels, tick_labels, visible
from hf_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from imdb.figures import plot_accuracies, plot_learning_curves
from tiny import tiny_model
from tutorials import tutorials


def test_rows_of_the_decoder_are_the_words_that_it_predicts(tmp_path, monkeypatch):
    drawn = {}

    def draw(weights, columns, rows, path, title, keys, queries):
        assert weights.shape[-2:] == (len(rows), len(columns))
        drawn[path.stem] = (keys, columns, queries, rows)

    monkeypatch.setattr(tutorials, "plot_attention", draw)
    source, target = tutorials.STATQUEST.pairs[0]
    tokenizer = VanillaTransformerTokenizer.from_pair(
        train_tokenizer([source], algorithm="word"), train_tokenizer([target], algorithm="word")
    )
    sizes = {"vocab_size": len(tokenizer), "decoder_vocab_size": tokenizer.target_vocab_size}
    untied = {"share_encoder_decoder_embeddings": False, "tie_word_embeddings": False}
    model = tiny_model(**sizes, **untied, position_embedding_type="learned")
    tutorials.draw_statquest(model, tokenizer, tmp_path)
    read, said = [*source.split(), "</s>"], [*target.split(), "</s>"]
    assert drawn == {
        "encoder_attention": ("source", read, "source", read),
        "decoder_attention": ("target so far", ["<s>", *said[:-1]], "target", said),
        "cross_attention": ("source", read, "target", said),
    }


def test_accuracies_are_bars_with_intervals(tmp_path):
    intervals = [(0.86, 0.90), (0.80, 0.91)]
    figure = plot_accuracies(["a", "b"], [0.88, 0.85], intervals, tmp_path / "bars.png", reference=("paper", 0.93748))
    (axes,) = panels(figure)
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([88, 85])
    assert tick_labels(axes.xaxis) == ["a", "b"]
    (bars,) = (each for each in axes.containers if hasattr(each, "errorbar"))
    ends = np.sort(bars.errorbar[2][0].get_segments(), axis=1)[:, :, 1]
    assert ends == pytest.approx(100 * np.array(intervals))
    assert axes.get_legend().get_texts()[0].get_text() == "paper (93.7%)"
    assert imread(tmp_path / "bars.png").std() > 0.05


@pytest.mark.parametrize("names", [[], ["a", "b"]])
def test_accuracies_need_one_of_each(names):
    with pytest.raises(ValueError, match=f"{len(names)} names, 1 accuracies"):
        plot_accuracies(names, [0.5], [(0.4, 0.6)])


def test_learning_curves_by_epoch(tmp_path):
    log = [{"epoch": 0.5, "loss": 0.7}, {"epoch": 1.0, "eval_accuracy": 0.8}, {"epoch": 2.0, "eval_accuracy": 0.85}]
    other = [{"epoch": 1.0, "loss": 0.4}, {"epoch": 1.0, "eval_accuracy": 0.9}]
    figure = plot_learning_curves({"a": log, "b": other}, tmp_path / "curves.png", levels={"c": 0.88})
    loss_axes, accuracy_axes = panels(figure)
    assert [line.get_xydata().tolist() for line in loss_axes.lines] == [[[0.5, 0.7]], [[1.0, 0.4]]]
    assert accuracy_axes.lines[0].get_xydata() == pytest.approx(np.array([[1, 80], [2, 85]]))
    assert accuracy_axes.lines[2].get_ydata() == pytest.approx([88, 88])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["a", "b", "c"]
    assert imread(tmp_path / "curves.png").std() > 0.02


def test_learning_curves_need_runs_with_epochs():
    with pytest.raises(ValueError, match="there is no run to draw"):
        plot_learning_curves({})
    with pytest.raises(ValueError, match=r"log_history\[0\] has no 'epoch'"):
        plot_learning_curves({"a": [{"loss": 1.0}]})


def test_growth_goes_with_its_power(tmp_path):
    sizes = [64, 128, 256]
    panels_of = [("n", sizes, "seconds", [n**2 / 1e6 for n in sizes]), ("d", sizes, "bytes", [5 * n for n in sizes])]
    figure = plot_growth([*panels_of, panels_of[0]], [2.0, 1.0, 2.0], tmp_path / "growth.png")
    drawn = panels(figure)
    assert len(drawn) == 3
    for axes, (_, x, _, y) in zip(drawn, panels_of, strict=False):
        fit, measured = (line.get_xydata() for line in axes.lines)
        assert measured == pytest.approx(np.stack([x, y], axis=1)) and fit == pytest.approx(measured)
        assert axes.get_xscale() == axes.get_yscale() == "log"
    (axes, _) = panels(plot_growth(panels_of, [2.0, 1.1], expected=[2, None]))
    assert axes.get_legend().get_texts()[0].get_text() == "exponent 2.00 (in theory 2)"
    with pytest.raises(ValueError, match="2 panels and 1 exponents"):
        plot_growth(panels_of, [2.0])


def test_learning_curves_of_one_epoch_are_seen():
    figure = plot_learning_curves({"a": [{"epoch": 1.0, "loss": 0.5}, {"epoch": 1.0, "eval_accuracy": 0.8}]})
    assert [len(visible(axes)) for axes in panels(figure)] == [1, 1]


def test_ratios_are_bars_from_one(tmp_path):
    rows = [("a", "x", 2.0, (1.5, 2.5)), ("a", "y", 0.5, (0.4, 0.6)), ("b", "x", 4.0, (4.0, 4.0))]
    figure = plot_ratios(rows, {"a": 0.25}, tmp_path / "ratios.png", title="Ratios")
    (axes,) = figure.axes
    bars = [bar for bar in axes.patches if bar.get_width()]
    assert [bar.get_x() for bar in bars] == [1, 1, 1]
    assert [bar.get_x() + bar.get_width() for bar in bars] == pytest.approx([2.0, 0.5, 4.0])
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a\n25% of the machine's limit", "b"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["x", "y"]
    assert [text.get_text() for text in axes.texts] == ["2.00", "0.50", "4.00"]
    errorbars = [bar.errorbar for bar in axes.containers if getattr(bar, "errorbar", None)]
    whiskers = [bar[2][0].get_segments()[0][:, 0] for bar in errorbars]
    assert [each.tolist() for each in whiskers[:2]] == [pytest.approx([1.5, 2.5]), pytest.approx([0.4, 0.6])]
    assert (tmp_path / "ratios.png").stat().st_size > 5000


@pytest.mark.parametrize("rows", [[], [("a", "x", 0.0, (0.0, 0.0))]])
def test_ratios_to_draw_are_above_zero(rows):
    with pytest.raises(ValueError, match="must be above 0, and at least one"):
        plot_ratios(rows)
