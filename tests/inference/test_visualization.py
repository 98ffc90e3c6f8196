import runpy
import subprocess
import sys

import numpy as np
import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.figure import Figure
from matplotlib.image import imread

from hf_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from hf_vanilla_transformer.inference import visualization
from hf_vanilla_transformer.inference.visualization import (
    plot_accuracies,
    plot_attention,
    plot_growth,
    plot_learning_curves,
    plot_position_encoding,
    plot_training_curve,
)
from paths import ROOT
from tiny import tiny_model
from tutorials import tutorials

SOURCE = ["¿", "Dónde", "$", "über", "$", "猫", "</s>"]
TARGET = ["<s>", "Where", "is", "$x^$", "."]
LOG = [
    {"step": 0, "loss": 9.0, "learning_rate": 0.0, "epoch": 0.0},
    {"step": 10, "loss": 5.0, "learning_rate": 1e-3, "epoch": 1.0},
    {"step": 10, "eval_loss": 5.5, "eval_bleu": 3.0, "epoch": 1.0},
    {"step": 20, "loss": 4.0, "learning_rate": 5e-4, "epoch": 2.0},
    {"step": 20, "eval_loss": 4.5, "eval_bleu": 12.0, "epoch": 2.0},
    {"step": 30, "eval_loss": 4.75, "eval_bleu": 11.0, "epoch": 3.0},
    {"step": 30, "train_loss": 6.0, "train_runtime": 2.0, "epoch": 3.0},
]


def attention(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).softmax(-1)


def panels(figure: Figure) -> list:
    return [axes for axes in figure.axes if axes.get_visible() and axes.get_label() != "<colorbar>"]


def tick_labels(axis) -> list[str]:
    return [label.get_text() for label in axis.get_ticklabels()]


def test_attention_of_one_head(tmp_path):
    weights = attention(len(TARGET), len(SOURCE))
    figure = plot_attention(weights.bfloat16(), SOURCE, TARGET, tmp_path / "new" / "attention.png", title="a $ b")
    (axes,) = panels(figure)
    (image,) = axes.get_images()
    assert np.allclose(image.get_array(), weights, atol=1e-2)
    assert image.get_clim() == (0, 1)
    assert tick_labels(axes.xaxis) == SOURCE and tick_labels(axes.yaxis) == TARGET
    assert imread(tmp_path / "new" / "attention.png").std() > 0.05


def test_small_weights_can_have_a_darker_scale():
    (axes,) = panels(plot_attention(attention(len(TARGET), len(SOURCE)), SOURCE, TARGET, limit=0.3))
    assert axes.get_images()[0].get_clim() == (0, 0.3)


@pytest.mark.parametrize("heads", [1, 2, 5, 8])
def test_every_column_and_row_of_heads_has_its_tokens(heads):
    weights = attention(heads, len(TARGET), len(SOURCE))
    drawn = panels(plot_attention(weights.numpy(), SOURCE, TARGET))
    assert len(drawn) == heads
    for axes, expected in zip(drawn, weights, strict=True):
        assert np.allclose(axes.get_images()[0].get_array(), expected)
    columns = {axes.get_subplotspec().colspan.start for axes in drawn}
    rows = {axes.get_subplotspec().rowspan.start for axes in drawn}
    assert sum(tick_labels(axes.xaxis) == SOURCE for axes in drawn) == len(columns)
    assert sum(tick_labels(axes.yaxis) == TARGET for axes in drawn) == len(rows)


