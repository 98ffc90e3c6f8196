"""HTML: inline elements are tags of a segment, all others separate segments."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from html import escape
from typing import NamedTuple

from ..text.languages import is_right_to_left
from .html_parser import (
    ATTRIBUTE,
    CLOSED_BY,
    CODE,
    FOREIGN,
    INLINE,
    RAW,
    RUBY,
    SILENT,
    VOID,
    HtmlToken,
    text_of,
    tokens,
)
from .segments import protect
from .template import Document, Piece, Source, Template

# "The translatable attributes" of the HTML standard that hold prose.
ATTRIBUTES = frozenset(("alt", "aria-description", "aria-label", "label", "placeholder", "title"))
DESCRIPTIONS = frozenset(
    ("description", "og:description", "og:title", "twitter:description", "twitter:title"),
)
LANGUAGE = frozenset(("lang", "xml:lang"))
BUTTONS = frozenset(("button", "reset", "submit"))

_escape = partial(escape, quote=False)


class _HtmlElement(NamedTuple):
    """An open element: whether its content is translated, and whether it is SVG or MathML."""

    name: str
    translated: bool
    foreign: bool


# White space of an untranslated element.
_SPACE = Piece("", " ")


def _with_words_apart(pieces: Iterable[Piece]) -> Iterator[Piece]:
    """Leave out each `_SPACE` except between two words, which it separates even if its element moves away."""
    last, has_space = " ", False
    for piece in pieces:
        if piece is _SPACE:
            has_space = True
            continue
        if text := "x" if piece.is_kept else piece.text:
            if has_space and last.isalnum() and text[0].isalnum():
                yield _SPACE
            last, has_space = text[-1], False
        yield piece


class _Reader:
    """Reads a document from its tokens.

    A paragraph is collected until a block element begins or ends. An untranslated inline element is collected too,
    and kept as a part of the sentence if it has text.
    """

    def __init__(self, template: Template, target_lang: str | None) -> None:
        self._template, self._target_lang = template, target_lang
        self._open = [_HtmlElement("", True, False)]
        self._names: Counter[str] = Counter()
        self._paragraph: list[Piece] = []
        # Pieces of an untranslated inline element, and the number of elements open around it.
        self._untranslated: list[Piece] = []
        self._depth = 0

    def read(self, content: str) -> None:
        for token in tokens(content):
            if token.is_text:
                self._add(Piece(token.markup, text_of(token.markup)))
            elif not token.name:
                self._add(Piece(token.markup))
            elif token.closes:
                self._close(token)
            else:
                self._start(token)
        self._end_paragraph()

    def _add(self, piece: Piece) -> None:
        """Add to the untranslated element or the paragraph; outside both, add as markup."""
        if self._untranslated:
            self._untranslated.append(piece)
        elif self._open[-1].translated:
            self._paragraph.append(piece)
        else:
            self._separate(piece.markup)

    def _separate(self, markup: str) -> None:
        """Add markup between two paragraphs."""
        self._end_paragraph()
        self._template.literal(markup)

    def _end_paragraph(self) -> None:
        if self._paragraph:
            self._template.paragraph(list(_with_words_apart(self._paragraph)), _escape)
        self._template.literal(*(piece.markup for piece in self._untranslated))
        self._paragraph, self._untranslated = [], []

    def _start(self, token: HtmlToken) -> None:
        while token.name in CLOSED_BY.get(self._open[-1].name, ()):
            self._pop()
        attributes = {
            name.lower(): text_of(_unquoted(value)) for name, value in ATTRIBUTE.findall(token.attributes)[::-1]
        }
        parent = self._open[-1]
        element = _HtmlElement(
            token.name, _is_translated(token.name, attributes, parent), parent.foreign or token.name in FOREIGN
        )
        is_self_closing = token.is_self_closing or (parent.foreign and token.attributes.endswith("/"))
        is_open = token.name not in VOID and not is_self_closing
        markup = self._with_slots(token, attributes) if element.translated else token.markup
        if self._untranslated and not element.translated:
            self._untranslated.append(Piece(markup))
        elif token.name == "br" and parent.translated:
            self._paragraph.append(Piece(markup, is_break=True))
        elif not (_is_inline(token.name) and parent.translated):
            self._separate(markup)
        elif element.translated:
            self._paragraph.append(Piece(markup, opens=token.name if is_open else None))
        elif is_open:
            self._untranslated, self._depth = [Piece(markup)], len(self._open)
        else:
            self._paragraph.append(Piece(markup))
        if is_open:
            self._open.append(element)
            self._names[token.name] += 1

    def _close(self, token: HtmlToken) -> None:
        while self._names[token.name] and self._open[-1].name != token.name:
            self._pop()
        if self._untranslated:
            self._untranslated.append(Piece(token.markup))
        elif _is_inline(token.name) and self._open[-1].translated and self._parent(token.name).translated:
            self._paragraph.append(Piece(token.markup, closes=token.name))
        else:
            self._separate(token.markup)
        if self._names[token.name]:
            self._pop()

    def _parent(self, name: str) -> _HtmlElement:
        """Return the element around an open one, or the innermost if it is not open."""
        return self._open[-2 if self._names[name] else -1]

    def _pop(self) -> None:
        name = self._open.pop().name
        self._names[name] -= 1
        if self._untranslated and len(self._open) == self._depth:
            text = "" if name in SILENT else "".join(piece.text or "" for piece in self._untranslated)
            if text.isspace():
                self._paragraph.append(_SPACE)
            markup = "".join(piece.markup for piece in self._untranslated)
            self._paragraph.append(Piece(markup, is_kept=bool(text.strip())))
            self._untranslated = []

    def _with_slots(self, token: HtmlToken, attributes: dict[str, str]) -> str:
        """Return a tag with slots for the texts in its attributes; a page gets the target's language and direction."""
        target = self._target_lang if token.name in ("html", "body") else None
        direction = "rtl" if target and is_right_to_left(target) else "ltr"
        names_language = token.name == "html" and not LANGUAGE.isdisjoint(attributes)

        def place(match: re.Match[str]) -> str:
            name, value = match[1].lower(), match[2]
            if value and _is_prose(token.name, name, attributes):
                raw = _unquoted(value)
                # A value without quotes may contain some.
                text = self._template.text(text_of(raw), escape, None if raw == value else raw)
            elif value and target is not None and token.name == "html" and name in LANGUAGE:
                text = escape(target)
            elif value and target is not None and name == "dir" and attributes[name] in ("ltr", "rtl"):
                text = direction
            else:
                return match[0]
            quote = value[0] if value[0] in "\"'" else '"'
            return f"{match[0][: -len(value)]}{quote}{text}{quote}"

        head, tail = token.markup[: 1 + len(token.name)], token.markup[1 + len(token.name) + len(token.attributes) :]
        missing = ' dir="rtl"' if names_language and direction == "rtl" and "dir" not in attributes else ""
        return head + missing + ATTRIBUTE.sub(place, token.attributes) + tail


