"""A document as verbatim markup with slots for its texts."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import unescape
from itertools import accumulate, chain, groupby, pairwise
from operator import attrgetter
from typing import Any, NamedTuple

from ..text.protection import NO_SPACE_BEFORE, PLACEHOLDER, Item, Link, masked, messages, unused_placeholders
from .segments import Segment, Tag, protect, resolve, slot, unprotect

WHITE_SPACE = " \t\r\n\f"

# A character as in markup: an entity, or a NUL, which is doubled.
_UNIT = re.compile(r"&#?\w{1,32};?|\0\0|.", re.DOTALL)

# Limits on tags to merge into one, and on their characters, so that nested pairs take linear time.
MAX_MERGED, MAX_MARKUP = 100, 10_000


class Source(NamedTuple):
    """A document to read.

    Attributes:
        content: Text without a byte order mark.
        name: Name for messages.
        target_lang: Language to translate into, for formats that name it.
    """

    content: str
    name: str
    target_lang: str | None


@dataclass(frozen=True)
class Document:
    """A document, split into segments to translate and the rest.

    Attributes:
        segments: Texts to translate, in order.
        write: Returns the document with each segment replaced by the given markup.
    """

    segments: tuple[Segment, ...]
    write: Callable[[Sequence[str]], str | bytes]

    def fill(self, translations: Iterable[tuple[str, Iterable[Link] | None]]) -> str | bytes:
        """Return the document with the translation of each segment, given with its word links, if known."""
        pairs = zip(self.segments, translations, strict=True)
        return self.render(segment.fill(*translation) for segment, translation in pairs)

    def render(self, filled: Iterable[str]) -> str | bytes:
        """Return the document with its segments replaced, in the type it was read from.

        Args:
            filled: Result of `Segment.fill` for each segment, in order.

        Raises:
            ValueError: The number of texts differs from that of the segments.
        """
        texts = list(filled)
        if len(texts) != len(self.segments):
            raise ValueError(f"{len(texts)} texts for {len(self.segments)} segments; give one per segment")
        return self.write(texts)


class Piece(NamedTuple):
    """A piece of a paragraph: its markup and, for text, the decoded text; a tag may open or close a pair.

    `is_kept` marks an untranslated part of the sentence, such as code; `is_break` markup that ends a segment.
    """

    markup: str
    text: str | None = None
    opens: str | None = None
    closes: str | None = None
    is_kept: bool = False
    is_break: bool = False

    @classmethod
    def of_tag(cls, markup: str, pair: str, is_closing: bool) -> "Piece":
        return cls(markup, closes=pair) if is_closing else cls(markup, opens=pair)

    def split(self, offsets: Sequence[int], escape: Callable[[str], str]) -> Iterator["Piece"]:
        """Yield the parts of the text between offsets: verbatim, or escaped if the markup cannot be cut there."""
        text = self.text or ""
        places = {offset: offset for offset in offsets} if self.markup == text else _places(self.markup, text)
        for start, end in pairwise(offsets):
            is_whole = start in places and end in places
            markup = self.markup[places[start] : places[end]] if is_whole else protect(escape(text[start:end]))
            yield Piece(markup, text[start:end])


def _places(markup: str, text: str) -> dict[int, int]:
    """Map offsets in a text to those in its markup; empty if they differ by more than entities."""
    units = _UNIT.findall(markup)
    decoded = [unprotect(unescape(unit)) for unit in units]
    if "".join(decoded) != text:
        return {}
    return dict(zip(*(accumulate(map(len, parts), initial=0) for parts in (decoded, units)), strict=True))


class Template:
    """Collects the markup and segments of a document."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._parts: list[str] = []

    def literal(self, *markup: str) -> None:
        """Add verbatim markup."""
        self._parts += markup

    def slot(self, segment: Segment) -> str:
        """Add a segment, and return its slot for use in markup."""
        self.segments.append(segment)
        return slot(len(self.segments) - 1)

    def text(self, text: str, escape: Callable[[str], str] = str, markup: str | None = None) -> str:
        """Return the slot of a text within its white space; ICU messages and text without letters stay verbatim.

        `markup` is the text as in the document, by default the escaped text.
        """
        markup = protect(escape(text)) if markup is None else markup
        pieces = _numbered(_with_messages_kept([Piece(markup, text)], escape))
        read = "".join(piece.text or "" for piece in pieces)
        core = read.strip()
        if not any(map(str.isalpha, core)):
            return markup
        head, _, tail = read.partition(core)
        return head + self.slot(_segment(core, (), pieces, escape)) + tail

    def text_lines(self, text: str) -> str:
        """Return a text with a slot for each line; a line goes on after an ICU message of several lines."""
        ends = accumulate(map(len, lines(masked(text, messages(text)))), initial=0)
        return "".join(self.text(text[start:end]) for start, end in pairwise(ends))

    def paragraph(self, pieces: Sequence[Piece], escape: Callable[[str], str]) -> None:
        """Add a text with tags, in a segment for each line; lines without letters stay verbatim.

        Tags around a whole line stay outside its segment; each run of white space becomes a single space.
        """
        for is_break, line in groupby(_with_messages_kept(pieces, escape), key=attrgetter("is_break")):
            if is_break:
                self.literal(*(piece.markup for piece in line))
            else:
                self._line(list(line), escape)

    def _line(self, pieces: Sequence[Piece], escape: Callable[[str], str]) -> None:
        markup = [piece.markup for piece in pieces]
        if not any(map(str.isalpha, "".join(piece.text or "" for piece in pieces))):
            self.literal(*markup)
            return
        pairs = _partners(pieces)
        pieces = _numbered(pieces)
        with_text = [i for i, piece in enumerate(pieces) if piece.text and piece.text.strip(WHITE_SPACE)]
        first, last = with_text[0], with_text[-1]
        begin = next((i for i in range(first) if first <= pairs.get(i, -1) <= last), first)
        end = next((i for i in range(len(pieces) - 1, last, -1) if begin <= pairs.get(i, -1) <= last), last)
        builder = _Builder()
        for index, piece in enumerate(pieces[begin : end + 1], start=begin):
            if piece.text is not None:
                builder.add_text(piece.text)
            elif index in pairs and pairs[index] < index:
                builder.close(piece.markup)
            else:
                builder.open(piece.markup)
                if index not in pairs:
                    builder.close()
        # White space at both ends stays outside the segment.
        head, tail = (
            "" if index != edge or pieces[edge].is_kept else markup[edge]
            for index, edge in ((begin, first), (end, last))
        )
        self.literal(*markup[:begin], head[: len(head) - len(head.lstrip(WHITE_SPACE))])
        segment = _segment(*builder.result(), pieces, escape)
        self.literal(self.slot(segment), tail[len(tail.rstrip(WHITE_SPACE)) :], *markup[end + 1 :])

    def document(self, tidy: Callable[[str], str] = str, finish: Callable[[str], str] = str) -> Document:
        """Return the document; `tidy` corrects the text of each segment, and `finish` the whole."""
        template = "".join(self._parts)

        def write(filled: Sequence[str]) -> str:
            return finish(resolve(template, lambda number: tidy(filled[number])))

        return Document(tuple(self.segments), write)


