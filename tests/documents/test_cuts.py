"""Documents that were cut, pasted and damaged: they are refused with a line, or translated without loss."""

import random
from collections import Counter
from html import unescape

import pytest

from fuzzing import one_line
from hf_vanilla_transformer.documents import open_document
from hf_vanilla_transformer.errors import DataError

VTT = """WEBVTT
Kind: captions

STYLE
::cue { color: red }

NOTE made by hand

00:00:00.000 --> 00:00:02.000 align:start position:0%
\x20
so<00:00:00.400><c> hello</c><00:00:00.800><c.loud> world</c>

name
01:00:02.000 --> 01:00:04.000
<v Bob>&gt;&gt; R&amp;D, <ruby>old city<rt>reading</rt></ruby></v>
- Who?
- <i>Me, of course
</i>
"""
SRT = """1
00:00:01,600 --> 00:00:04,200 X1:40 X2:600
{\\an8}A man in a <i>red</i>
shirt rides.

2
00:00:05,000 --> 00:00:07,000
- Who are you?
- A dog <3

3
00:00:08 --> 00:00:09:500
<font color="#fff">♪ la</font>
"""
PO = r"""# Comment
msgid ""
msgstr ""
"Content-Type: text/plain; charset=ISO-8859-1\n"
"Plural-Forms: nplurals=2; plural=(n != 1);\n"

#: a.c:1
#, c-format
msgctxt "menu"
msgid "A \"dog\" %s\n"
"runs\n"
msgstr ""

#, fuzzy
msgid "Old"
msgstr "Größe"

msgid "one dog"
msgid_plural "two dogs"
msgstr[0] "ein Hund"
msgstr[1] ""

#~ msgid "Gone"
#~ msgstr ""
"""
DOCUMENTS = {"vtt": VTT, "srt": SRT, "po": PO}


def damaged(text: str, chance: random.Random) -> str:
    """Return a text with parts cut out, and parts of it inserted elsewhere."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(text))
        part = text[start : start + chance.choice((1, 3, 20, 80))]
        if chance.random() < 0.5:
            text = text[:start] + text[start + len(part) :] or "\n"
        else:
            place = chance.choice((chance.randrange(len(text)), text.find("\n") + 1))
            text = text[:place] + part + text[place:]
    return text


def letters(text: str) -> Counter[str]:
    return Counter(filter(str.isalpha, unescape(text)))


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("kind", DOCUMENTS)
def test_damaged_documents_are_refused_or_lose_no_letter(kind, line_end):
    chance = random.Random(f"{kind}{line_end}")
    translated, encoding = 0, "latin-1" if kind == "po" else "utf-8"
    for _ in range(300):
        content = damaged(DOCUMENTS[kind], chance).replace("\n", line_end).encode(encoding)
        try:
            document = open_document(content, kind, name="x")
        except DataError as error:
            assert one_line(error).startswith("x")
            continue
        rendered = document.render([segment.fill(segment.text) for segment in document.segments])
        before, after = (letters(text.decode("latin-1")) for text in (content, rendered))
        # A charset that is left open becomes UTF-8.
        assert not before - after or b"CHARSET" in content
        open_document(rendered, kind)
        translated += len(document.segments) > 0
    # Most damaged PO files are no longer valid.
    assert translated > (20 if kind == "po" else 100)