def _unquoted(value: str) -> str:
    return value[1:-1] if value[:1] in ("'", '"') else value


def _is_inline(name: str) -> bool:
    """Whether an element may be a part of a paragraph; a hyphen marks custom elements."""
    return name in INLINE or "-" in name


def _is_translated(name: str, attributes: dict[str, str], parent: _HtmlElement) -> bool:
    chosen = attributes.get("translate", "-").lower()
    if parent.foreign or name in FOREIGN or name in RAW - {"title"} or chosen == "no":
        return False
    if chosen in ("", "yes"):
        return True
    return parent.translated and name not in CODE | RUBY and "notranslate" not in attributes.get("class", "").split()


def _is_prose(element: str, attribute: str, attributes: dict[str, str]) -> bool:
    """Whether an attribute of an element holds a text to translate."""
    if attribute == "content" and element == "meta":
        return (attributes.get("name") or attributes.get("property", "")).lower() in DESCRIPTIONS
    if attribute == "value" and element == "input":
        return attributes.get("type", "").lower() in BUTTONS
    return attribute in ATTRIBUTES


def read_html(source: Source) -> Document:
    """Read HTML, a page or a fragment."""
    template = Template()
    read_fragment(template, source.content, source.target_lang)
    return template.document()


def read_fragment(template: Template, content: str, target_lang: str | None) -> None:
    """Add HTML to a template."""
    _Reader(template, target_lang).read(protect(content))
