"""A document as its markup, to the letter, with places for texts."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import count, starmap
from typing import Any, NamedTuple

from ..text.protection import PLACEHOLDER
from .segments import CLOSING, Segment, Tag, protect, resolve, slot

BLANKS = " \t\r\n\f"

# Tags that become one, and characters of them, so that pairs within pairs take linear time.
MAX_MERGED, MAX_MARKUP = 100, 10_000


class Source(NamedTuple):
    """A document to take apart.

    Attributes:
        content: Its text, without a byte order mark.
        name: Its name in messages.
        target_lang: The language to translate to, for formats that name it.
    """

    content: str
    name: str
    target_lang: str | None


@dataclass(frozen=True)
class Document:
    """A document as the texts to translate and the rest.

    Attributes:
        segments: The texts.
        write: Returns the document with these texts, as markup, in place of its own.
    """

    segments: tuple[Segment, ...]
    write: Callable[[Sequence[str]], str | bytes]

    def render(self, filled: Iterable[str]) -> str | bytes:
        """Return the document with other texts, of the type that it was read from.

        Args:
            filled: What `fill` returned for each segment, in order.
        """
        texts = list(filled)
        if len(texts) != len(self.segments):
            raise ValueError(f"{len(texts)} texts for {len(self.segments)} segments; give one for each")
        return self.write(texts)


class Piece(NamedTuple):
    """A part of a paragraph: its markup and, for text, the same without references; a tag may open or close a pair.

    What is kept is a part of the sentence that is not translated, such as code.
    """

    markup: str
    text: str | None = None
    opens: str | None = None
    closes: str | None = None
    is_kept: bool = False

    @classmethod
    def of_tag(cls, markup: str, pair: str, is_closing: bool) -> "Piece":
        return cls(markup, closes=pair) if is_closing else cls(markup, opens=pair)


class Template:
    """Collects the markup of a document, and its texts."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._parts: list[str] = []

    def literal(self, *markup: str) -> None:
        """Add what stays as it is."""
        self._parts += markup

    def slot(self, segment: Segment) -> str:
        """Return the place of a segment, which may be a part of markup."""
        self.segments.append(segment)
        return slot(len(self.segments) - 1)

    def text(self, text: str, escape: Callable[[str], str] = str) -> str:
        """Return the place of a text, between the white space around it; one without letters stays as it is."""
        core = text.strip()
        if not any(map(str.isalpha, core)):
            return protect(escape(text))
        head, _, tail = text.partition(core)
        return head + self.slot(Segment(core, (), escape)) + tail

    def text_lines(self, text: str) -> str:
        """Return a text with a place for that of each line."""
        return "".join(map(self.text, lines(text)))

    def paragraph(self, pieces: Sequence[Piece], escape: Callable[[str], str]) -> None:
        """Add a text with tags; one without letters stays as it is.

        Tags around the whole text are no tags of its segment; white space in it becomes blanks.
        """
        markup = [piece.markup for piece in pieces]
        if not any(map(str.isalpha, "".join(piece.text or "" for piece in pieces))):
            self.literal(*markup)
            return
        pairs = _partners(pieces)
        with_text = [i for i, piece in enumerate(pieces) if piece.is_kept or (piece.text and piece.text.strip(BLANKS))]
        first, last = with_text[0], with_text[-1]
        begin = next((i for i in range(first) if first <= pairs.get(i, -1) <= last), first)
        end = next((i for i in range(len(pieces) - 1, last, -1) if begin <= pairs.get(i, -1) <= last), last)
        builder = _Builder("".join(piece.text or "" for piece in pieces))
        for index, piece in enumerate(pieces[begin : end + 1], start=begin):
            if piece.is_kept:
                builder.keep(piece.markup)
            elif piece.text is not None:
                builder.add_text(piece.text)
            elif index in pairs and pairs[index] < index:
                builder.close(piece.markup)
            else:
                builder.open(piece.markup)
                if index not in pairs:
                    builder.close()
        # The white space at both ends stays as it is.
        head, tail = (
            "" if index != edge or pieces[edge].is_kept else markup[edge]
            for index, edge in ((begin, first), (end, last))
        )
        self.literal(*markup[:begin], head[: len(head) - len(head.lstrip(BLANKS))])
        self.literal(self.slot(builder.segment(escape)), tail[len(tail.rstrip(BLANKS)) :], *markup[end + 1 :])

    def document(self, tidy: Callable[[str], str] = str, finish: Callable[[str], str] = str) -> Document:
        """Return the document; `tidy` corrects what fills a segment, and `finish` the whole."""
        template = "".join(self._parts)

        def write(filled: Sequence[str]) -> str:
            return finish(resolve(template, lambda number: tidy(filled[number])))

        return Document(tuple(self.segments), write)


