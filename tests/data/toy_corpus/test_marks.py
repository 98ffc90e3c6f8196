from pathlib import Path

import pytest

from hf_vanilla_transformer.data.alignments import format_pharaoh, parse_pharaoh
from hf_vanilla_transformer.data.toy_corpus.corpus import split_sentences
from hf_vanilla_transformer.data.toy_corpus.marks import SURE, link, link_possibly, links, without_marks

SAMPLE = Path(__file__).with_name("alignments.tsv")


@pytest.fixture(scope="module")
def sentences():
    return [sentence for split in split_sentences(3_000).values() for sentence in split]


def test_alignments_of_the_hand_checked_sample():
    """Of the sentences at the beginning of the test and the validation split."""
    splits = split_sentences()
    sentences = {each.source: each for split in ("test", "validation") for each in splits[split]}
    rows = [line.split("\t") for line in SAMPLE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    assert len(rows) == 52
    for source, target, sure, possible in rows:
        sentence = sentences[source]
        assert sentence.target == target
        assert format_pharaoh(sorted(sentence.sure)) == sure, source
        assert sentence.possible - sentence.sure == set(parse_pharaoh(possible)), source


def test_every_word_is_linked(sentences):
    for sentence in sentences:
        assert sentence.sure <= sentence.possible
        sides = (sentence.source.split(), sentence.target.split())
        for side, words in enumerate(sides):
            assert {link[side] for link in sentence.possible} == set(range(len(words))), sentence


def test_no_mark_is_left_in_a_sentence(sentences):
    for sentence in sentences:
        assert without_marks(sentence.source + sentence.target) == sentence.source + sentence.target


@pytest.mark.parametrize(
    ("english", "spanish", "sure", "possible"),
    [
        ("the dog", "el perro", {(0, 0), (1, 1)}, {(0, 0), (1, 1)}),
        ("last week", "la semana pasada", {(0, 2), (1, 1)}, {(0, 2), (1, 1), (0, 0), (1, 0)}),
        ("often", "a menudo", {(0, 1)}, {(0, 0), (0, 1)}),
    ],
)
def test_expressions(english, spanish, sure, possible):
    expression = link(english, spanish)
    assert (without_marks(expression.english), without_marks(expression.spanish)) == (english, spanish)
    assert links(*expression) == (sure, possible)


def test_possible_links_add_to_sure_ones():
    english, spanish = link("teacher", "profesora")
    english, spanish = link_possibly(f"a {english}", spanish)
    assert links(english, spanish) == ({(1, 0)}, {(0, 0), (1, 0)})


def test_the_table_names_words_that_exist():
    for expressions, positions in SURE.items():
        for position in positions:
            assert all(i < len(words.split()) for i, words in zip(position, expressions, strict=True))
