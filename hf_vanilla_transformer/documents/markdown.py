"""CommonMark with GitHub's tables: paragraphs, headings and cells are segments; emphasis and links are tags."""

import re
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from .html import CODE
from .segments import protect
from .template import Document, Piece, Source, Template

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

# YAML, or TOML as in Hugo.
_FRONT_MATTER = re.compile(
    r"(?:---[ \t]*\r?\n.*?\n(?:---|\.\.\.)|\+\+\+[ \t]*\r?\n.*?\n\+\+\+)[ \t]*(?:\r?\n|\Z)", re.DOTALL
)
_CHECKBOX = re.compile(r"\[[ xX]\]\s+")
_TAG = re.compile(r"<(/?)([a-z][a-z\d-]*)\b", re.IGNORECASE)
# A bare link, in which no character is special.
_LINK = r"""\b(?i:https?://|www\.)(?:\([^\s<>"`()[\]\\|]*+\)|[^\s<>"`()[\]\\|])+(?<![?!.,:;*~'])"""
_SPECIAL = re.compile(rf"({_LINK})|[\\`*\[\]]|(?<![^\W_])_|_(?![^\W_])|<(?=[a-zA-Z/!?])|&(?=#?\w+;)|~(?=~)")
# `{%` between quotes, which starts no tag.
_QUOTED = r"""(?:(?<=')\{%(?=')|(?<=")\{%(?="))"""
# Untranslated extensions of GitHub, wikis and templates: alerts, footnotes, tags, links, values, formulas; HTML code.
# None of these can start inside an unfinished one of its kind, so that time is linear.
KEPT = re.compile(
    r"""\A\[![A-Z]+\][ \t]*\n|\[\^[^\[\]\s]++\]:?|\A\[(?:TOC|toc)\]\Z"""
    rf"""|(?!{_QUOTED})\{{%(?:[^{{%\n]|%(?!\}})|\{{(?!%)|{_QUOTED})*+%\}}"""
    r"""|(?P<word>\[\[(?:[^\[\]\n]|\[[^\[\]\n]*+\]|\[(?!\[))+\]\]|\{\{[^{}\n]*+\}\}"""
    r"""|\$\$[^$]++\$\$|(?<!\$)\$[^\s$](?:[^$\n]*+(?<!\s))?\$(?![\d$])"""
    rf"""|(?i:<(?P<code>{"|".join(sorted(CODE))})\b[^<>]*+>[^<>]*+</(?P=code)\s*>))|(?P<link>{_LINK})"""
)
# Markup that begins a block, such as a list, at the start of a line.
_BLOCK = re.compile(r"(\d{1,9}(?=[.)](?!\S))|(?=#{1,6}(?!\S)|>|[+-](?!\S)|[=-]+\s*\Z))")