def _with_messages_kept(pieces: Sequence[Piece], escape: Callable[[str], str]) -> Sequence[Piece]:
    """Merge the pieces of each ICU message into one untranslated piece, unless a pair of tags crosses its ends."""
    texts = [" " if piece.text is None else piece.text for piece in pieces]
    # Starts and ends of messages, in turn: within one, the number of those before is odd.
    bounds = [*chain.from_iterable(messages("".join(texts)))]
    if not bounds:
        return pieces
    groups: dict[int, dict[int, Piece]] = {}
    end = 0
    for index, (piece, text) in enumerate(zip(pieces, texts, strict=True)):
        start, end = end, end + len(text)
        low, high = bisect_right(bounds, start), bisect_left(bounds, end)
        offsets = [0, *(bound - start for bound in bounds[low:high]), len(text)]
        parts = piece.split(offsets, escape) if low < high else (piece,)
        for number, part in enumerate(parts, start=low):
            groups.setdefault(number, {})[index] = part
    pairs = _partners(pieces)
    for number in range(1, len(bounds), 2):
        group = groups[number]
        if all(pairs.get(index, index) in group for index in group):
            groups[number] = {0: Piece("".join(piece.markup for piece in group.values()), is_kept=True)}
    return [piece for group in groups.values() for piece in group.values()]


