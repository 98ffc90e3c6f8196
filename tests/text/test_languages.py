"""Language detection."""

import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.text.languages import detect, is_installed, is_known, is_right_to_left, odds_against
from tables import looped

SENTENCES = {
    "en": "The small dog sleeps in the garden.",
    "de": "Der kleine Hund schläft im Garten.",
    "es": "El perro pequeño duerme en el jardín.",
    "ru": "Маленькая собака спит в саду.",
    "zh": "小狗在花园里睡觉。",
}
NO_LANGUAGE = ["", " ", "42", "3.14 + 2", "😀👍", "\x00", "…", "⟦1⟧", "\ud800", "１２"]


class TestDetect:
    @looped("language", SENTENCES)
    def test_sentences(self, language):
        detected, probability = detect(SENTENCES[language], SENTENCES)
        assert detected == language and 0.8 < probability <= 1

    def test_answers_are_codes_as_given(self):
        codes = ["eng_Latn", "de-AT", "es_XX", "RU"]
        for text, code in zip(SENTENCES.values(), codes, strict=False):
            assert detect(text, codes)[0] == code

    def test_language_that_is_not_asked_for(self):
        assert detect(SENTENCES["es"], ["en", "de"])[1] < 0.1 and detect(SENTENCES["zh"], ["en", "de"])[1] < 0.1
        assert detect(SENTENCES["es"], ["en"])[1] < 0.1 and detect(SENTENCES["en"], ["en"])[1] > 0.8

    @looped("text", NO_LANGUAGE)
    def test_text_in_no_language(self, text):
        assert detect(text, ["de", "en"])[1] == 0

    def test_long_texts(self):
        assert detect(SENTENCES["de"] * 10_000, ["en", "de"])[0] == "de"

    @given(st.text(), st.sets(st.sampled_from(sorted(SENTENCES)), min_size=1))
    @settings(deadline=None, max_examples=50)
    def test_any_text(self, text, among):
        language, probability = detect(text, among)
        assert language in among and 0 <= probability <= 1
        assert odds_against(text, language) >= 1


class TestOddsAgainst:
    @looped("language", SENTENCES)
    def test_sentences(self, language):
        odds = {other: odds_against(text, language) for other, text in SENTENCES.items()}
        assert odds.pop(language) == 1 and min(odds.values()) > 100

    @looped("text", [*NO_LANGUAGE, "Tom", "OK"])
    def test_text_in_no_language(self, text):
        assert odds_against(text, "en") < 10


class TestCodes:
    def test_known(self):
        assert all(map(is_known, ["en", "eng", "eng_Latn", "pt-BR", "zho_Hans", "zh_CN", "nb", "EN"]))
        assert not any(map(is_known, ["", "xx", "smiles", "zxx", "target", "⟦1⟧"]))

    def test_aliases_are_languages_of_the_library(self):
        from hf_vanilla_transformer.text import languages

        assert {*languages._ALIASES.values()} <= {*languages._identifier().labels}

    def test_unknown(self):
        for call in (lambda: detect("a", ["en", "smiles"]), lambda: odds_against("a", "smiles")):
            with pytest.raises(DataError, match="'smiles'"):
                call()


def test_without_the_library(no_language_detector):
    assert not is_installed() and sys.modules["py3langid"] is None
    for call in (lambda: detect("a", ["en"]), lambda: odds_against("a", "en"), lambda: is_known("en")):
        with pytest.raises(DataError, match="pip install py3langid"):
            call()


@looped(
    "language, expected",
    [
        ("ar", True),
        ("AR-eg", True),
        ("heb_Hebr", True),
        ("fas", True),
        ("az-Arab", True),
        ("ur-Latn", False),
        ("de", False),
    ],
)
def test_languages_written_from_right_to_left(language, expected):
    assert is_right_to_left(language) == expected
