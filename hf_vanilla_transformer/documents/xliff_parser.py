"""The markup and text of XLIFF, token by token."""

import re
from collections.abc import Iterable, Iterator
from html import escape, unescape
from typing import NamedTuple

from ..errors import DataError, one_line
from .segments import protect, unprotect
from .template import Source

_MARKUP = re.compile(
    r"""<!--.*?-->|<\?.*?\?>|<!\[CDATA\[(?P<data>.*?)\]\]>"""
    r"""|<(?P<slash>/?)(?P<name>[^\s/>!?]++)(?P<attributes>(?:"[^"]*+"|'[^']*+'|[^'">])*+)>""",
    re.DOTALL,
)
_ATTRIBUTE = re.compile(r"""([\w.:-]+)\s*=\s*("[^"]*"|'[^']*')""")


class XliffToken(NamedTuple):
    """Text, without a name, or a tag, whose name has no namespace prefix.

    `is_kept`: in an untranslatable range of a source, from `<sm/>` to `<em/>`.
    """

    markup: str
    text: str | None = None
    name: str = ""
    opens: bool = False
    closes: bool = False
    is_kept: bool = False

    @property
    def attributes(self) -> dict[str, str]:
        return {name: unescape(value[1:-1]) for name, value in _ATTRIBUTE.findall(self.markup)}

    def having(self, **values: str) -> str:
        """Return the markup of the tag with these attributes set."""
        markup = self.markup
        for name, value in values.items():
            written = f'{name}="{escape(value)}"'
            present = re.search(rf"""(?<=\s){re.escape(name)}\s*=\s*("[^"]*"|'[^']*')""", markup)
            start = present.start() if present else len(markup) - len("/>" if markup.endswith("/>") else ">")
            head = markup[:start] if present else f"{markup[:start].rstrip()} "
            markup = head + written + markup[present.end() if present else start :]
        return markup


def read_tokens(source: Source) -> list[XliffToken]:
    """Return the tokens of a file.

    Raises:
        DataError: The file is not XLIFF, or it declares entities.
    """
    _check(source)
    return list(_with_ranges(_tokens(protect(source.content))))


def _tokens(content: str) -> Iterator[XliffToken]:
    end = 0
    for match in _MARKUP.finditer(content):
        if match.start() > end:
            text = content[end : match.start()]
            yield XliffToken(text, unprotect(unescape(text)))
        end = match.end()
        if match["name"]:
            closes = bool(match["slash"]) or match["attributes"].endswith("/")
            yield XliffToken(match[0], None, match["name"].split(":")[-1], not match["slash"], closes)
        else:
            yield XliffToken(match[0], match["data"])
    if end < len(content):
        yield XliffToken(content[end:], unprotect(content[end:]))


def _with_ranges(tokens: Iterable[XliffToken]) -> Iterator[XliffToken]:
    """Mark the tokens in untranslatable ranges, which may overlap and go on in the next segment of a unit."""
    ranges: set[str | None] = set()
    in_source = False
    for token in tokens:
        if token.name == "source":
            in_source = token.opens > token.closes
        elif token.name == "unit":
            ranges.clear()
        elif in_source and token.name == "sm" and token.attributes.get("translate") == "no":
            ranges.add(token.attributes.get("id"))
        yield token._replace(is_kept=in_source and bool(ranges))
        if in_source and token.name == "em":
            ranges.discard(token.attributes.get("startRef"))


def _check(source: Source) -> None:
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError, fromstring

    try:
        root = fromstring(source.content, forbid_dtd=True)
    except ParseError as error:
        raise DataError(
            f"{source.name}, line {error.position[0]}: not XML ({one_line(error)}); correct or export it again"
        ) from None
    except (DefusedXmlException, ValueError) as error:
        raise DataError(
            f"{source.name}: declarations of a document type or entities are not allowed ({type(error).__name__}); "
            "remove them"
        ) from None
    if root.tag.rpartition("}")[2] != "xliff":
        raise DataError(f"{source.name}: the root element is {root.tag[:80]!r}, not xliff; check the file")
