"""Figures, their fonts, and the message without matplotlib."""

import sys
from importlib.util import module_from_spec, spec_from_file_location

import numpy as np
import pytest
import torch
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from matplotlib.image import imread

from drawings import attention, panels, tick_labels, visible
from hf_vanilla_transformer.training import visualization
from hf_vanilla_transformer.training.visualization import plot_attention, plot_position_encoding, plot_training_curve
from tables import looped

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


def test_attention_of_one_head(tmp_path):
    weights = attention(len(TARGET), len(SOURCE))
    figure = plot_attention(weights.bfloat16(), SOURCE, TARGET, tmp_path / "new" / "attention.png", title="a $ b")
    (axes,) = panels(figure)
    (image,) = axes.get_images()
    assert np.allclose(image.get_array(), weights, atol=1e-2)
    assert image.get_clim() == (0, 1)
    assert tick_labels(axes.xaxis) == SOURCE and tick_labels(axes.yaxis) == TARGET
    assert imread(tmp_path / "new" / "attention.png").std() > 0.05


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


def test_long_sentences_get_small_labels():
    tokens = [f"token{i}" for i in range(60)]
    figure = plot_attention(attention(60, 60), tokens, tokens)
    width, height = figure.get_size_inches()
    assert max(width, height) < 30
    labels = panels(figure)[0].yaxis.get_ticklabels()
    figure.draw_without_rendering()
    tops = [label.get_window_extent() for label in labels]
    assert all(not upper.overlaps(lower) for upper, lower in zip(tops, tops[1:], strict=False))


def test_very_long_sides_are_cut_and_the_title_says_so():
    tokens = [f"token{i}" for i in range(5000)]
    figure = plot_attention(attention(4, 5000), tokens, TARGET[:4])
    (axes,) = panels(figure)
    assert tick_labels(axes.xaxis) == tokens[:60] and tick_labels(axes.yaxis) == TARGET[:4]
    assert axes.images[0].get_array().shape == (4, 60)
    assert "60 of 5000 source tokens" in figure.get_suptitle() and "target" not in figure.get_suptitle()