def test_long_sentences_get_small_labels(tmp_path):
    tokens = [f"token{i}" for i in range(120)]
    figure = plot_attention(attention(120, 120), tokens, tokens)
    width, height = figure.get_size_inches()
    assert max(width, height) < 30
    labels = panels(figure)[0].yaxis.get_ticklabels()
    figure.draw_without_rendering()
    tops = [label.get_window_extent() for label in labels]
    assert all(not upper.overlaps(lower) for upper, lower in zip(tops, tops[1:], strict=False))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (attention(7, 5), r"shape \(7, 5\) do not fit 5 target and 7 source tokens"),
        (attention(1, 2, 5, 7), r"shape \(1, 2, 5, 7\)"),
        (attention(0, 5, 7), r"shape \(0, 5, 7\)"),
        (3 * torch.ones(5, 7), r"0\.\.1, not in 3\.\.3; pass the weights after the softmax"),
        (torch.full((5, 7), float("nan")), "must lie in 0..1"),
        ("weights", "attentions must be a tensor or an array of numbers, not str"),
    ],
)
def test_bad_attention(weights, message):
    with pytest.raises(ValueError, match=message) as caught:
        plot_attention(weights, SOURCE, TARGET)
    assert "\n" not in str(caught.value)


def test_position_encoding(tmp_path):
    table = torch.sin(torch.arange(50)[:, None] / torch.arange(1, 33))
    figure = plot_position_encoding(table, tmp_path / "positions.svg")
    image_axes, curve_axes = panels(figure)
    assert np.allclose(image_axes.get_images()[0].get_array(), table)
    for line in curve_axes.get_lines():
        assert np.allclose(line.get_ydata(), table[:, int(line.get_label())])
    assert [line.get_label() for line in curve_axes.get_lines()] == ["0", "4", "8", "16"]
    assert (tmp_path / "positions.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_position_encoding_of_two_dimensions(tmp_path):
    assert len(panels(plot_position_encoding(np.zeros((1, 2)), tmp_path / "positions.png"))) == 2


@pytest.mark.parametrize("encoding", [torch.zeros(1, 5, 4), torch.zeros(5), np.full((2, 2), np.inf), np.zeros((0, 4))])
def test_bad_position_encoding(encoding):
    with pytest.raises(ValueError, match=r"encoding must be finite numbers of shape \(positions, d_model\)"):
        plot_position_encoding(encoding)


def test_training_curve(tmp_path):
    loss_axes, bleu_axes, rate_axes = panels(plot_training_curve(LOG, tmp_path / "training.png"))
    drawn = {line.get_label(): line.get_xydata().tolist() for line in loss_axes.get_lines()}
    assert drawn["training"] == [[0, 9.0], [10, 5.0], [20, 4.0]]
    assert drawn["validation (best 4.5 at step 20)"] == [[10, 5.5], [20, 4.5], [30, 4.75]]
    assert bleu_axes.get_legend().get_texts()[0].get_text() == "validation (best 12 at step 20)"
    assert rate_axes.get_lines()[0].get_ydata().tolist() == [0.0, 1e-3, 5e-4]
    assert imread(tmp_path / "training.png").std() > 0.05


def test_training_curve_draws_only_what_was_logged():
    losses = [{"step": entry["step"], "loss": entry["loss"]} for entry in LOG if "loss" in entry]
    assert len(panels(plot_training_curve(losses))) == 1
    assert len(panels(plot_training_curve([entry for entry in LOG if "eval_loss" in entry]))) == 2


def test_diverged_run_still_draws(tmp_path):
    diverged = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": float("nan")}, {"step": 2, "eval_loss": float("inf")}]
    plot_training_curve(diverged, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 0


@pytest.mark.parametrize(
    ("log_history", "message"),
    [
        ([], "neither 'loss' nor 'eval_loss'"),
        ([{"step": 1, "train_loss": 2.0}], "neither 'loss' nor 'eval_loss'"),
        ([{"step": 1, "loss": 2.0}, {"loss": 1.0}], r"log_history\[1\] has no 'step'"),
        (["loss"], r"log_history\[0\] has no 'step'"),
    ],
)
def test_bad_log_history(log_history, message):
    with pytest.raises(ValueError, match=message):
        plot_training_curve(log_history)


def test_no_window_system_is_touched(tmp_path):
    program = f"""
import sys
from hf_vanilla_transformer.inference.visualization import plot_position_encoding
plot_position_encoding([[0.0, 1.0]], {str(tmp_path / "positions.png")!r})
assert "matplotlib.pyplot" not in sys.modules
"""
    root = ROOT
    finished = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True)
    assert finished.returncode == 0, finished.stderr


def test_missing_matplotlib_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "hf-vanilla-transformer\[plot\]"'):
        runpy.run_path(visualization.__file__)


# Fonts

CHINESE = ["猫", "坐", "在", "垫子", "上"]


@pytest.fixture
def only_own_font(monkeypatch):
    """As on a machine without any other font."""
    own = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(visualization, "_find_new_fonts", lambda: None)
    return own


def test_boxes_are_announced_once_by_the_name_of_the_script(only_own_font, tmp_path, caplog):
    plot_attention(attention(5, 5), CHINESE, ["안녕", *SOURCE[:4]], tmp_path / "attention.png", title="注意")
    (record,) = caplog.records
    assert "figure '注意': no installed font has" in record.message and "(CJK, HANGUL)" in record.message
    assert "install" in record.message and "\n" not in record.message


def test_another_font_that_has_the_characters_draws_them(only_own_font, tmp_path, caplog):
    characters = {f"u{ord(each):X}": ord(each) for each in "".join(CHINESE)}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", *characters])
    builder.setupCharacterMap({code: name for name, code in characters.items()})
    builder.setupGlyf({name: TTGlyphPen(None).glyph() for name in (".notdef", *characters)})
    builder.setupHorizontalMetrics({name: (1000, 0) for name in (".notdef", *characters)})
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    builder.setupNameTable({"familyName": "A Few Words", "styleName": "Regular"})
    builder.setupOS2(usWeightClass=400)
    builder.setupPost()
    builder.save(tmp_path / "font.ttf")
    font_manager.fontManager.addfont(tmp_path / "font.ttf")
    figure = plot_attention(attention(5, 5), CHINESE, SOURCE[:5], title="垫子")
    assert panels(figure)[0].get_xticklabels()[0].get_fontfamily() == ["DejaVu Sans", "A Few Words"]
    assert caplog.text == ""
    # Nothing is missing, or this would warn.
    figure.savefig(tmp_path / "attention.png")


# Axes


def test_long_tokens_leave_room_and_control_characters_are_escaped(tmp_path):
    tokens = ["x" * 500, "a\nb\t\0", "\N{ZERO WIDTH NON-JOINER}می", "Kraftfahrzeughaftpflicht"]
    # A panel without room would warn.
    figure = plot_attention(attention(4, 4), tokens, tokens, tmp_path / "attention.png")
    for labels in (panels(figure)[0].get_xticklabels(), panels(figure)[0].get_yticklabels()):
        shown = [label.get_text() for label in labels]
        assert shown == ["x" * 23 + "…", r"a\nb\t\x00", *tokens[2:]]


def test_self_attention_has_the_same_name_on_both_axes():
    figure = plot_attention(attention(7, 7), SOURCE, SOURCE, keys="source", queries="source")
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("source (keys)", "source (queries)")
    figure = plot_attention(attention(5, 7), SOURCE, TARGET)
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("source (keys)", "target (queries)")


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


# Single points


def visible(axes):
    return [line for line in axes.lines if len(line.get_xdata()) > 1 or line.get_marker() not in ("None", None)]


def test_a_run_of_one_epoch_is_seen():
    figure = plot_training_curve([{"step": 60, "loss": 5.0, "learning_rate": 1e-3}])
    assert [len(visible(axes)) for axes in panels(figure)] == [1, 1]
    figure = plot_learning_curves({"a": [{"epoch": 1.0, "loss": 0.5}, {"epoch": 1.0, "eval_accuracy": 0.8}]})
    assert [len(visible(axes)) for axes in panels(figure)] == [1, 1]
    (_, curves) = panels(plot_position_encoding(torch.randn(1, 8)))
    assert len(visible(curves)) == 4
    # A line of many points needs none.
    assert panels(plot_training_curve(LOG))[0].lines[0].get_marker() == "None"


# Comparisons


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
