import gzip

import numpy as np
import pytest
import sacrebleu

from hf_vanilla_transformer.training.metrics import translation_scores

PREDICTION, REFERENCE = "the cat sat on the mat", "the cat sat on a mat"


def test_bleu_by_hand():
    # 5 of 6 words, 3 of 5 bigrams, 2 of 4 trigrams and 1 of 3 four-grams match; the lengths are equal.
    expected = 100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25
    assert translation_scores([PREDICTION], [REFERENCE])["bleu"] == pytest.approx(expected)


def test_brevity_penalty_by_hand():
    # Every n-gram of "a b c d" matches, and 4 words stand for 6.
    assert translation_scores(["a b c d"], ["a b c d e f"])["bleu"] == pytest.approx(100 * np.exp(1 - 6 / 4))


def test_chrf_is_that_of_sacrebleu_and_bleu_is_of_the_corpus():
    predictions, references = [PREDICTION, "a dog barks at night"], [REFERENCE, "a dog barks loudly at night"]
    scores = translation_scores(predictions, references)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(predictions, [references]).score)
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(predictions, [references]).score)
    sentence_mean = np.mean(
        [translation_scores([p], [r])["bleu"] for p, r in zip(predictions, references, strict=True)]
    )
    assert scores["bleu"] != pytest.approx(sentence_mean)


def test_signatures_tell_the_options():
    cased = translation_scores([PREDICTION], [REFERENCE])
    lowercased = translation_scores([PREDICTION], [[REFERENCE, PREDICTION]], lowercase=True, tokenize="char")
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in cased["bleu_signature"]
    assert "nrefs:2|case:lc|eff:no|tok:char|smooth:exp" in lowercased["bleu_signature"]
    assert "nc:6|nw:0" in cased["chrf_signature"]


def test_lowercase():
    predictions, references = ["THE Cat Sat On The Mat ."], ["the cat sat on the mat ."]
    cased = translation_scores(predictions, references)
    lowercased = translation_scores(predictions, references, lowercase=True)
    assert cased["bleu"] < 30 and cased["exact_match"] == 0
    assert [lowercased[key] for key in ("bleu", "chrf", "exact_match")] == pytest.approx([100, 100, 100])


def test_exact_match_is_a_percentage_that_leaves_out_outer_white_space():
    assert translation_scores(["CCO ", "C C", "N", "O"], ["CCO", "CC", "N", "N"])["exact_match"] == 50


def test_references_may_differ_in_number():
    scores = translation_scores([PREDICTION, "so be it now"], [[REFERENCE, PREDICTION], ["so be it now"]])
    assert scores["bleu"] == pytest.approx(100)
    assert scores["exact_match"] == 100
    assert "nrefs:var" in scores["bleu_signature"]


@pytest.mark.parametrize(
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


def test_unknown_tokenizer():
    with pytest.raises(ValueError, match="`tokenize` 13b is unknown; use one of .*13a"):
        translation_scores(["a"], ["a"], tokenize="13b")


def test_real_corpus(shared_data):
    with gzip.open(shared_data / "multi30k" / "test_2016_flickr.de.gz", "rt", encoding="utf-8", newline="\n") as file:
        references = [line.rstrip("\n") for line in file]
    predictions = [" ".join(line.split()[:-1]) for line in references]
    scores = translation_scores(predictions, references)
    assert len(references) == 1000
    assert scores["bleu"] == sacrebleu.corpus_bleu(predictions, [references]).score
    assert translation_scores(references, references)["exact_match"] == 100
