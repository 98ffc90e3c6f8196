from transformers.utils import logging

from hf_vanilla_transformer.documents import open_document, subtitles
from tables import looped

SRT = """1
00:00:01,600 --> 00:00:04,200 X1:40 X2:600
{\\an8}A man in a <i>red</i>
shirt rides.

2
00:00:05,000 --> 00:00:07,000
- Who are you?
- A dog <3

3
00:00:08,000 --> 00:00:09,000
<font color="#fff">♪</font>
"""
VTT = """WEBVTT - Some title
Kind: captions

NOTE no
text

STYLE
::cue { color: red }

intro
00:01.000 --> 00:04.000 align:start position:10%
<v Roger>A &amp; <c.loud>B</c>
see <00:02.000>C

01:00:05.000 --> 01:00:06.000
- <b>You</b>
- Me
"""


def itself(segment):
    return segment.fill(segment.text, [(i, i) for i in range(len(segment.text.split()))])


@looped(
    "content, kind, texts",
    [
        (SRT, "srt", ["A man in a red shirt rides.", "Who are you?", "A dog <3"]),
        (VTT, "vtt", ["A & B see C", "You", "Me"]),
    ],
)
@looped("line_end", ["\n", "\r\n"])
def test_cues_are_texts_and_all_else_stays(content, kind, texts, line_end):
    content = content.replace("\n", line_end).encode()
    document = open_document(content, kind)
    assert [segment.text for segment in document.segments] == texts
    assert document.render(map(itself, document.segments)) == content


def test_line_breaks_go_with_the_words_and_leave_no_blank_line():
    document = open_document("1\n00:00:01,000 --> 00:00:02,000\na b\nc\nd e\n", "srt")
    (segment,) = document.segments
    assert str(document.render([segment.fill("v w x y z")])).endswith("\nv w\nx\ny z\n")
    for links in ([(0, 4), (2, 0), (3, 0)], [(i, 0) for i in range(5)]):
        assert "\n\n" not in document.render([segment.fill("v w --> y z", links)])
        assert str(document.render([segment.fill("v w --> y z", links)])).count("-->") == 1


AUTOMATIC = """WEBVTT
Kind: captions

00:00:00.000 --> 00:00:02.000 align:start position:0%
\x20
so<00:00:00.400><c> hello</c><00:00:00.800><c> world</c>

00:00:02.000 --> 00:00:02.010 align:start position:0%
so hello world
\x20
"""


@looped("line_end", ["\n", "\r\n", "\r"])
def test_automatic_captions(line_end):
    document = open_document(AUTOMATIC.replace("\n", line_end), "vtt")
    assert [segment.text for segment in document.segments] == ["so hello world"] * 2
    assert document.render(map(itself, document.segments)) == AUTOMATIC.replace("\n", line_end)
    rendered = document.render([segment.fill("x y z", [(0, 2), (1, 1), (2, 0)]) for segment in document.segments])
    # Times stay in order, whatever the words do.
    assert f"{line_end}<00:00:00.400><c>x</c><00:00:00.800><c> y</c> z{line_end}" in rendered


def test_ruby_text_is_translated_and_keeps_its_reading():
    content = "WEBVTT\n\n00:01.000 --> 00:02.000\nThe <ruby>old city<rt>reading</rt></ruby> here\n"
    document = open_document(content, "vtt")
    (segment,) = document.segments
    assert segment.text == "The old city here" and document.render([itself(segment)]) == content
    rendered = document.render([segment.fill("Ici la ville", [(1, 2), (2, 2), (3, 0)])])
    assert rendered.endswith("\nIci la <ruby>ville<rt>reading</rt></ruby>\n")


LENIENT = {
    "a blank line within a cue": ("srt", "1\n00:00:01,000 --> 00:00:02,000\nA dog\n\nruns.\n"),
    "a number without times": ("srt", "1\n00:00:01,000 --> 00:00:02,000\nA dog\nruns.\n\n2\n"),
    "colons before milliseconds": ("srt", "1\n00:00:01:000 --> 00:00:02:000\nA dog\nruns.\n"),
    "no milliseconds": ("srt", "1\n00:00:01 --> 00:00:02\nA dog\nruns.\n"),
    "times that are none": ("srt", "\n1\n00:00:01,000 --> x\nA dog\nruns.\n"),
    "no blank line": ("srt", "0:00:01,0 --> 0:00:02,0\nA dog\n2\n0:00:03,0 --> 0:00:04,0\nruns."),
    "no blank line in WebVTT": ("vtt", "WEBVTT\n00:01.000 --> 00:02.000\nA dog\n00:02.000 --> 00:03.000\nruns.\n"),
    "text without times": ("vtt", "WEBVTT\n\n00:01.000 --> 00:02.000\nA dog\n\nruns.\n"),
}


@looped("fault", LENIENT)
def test_what_players_accept_is_translated_with_a_warning(fault, monkeypatch):
    warnings = []
    monkeypatch.setattr(logging.get_logger(subtitles.__name__), "warning", warnings.append)
    kind, content = LENIENT[fault]
    document = open_document(content, kind, name="x")
    assert " ".join(segment.text for segment in document.segments) == "A dog runs."
    assert document.render(map(itself, document.segments)) == content
    assert len(warnings) == 1 and warnings[0].startswith("x, line ") and "\n" not in warnings[0]


@looped("text", ["&gt;&gt; R&amp;D > 1&nbsp;x", ">> R&D", "AT&amp;T", "<v Bob> Yes</v>", "a ’b’\n’c’ d", "a\n\u3000b"])
def test_text_is_escaped_as_in_the_file(text):
    content = f"WEBVTT\n\n00:01.000 --> 00:02.000\n{text}\n"
    document = open_document(content, "vtt")
    assert document.render(map(itself, document.segments)) == content.replace("> 1", "&gt; 1")
