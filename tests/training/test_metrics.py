import re
from unittest.mock import Mock
from urllib.error import HTTPError, URLError

import pytest
from sacrebleu.metrics import BLEU, CHRF, TER

from hf_vanilla_transformer.text.notation import PROSE, SMILES, SYMBOLS, WORDS, Notation
from hf_vanilla_transformer.training.metrics import (
    METRIC_NAMES,
    bleu_fault,
    check_tokenizer,
    language_tokenizer,
    metrics_for,
    top_k_accuracy,
    translation_scores,
)
from tables import looped

PREDICTION, REFERENCE = "the cat sat on the mat", "the cat sat on a mat"


def test_bleu_by_hand():
    # 5 of 6 words, 3 of 5 bigrams, 2 of 4 trigrams and 1 of 3 four-grams match; the lengths are equal.
    expected = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert translation_scores([PREDICTION], [REFERENCE])["bleu"] == pytest.approx(expected)


def test_lowercase():
    predictions, references = ["THE Cat Sat On The Mat ."], ["the cat sat on the mat ."]
    cased = translation_scores(predictions, references)
    lowercased = translation_scores(predictions, references, lowercase=True)
    assert cased["bleu"] < 30 and cased["exact_match"] == 0
    assert [lowercased[key] for key in ("bleu", "chrf", "exact_match")] == pytest.approx([100, 100, 100])


def test_every_metric_is_that_of_sacrebleu():
    predictions = ["The CAT sat on the mat .", "a dog barks at night"]
    references = [
        ["the cat sat on a mat .", "A cat sat there ."],
        ["a dog barks loudly at night", "dogs bark at night"],
    ]
    columns = list(zip(*references, strict=True))
    scores = translation_scores(predictions, references, tokenize="none", metrics=METRIC_NAMES)
    metrics = {"bleu": BLEU(tokenize="none"), "lowercase_bleu": BLEU(tokenize="none", lowercase=True)}
    for key, metric in (metrics | {"chrf": CHRF(), "chrfpp": CHRF(word_order=2), "ter": TER()}).items():
        assert scores[key] == metric.corpus_score(predictions, columns).score
        assert scores[f"{key}_signature"] == str(metric.get_signature())
    assert scores.keys() == {*METRIC_NAMES, *(f"{key}_signature" for key in METRIC_NAMES), "exact_match"}


def test_exact_match_is_a_percentage_that_leaves_out_outer_white_space():
    assert translation_scores(["CCO ", "C C", "N", "O"], ["CCO", "CC", "N", "N"])["exact_match"] == 50


SOURCES = ["live", "read", "live", "tear"]
PHONES = ["L AY V", "R EH D", "L IH V", "T EH R"]


class TestErrorRates:
    @looped(
        ("predictions", "wer", "ser"),
        [
            (PHONES, 0, 0),
            # The output of a repeated source counts once, with either pronunciation.
            (["L IH V", "R EH D", "X", "T EH R"], 0, 0),
            # Of live, read and tear, one is wrong, by two of nine phones.
            (["L AY V D D", "R EH D", "L AY V", "T EH R"], 100 / 3, 200 / 9),
            ([" L  IH V ", "R EH D", "", "T EH R"], 0, 0),
            (["", "", "", ""], 100, 100),
        ],
    )
    def test_count_sources(self, predictions, wer, ser):
        metrics = {"metrics": ["wer", "ser"], "sources": SOURCES, "symbols": SYMBOLS}
        scores = translation_scores(predictions, PHONES, **metrics)
        assert [scores[key] for key in ("wer", "ser", "exact_match")] == pytest.approx([wer, ser, 100 - wer])
        assert scores["ser_signature"] == "sources:3|refs:4|case:mixed|symbols:whitespace"

    def test_count_lines_without_sources(self):
        scores = translation_scores(["L IH V", *PHONES[1:]], PHONES, metrics=["wer"], symbols=SYMBOLS)
        assert scores == {"wer": 25, "wer_signature": "sources:4|refs:4|case:mixed", "exact_match": 75}

    def test_need_a_source_for_each_reference(self):
        for sources in (SOURCES[1:], [*SOURCES, "more"]):
            with pytest.raises(ValueError, match=f"{len(sources)} sources but 4 references"):
                translation_scores(PHONES, PHONES, metrics=["wer"], sources=sources)

    @looped(
        ("symbols", "ser"),
        # A chlorine is one atom of five symbols, two of six characters, in the only word.
        [(SMILES, 20), (WORDS, 100 / 3), (SYMBOLS, 100), (PROSE, 100)],
    )
    def test_symbols(self, symbols, ser):
        assert translation_scores(["CC(N)"], ["CC(Cl)"], metrics=["ser"], symbols=symbols)["ser"] == pytest.approx(ser)

    def test_the_closest_reference(self):
        scores = translation_scores(["katze"], [["hunde", "katzen"]], metrics=["ser"], lowercase=True)
        assert scores["ser"] == pytest.approx(100 / 6) and "case:lc" in scores["ser_signature"]

    def test_lines_decide_the_metrics_of_sacrebleu(self):
        metrics = {"metrics": ["bleu", "wer"], "sources": SOURCES, "symbols": SYMBOLS}
        scores = translation_scores(PHONES, PHONES[::-1], **metrics)
        assert scores["bleu"] == translation_scores(PHONES, PHONES[::-1])["bleu"]

    def test_of_each_notation(self):
        prose, words = Notation(PROSE, ""), Notation(WORDS, "")
        assert metrics_for(prose) == ("bleu", "chrf") == metrics_for(prose, "exact_match")
        assert metrics_for(prose, final=True) == tuple(METRIC_NAMES)
        assert metrics_for(words) == ("wer", "ser") == metrics_for(words, "loss", final=True)
        assert metrics_for(prose, "ser") == ("bleu", "chrf", "wer", "ser")
        assert metrics_for(words, "bleu") == ("wer", "ser", "bleu", "chrf")


