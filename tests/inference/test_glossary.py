"""Glossaries: files, and finding terms in sentences."""

import gzip

import pytest

from hf_vanilla_transformer.inference.glossary import Glossary, in_word, read_glossary
from tables import looped

ANIMALS = Glossary.of({"dog": "perro", "guard dog": "perro guardián", "US": "EE. UU.", "cat": "gato", "C++": "C++"})


@looped(
    ("sentence", "expected"),
    [
        ("a dog", ["perro"]),
        ("Dog, cat!", ["perro", "gato"]),
        ("DOG", []),
        ("dogs hotdog dog_2 dog2", []),
        ("the dog's cat-like dog", ["perro", "gato", "perro"]),
        ("a guard \t dog and a dog", ["perro guardián", "perro"]),
        ("Guard dog", ["perro guardián"]),
        ("Guard Dog", ["perro"]),
        ("tell us of the US.", ["EE. UU."]),
        ("in C++, not C", ["C++"]),
        ("C++11", ["C++"]),
        ("", []),
    ],
)
def test_terms_are_found_as_whole_words(sentence, expected):
    assert ANIMALS.translations_in(sentence) == expected


def test_the_leftmost_term_counts_and_there_the_longest():
    glossary = Glossary.of({"a b": "1", "b c d": "2", "a": "3", "c": "4", "a b c e": "5"})
    assert glossary.translations_in("a b c d") == ["1", "4"]
    assert glossary.translations_in("a b c e a") == ["5", "3"]


def test_letters_with_marks_are_the_same_however_they_are_composed():
    assert Glossary.of({"cafe\u0301": "café"}).translations_in("un caf\u00e9") == ["café"]
    assert Glossary.of({"cafe": "x"}).translations_in("un cafe\u0301") == []
    # A Devanagari vowel sign is not a letter, but part of a word.
    assert Glossary.of({"काम": "work"}).translations_in("काम कामी") == ["work"]


def test_scripts_without_blanks_have_no_word_boundaries():
    assert Glossary.of({"猫": "cat"}).translations_in("黒猫が寝る") == ["cat"]
    assert Glossary.of({"แมว": "cat"}).translations_in("แมวนอน") == ["cat"]
    assert not in_word("猫") and in_word("가") and in_word("é") and not in_word("-")


def test_a_glossary_is_a_value():
    assert Glossary.of({"a": "b"}) == Glossary((("a", "b"),))
    assert len({Glossary.of({"a": "b"}), Glossary.of({"a": "b"}), Glossary.of({"a": "c"})}) == 2
    assert Glossary.of({}).translations_in("a") == []


@looped(
    ("entries", "message"),
    [
        ({"a": " "}, "a glossary's translation is empty"),
        ({"": "b"}, "a glossary's term is empty"),
        ({"a": 1}, "translation is a int"),
        ({"a": "\ud800"}, "lone surrogate"),
        ({"a b": "x", "a  b": "y"}, "two translations, 'x' and 'y'"),
    ],
)
def test_entries_that_cannot_be_used(entries, message):
    with pytest.raises(ValueError, match=message) as caught:
        Glossary.of(entries)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_file(tmp_path, compressed):
    path, data = tmp_path / "terms.tsv", "\ufeffdog\tperro\r\n\n US \t EE. UU.\ndog\tperro\n".encode()
    path.write_bytes(gzip.compress(data) if compressed else data)
    assert read_glossary(path) == Glossary((("dog", "perro"), ("US", "EE. UU.")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dog\tperro\ncat gato\n", "line 2: 0 tabs instead of one; write a term, a tab and its translation"),
        ("dog\tperro\tcan\n", "line 1: 2 tabs instead of one; write a term"),
        ("\n\tperro\n", "line 2: a glossary's term is empty"),
        ("dog\tperro\ncat\tgato\ndog\tcan\n", "line 3: the term 'dog' has two translations, 'perro' and 'can'; keep"),
    ],
)
def test_a_file_that_cannot_be_used(tmp_path, text, message):
    path = tmp_path / "terms.tsv"
    path.write_text(text)
    with pytest.raises(ValueError, match="terms.tsv, ") as caught:
        read_glossary(path)
    assert message in str(caught.value) and "\n" not in str(caught.value)
