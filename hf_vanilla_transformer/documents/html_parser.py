"""Tokens and elements of HTML."""

import re
from collections.abc import Iterator
from html import unescape
from typing import NamedTuple

from .segments import unprotect

# Unclosed markup extends to the end, as in a browser, so every alternative matches and each character is scanned once.
# Quotes have a meaning only after an equals sign.
_MARKUP = re.compile(
    r"""<!--(?:-?>|.*?(?:--!?>|\Z))|<(?:[!?]|/(?![a-z]))[^>]*+(?:>|\Z)"""
    r"""|<(?P<slash>/?)(?P<name>[a-z][^\s/>]*+)"""
    r"""(?P<attributes>(?:[^>=]++|=\s*+(?:"[^"]*+(?:"|\Z)|'[^']*+(?:'|\Z))?+)*+)(?:>|\Z)""",
    re.DOTALL | re.IGNORECASE | re.ASCII,
)
ATTRIBUTE = re.compile(r"""([^\s/>=]++)(?:\s*+=\s*+("[^"]*+"|'[^']*+'|[^\s"'>][^\s>]*+))?+""", re.ASCII)

VOID = frozenset("area base br col embed hr img input link meta param source track wbr".split())
# Elements whose content is raw text.
RAW = frozenset("iframe noembed noframes script style textarea title xmp".split())
FOREIGN = frozenset(("math", "svg"))
# Pronunciation of the words before it.
RUBY = frozenset(("rp", "rt", "rtc"))
# Elements that are never words of a sentence, whatever they contain.
SILENT = RAW | RUBY | {"svg"}
CODE = frozenset("code kbd pre samp tt var".split())
INLINE = frozenset(
    "a abbr acronym b bdi bdo big cite code data del dfn em font i img input ins kbd label link mark math meta nobr "
    "output q rb rp rt rtc ruby s samp script small span strike strong style sub sup svg time tt u var wbr".split()
)
# Elements with optional end tags, each with the start tags that close it.
_CELLS, _ITEMS = frozenset(("td", "th", "tr", "tbody", "tfoot")), frozenset(("dt", "dd"))
CLOSED_BY = {
    "p": frozenset(
        "address article aside blockquote details div dl fieldset figcaption figure footer form h1 h2 h3 h4 h5 h6 "
        "header hr main menu nav ol p pre section table ul li dt dd td th tr".split()
    ),
    "li": frozenset(("li",)),
    "dt": _ITEMS,
    "dd": _ITEMS,
    "option": frozenset(("option", "optgroup")),
    **dict.fromkeys(("rb", *RUBY), RUBY | {"rb"}),
    "td": _CELLS,
    "th": _CELLS,
    "tr": _CELLS - {"td", "th"},
}


class HtmlToken(NamedTuple):
    """Text, a tag or other markup; a tag has a lowercase name. `is_self_closing`: in XML, such as `<br/>`."""

    markup: str
    is_text: bool = False
    name: str = ""
    closes: bool = False
    attributes: str = ""
    is_self_closing: bool = False


def tokens(document: str) -> Iterator[HtmlToken]:
    is_xml, end = document.startswith("<?xml"), 0
    while match := _MARKUP.search(document, end):
        if match.start() > end:
            yield HtmlToken(document[end : match.start()], is_text=True)
        end = match.end()
        name, attributes = (match["name"] or "").lower(), match["attributes"] or ""
        is_self_closing = is_xml and attributes.endswith("/")
        yield HtmlToken(match[0], False, name, bool(match["slash"]), attributes, is_self_closing)
        if name in RAW and not match["slash"] and not is_self_closing:
            close = re.compile(rf"</{name}(?=[\s/>])|\Z", re.IGNORECASE).search(document, end)
            start, end = end, close.start() if close else len(document)
            if start < end:
                yield HtmlToken(document[start:end], is_text=True)
    if end < len(document):
        yield HtmlToken(document[end:], is_text=True)


def text_of(markup: str) -> str:
    """Decode character references."""
    try:
        return unprotect(unescape(markup))
    # Python does not parse numbers of more than 4,300 digits.
    except ValueError:
        return unprotect(markup)
