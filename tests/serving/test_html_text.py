import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import texts
from hf_vanilla_transformer.serving.html_text import Html, Plain

PIECES = st.sampled_from(
    ["<p class='a'>", "</p>", "<br/>", '<a title="x > y">', "<!-- a <b> -->", "<code>a b</code>", "<", "&amp;", "a b"]
)


@pytest.mark.parametrize(
    "document, found",
    [
        ("<p>A dog.</p>\n <p>Two &lt; 3</p>", ["A dog.", "Two < 3"]),
        ('<a title="1 > 0" href=x>A</a> B', ["A", " B"]),
        ("<script>if (a < b) {}</script><style>p {}</style>A<!-- no <b> -->", ["A"]),
        ("a < b and c > d", ["a < b and c > d"]),
        ("A <code>dog.run()</code> runs<br/>", ["A ", " runs"]),
        ("<!DOCTYPE html><HTML>A</HTML>", ["A"]),
        ("&nbsp;", []),
        ("A <!-- B", ["A "]),
        ("A <pre>B <b>C", ["A "]),
        (" \n", []),
    ],
)
def test_texts(document, found):
    parsed = Html.parse(document)
    assert list(parsed.texts) == found
    assert Html.parse(parsed.fill(parsed.texts)) == parsed


@pytest.mark.slow
@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(st.lists(st.one_of(texts(), PIECES)).map("".join), st.data())
def test_no_translation_changes_the_markup(document, data):
    parsed = Html.parse(document)
    translations = [f"x{data.draw(st.one_of(texts(), PIECES))}" for _ in parsed.texts]
    again = Html.parse(parsed.fill(translations))
    assert again.markup == parsed.markup and list(again.texts) == translations


def test_plain_text_has_no_markup():
    assert Plain(("<b>",)).fill(["a < b"]) == "a < b"