def _partners(pieces: Sequence[Piece]) -> dict[int, int]:
    """Return the pairs among the pieces as indices, both ways; a tag without partner is empty."""
    found: dict[int, int] = {}
    opened: list[int] = []
    names: Counter[str | None] = Counter()
    for index, piece in enumerate(pieces):
        if piece.opens is not None:
            opened.append(index)
            names[piece.opens] += 1
        elif piece.closes is not None and names[piece.closes]:
            while True:
                partner = opened.pop()
                names[pieces[partner].opens] -= 1
                if pieces[partner].opens == piece.closes:
                    break
            found[partner], found[index] = index, partner
    return found


class _Builder:
    """Collects a segment: its text, its tags and what is kept; `source` is all of the document that is in the text."""

    def __init__(self, source: str) -> None:
        self._kept: dict[str, str] = {}
        used = {match[0] for match in PLACEHOLDER.finditer(source)}
        self._placeholders = (each for each in map("⟦{}⟧".format, count(1)) if each not in used)
        self._texts: list[str] = []
        self._length = 0
        # Start, end, opening, closing, parent.
        self._tags: list[list[Any]] = []
        self._open: list[int] = []
        # Whether the text ends in a blank, or has not begun; and whether only empty tags came since.
        self._blank, self._loose = True, False

    def add_text(self, text: str) -> None:
        for part in re.findall(rf"[{BLANKS}]+|[^{BLANKS}]+", text):
            if part[0] not in BLANKS:
                self._move_blank(part[0])
                self._append(part)
                self._blank = self._loose = False
            elif not self._blank:
                self._append(" ")
                self._blank = self._loose = True
            elif tag := self._empty_tag_here():
                tag[2] = f"{tag[2].rstrip(' ')} "

    def keep(self, markup: str) -> None:
        placeholder = next(self._placeholders)
        self._kept[placeholder] = markup
        self.add_text(placeholder)

    def open(self, markup: str) -> None:
        parent = self._open[-1] if self._open else -1
        self._open.append(len(self._tags))
        self._tags.append([self._length, -1, markup, "", parent])

    def close(self, markup: str = "") -> None:
        number = self._open.pop()
        tag, merged = self._tags[number], self._tags[number : number + MAX_MERGED]
        size = sum(len(each[2]) for each in merged)
        if tag[0] == self._length and number + len(merged) == len(self._tags) and size < MAX_MARKUP:
            # A pair around nothing, or around empty tags, is an empty tag.
            tag[2], markup = "".join(each[2] for each in merged) + markup, ""
            del self._tags[number + 1 :]
        tag[1], tag[3] = self._length, markup
        self._loose = self._loose and not markup

    def segment(self, escape: Callable[[str], str]) -> Segment:
        text = "".join(self._texts).rstrip(BLANKS)
        tags = ((min(tag[0], len(text)), min(tag[1], len(text)), *tag[2:]) for tag in self._tags)
        return Segment(text, tuple(starmap(Tag, tags)), escape, self._kept)

    def _append(self, text: str) -> None:
        self._texts.append(text)
        self._length += len(text)

    def _empty_tag_here(self) -> list[Any] | None:
        """Return the empty tag at the end of the text."""
        tag = self._tags[-1] if self._tags else None
        return tag if tag and tag[0] == tag[1] == self._length and not tag[3] else None

    def _move_blank(self, following: str) -> None:
        """Give the blank before an empty tag to the tag if what follows has none before it, as a period."""
        tag = self._empty_tag_here()
        if self._loose and tag and following in CLOSING and not tag[2].endswith(" "):
            self._texts.pop()
            self._length -= 1
            for other in reversed(self._tags):
                if other[0] <= self._length:
                    break
                other[0] = other[1] = self._length
            tag[2] = f" {tag[2]}"


def lines(text: str) -> list[str]:
    r"""Return the lines of a text with their ends, which are "\n" and "\r\n"."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def with_line_ends(rendered: str, content: str) -> str:
    r"""Return a rendered document with the line ends of its content, "\n" or "\r\n"."""
    return rendered.replace("\n", "\r\n") if "\r\n" in content else rendered
