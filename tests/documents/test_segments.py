import re
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from hf_vanilla_transformer.documents import Segment, Tag, open_document
from tables import looped

TAG = re.compile(r"<(/?)(\w+)>")
WORDS = st.lists(st.sampled_from(["a", "red", "house,", "the", "“big”", "H2O", "...", "dog."]), max_size=6).map(
    " ".join
)
INLINE = st.recursive(
    st.one_of(WORDS, st.sampled_from([" ", "<img>", "<wbr>", "x", ".", " <img> "])),
    lambda inner: st.tuples(st.sampled_from(["b", "i", "a"]), st.lists(inner, max_size=4).map("".join)).map(
        lambda pair: f"<{pair[0]}>{pair[1]}</{pair[0]}>"
    ),
    max_leaves=12,
)
NUMBERS = st.integers(-1, 9)


def only_segment(html):
    (segment,) = open_document(html, "html").segments
    return segment


@settings(max_examples=150, derandomize=True, database=None, deadline=None)
@given(st.lists(INLINE, max_size=5).map("".join), WORDS, st.lists(st.tuples(NUMBERS, NUMBERS), max_size=12))
def test_every_tag_comes_back_once_and_well_nested(html, translation, links):
    segments = open_document(html, "html").segments
    for segment in segments:
        filled = segment.fill(translation, links)
        assert "".join(TAG.sub("", filled).split()) == "".join(translation.split())
        tags = [match[0] for tag in segment.tags for match in TAG.finditer(tag.opening + tag.closing)]
        assert Counter(match[0] for match in TAG.finditer(filled)) == Counter(tags)
        opened = []
        for match in TAG.finditer(filled):
            if match[2] in ("img", "wbr"):
                continue
            if match[1]:
                assert opened.pop() == match[2]
            else:
                opened.append(match[2])
        assert not opened


