"""Markdown and HTML cut at random: nothing fails, and no text is lost."""

import random
import re
from collections import Counter

from hf_vanilla_transformer.documents import open_document
from tables import looped

WORD = r"[^\W_]+"
MARKDOWN = [
    '!!! note "A title"\n    A body\n', "??? tip\n    - an item\n", '=== "Tab"\n\n    Words\n', "Dog\n:   A pet\n",
    ": more\n", "[@doe2020, p. 3]", "[the dog][pkg.dog]", "[`dog`]", ":::{note} Text\n", "```{tip} Title\n:class: x\n",
    "````\n", ":::\n", '::: {.note title="A title"}\n', ":::tip[Title]\n", "import A from 'a'\n",
    "<TabItem value={{a: [1]}}>", "</TabItem>\n", "{{< video x >}}", "{% include a %}\n", "> [!NOTE]\n", "> ",
    "- [ ] ", "[^1]", "\n[^1]: a note\n", "^[inline]", "# ", "{#id .b}", "[span]{.b}", "$x_1$", "$$\na\n",
    "\\begin{a}\n", "| line\n", "*[HTML]: Hyper\n", "(target)=\n", "++ctrl+x++", ":rocket:", "+---+---+\n", "-----\n",
    "-- ---\n", "{doc}`Start here <intro>`", "{ref}`a`", "<div markdown>\n", "</div>\n", "<p>\n", "<b>", "</b>", "**",
    "_", "`", "[", "]", "(a)", "![image](a)", "<http://a.b>", "    ", "\n", "\n\n", " ", "words of it ", "\\", "  \n",
    "\n[ref]: http://a.b\n", "[ref]", "|a|b|\n|-|-|\n", "///", "///note|T\n", "~~", "\t", "1. ", "\r\n", "\x00",
    "===\n", "@",
]  # fmt: skip  # one a line would fill the screen
HTML = [
    "<ruby>", "</ruby>", "<rt>", "</rt>", "<rp>(</rp>", "<rb>", "<wbr>", "Donau", "a dog ", " ",
    "<html dir='ltr' lang=en>", "<p>", "</p>", "<b>", "</b>", "<code>", "</code>", "<li>", "<br>", "<img alt='a dog'>",
    "<body dir=rtl>", "<script>", "</script>", "<!--", "-->", "<svg>", "</svg>", "<i translate=no>", "</i>", "\n", ",",
    '<a title="x', '">', "<table>", "<td>", "<title>", "<pre>", "</pre>", "<", ">", "=", "'", "/", "漢字", "\x00",
    "<span translate=yes>", "</span>",
]  # fmt: skip  # one a line would fill the screen


def cut(snippets, seed):
    """Snippets one after another, some in part."""
    chosen = random.Random(seed)
    parts = (chosen.choice(snippets) for _ in range(chosen.randint(1, 25)))
    return "".join(part[: chosen.randint(1, len(part))] if chosen.random() < 0.2 else part for part in parts)


@looped("kind, snippets", [("markdown", MARKDOWN), ("html", HTML)])
def test_no_text_is_lost(kind, snippets):
    for seed in range(1500):
        content = cut(snippets, seed)
        document = open_document(content, kind)
        rendered = document.render(
            segment.fill(segment.text, [(index, index) for index in range(len(segment.text.split()))])
            for segment in document.segments
        )
        lost = Counter(re.findall(WORD, content)) - Counter(re.findall(WORD, rendered))
        assert not lost, (seed, content, rendered)
