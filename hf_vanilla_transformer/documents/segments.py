"""A text to translate as a unit, and its inline tags, which follow the words of the translation."""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, starmap
from typing import Any, NamedTuple

from .slots import protect

Link = tuple[int, int]
"""Source and target word that belong together, counted from 0; white space separates words."""


class Tag(NamedTuple):
    """An inline tag.

    Attributes:
        start: Its offset in the text of the segment.
        end: The offset of its closing tag; `start` for an empty tag.
        opening: Its markup.
        closing: The markup of its closing tag; "" for an empty tag.
        parent: Index of the tag around it, or -1.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    parent: int = -1


# What no blank stands before.
CLOSING = frozenset(".,;:!?)]}’”»…%")

BLANKS = " \t\r\n\f"


@dataclass(frozen=True)
class Segment:
    """A text to translate as a unit.

    Attributes:
        text: Without markup.
        tags: The inline tags, in the order in which they open.
        escape: Writes text in the format of the document.
    """

    text: str
    tags: tuple[Tag, ...] = ()
    escape: Callable[[str], str] = field(default=str, repr=False, compare=False)

    def fill(self, translation: str, links: Iterable[Link] | None = None) -> str:
        """Return the translation with the tags, as markup.

        A pair of tags goes around the words that its words are linked to, an empty tag before the word that the word
        after it is linked to; a tag without links goes to the same part of the text.
        """
        if not self.tags:
            return protect(self.escape(translation))
        spans = _Placement(self, translation, links or ()).spans()
        return _written(self, translation, spans)


Span = tuple[int, int]

# Characters of a part of a word that is looked for in the translation.
MAX_PART = 100


class _Words:
    """The words of a text, by offset."""

    def __init__(self, text: str):
        self.spans = [match.span() for match in re.finditer(r"\S+", text)]
        # Words that end, and words that begin, up to an offset.
        self.ended, self.begun = [0] * (len(text) + 1), [0] * (len(text) + 2)
        for start, end in self.spans:
            self.ended[end] += 1
            self.begun[start + 1] += 1
        self.ended, self.begun = list(accumulate(self.ended)), list(accumulate(self.begun))

    def within(self, start: int, end: int) -> Span:
        """Return the first word that ends after `start`, and the first that does not begin before `end`."""
        return self.ended[start], self.begun[end]


class _Extremes:
    """Answers for any range of a list what `pick`, min or max, chooses, in constant time."""

    def __init__(self, values: Sequence[int], pick: Callable[[int, int], int]):
        self._pick, self._rows = pick, [list(values)]
        width = 1
        while 2 * width <= len(values):
            row = self._rows[-1]
            self._rows.append([pick(row[i], row[i + width]) for i in range(len(row) - width)])
            width *= 2

    def of(self, start: int, end: int) -> int:
        level = (end - start).bit_length() - 1
        return self._pick(self._rows[level][start], self._rows[level][end - (1 << level)])


class _Placement:
    """Where the tags of a segment go in a translation."""

    def __init__(self, segment: Segment, translation: str, links: Iterable[Link]):
        self.text, self.tags, self.translation = segment.text, segment.tags, translation
        self.source, self.target = _Words(self.text), _Words(translation)
        count, last = len(self.source.spans), len(self.target.spans)
        firsts, lasts = [last] * count, [-1] * count
        for source, target in links:
            if 0 <= source < count and 0 <= target < last:
                firsts[source], lasts[source] = min(firsts[source], target), max(lasts[source], target)
        self.first, self.last = _Extremes(firsts, min), _Extremes(lasts, max)
        self.letters = list(accumulate(map(str.isalnum, self.text), initial=0))

    def spans(self) -> list[Span]:
        """Return where each tag opens and closes, well nested: siblings do not overlap."""
        spans: list[Span] = [self._pair(tag) if self._has_words(tag) else self._empty(tag) for tag in self.tags]
        groups: dict[int, list[int]] = {}
        for index, tag in enumerate(self.tags):
            groups.setdefault(tag.parent, []).append(index)
        # A tag comes after its parent, so that the parent's place is final.
        for parent, group in groups.items():
            low, high = (0, len(self.translation)) if parent < 0 else spans[parent]
            for index in group:
                start, end = spans[index]
                spans[index] = min(max(start, low), high), min(max(end, low), high)
            self._separate(spans, group)
        return spans

    def _has_words(self, tag: Tag) -> bool:
        first, stop = self.source.within(tag.start, tag.end)
        return tag.start < tag.end and first < stop and bool(self.target.spans)

    def _pair(self, tag: Tag) -> Span:
        """Return the place of a pair around words."""
        first, stop = self.source.within(tag.start, tag.end)
        before, after = self.source.spans[first][0], self.source.spans[stop - 1][1]
        if (first, stop) == (0, len(self.source.spans)) and tag.start <= before and after <= tag.end:
            return 0, len(self.translation)
        low, high = self.first.of(first, stop), self.last.of(first, stop)
        if high < 0:
            count, total = len(self.source.spans), len(self.target.spans)
            low = min(first * total // count, total - 1)
            high = max(low, -(-stop * total // count) - 1)
        start, end = self.target.spans[low][0], self.target.spans[high][1]
        if self._has_letters(before, tag.start) or self._has_letters(tag.end, after):
            # A part of a word, such as the 2 of H2O.
            inner = self.text[tag.start : tag.end].strip() if tag.end - tag.start < MAX_PART else ""
            at = self.translation.find(inner, start, end) if inner else -1
            return (at, at + len(inner)) if at >= 0 else (start, end)
        bare = self._without_punctuation(start, end)
        return bare[0] if before < tag.start else start, bare[1] if tag.end < after else end

    def _without_punctuation(self, start: int, end: int) -> Span:
        while start < end and unicodedata.category(self.translation[end - 1]).startswith("P"):
            end -= 1
        while start < end and unicodedata.category(self.translation[start]).startswith("P"):
            start += 1
        return start, end

    def _empty(self, tag: Tag) -> Span:
        """Return the place of a tag around no words."""
        place = self._place(tag.start)
        return place, place

    def _place(self, offset: int) -> int:
        if offset == 0:
            return 0
        if not self._has_letters(offset, len(self.text)):
            # What closes the source after the tag closes the translation after it too.
            closing = self.text[offset : offset + MAX_PART].strip()
            return len(self.translation.rstrip().removesuffix(closing) if closing else self.translation)
        following, count, total = self.source.ended[offset], len(self.source.spans), len(self.target.spans)
        if not total:
            return len(self.translation)
        start, end = self.source.spans[self.source.ended[offset - 1]]
        if start < offset and not self._has_letters(offset, end):
            # At the end of a word, or between it and its comma.
            return self._pair(Tag(start, offset, ""))[1]
        if self.last.of(following, following + 1) >= 0:
            return self.target.spans[self.first.of(following, following + 1)][0]
        place = round(following * total / count)
        if following and (before := self.last.of(following - 1, following)) >= 0:
            place = before + 1
        return self.target.spans[place][0] if place < total else len(self.translation)

    def _has_letters(self, start: int, end: int) -> bool:
        return start < end and self.letters[end] > self.letters[start]

    def _separate(self, spans: list[Span], group: list[int]) -> None:
        """Cut the pairs of a group where they overlap, and move what is empty out of them."""
        previous = None
        for index in sorted((i for i in group if self._is_wide(spans[i])), key=spans.__getitem__):
            start, end = spans[index]
            if previous is not None:
                low, high = spans[previous]
                if low < start < high:
                    spans[previous] = low, low + len(self.translation[low:start].rstrip())
                elif start < high:
                    start = min(high + self._blanks(high), max(high, end))
            spans[index] = start, max(start, end)
            previous = index
        place = 0
        wide = sorted(spans[i] for i in group if self._is_wide(spans[i]))
        for index in sorted((i for i in group if not self._is_wide(spans[i])), key=lambda i: spans[i][0]):
            start = spans[index][0]
            while place < len(wide) and wide[place][1] <= start:
                place += 1
            if place < len(wide) and wide[place][0] < start:
                start = wide[place][1]
            spans[index] = start, start

    @staticmethod
    def _is_wide(span: Span) -> bool:
        return span[0] < span[1]

    def _blanks(self, start: int) -> int:
        """Return how many blanks begin at an offset of the translation."""
        end = start
        while end < len(self.translation) and self.translation[end].isspace():
            end += 1
        return end - start


def _written(segment: Segment, translation: str, spans: list[Span]) -> str:
    """Return a translation with the tags of a segment at their places."""
    children: dict[int, list[int]] = {}
    for index in sorted(range(len(spans)), key=lambda i: (*spans[i], i)):
        children.setdefault(segment.tags[index].parent, []).append(index)
    pieces: list[str] = []
    written = 0
    # Tags to open, and as ~index to close; the next one last.
    waiting = children.get(-1, [])[::-1]
    while waiting:
        index = waiting.pop()
        place = spans[index][0] if index >= 0 else spans[~index][1]
        pieces.append(protect(segment.escape(translation[written:place])))
        written = place
        if index < 0:
            pieces.append(segment.tags[~index].closing)
            continue
        tag = segment.tags[index]
        pieces.append(tag.opening if tag.closing else _with_blanks(tag.opening, translation, place))
        if tag.closing:
            waiting.append(~index)
        waiting += children.get(index, [])[::-1]
    return "".join([*pieces, protect(segment.escape(translation[written:]))])


def _with_blanks(markup: str, translation: str, place: int) -> str:
    """Return an empty tag, between blanks if it has one."""
    tag = markup.strip(" ")
    if tag == markup:
        return tag
    before, after = translation[place - 1 : place], translation[place : place + 1]
    return " " * bool(before.strip()) + tag + " " * bool(after.strip() and after not in CLOSING)


class Piece(NamedTuple):
    """A part of a paragraph: text, or a tag.

    Attributes:
        markup: As in the document.
        text: Of text, without references; None for a tag.
        opens: Name of the pair that it opens.
        closes: Name of the pair that it closes.
    """

    markup: str
    text: str | None = None
    opens: str | None = None
    closes: str | None = None


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


def read_segment(pieces: Sequence[Piece], escape: Callable[[str], str]) -> tuple[str, Segment | None, str]:
    """Return the segment of a paragraph, if it has letters, and the markup before and after it.

    Tags around the whole text are no tags of the segment; white space in it becomes blanks.
    """
    if not any(map(str.isalpha, "".join(piece.text or "" for piece in pieces))):
        return "".join(piece.markup for piece in pieces), None, ""
    pairs = _partners(pieces)
    with_text = [i for i, piece in enumerate(pieces) if piece.text and piece.text.strip(BLANKS)]
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
    # The white space at both ends stays as it is.
    head, tail = pieces[first].markup if begin == first else "", pieces[last].markup if end == last else ""
    before = "".join(piece.markup for piece in pieces[:begin]) + head[: len(head) - len(head.lstrip(BLANKS))]
    after = tail[len(tail.rstrip(BLANKS)) :] + "".join(piece.markup for piece in pieces[end + 1 :])
    return before, builder.segment(escape), after


class _Builder:
    """Collects the text and tags of a segment."""

    def __init__(self) -> None:
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

    def open(self, markup: str) -> None:
        parent = self._open[-1] if self._open else -1
        self._open.append(len(self._tags))
        self._tags.append([self._length, -1, markup, "", parent])

    def close(self, markup: str = "") -> None:
        tag = self._tags[self._open.pop()]
        tag[1], tag[3] = self._length, markup
        self._loose = self._loose and not markup

    def segment(self, escape: Callable[[str], str]) -> Segment:
        text = "".join(self._texts).rstrip(BLANKS)
        tags = ((min(tag[0], len(text)), min(tag[1], len(text)), *tag[2:]) for tag in self._tags)
        return Segment(text, tuple(starmap(Tag, tags)), escape)

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
