"""Repetition in texts, and translations that loop."""

from hf_vanilla_transformer.text.facts import TextFacts
from hf_vanilla_transformer.text.repetition import MAX_BLOCK, count_repeats, usual_repeats
from tables import looped


@looped(
    ("text", "repeats"),
    [
        ("", 1), (" ", 1), ("word", 1), ("one two four", 1), ("no no", 2), ("ha", 1), ("haha", 2), ("人人人", 3),
        # Within a word, too; in any case, whatever stands between words.
        ("le lalala jour", 3), ("没有没有没有 主意", 3), ("Ha ha, ha!", 3),
        # Numbers and dashes may repeat themselves.
        ("1 000 000 000", 1), ("$1,000,000,000", 1), ("– – – –", 1), ("____", 1), ("人口は1000000人", 1),
        ("ma machih machih machih", 3), ("a b a b a b a", 3), ("a b c a b c x a b c", 2), ("aaaa aaaa b", 4),
        # An unfinished repetition does not count.
        ("a b c a b", 1),
        (" ".join("abcdefghijklmnop" * 2), 2), (" ".join("abcdefghijklmnopq" * 2), 1),
        # Letters have marks: vowels, accents, points.
        ("का की के को", 1), ("नीना ने नाना को नमस्ते कहा", 2), ("का का का", 3), ("e\u0301e\u0300", 1), ("שָׁלוֹם", 1),
    ],
)  # fmt: skip  # a table
def test_the_longest_row_of_blocks(text, repeats):
    assert MAX_BLOCK == 16 and count_repeats(text) == repeats


@looped(
    ("texts", "usual"),
    [
        ([], 0),
        (["a b"] * 10, 1),
        (["a b"] * 10 + ["no no no"], 3),
        (["a b"] * 5000 + ["no no no"] * 5, 1),
        (["a b"] * 5000 + ["no no no"] * 6, 3),
        (["a b"] * 5000 + ["no no no"] * 3 + ["no no"] * 3, 2),
    ],
)
def test_what_is_usual(texts, usual):
    assert usual_repeats(texts) == usual


@looped(
    ("usual", "source", "translation", "is_loop"),
    [
        (2, "a b", "x x", False), (2, "a b", "x x x", True),
        (2, "a a a", "x x x", False), (2, "a a a", "x x x x", True),
        # Commands to actions.
        (24, "jump around right thrice", "JUMP " * 12, False),
        # Training is unknown.
        (0, "a b", "x x x x x x", False),
    ],
)  # fmt: skip  # a table
def test_a_translation_loops_if_targets_and_source_do_not(usual, source, translation, is_loop):
    assert TextFacts(repeats=usual).is_loop(source, translation) is is_loop
