import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import texts
from hf_vanilla_transformer.text.sentences import BULLETS, cut_long_sentence, split_sentences, whole

PARTS = st.sampled_from(["One. ", "Zwei?  ", "\r\n", "\n", " ", "三。", "Dr. Who said: no, ", "- ", "…"])
TEXTS = st.lists(st.one_of(texts(), PARTS)).map("".join)


@pytest.mark.slow
@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(TEXTS, st.sampled_from([None, "en", "de", "zh", "eng_Latn", "xx", "\0"]))
def test_a_text_is_its_sentences_in_its_layout(text, language):
    for layout in (split_sentences(text, language), whole(text)):
        assert layout.fill(layout.sentences) == text
        assert all(sentence and sentence == sentence.strip() for sentence in layout.sentences)
        assert all(map(BULLETS.fullmatch, layout.gaps))
        cut = layout.cut(lambda sentence: cut_long_sentence(sentence, 5, len))
        assert cut.fill(cut.sentences) == text
        assert all(len(sentence) <= 5 for sentence in cut.sentences)


@pytest.mark.parametrize(
    "text, language, sentences",
    [
        ("Dr. Smith sleeps.  Does he?\nYes ", "en", ["Dr. Smith sleeps.", "Does he?", "Yes"]),
        ("Das sind z. B. Hunde. Ja!", "de", ["Das sind z. B. Hunde.", "Ja!"]),
        ("你好。你好！", "zh", ["你好。", "你好！"]),
        ("One line\nand another", "en", ["One line", "and another"]),
        (" \n\t", "en", []),
        ("Wait… Tom (…) sings… and dances.… Yes…", "en", ["Wait…", "Tom (…) sings… and dances.…", "Yes…"]),
        (
            "See (https://x.y/a_(b)). TWO… https://x.y/a…b. Yes",
            "en",
            ["See (https://x.y/a_(b)).", "TWO… https://x.y/a…b.", "Yes"],
        ),
        ("-5 dogs. - a dog", "en", ["-5 dogs.", "- a dog"]),
        (
            "{n, plural, other {{n} dogs run. No!}} Yes. No",
            "en",
            ["{n, plural, other {{n} dogs run. No!}} Yes.", "No"],
        ),
        # sentencex panics.
        ("One. Two.\nB\u3000.A", "en", ["One.", "Two.", "B\u3000.A"]),
    ],
)
def test_sentences(text, language, sentences):
    assert list(split_sentences(text, language).sentences) == sentences


@pytest.mark.parametrize("mark", ["-", "–", "* ", ">", "> >", "#", "•"])
def test_bullets_are_no_text(mark):
    text = f"{mark} A dog.\n  {mark}\tA cat. It runs.\n{mark}"
    layout = split_sentences(text)
    assert layout.sentences[:3] == ("A dog.", "A cat.", "It runs.")
    assert layout.fill([*"abc", *layout.sentences[3:]]) == f"{mark} a\n  {mark}\tb c\n{mark}"
    assert whole(f"{mark} A dog. It runs.").sentences == ("A dog. It runs.",)


@pytest.mark.parametrize(
    "sentence, pieces",
    [
        ("one two, three four", ["one two, ", "three four"]),
        ("one two three four", ["one two ", "three four"]),
        ("一二三四五，六七八九十", ["一二三四五，", "六七八九十"]),
        ("abcdefghijklmnop", ["abcdefgh", "ijklmnop"]),
        ("short", ["short"]),
    ],
)
def test_long_sentences_are_cut_where_it_harms_least(sentence, pieces):
    assert cut_long_sentence(sentence, 10, len) == pieces


def test_messages_of_icu_are_not_cut():
    message = "{n, plural, other {a, b}}"
    assert cut_long_sentence(f"one two {message}", len(message), len) == ["one two ", message]