@looped(
    ("weights", "message"),
    [
        (attention(7, 5), r"shape \(7, 5\) do not match 5 target and 7 source tokens"),
        (attention(1, 2, 5, 7), r"shape \(1, 2, 5, 7\)"),
        (attention(0, 5, 7), r"shape \(0, 5, 7\)"),
        (3 * torch.ones(5, 7), r"0\.\.1, not in 3\.\.3; pass the weights after the softmax"),
        (torch.full((5, 7), float("nan")), "must lie in 0..1"),
        ("weights", "`attentions` must be a tensor or an array of numbers, not str"),
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


@looped("encoding", [torch.zeros(1, 5, 4), torch.zeros(5), np.full((2, 2), np.inf), np.zeros((0, 4))])
def test_bad_position_encoding(encoding):
    with pytest.raises(ValueError, match=r"`encoding` must be finite numbers of shape \(positions, d_model\)"):
        plot_position_encoding(encoding)


def test_training_curve(tmp_path):
    loss_axes, bleu_axes, rate_axes = panels(plot_training_curve(LOG, tmp_path / "training.png"))
    drawn = {line.get_label(): line.get_xydata().tolist() for line in loss_axes.get_lines()}
    assert drawn["training"] == [[0, 9.0], [10, 5.0], [20, 4.0]]
    assert drawn["validation (best 4.5 at step 20)"] == [[10, 5.5], [20, 4.5], [30, 4.75]]
    assert bleu_axes.get_legend().get_texts()[0].get_text() == "validation (best 12 at step 20)"
    assert rate_axes.get_lines()[0].get_ydata().tolist() == [0.0, 1e-3, 5e-4]
    assert imread(tmp_path / "training.png").std() > 0.05


def test_training_curve_of_another_score():
    log = [*LOG, {"step": 10, "eval_chrf": 30.0}, {"step": 20, "eval_chrf": 40.0}]
    _, axes, _ = panels(plot_training_curve(log, metric="chrf"))
    assert axes.get_ylabel() == "chrF2"
    assert axes.get_legend().get_texts()[0].get_text() == "validation (best 40 at step 20)"
    log = [*LOG, {"step": 10, "eval_wer": 30.0}, {"step": 20, "eval_wer": 40.0}]
    _, axes, _ = panels(plot_training_curve(log, metric="wer"))
    assert axes.get_ylabel() == "WER, %"
    assert axes.get_legend().get_texts()[0].get_text() == "validation (best 30 at step 10)"


def test_training_curve_says_what_the_losses_are():
    figure = plot_training_curve(LOG, label_smoothing=0.1, dropout=0.25, vocab_size=50)
    loss_axes, bleu_axes, _ = panels(figure)
    legend = [text.get_text() for text in loss_axes.get_legend().get_texts()]
    assert legend == [
        "training, with label smoothing 0.1 and dropout 0.25",
        "validation, without (best 4.5 at step 20)",
        "lower bound of training, due to label smoothing (0.702)",
    ]
    assert loss_axes.get_ylim()[0] == bleu_axes.get_ylim()[0] == 0
    # The lower bound is the loss of a model that predicts exactly the smoothed labels.
    (line,) = [line for line in loss_axes.get_lines() if line.get_linestyle() == ":"]
    label, probabilities = torch.tensor([3]), torch.full((1, 50), 0.1 / 50)
    probabilities[0, 3] += 0.9
    least = torch.nn.functional.cross_entropy(probabilities.log(), label, label_smoothing=0.1)
    assert line.get_ydata()[0] == pytest.approx(least.item(), abs=1e-6)
    (loss_axes, *_) = panels(plot_training_curve(LOG, dropout=0.1, vocab_size=50))
    legend = [text.get_text() for text in loss_axes.get_legend().get_texts()]
    assert legend == ["training, with dropout 0.1", "validation, without (best 4.5 at step 20)"]


def test_training_curve_draws_only_what_was_logged():
    losses = [{"step": entry["step"], "loss": entry["loss"]} for entry in LOG if "loss" in entry]
    assert len(panels(plot_training_curve(losses))) == 1
    assert len(panels(plot_training_curve([entry for entry in LOG if "eval_loss" in entry]))) == 2


def test_diverged_run_still_draws(tmp_path):
    diverged = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": float("nan")}, {"step": 2, "eval_loss": float("inf")}]
    plot_training_curve(diverged, tmp_path / "training.png")
    assert (tmp_path / "training.png").stat().st_size > 0


@looped(
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


def imported_again():
    """Return another copy of the module, which leaves the one of other tests as it is."""
    spec = spec_from_file_location(f"{visualization.__name__}_again", visualization.__file__)
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_no_window_system_is_touched(monkeypatch):
    # pyplot would choose a backend.
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    assert imported_again().plot_position_encoding([[0.0, 1.0]]).axes


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
    figure = plot_attention(attention(5, 7), SOURCE, TARGET, limit=0.3)
    assert (figure.get_supxlabel(), figure.get_supylabel()) == ("source (keys)", "target (queries)")
    assert panels(figure)[0].get_images()[0].get_clim() == (0, 0.3)


def test_a_run_of_one_epoch_is_seen():
    figure = plot_training_curve([{"step": 60, "loss": 5.0, "learning_rate": 1e-3}])
    assert [len(visible(axes)) for axes in panels(figure)] == [1, 1]
    for encoding, lines in ((torch.randn(1, 8), 4), (np.zeros((1, 2)), 2)):
        (_, curves) = panels(plot_position_encoding(encoding))
        assert len(visible(curves)) == lines
    # A line of many points needs no marker.
    assert panels(plot_training_curve(LOG))[0].lines[0].get_marker() == "None"


def test_missing_matplotlib_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        imported_again()


CHINESE = ["猫", "坐", "在", "垫子", "上"]


@pytest.fixture
def only_own_font(monkeypatch):
    """Simulate a machine without any other font."""
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
    # A missing glyph would warn.
    figure.savefig(tmp_path / "attention.png")