class TestTopK:
    def test_counts_sources(self):
        hypotheses = [["X", "L IH V"], ["R EH D", "Y"], ["L AY V", "L IH V"], ["Z", "Y"]]
        scores = top_k_accuracy(hypotheses, PHONES, [2, 1, 2], sources=SOURCES, symbols=SYMBOLS)
        assert scores == pytest.approx({"top_1": 100 / 3, "top_2": 200 / 3})

    def test_lists_that_are_too_short(self):
        with pytest.raises(ValueError, match="line 2 has 1 hypotheses, fewer than `top_k` 2"):
            top_k_accuracy([["a", "b"], ["c"]], ["a", "c"], [1, 2])


@looped(
    ("predictions", "references", "message"),
    [
        (["a"], ["a", "b"], "1 predictions but 2 references"),
        ([], [], "are empty"),
        (["a", 3], ["a", "b"], r"predictions\[1\] must be a string, not 3"),
        (["a", "b"], ["a", None], r"references\[1\] must be a string"),
        (["a", "b"], ["a", []], r"references\[1\] must be a string or a non-empty list"),
        (["a"], [["a", 1]], r"references\[0\]"),
        ("a", ["a"], "`predictions` must be a list"),
        (["a"], None, "`references` must be a list"),
    ],
)
def test_bad_translations(predictions, references, message):
    with pytest.raises(ValueError, match=message) as caught:
        translation_scores(predictions, references)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (URLError("no network"), r"\(no network\); run the command once while online, or name another tokenizer"),
        (HTTPError("https://x.example/a", 403, "Forbidden", {}, None), r"\(403 Forbidden from x.example\); try again"),
    ],
)
def test_a_tokenizer_that_cannot_be_downloaded(monkeypatch, error, message):
    monkeypatch.setattr("hf_vanilla_transformer.training.metrics.BLEU.__init__", Mock(side_effect=error))
    with pytest.raises(ValueError, match=f"`tokenize` flores200 cannot be used: its model cannot be .*{message}"):
        check_tokenizer("flores200")


def test_a_tokenizer_whose_package_is_missing(monkeypatch):
    tokenizer = pytest.importorskip("sacrebleu.tokenizers.tokenizer_ja_mecab", reason="other versions of sacreBLEU")
    monkeypatch.setattr(tokenizer, "MeCab", None)
    with pytest.raises(
        ValueError, match=r"`bleu_tokenize` ja-mecab cannot be used: .*pip install sacrebleu\[ja\]"
    ) as caught:
        check_tokenizer("ja-mecab", "bleu_tokenize")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("tokenize", "warned"), [("13a", 1), ("none", 0)])
def test_tokenized_text_is_warned_of_once_unless_it_is_meant(caplog, tokenize, warned):
    tokenized = ["a man sleeps ."] * 100
    translation_scores(tokenized, tokenized, tokenize=tokenize, metrics=METRIC_NAMES)
    assert caplog.text.count("forgot to detokenize") == warned


def test_the_tokenizer_of_a_language():
    expected = {None: "13a", "de": "13a", "zh": "zh", "zh-TW": "zh", "zho_Hans": "zh", "ja_XX": "ja-mecab"}
    expected["ko"] = "ko-mecab"
    assert {language: language_tokenizer(language) for language in expected} == expected


@looped(
    ("references", "tokenize", "fault"),
    [
        (["a b c d", "a"], None, None),
        (["a b c d", "a", "b"], None, r"2 of 3 references have fewer than the 4 tokens \(13a\)"),
        # Another reference of the segment has them.
        ([["a", "a b c d"], ["b", "c"]], None, None),
        (["C(=O)O", "N(=O)O"], None, "2 of 2 references have no space between tokens"),
        (["C(=O)O", "N(=O)O"], "char", None),
        (["cat", "dog"], "char", "2 of 2"),
    ],
)
def test_text_that_bleu_does_not_suit(references, tokenize, fault):
    found = bleu_fault(references, tokenize)
    assert found is None if fault is None else re.match(fault, found)