def _partners(pieces: Sequence[Piece]) -> dict[int, int]:
    """Map each tag of a pair to its partner, by index; a tag without a partner is empty."""
    partners: dict[int, int] = {}
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
            partners[partner], partners[index] = index, partner
    return partners


def has_only_messages(text: str) -> bool:
    """Whether a text has ICU messages, but no letters outside them."""
    spans = messages(text)
    return bool(spans) and not any(map(str.isalpha, masked(text, spans, " ")))


def _numbered(pieces: Sequence[Piece]) -> list[Piece]:
    """Give each untranslated part a placeholder as its text."""
    names = unused_placeholders("".join(piece.text or "" for piece in pieces))
    return [piece._replace(text=next(names)) if piece.is_kept else piece for piece in pieces]


def _segment(text: str, tags: tuple[Tag, ...], pieces: Iterable[Piece], escape: Callable[[str], str]) -> Segment:
    kept = {piece.text: piece.markup for piece in pieces if piece.is_kept}
    matches = (match for match in PLACEHOLDER.finditer(text) if match[0] in kept)
    return Segment(text, tags, escape, tuple(Item(kept[match[0]], match.start(), match[0], "") for match in matches))


class _Builder:
    """Builds the text and tags of a segment."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._length = 0
        # Start, end, opening, closing, parent.
        self._tags: list[list[Any]] = []
        self._open: list[int] = []
        # Whether the text is empty or ends in a space, and whether only empty tags followed that space.
        self._ends_in_space, self._only_tags_since = True, False

    def add_text(self, text: str) -> None:
        for part in re.findall(rf"[{WHITE_SPACE}]+|[^{WHITE_SPACE}]+", text):
            if part[0] not in WHITE_SPACE:
                self._move_space(part[0])
                self._append(part)
                self._ends_in_space = self._only_tags_since = False
            elif not self._ends_in_space:
                self._append(" ")
                self._ends_in_space = self._only_tags_since = True
            elif tag := self._empty_tag_here():
                tag[2] = f"{tag[2].rstrip(' ')} "

    def open(self, markup: str) -> None:
        parent = self._open[-1] if self._open else -1
        self._open.append(len(self._tags))
        self._tags.append([self._length, -1, markup, "", parent])

    def close(self, markup: str = "") -> None:
        number = self._open.pop()
        tag, merged = self._tags[number], self._tags[number : number + MAX_MERGED]
        size = sum(len(inner[2]) for inner in merged)
        if tag[0] == self._length and number + len(merged) == len(self._tags) and size < MAX_MARKUP:
            # A pair around nothing, or around empty tags, is an empty tag.
            tag[2], markup = "".join(inner[2] for inner in merged) + markup, ""
            del self._tags[number + 1 :]
        tag[1], tag[3] = self._length, markup
        self._only_tags_since = self._only_tags_since and not markup

    def result(self) -> tuple[str, tuple[Tag, ...]]:
        text = "".join(self._texts).rstrip(WHITE_SPACE)
        return text, tuple(Tag(min(tag[0], len(text)), min(tag[1], len(text)), *tag[2:]) for tag in self._tags)

    def _append(self, text: str) -> None:
        self._texts.append(text)
        self._length += len(text)

    def _empty_tag_here(self) -> list[Any] | None:
        """Return the empty tag at the end of the text, if any."""
        tag = self._tags[-1] if self._tags else None
        return tag if tag and tag[0] == tag[1] == self._length and not tag[3] else None

    def _move_space(self, following: str) -> None:
        """Move the space before an empty tag into the tag if `following` takes no space before it, like a period."""
        tag = self._empty_tag_here()
        # A line break, which is white space, stays between words.
        if (
            self._only_tags_since
            and tag
            and tag[2].strip()
            and following in NO_SPACE_BEFORE
            and not tag[2].endswith(" ")
        ):
            self._texts.pop()
            self._length -= 1
            for other in reversed(self._tags):
                if other[0] <= self._length:
                    break
                other[0] = other[1] = self._length
            tag[2] = f" {tag[2]}"


def lines(text: str) -> list[str]:
    r"""Split a text into lines, keeping the line ends "\n" and "\r\n"."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
