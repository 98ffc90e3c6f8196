"""Fonts of figures, and what is said where matplotlib is missing."""

import runpy
import sys

import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager

from drawings import attention, panels
from hf_vanilla_transformer.inference import figures
from hf_vanilla_transformer.inference.visualization import plot_attention

SOURCE = ["¿", "Dónde", "$", "über", "$", "猫", "</s>"]


def test_missing_matplotlib_names_the_remedy(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r'pip install "hf-vanilla-transformer\[plot\]"'):
        runpy.run_path(figures.__file__)


# Fonts

CHINESE = ["猫", "坐", "在", "垫子", "上"]


@pytest.fixture
def only_own_font(monkeypatch):
    """As on a machine without any other font."""
    own = [font for font in font_manager.fontManager.ttflist if font.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", own)
    monkeypatch.setattr(figures, "_find_new_fonts", lambda: None)
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
