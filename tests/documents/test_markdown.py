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
    "html",
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
     "<code ", "www.(", "[a @", "{ref}`a <", "{a}`", "++a+", "\\(", "{/*", "{/* *", "<Aa {", "<Aa a='", "{.a", '{a="',
     ":a"],
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


# Each as in the documentation of its tool, with its texts.
TOOLS = {
    '!!! note inline "A title"\n    A body.\n'
    '\n    - an item\n\nThe end.\n': ["A title", "A body.", "an item", "The end."],
    '??? tip\n    A body.\n\n        code()\n': ["A body."],
    '=== "Tab one"\n\n    One.\n\n=== "Tab two"\n\n    ```py\n    code\n    ```\n': ["Tab one", "One.", "Tab two"],
    "1. item\n\n    !!! note\n        A body.\n": ["item", "A body."],
    '/// note | A title\nA body.\n///\n': ["A title", "A body."],
    "::: pkg.module\n    options:\n      show: true\n\nThe end.\n": ["The end."],
    "Dog\n:   A pet.\n\n    Another part.\n"
    "\nCat\n: Two\n: Three\n": ["Dog", "A pet.", "Another part.", "Cat", "Two", "Three"],
    "See [@doe2020, p. 3], [-@doe] and [`dog`], [`~a.b`].\n": ["See ⟦1⟧, ⟦2⟧ and ⟦3⟧, ⟦4⟧."],
    "See [the dog][pkg.dog], [1] and a[i][j].\n": ["See the dog, [1] and a[i][j]."],
    "[Start](x){ .md-button } ++ctrl+a++ :rocket:\n{: .x }\n": ["Start ⟦1⟧ ⟦2⟧"],
    "*[HTML]: Hyper Text\n*[W3C]: World Web\n": ["Hyper Text", "World Web"],
    ":::{note}\nSee {ref}`x` and {doc}`Get started <intro>`.\n:::\n": ["Get started", "See ⟦1⟧ and ⟦2⟧."],
    "````{note} A title\n:class: tip\n\n```{tip}\nA tip.\n```\n````\n": ["A title", "A tip."],
    ":::{toctree}\n:maxdepth: 2\n\nintro\n:::\n\n(target)=\n% no\n# Title\n": ["Title"],
    '::: {.callout-note title="note" #x}\nA *body*.\n'
    ':::\n\n{{< include a.qmd >}}\nText.\n': ["note", "A body.", "Text."],
    "::: Warning ::::\nA body.\n::::\n\n# Title {#id .a}\n"
    "\nA [span]{.b} here.\n": ["A body.", "Title", "A span here."],
    "A dog.[^1] A cat^[a note].\n\n[^1]: One.\n"
    "\n    Two.\n[^2]: Three.\n": ["A dog. A cata note.", "One.", "Two.", "Three."],
    "With \\(a_b\\).\n\n$$\na\n- b\n$$ {#eq-x}\n\n\\begin{a}\nb\n\\end{a}\n": ["With ⟦1⟧."],
    "+---+---+\n| a | b |\n+---+---+\n\n  a     b\n----- ---\n    1 two\n\n| A line\n| two\n": ["A line", "two"],
    "(@) One\n(@a) Two\n\n#. Three\n#. Four\n": ["One", "Two", "Three", "Four"],
    ":::tip[A title]\n\nA body.\n\n:::\n\n:::note A title\n\nA body.\n\n:::\n": ["A title", "A body."] * 2,
    "import A from 'a';\n\n<Tabs\n  values={[\n    {x: 'a'},\n  ]}>\n"
    "<TabItem x=\"a\">\nA *dog*.\n</TabItem>\n</Tabs>\n": ["A dog."],
    "A <Big a={{b: 1}}>dog</Big> {/* no */} here.\n": ["A dog here."],
    "> [!tip]- A title\n> A body.\n": ["A title", "A body."],
    "# A title[[id]]\n\n[[autodoc]] Pipeline\n    - all\n\n<Tip>\n\nA tip.\n\n</Tip>\n": ["A title⟦1⟧", "A tip."],
    "<p align=center>\n  <b>A dog</b>\n</p>\n\n<details>\n<summary>More</summary>\n\nA cat.\n</details>\n": [
        "A dog", "More", "A cat."
    ],
    "Not \\$a\\$, \\{{ a }}, \\^[a], \\:rocket:.\n": ["Not $a$, {{ a }}, ^[a], :rocket:."],
}  # fmt: skip  # one a line would fill the screen


@looped("text, texts", TOOLS.items())
def test_tools_of_documentation(text, texts):
    document = open_document(text, "markdown")
    assert [segment.text for segment in document.segments] == texts
    assert document.render(map(itself, document.segments)) == text


@looped(
    "text, translation, expected",
    [
        ('!!! note "One"\n', 'a "b"', '!!! note "a "b""\n'),
        ('::: {title="One"}\n', 'a "b"', '::: {title="a \\"b\\""}\n'),
        (":::tip[One]\n", "a [b]", ":::tip[a \\[b\\]]\n"),
        ("One\n\n[b]: c\n", "a [b] [c]", "a \\[b] [c]\n\n[b]: c\n"),
        ("One\n", "!!! note", "\\!!! note\n"),
        ("See {doc}`One <a>`.\n", "a `b`", "See {doc}`a 'b' <a>`.\n"),
    ],
)
def test_titles_and_brackets_are_escaped(text, translation, expected):
    document = open_document(text, "markdown")
    filled = [document.segments[0].fill(translation), *map(itself, document.segments[1:])]
    assert document.render(filled) == expected