def read_markdown(source: Source) -> Document:
    """Read Markdown; code, HTML blocks, front matter and link targets are left unchanged."""
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
        self._parser, self._state = _parser()
        self._environment: dict[str, Any] = {}
        # Offset up to which the document is written.
        self._written = 0

    def read(self) -> Document:
        in_table = False
        for token in self._parser.parse(self._content, self._environment):
            if token.type in ("table_open", "table_close"):
                in_table = token.type == "table_open"
            elif token.type == "inline" and token.content and token.map:
                raw, places = self._find(token.content, token.map[0], in_table)
                if raw:
                    self._add(raw, places, partial(_escape, in_table=in_table))
        self._literal(len(self._content))
        return self.template.document()

    def _literal(self, end: int) -> None:
        self.template.literal(protect(self._content[self._written : end]))
        self._written = end

    def _find(self, content: str, first: int, in_table: bool) -> tuple[str, list[int]]:
        """Return a text as in the document, and the offsets there of each character and of its end."""
        lines: list[str] = []
        places: list[int] = []
        for number, part in enumerate(content.split("\n"), start=first):
            line, part = self._lines[number], part.lstrip()
            begin = max(line.start(), self._written)
            text = self._content[begin : line.end(1)].replace("\0", "\ufffd")
            if in_table:
                # Vertical bars are escaped in cells.
                match = re.search(re.escape(part).replace("\\|", "\\\\?\\|"), text)
                start, end = match.span() if match else (-1, -1)
            else:
                start = text.rfind(part)
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
        tokens = [(*token.meta["span"], token) for token in self._inline(raw)]
        kept = [(*match.span(), match) for match in KEPT.finditer(raw)]
        for start, end, token in sorted([*kept, *tokens], key=itemgetter(0)):
            # Part of markup already added: the tokens of an autolink share a span.
            if start < done:
                continue
            if start > done:
                pieces.append(Piece(markup(done, start), raw[done:start]))
            done = end
            if isinstance(token, re.Match) and not raw[start:end].endswith("\n"):
                pieces.append(Piece(markup(start, end), token["link"], is_kept=bool(token["word"])))
            elif (
                isinstance(token, re.Match)
                or token.type == "hardbreak"
                or (token.type == "html_inline" and re.match(r"<br\b", raw[start:end]))
            ):
                pieces.append(Piece(markup(start, end), is_break=True))
            elif token.type == "image":
                pieces.append(Piece(self._image(token, raw[start:end], markup(start, end), escape)))
            else:
                pieces.append(_piece(token, markup(start, end)))
        pieces.append(Piece(markup(done, len(raw)), raw[done:]))
        self.template.paragraph(pieces, escape)
        self._written = places[-1]

    def _inline(self, raw: str) -> list["Token"]:
        """Return the inline tokens other than plain text, with their spans."""
        state = self._state(raw, self._parser, self._environment, [])
        self._parser.inline.tokenize(state)
        for rule in self._parser.inline.ruler2.getRules(""):
            rule(state)
        tokens = [token for token in state.tokens if "span" in token.meta]
        # Of two asterisks, one is the token and the other an empty text.
        for one, other in pairwise(tokens):
            if other.type == "strong_open" and not one.content and one.type == "text":
                other.meta["span"] = one.meta["span"][0], other.meta["span"][1]
            elif one.type == "strong_close" and not other.content and other.type == "text":
                one.meta["span"] = one.meta["span"][0], other.meta["span"][1]
        return [token for token in tokens if token.type != "text" or token.content]

    def _image(self, token: "Token", raw: str, markup: str, escape: Callable[[str], str]) -> str:
        """Return an image with a slot for its alt text, which may also be its reference label."""
        text, target = token.content, raw[2 + len(token.content) :]
        if not markup.startswith(f"![{text}{target}") or re.search(r"[\\\[\]`*_<&\n\0]", text):
            return markup
        return f"![{self.template.text(text, escape)}{_with_label(target, text)}"


def _with_label(target: str, label: str) -> str:
    """Return the markup after the text of a link, with an explicit label if that text was the label."""
    return f"][{label}]" if target in ("]", "][]") else target


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


def _escape(text: str, in_table: bool = False) -> str:
    escaped = _SPECIAL.sub(lambda match: match[1] or f"\\{match[0]}", re.sub(r"[\r\n]+", " ", text))
    if begin := _BLOCK.match(escaped):
        escaped = f"{begin[1]}\\{escaped[len(begin[1]) :]}"
    return escaped.replace("|", "\\|") if in_table else escaped


def _parser() -> "tuple[MarkdownIt, type[StateInline]]":
    """Return a parser that records the spans of inline tokens, and the inline state that this requires."""
    from markdown_it import MarkdownIt
    from markdown_it.rules_inline import StateInline
    from markdown_it.token import Token

    class State(StateInline):
        def push(self, ttype: str, tag: str, nesting: Any) -> Token:
            token = super().push(ttype, tag, nesting)
            token.meta["span"] = (self.pos, self.pos)
            return token

    def recorded(name: str, rule: Callable[[StateInline, bool], bool]) -> Callable[[StateInline, bool], bool]:
        def run(state: StateInline, silent: bool) -> bool:
            start, count = state.pos, len(state.tokens)
            if not rule(state, silent):
                return False
            pushed = [token for token in state.tokens[count:] if "span" in token.meta]
            if silent or not pushed:
                return True
            if name == "link":
                begin, end = pushed[0].meta["span"][0], pushed[-1].meta["span"][0]
                pushed[0].meta["span"], pushed[-1].meta["span"] = (start, begin), (end, state.pos)
                pushed[-1].meta["label"] = state.src[begin:end]
                return True
            for token in pushed:
                # Each asterisk of a run is a token.
                end = start + len(token.content) if name in ("emphasis", "strikethrough") else state.pos
                token.meta["span"] = (start, end)
                start = end if name in ("emphasis", "strikethrough") else start
            return True

        return run

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    parser.disable("fragments_join")
    rules = zip(parser.get_active_rules()["inline"], parser.inline.ruler.getRules(""), strict=True)
    for name, rule in list(rules):
        parser.inline.ruler.at(name, recorded(name, rule))
    return parser, State
