"""Markdown, also of documentation tools: paragraphs, headings and cells are segments; emphasis and links are tags."""

import re
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from .html import read_fragment
from .html_parser import CODE
from .markdown_parser import ATTRIBUTES, COMMENT, COMPONENT, Parser
from .segments import protect
from .template import Document, Piece, Source, Template

if TYPE_CHECKING:
    from markdown_it.token import Token

# YAML, or TOML as in Hugo.
_FRONT_MATTER = re.compile(
    r"(?:---[ \t]*\r?\n.*?\n(?:---|\.\.\.)|\+\+\+[ \t]*\r?\n.*?\n\+\+\+)[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
_CHECKBOX = re.compile(r"\[[ xX]\]\s+")
_TAG = re.compile(r"<(/?)([a-z][a-z\d-]*)\b", re.IGNORECASE)
# A bare link, in which no character is special.
_LINK = r"""\b(?i:https?://|www\.)(?:\([^\s<>"`()[\]\\|]*+\)|[^\s<>"`()[\]\\|])+(?<![?!.,:;*~'])"""
_SPECIAL = re.compile(
    rf"({_LINK})|[\\`*]|\[(?=[\[\^@!])|\](?=\()"
    r"|(?<![^\W_])_|_(?![^\W_])|<(?=[a-zA-Z/!?>])|&(?=#?\w+;)|~(?=~)|\^(?=\[)|(?P<may_begin>[{:+])"
)
_FORMULA = r"(?<![\\$])\$(?!\s)(?:[^$\n\\]|\\[^\n])++(?<!\s)\$(?![\d$])"
_LABEL = re.compile(r"(?<!\\)\[([^\[\]]++)\]")
# `{%` between quotes, which starts no tag.
_QUOTED = r"""(?:(?<=')\{%(?=')|(?<=")\{%(?="))"""
# Untranslated extensions of GitHub, wikis, templates and documentation tools: footnotes, tags, attributes, links,
# values, formulas, citations, roles, keys, emoji; HTML code. None of these can start inside an unfinished one of its
# kind, so that time is linear.
KEPT = re.compile(
    r"""\[\^[^\[\]\s]++\]|\A\[(?:TOC|toc)\]\Z"""
    rf"""|(?!{_QUOTED})\{{%(?:[^{{%\n]|%(?!\}})|\{{(?!%)|{_QUOTED})*+%\}}|(?P<attributes>{ATTRIBUTES})"""
    rf"""|(?P<component>{COMPONENT})|{COMMENT}"""
    r"""|(?P<role>\{(?:any|doc|numref|ref|term)\}`)(?P<title>[^`<>]*[^`<>\s])(?P<target>\s*<[^`<>]++>`)"""
    r"""|(?P<word>\[\[(?:[^\[\]\n]|\[[^\[\]\n]*+\]|\[(?!\[))+\]\]|\{\{[^{}\n]*+\}\}"""
    r"""|\$\$[^$]++\$\$|\\\((?:[^\\]|\\[^()])++\\\)"""
    r"""|\[[^\[\]@\n]*+(?<!\w)@[^\[\]]++\](?![(\[{])|\[`[^`\[\]\n]++`\](?!\s?\[|\()|\{[\w:+.-]++\}(?P<tick>`++)[^`]++(?P=tick)"""
    r"""|(?<![\w:]):[a-z][\w+-]*+:(?![\w:`])|\+\+[a-z][\w-]*+(?:\+[\w-]++)*+\+\+"""
    rf"""|{_FORMULA}|(?i:<(?P<code>{"|".join(sorted(CODE))})\b[^<>]*+>[^<>]*+</(?P=code)\s*>))|(?P<link>{_LINK})"""
)
# References of mkdocstrings, spans of Pandoc and inline footnotes: brackets that are tags of their text.
_REFERENCE = re.compile(
    rf"(?<![\w!\]\\^])(\[)[^\[\]]++(\](?:(\s)?\[([^\[\]\n]++)\]|(?:{ATTRIBUTES})))|(?<!\\)(\^\[)(?:[^\[\]]|\[[^\[\]]*+\])++(\])"
)
# Markup that begins a block, such as a list, at the start of a line.
_BLOCK = re.compile(
    r"(\d{1,9}(?=[.)](?!\S))|(?=#{1,6}(?!\S)|>|[+-](?!\S)|[=-]+\s*\Z|\[(?:[ xX]\]\s|[^\[\]]++\]:)"
    r"|(?:!!!|\?\?\?\+?) ?[\w -]++(?:\"|\Z)|(?::::|///)[: ]*+[\w{]))"
)


def read_markdown(source: Source) -> Document:
    """Read Markdown; code, front matter and link targets are left unchanged."""
    front = _FRONT_MATTER.match(source.content)
    start = front.end() if front else 0
    reader = _Reader(source.content[start:])
    reader.template.literal(protect(source.content[:start]))
    return reader.read()


class _Reader:
    """Reads Markdown from the tokens of its parser, which give the lines of each text, and from those lines."""

    def __init__(self, content: str):
        self.template = Template()
        self._content = content
        self._lines = list(re.finditer(r"([^\r\n]*)(?:\r\n|\r|\n|\Z)", content))
        self._parser = Parser()
        # Offset up to which the document is written.
        self._written = 0

    def read(self) -> Document:
        in_table = False
        for token in self._parser.blocks(self._content):
            if token.type in ("table_open", "table_close"):
                in_table = token.type == "table_open"
            elif token.map and (token.type == "html_block" or (token.type == "inline" and token.content)):
                raw, places = self._find(token, token.map[0], in_table)
                if not raw:
                    continue
                self._literal(places[0])
                if token.type == "inline":
                    self._add(raw, places, partial(self._escape, special=token.meta.get("special", "|" * in_table)))
                else:
                    self._add_html(raw, places)
                self._written = places[-1]
        self._literal(len(self._content))
        return self.template.document()

    def _literal(self, end: int) -> None:
        self.template.literal(protect(self._content[self._written : end]))
        self._written = end

    def _find(self, token: "Token", first: int, in_table: bool) -> tuple[str, list[int]]:
        """Return a text as in the document, and the offsets there of each character and of its end."""
        lines: list[str] = []
        places: list[int] = []
        for number, part in enumerate(token.content.rstrip("\n").split("\n"), start=first):
            line, part = self._lines[number], part.lstrip()
            begin = max(line.start(), self._written)
            text = self._content[begin : line.end(1)].replace("\0", "\ufffd")
            if in_table:
                # Vertical bars are escaped in cells.
                match = re.search(re.escape(part).replace("\\|", "\\\\?\\|"), text)
                start, end = match.span() if match else (-1, -1)
            else:
                column = token.meta.get("column")
                start = text.rfind(part) if column is None else line.start() + column - begin
                end = start + len(part)
            if start < 0:
                return "", []
            if places:
                # The line end includes the indentation of the next line.
                places.append(self._lines[number - 1].end(1))
            places += range(begin + start, begin + end)
            lines.append(self._content[begin + start : begin + end])
        return "\n".join(lines), [*places, begin + end]

    def _add(self, raw: str, places: list[int], escape: Callable[[str], str]) -> None:
        """Add a text, split into segments at hard line breaks."""
        if box := _CHECKBOX.match(raw):
            places, raw = places[box.end() :], raw[box.end() :]
            self._literal(places[0])

        def markup(start: int, end: int) -> str:
            return protect(self._content[places[start] : places[end]])

        pieces: list[Piece] = []
        done = 0
        tokens = [(*token.meta["span"], token) for token in self._parser.inline(raw)]
        kept = [(*match.span(), match) for match in KEPT.finditer(raw)]
        brackets = [
            (*match.span(group), is_closing)
            for match in _REFERENCE.finditer(raw)
            # Markdown before CommonMark allowed white space between text and label.
            if not match[3] or self._parser.is_label(match[4])
            for is_closing, group in enumerate((1, 2) if match[1] else (5, 6))
        ]
        for start, end, token in sorted([*kept, *tokens, *brackets], key=itemgetter(0)):
            # Part of markup already added: the tokens of an autolink share a span.
            if start < done:
                continue
            if start > done:
                pieces.append(Piece(markup(done, start), raw[done:start]))
            done = end
            if isinstance(token, int):
                pieces.append(Piece.of_tag(markup(start, end), "link", is_closing=bool(token)))
            elif isinstance(token, re.Match):
                if token["attributes"] and pieces and pieces[-1].text is None:
                    # Attributes follow what they are of.
                    pieces[-1] = pieces[-1]._replace(markup=pieces[-1].markup + markup(start, end))
                else:
                    pieces.append(self._kept(token, markup(start, end)))
            elif token.type == "hardbreak" or (token.type == "html_inline" and re.match(r"<br\b", raw[start:end])):
                pieces.append(Piece(markup(start, end), is_break=True))
            elif token.type == "image":
                pieces.append(Piece(self._image(token, raw[start:end], markup(start, end), escape)))
            else:
                pieces.append(_piece(token, markup(start, end)))
        pieces.append(Piece(markup(done, len(raw)), raw[done:]))
        self.template.paragraph(pieces, escape)

    def _add_html(self, raw: str, places: list[int]) -> None:
        markup = self._content[places[0] : places[-1]]
        # Unless in a quote or a template.
        if markup.split() == raw.split() and not re.search(r"\{[{%<]", markup):
            read_fragment(self.template, markup, None)
        else:
            self.template.literal(protect(markup))

    def _kept(self, match: re.Match[str], markup: str) -> Piece:
        if match["role"]:
            title = self.template.text(match["title"], lambda text: text.replace("`", "'"))
            return Piece(f"{match['role']}{title}{match['target']}", is_kept=True)
        return Piece(markup, match["link"], is_kept=bool(match["word"]))

    def _escape(self, text: str, special: str) -> str:
        text = re.sub(r"[\r\n]+", " ", text)
        special += "$" * bool(re.search(_FORMULA, text))
        begins = {match.start() for match in KEPT.finditer(text) if not match["link"]}
        escaped = _SPECIAL.sub(
            lambda match: match[0] if match[1] or (match[2] and match.start() not in begins) else f"\\{match[0]}", text
        )
        # Brackets are text unless a link is defined for what they enclose.
        escaped = _LABEL.sub(lambda match: f"\\{match[0]}" if self._parser.is_label(match[1]) else match[0], escaped)
        if begin := _BLOCK.match(escaped):
            escaped = f"{begin[1] or ''}\\{escaped[len(begin[1] or '') :]}"
        return re.sub(f"(?<!\\\\)[{re.escape(special)}]", r"\\\g<0>", escaped) if special else escaped

    def _image(self, token: "Token", raw: str, markup: str, escape: Callable[[str], str]) -> str:
        """Return an image with a slot for its alt text, which may also be its reference label."""
        text, target = token.content, raw[2 + len(token.content) :]
        if not markup.startswith(f"![{text}{target}") or re.search(r"[\\\[\]`*_<&\n\0]", text):
            return markup
        return f"![{self.template.text(text, escape)}{_with_label(target, text)}"


def _with_label(target: str, label: str) -> str:
    """Return the markup after the text of a link, with an explicit label if that text was the label."""
    return f"][{' '.join(label.split())}]" if target in ("]", "][]") else target


def _piece(token: "Token", markup: str) -> Piece:
    if token.type in ("text", "text_special"):
        return Piece(markup, token.content)
    if token.type == "softbreak":
        return Piece(markup, " ")
    if token.type == "html_inline" and (tag := _TAG.match(token.content)):
        return Piece.of_tag(markup, f"<{tag[2].lower()}", is_closing=bool(tag[1]))
    if token.type == "link_close":
        label = token.meta.get("label")
        return Piece(markup if label is None else _with_label(markup, label), closes="link")
    name, _, part = token.type.rpartition("_")
    if part == "close" or (part == "open" and token.info != "auto"):
        return Piece.of_tag(markup, name, is_closing=part == "close")
    return Piece(markup, is_kept=token.type == "code_inline" or token.info == "auto")
