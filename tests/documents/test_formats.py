import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuzzing import one_line, texts
from hf_vanilla_transformer.documents import KINDS, kind_of, open_document
from hf_vanilla_transformer.errors import DataError
from tables import looped


def test_kinds_by_ending():
    assert kind_of("a/b.HTML") == "html" and kind_of("x.txt") == "text"
    assert kind_of("x.docx") is None and kind_of("html") is None
    assert {kind_of(f"x.{kind}") for kind in KINDS} <= {*KINDS, None}


def test_plain_text_is_a_text_a_line():
    document = open_document(b"\xef\xbb\xbf A dog.\r\n\r\n12\r\nTwo", "text")
    assert [segment.text for segment in document.segments] == ["A dog.", "Two"]
    assert document.render(["Ein Hund.", "Zwei"]) == b"\xef\xbb\xbf Ein Hund.\r\n\r\n12\r\nZwei"


@looped(
    "start", ["{n, plural, one {x} here.", "{n, plural, one {x}, ", "{n, select, {x} ", "{n, plural, offset: one {x}"]
)
def test_unfinished_messages_of_icu_end_with_their_line(start):
    document = open_document(f"Use {start}\nA dog.\nA cat }}.\nThe end.", "text")
    assert [segment.text for segment in document.segments][1:] == ["A dog.", "A cat }.", "The end."]


def test_text_comes_back_as_text():
    assert open_document("a\n", "text").render(["b"]) == "b\n"


BOMB = '<!DOCTYPE x [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]><xliff>&b;</xliff>'


@looped(
    ("kind", "content", "message"),
    [
        ("text", b"a\n\xff", ", line 2: byte 0xff is not UTF-8"),
        ("text", "a".encode("utf-16"), " is UTF-16"),
        ("pdf", "a", ": unknown kind 'pdf'"),
        ("html", b"<meta charset='iso-8859-1'><p>a</p>", " declares the encoding iso-8859-1; save it as UTF-8"),
        ("xliff", b'<?xml version="1.0" encoding="UTF-16"?><xliff/>', " declares the encoding UTF-16; save it as"),
        ("po", 'msgid "a\nmsgstr ""\n', ", line 1: invalid PO ("),
        ("po", 'msgid "a"\nfoo\n', ", line 2: invalid PO ("),
        ("po", 'msgid "a"\nmsgid "b"\n', ", line 2: invalid PO ("),
        ("po", "/etc", ", line 1: invalid PO ("),
        ("srt", "1\n00:00:01,000 -> 00:00:02,000\na\n", ", line 3: 'a' instead of the times of a cue"),
        ("po", b'msgid ""\nmsgstr "charset=x\\n"\n', ": unknown charset x; convert"),
        ("po", b'msgid ""\nmsgstr "charset=UTF-7\\n"\n', ": unknown charset UTF-7; convert"),
        ("po", b'msgid ""\nmsgstr "charset=CP1252\\n"\n"\x81"', ", line 3: byte 0x81 is not CP1252; convert"),
        ("po", 'msgid "a"\n', ", line 1: invalid PO (no msgstr after"),
        ("po", '"a"\n', ", line 1: invalid PO (a quoted string without"),
        ("vtt", "WEBVTTX\n", ", line 1: not WebVTT"),
        ("vtt", "WEBVTT\n\na\nb\n", ", line 3: 'a' instead"),
        ("xliff", "<xliff>\n<a></xliff>", ", line 2: not XML (mismatched tag"),
        ("xliff", "", ", line 1: not XML"),
        ("xliff", BOMB, ": declarations of a document type or entities are not allowed"),
        ("xliff", "<html/>", ": the root element is 'html', not xliff"),
    ],
)
def test_faults_are_named_with_their_place(kind, content, message):
    with pytest.raises(DataError) as error:
        open_document(content, kind, name="x.y")
    assert str(error.value).startswith(f"x.y{message}") and "\n" not in str(error.value)


def test_a_text_for_each_segment():
    with pytest.raises(ValueError, match="0 texts for 1 segments"):
        open_document("a", "text").render([])


MESSAGE = "{n, plural,\n=0 {no dogs}\nother {{who, select, a {{n} dogs} other {<i/> &amp; <i/>}}}}"
AROUND = {
    "text": "{}",
    "html": "<p>{}</p>",
    "markdown": "{}\n",
    "srt": "1\n00:00:01,000 --> 00:00:02,000\n{}\n",
    "vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n{}\n",
    "po": 'msgid "{}"\nmsgstr ""\n',
    "xliff": "<xliff><trans-unit><source>{}</source></trans-unit></xliff>",
}


