import re
import time
from timeit import repeat

import pytest

from hf_vanilla_transformer.documents import open_document
from hf_vanilla_transformer.documents.markdown import KEPT
from tables import looped

MARKDOWN = """---
title: No
---
# A *big* title #

A man in a **red**
shirt [rides](http://x.y/a_b "t") a `bike`, ~~fast~~ \\* &amp; <b>so</b>.

> Quote __one__
> two  
> three

1. 1
   item
2. - [ ] Task

| Head | b \\| c |
|------|:------:|
| `no` | *yes*  |

![An image](a.png) and <http://auto.link> ![ref]

See [ref] and [Ref][] and [text][ref].

Setext
title
======

```python
code()
```

    indented

<div>
html
</div>

[ref]: http://x.y "no"
"""  # noqa: W291 - two blanks break a line
TEXTS = [
    "A big title", "A man in a red shirt rides a ⟦1⟧, fast * & so.", "Quote one two", "three", "1 item", "Task",
    "Head", "b | c", "yes", "An image", "ref", "and ⟦1⟧", "See ref and Ref and text.", "Setext title",
]  # fmt: skip  # one a line would fill the screen


def itself(segment):
    return segment.fill(segment.text, [(i, i) for i in range(len(segment.text.split()))])


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_texts(line_end):
    document = open_document(MARKDOWN.replace("\n", line_end).encode(), "markdown")
    assert [segment.text for segment in document.segments] == TEXTS


def test_all_else_stays():
    document = open_document(MARKDOWN, "markdown")
    expected = MARKDOWN
    for old, new in {
        "**red**\nshirt": "**red** shirt",
        "&amp;": "&",
        "__one__\n> two": "__one__ two",
        "1. 1\n   item": "1. 1 item",
        "![ref]": "![ref][ref]",
        "[ref] and [Ref][]": "[ref][ref] and [Ref][Ref]",
        "Setext\ntitle": "Setext title",
    }.items():
        assert old in expected
        expected = expected.replace(old, new)
    assert document.render(map(itself, document.segments)) == expected


@looped(
    "text",
    ["# a", "1. a", "- a", "> a", "a * *b* __c__", "[a](b)", "<b>a</b> &amp;", "`a`", "\\a", "~~a~~", "---", "a\n\nb"],
)
@looped("content", ["xx\n", "xx **yy**\n\nzz", "> xx", "|xx|\n|-|\n|yy|\n"])
def test_text_is_escaped(content, text):
    from markdown_it import MarkdownIt

    document = open_document(content, "markdown")
    rendered = document.render([segment.fill(text) for segment in document.segments])
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    types = [[token.type for token in parser.parse(each) if token.type != "inline"] for each in (content, rendered)]
    assert types[0] == types[1]
    if "**" not in content:
        assert [segment.text for segment in open_document(rendered, "markdown").segments] == [
            " ".join(text.split()) for _ in document.segments if any(map(str.isalpha, text))
        ]


@pytest.mark.parametrize(
    "text",
    [
        "See http://x.y/_a_/*b*c and (https://x.y/a_(b)), **www.x.y/_c**.\n",
        "A [http://x.y/_a](http://x.y/_b_) *http://x.y/_c_*, http://x.y/?a=_d&b=e now.\n",
        "|http://x.y/_a|b|\n|-|-|\n",
    ],
)
def test_links_without_brackets_stay(text):
    document = open_document(text, "markdown")
    assert document.render(map(itself, document.segments)) == text


def test_hostile_input_is_read():
    for content in ("[" * 2000 + "a", "*a " * 2000, "> " * 500 + "a", "a\0b", "`a" * 1000, "![a" * 500):
        document = open_document(content, "markdown")
        document.render(map(itself, document.segments))


@looped(
    "repeated",
    ["[[", "[[a", "[[[a]", "[[a] ", "{%", "{%{", "{%%", "{%'", "'{%' ", "{{a", "[^", "[^a", "$$", "$a", "a$", "<code>",
     "<code ", "www.("],
)  # fmt: skip  # one a line would fill the screen
def test_hostile_input_takes_linear_time(repeated):
    def seconds(count):
        return min(repeat(lambda: KEPT.findall(repeated * count), timer=time.process_time, repeat=2, number=1))

    # Eight times as much: quadratic time would be 64-fold.
    assert seconds(8000) < 24 * max(seconds(1000), 0.001)


@looped(
    "text",
    [
        "> [!NOTE]\n> A man.\n",
        "A dog[^1] runs.\n\n[^1]: A note of it.\n",
        "See [[Wiki page]] now.\n",
        "[TOC]\n\nA dog.\n",
        "With $x_1 * y$ and {% include a.html %} here.\n",
        "With $$x_1$$ here.\n\n$$\nx_1 * y \\\\\nx_1\n$$\n",
        '+++\ntitle = "x_1"\n+++\n\nA dog.\n',
        "Say {% if a == '{%' %}dog{% endif %} cat.\n",
        "See [[Wiki [draft]]] and [[Wiki [x]] and [[Wiki [a] x]].\n",
        "See {{ x_1[0] }} <kbd>x_1</kbd> now.\n",
    ],
)
def test_what_others_add_stays(text):
    document = open_document(text, "markdown")
    assert document.render(segment.fill(segment.text) for segment in document.segments) == text
    assert not any(re.search(r"NOTE|TOC|\^1|Wiki|x_1|include", segment.text) for segment in document.segments)
