import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import texts
from hf_vanilla_transformer.text.sentences import (
    BULLETS,
    TextLayout,
    cut_long_sentence,
    split_lines,
    split_sentences,
    whole,
)
from tables import looped

PARTS = st.sampled_from(
    [
        "One. ",
        "Zwei?  ",
        "\r\n",
        "\n",
        " ",
        "\u3000",
        "三。",
        "Dr. Who said: no, ",
        "- ",
        "…",
        "「",
        "」と",
        "ខ។",
        '"',
        "(",
        ")",
    ]
)
TEXTS = st.lists(st.one_of(texts(), PARTS)).map("".join)


@pytest.mark.slow
@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(TEXTS, st.sampled_from([None, "en", "de", "zh", "eng_Latn", "xx", "\0"]))
def test_a_text_is_its_sentences_in_its_layout(text, language):
    for layout in (
        split_sentences(text, language),
        whole(text),
        split_lines(text, bullets=True),
        split_sentences(text, language, bullets=False),
        whole(text, bullets=False),
        split_lines(text),
    ):
        assert layout.target_gaps(layout.sentences) == layout.gaps
        assert layout.fill(layout.sentences) == text
        assert all(sentence and sentence == sentence.strip() for sentence in layout.sentences)
        assert all(map(BULLETS.fullmatch, layout.gaps))
        cut = layout.cut(lambda sentence: cut_long_sentence(sentence, 5, len))
        assert cut.fill(cut.sentences) == text
        assert all(len(sentence) <= 5 for sentence in cut.sentences)


@looped(
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
        ("犬が走る。猫が寝る。", None, ["犬が走る。", "猫が寝る。"]),
        ("彼は「はい。」と言った。「行く。」", "ja", ["彼は「はい。」と言った。", "「行く。」"]),
        ("『はい。いいえ。』、（ね。）は。そう。", "ja", ["『はい。いいえ。』、（ね。）は。", "そう。"]),
        ("「はい。」彼は去った。", "ja", ["「はい。」", "彼は去った。"]),
        ('그는 "네."라고 했다. 끝.', "ko", ['그는 "네."라고 했다.', "끝."]),
        ('He said "I am. You are." Then he left.', "en", ['He said "I am. You are."', "Then he left."]),
        ("(I am. (You are. No.) Yes.) Go. No.", "en", ["(I am. (You are. No.) Yes.) Go.", "No."]),
        ("Er sagt ‚Ja. Nein.‘ und geht. Gut.", "de", ["Er sagt ‚Ja. Nein.‘ und geht.", "Gut."]),
        ("【あ。い。」う。", "ja", ["【あ。", "い。」", "う。"]),
        ("Er sagt »Ja. Nein.« und geht. Gut.", "de", ["Er sagt »Ja. Nein.« und geht.", "Gut."]),
        ("ទៅ។មក៕ ទៅ ។ល។ មក", "km", ["ទៅ។", "មក៕", "ទៅ ។ល។ មក"]),
        ("သူသွား။ငါလာ။", "my", ["သူသွား။", "ငါလာ။"]),
        ("वह गया।मैं आया।", "hi", ["वह गया।", "मैं आया।"]),
        ("ሰላም።እንዴት።", "am", ["ሰላም።", "እንዴት።"]),
        ("Նա գնաց։Ես եկա։", "hy", ["Նա գնաց։", "Ես եկա։"]),
        ("چطوری؟خوبم۔نه", "fa", ["چطوری؟", "خوبم۔", "نه"]),
        # sentencex panics.
        ("One. Two.\nB\u3000.A", "en", ["One.", "Two.", "B\u3000.A"]),
    ],
)
def test_sentences(text, language, sentences):
    assert list(split_sentences(text, language).sentences) == sentences


@looped("mark", ["-", "–", "* ", ">", "> >", "#", "•"])
def test_bullets_are_no_text(mark):
    text = f"{mark} A dog.\n  {mark}\tA cat. It runs.\n{mark}"
    layout = split_sentences(text)
    assert layout.sentences[:3] == ("A dog.", "A cat.", "It runs.")
    assert layout.fill([*"abc", *layout.sentences[3:]]) == f"{mark} a\n  {mark}\tb c\n{mark}"
    assert whole(f"{mark} A dog. It runs.").sentences == ("A dog. It runs.",)


def test_bullets_may_be_text():
    text = " - A dog. It runs.\n\n> \n* A cat. \n"
    for split in (split_lines, split_sentences):
        kept = split(text, bullets=False)
        assert kept.sentences[0].startswith("- A dog.") and kept.sentences[-2:] == (">", "* A cat.")
        assert kept.gaps[0] == " " and kept.gaps[-3:] == ("\n\n", " \n", " \n")
    assert split_lines(text) == split_lines(text, bullets=False)
    assert split_lines(text, bullets=True) == TextLayout(("A dog. It runs.", "A cat."), (" - ", "\n\n> \n* ", " \n"))
    assert whole(text, bullets=False) == TextLayout((text.strip(),), (" ", " \n"))


def test_sentences_are_joined_as_the_target_language_joins_them():
    english = TextLayout(("One.", "Two."), ("", " ", ""))
    chinese = TextLayout(("三。", "四。"), ("\u3000", "", "\u3000\n"))
    spaced = TextLayout(("三。", "四。"), ("", "\u3000", ""))
    for pair in [
        ("一。", "二。"),
        ("はい", "OK"),
        ("OK", "ㄅ"),
        ("“好。”", "x"),
        ("x", "「ア"),
        ("！", "x"),
        ("好……", "x"),
    ]:
        assert english.fill(pair) == spaced.fill(pair) == "".join(pair)
    for pair in [("Ja.", "Nein."), ("ใช่", "ไม่"), ("네.", "「아니요.」"), ("ទៅ។", "មក។"), ("⟦1⟧", "⟦2⟧"), ("「", "」")]:
        assert english.fill(pair) == spaced.fill(pair) == " ".join(pair)
        assert chinese.fill(pair) == "\u3000" + " ".join(pair) + "\u3000\n"
    # Empty translations, and those with white space, get no further space.
    assert chinese.target_gaps(("", "b")) == chinese.target_gaps(("a ", "b")) == chinese.gaps
    for gap in ("\n", "  ", " - ", "\n\u3000"):
        assert TextLayout(("A.", "B."), ("", gap, "")).fill(("一。", "二。")) == f"一。{gap}二。"
    # Neighbours that are their own translations keep the gap.
    layout = TextLayout(("一。", "2.", "3.", "四。"), ("", " ", "", " ", ""))
    assert layout.fill(("1.", "2.", "3.", "4.")) == "1. 2.3. 4."
    pieces = whole("一二三四五，六七八九十").cut(lambda sentence: cut_long_sentence(sentence, 10, len))
    assert pieces.fill(("one,", "two")) == "one, two"
    assert TextLayout((), (" - ",)).fill(()) == " - "
    with pytest.raises(ValueError):
        english.fill(("One.",))


@looped(
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


def test_quotation_marks_take_linear_time():
    for marks in ("「" * 50_000, "»" * 50_000, "(" * 25_000 + ")" * 25_000, "([" * 25_000 + ")"):
        assert "".join(split_sentences(f"はい。{marks}いいえ。").sentences).endswith("いいえ。")