@looped("kind", AROUND)
def test_messages_of_icu_stay_whole(kind):
    message = MESSAGE.replace("\n", '\\n"\n"') if kind == "po" else MESSAGE
    document = open_document(AROUND[kind].replace("{}", f"A cat, {message} &amp; a dog {message}"), kind)
    assert [re.sub("&(amp;)?", "&", segment.text) for segment in document.segments] == ["A cat, ⟦1⟧ & a dog ⟦2⟧"]
    rendered = document.render([document.segments[0].fill("Un perro ⟦2⟧ y ⟦1⟧")])
    assert f"Un perro {message} y {message}" in rendered.replace('""\n"', '"')
    alone = AROUND[kind].replace("{}", message)
    document = open_document(alone, kind)
    # In particular, a source is not its translation.
    assert document.segments == () and document.render(()).replace('""\n"', '"').endswith(alone.replace('""\n"', '"'))


@looped(
    "kind, line_break",
    [("html", "<br>"), ("html", "<br/>\n"), ("markdown", "  \n"), ("markdown", "\\\n"), ("markdown", "<br>")],
)
def test_messages_of_icu_may_have_line_breaks(kind, line_break):
    message = f"{{n, plural, one {{a <i>dog{line_break}</i>}} {line_break}other {{dogs}}}}"
    content = AROUND[kind].replace("{}", f"You <b>see{line_break}the {message} here</b>.")
    document = open_document(content, kind)
    assert [segment.text for segment in document.segments] == ["You see", "the ⟦1⟧ here."]
    assert (
        document.render(segment.fill(segment.text, [(i, i) for i in range(3)]) for segment in document.segments)
        == content
    )


@looped("kind", ["html", "vtt", "xliff", "markdown", "srt"])
@looped("text", ["{}", "&#160;&#8212; {} &#169;", "One &#233; {} and {}."])
def test_messages_of_icu_stay_verbatim(kind, text):
    message = "{n, plural, other {a &#233;&#13;&#10;&quot;b&quot; &#x27;}}"
    content = AROUND[kind].replace("{}", text.replace("{}", message))
    document = open_document(content, kind)
    rendered = document.render(segment.fill(segment.text) for segment in document.segments)
    assert rendered.split("<target")[-1].count(message) == text.count("{}")
    assert rendered == content or document.segments


PARTS = {
    "text": ["a b", "\n"],
    "html": ["<p>", "a b", "<b>"],
    "markdown": ["# ", "a *b* ", "\n", "> ", "- ", "|", "|-|-|", "[a](b)", "![a]", "`", "**", "[r]: x", "---\n", "<b>",
                 "  \n"],
    "srt": ["1\n", "00:00:01,000 --> 00:00:02,000\n", "a b", "<i>", "</i>", "\n", "- a", "{\\an8}"],
    "vtt": ["WEBVTT\n\n", "00:01.000 --> 00:02.000\n", "a b", "<v A>", "</v>", "\n", "&amp;", "NOTE", "- "],
    "po": ['msgid "a b"\n', 'msgstr ""\n', 'msgid_plural "c"\n', 'msgstr[0] ""\n', '"a\\n"\n', "#, fuzzy\n",
           "#~ ", "\n"],
    "xliff": ["<xliff>", "</xliff>", "<trans-unit>", "</trans-unit>", "<source>", "</source>", "<target/>", "<g>",
              "</g>", "<x/>", "a b", "&amp;", "<segment>", "</segment>", "<target>", "</target>"],
}  # fmt: skip  # one a line would fill the screen
STARTS = {"vtt": "WEBVTT\n\n00:01.000 --> 00:02.000\n", "srt": "1\n00:00:01,000 --> 00:00:02,000\n"}
XLIFF_UNIT = "<xliff><trans-unit><source>{}</source></trans-unit></xliff>"


def test_every_kind_is_tried():
    assert set(PARTS) == set(AROUND) == set(KINDS)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=100, derandomize=True, database=None, deadline=None)
@given(data=st.data())
def test_any_document_is_read_or_refused(kind, data):
    parts = st.one_of(st.sampled_from(PARTS[kind]), st.sampled_from(PARTS[kind]), texts())
    content = STARTS.get(kind, "") + "".join(data.draw(st.lists(parts, max_size=12)))
    if kind == "xliff" and data.draw(st.booleans()):
        content = XLIFF_UNIT.format(content)
    try:
        document = open_document(content.encode(), kind, name="x")
    except DataError as error:
        assert one_line(error).startswith("x")
        return
    links = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=6)
    filled = [segment.fill(f"x {data.draw(texts())}".strip(), data.draw(links)) for segment in document.segments]
    rendered = document.render(filled)
    assert isinstance(rendered, bytes)
    open_document(rendered, kind)
    assert document.render(filled) == rendered
