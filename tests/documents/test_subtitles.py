from hf_vanilla_transformer.documents import open_document
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