@looped(
    "html, translation, links, expected",
    [
        ("the <b>red</b> house", "la casa roja", [(0, 0), (1, 2), (2, 1)], "la casa <b>roja</b>"),
        # Crossing links, within an enclosing pair.
        (
            "<u>the <b>red</b> <i>house</i></u>",
            "la casa roja",
            [(0, 0), (1, 2), (2, 1)],
            "la <i>casa</i> <b>roja</b>",
        ),
        ("x <u>a <b>b</b></u>", "B A X", [(0, 2), (1, 1), (2, 0)], "<u><b>B</b> A</u> X"),
        # One sibling between the words of the other.
        ("<b>hebe auf</b> <i>es</i>", "lift it up", [(0, 0), (1, 2), (2, 1)], "<b>lift</b> <i>it</i> up"),
        # Without links, the same relative position.
        ("one <b>two</b> three", "eins zwei drei", None, "eins <b>zwei</b> drei"),
        ("one <b>two</b> three", "eins zwei drei", [(0, 0)], "eins <b>zwei</b> drei"),
        # Punctuation, and parts of words.
        ("so <b>good</b>, yes", "so gut, ja", [(0, 0), (1, 1), (2, 2)], "so <b>gut</b>, ja"),
        ("drink H<sub>2</sub>O", "trink H2O", [(0, 0), (1, 1)], "trink H<sub>2</sub>O"),
        # Empty tags.
        ("a <img> dog", "ein Hund", [(0, 0), (1, 1)], "ein <img> Hund"),
        ("a <i></i> dog", "ein Hund", [(0, 0), (1, 1)], "ein <i></i> Hund"),
        ("a <a><b><img></b> <i></i></a> dog", "ein Hund", [(0, 0), (1, 1)], "ein <a><b><img></b> <i></i></a> Hund"),
        ("see the <img>dog run", "Hund laufen sehen", [(2, 0), (3, 1), (0, 2)], "<img>Hund laufen sehen"),
        ("see (<img>dogs) now", "jetzt (Hunde) sehen", [(0, 2), (1, 1), (2, 0)], "jetzt (<img>Hunde) sehen"),
        ("see (<img>dogs) now", "jetzt Hunde sehen", [(0, 2), (1, 1), (2, 0)], "jetzt <img>Hunde sehen"),
        ("see <img>, then go.", "Los, dann los.", [(0, 0), (1, 1)], "Los <img>, dann los."),
        ("see <img>, <wbr>, or go.", "Los,, sonst los.", [(0, 0)], "Los <img>, <wbr>, sonst los."),
        ("see (<img>) now.", "Jetzt () los.", [(0, 2), (1, 1), (2, 0)], "Jetzt (<img>) los."),
        ("Please see <img>.", "Bitte laufen.", None, "Bitte laufen <img>."),
        ("see 5 <img> % now", "5 % jetzt", [(1, 0), (2, 1), (3, 2)], "5 <img> % jetzt"),
        # Untranslated parts.
        (
            "Run <b>(<code>x</code>)</b> or <code>y ⟦1⟧</code>.",
            "⟦2⟧ oder (⟦1⟧) starten.",
            [(0, 3), (1, 2), (2, 1), (3, 0)],
            "<code>y ⟦1⟧</code> oder <b>(<code>x</code>)</b> starten.",
        ),
        # Lost, doubled and unknown ones.
        ("Run <b><code>x</code></b>, ⟦1⟧ <kbd>y</kbd>", "⟦1⟧ los.", [], "<b><code>x</code></b> ⟦1⟧ los. <kbd>y</kbd>"),
        ("Run <code>x</code> now", "Jetzt los", [(0, 1), (2, 0)], "Jetzt los <code>x</code>"),
        ("Run <code>x</code>, then stop.", "Los, dann Ende.", [(0, 0)], "Los <code>x</code>, dann Ende."),
        ("Run <code>x</code> now", "Jetzt⟦1⟧ ⟦1⟧ los ⟦7⟧", [(7, 9)], "Jetzt <code>x</code> los"),
        ("H<sub>2</sub>O<sub>2</sub> is", "ist H2O2", [(0, 1), (1, 0)], "ist H<sub>2</sub>O<sub>2</sub>"),
        ("x<i><sup>2</sup></i>+y<sup>2</sup>", "x2+y2", [(0, 0)], "x<i><sup>2</sup></i>+y<sup>2</sup>"),
        ("<code>x</code><sub>1</sub> is", "ist ⟦1⟧1", [(0, 1), (1, 0)], "ist <code>x</code><sub>1</sub>"),
        ("see ⟦1⟧<sup>1</sup>, <code>x</code>", "⟦1⟧1, ⟦2⟧ siehe", [], "⟦1⟧<sup>1</sup>, <code>x</code> siehe"),
        # A placeholder is linked to itself alone.
        (
            "see <b><code>x</code></b> dogs",
            "Hunde ⟦1⟧ sehen",
            [(0, 1), (1, 0), (2, 0)],
            "Hunde <b><code>x</code></b> sehen",
        ),
        ("see <b>dogs</b> <code>x</code>", "⟦1⟧-Hunde sehen", [(0, 1), (1, 0)], "<b><code>x</code>-Hunde</b> sehen"),
        ("<code>x</code> runs", "", None, "<code>x</code>"),
        # No words to place tags by.
        ("a <b>b</b> <img> c", "", None, "<b></b><img>"),
        ("a & <b>b</b>", "< & >", [(0, 0)], "&lt; &amp; <b>&gt;</b>"),
    ],
)
def test_tags_follow_the_words(html, translation, links, expected):
    assert only_segment(html).fill(translation, links) == expected


def test_a_pair_around_everything_stays_around_everything():
    segment = Segment("a b", (Tag(0, 3, "<b>", "</b>"),))
    assert segment.fill("x y z", [(0, 1), (1, 1)]) == "<b>x y z</b>"


def test_links_beyond_the_words_are_ignored():
    assert only_segment("a <b>b</b>").fill("x y", [(7, 0), (1, 9), (-1, 0), (1, 1)]) == "x <b>y</b>"
