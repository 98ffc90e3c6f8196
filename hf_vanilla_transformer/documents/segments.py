"""Segments of text to translate, and placement of their inline tags and untranslated parts in the translation."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

from ..text.protection import PLACEHOLDER, Item, Link, ProtectedText, Span, takes_no_space


class Tag(NamedTuple):
    """An inline tag.

    Attributes:
        start: Offset in the text of the segment.
        end: Offset of the closing tag; `start` for an empty tag.
        opening: Markup of the opening or empty tag.
        closing: Markup of the closing tag; "" for an empty tag.
        parent: Index of the enclosing tag, or -1.
    """

    start: int
    end: int
    opening: str
    closing: str = ""
    parent: int = -1


@dataclass(frozen=True)
class Segment:
    """A text to translate as a unit.

    Attributes:
        text: Text without markup, with placeholders for untranslated parts such as code.
        tags: Inline tags, in the order in which they open.
        escape: Escapes text for the format of the document.
        items: Untranslated parts as markup, in order.
    """

    text: str
    tags: tuple[Tag, ...] = ()
    escape: Callable[[str], str] = field(default=str, repr=False, compare=False)
    items: tuple[Item, ...] = ()

    def fill(self, translation: str, links: Iterable[Link] | None = None) -> str:
        """Return the translation as markup, with the tags and untranslated parts.

        Untranslated parts are placed by `ProtectedText.restore`. A pair of tags encloses the words aligned with its
        source words; an empty tag goes before the word aligned with the source word after it. Tags without links go to
        the same relative position.
        """
        # Markup replaces the placeholders only once the text around them is escaped.
        placed = ProtectedText(self.text, tuple(item._replace(text=item.placeholder) for item in self.items))
        translation, pairs = placed.restore(translation.lstrip(" "), links or ())
        if not self.tags:
            return self.markup(translation)
        return _with_tags(self, translation, _Placement(self, translation, pairs).spans())

    def markup(self, text: str) -> str:
        """Escape a part of the translation, and replace its placeholders with untranslated parts."""
        return PLACEHOLDER.sub(lambda match: self._kept.get(match[0], match[0]), protect(self.escape(text)))

    @cached_property
    def _kept(self) -> dict[str, str]:
        return {item.placeholder: item.text for item in self.items}


# Maximum length of a part of a word to look for in the translation.
MAX_PART = 100


# Private-use characters stand in for the characters of placeholders, so that they count as letters and equal no other
# text.
LETTERS = "\U000f0000"


def _with_letters(text: str) -> str:
    return PLACEHOLDER.sub(lambda match: "".join(chr(ord(LETTERS) + ord(mark)) for mark in match[0]), text)


class _Words:
    """The words of a text, by offset."""

    def __init__(self, text: str):
        self.spans = [match.span() for match in re.finditer(r"\S+", text)]
        # Number of words that end at or before an offset, and that begin before it.
        self.ended, self.begun = [0] * (len(text) + 1), [0] * (len(text) + 2)
        for start, end in self.spans:
            self.ended[end] += 1
            self.begun[start + 1] += 1
        self.ended, self.begun = list(accumulate(self.ended)), list(accumulate(self.begun))
        # The word of each placeholder, and the words that consist of placeholders and punctuation.
        self.placeholders = {match[0]: self.ended[match.start()] for match in PLACEHOLDER.finditer(text)}
        words = {index: PLACEHOLDER.sub("", text[slice(*self.spans[index])]) for index in self.placeholders.values()}
        self.bare = {index for index, rest in words.items() if not any(map(str.isalnum, rest))}

    def within(self, start: int, end: int) -> Span:
        """Return the index of the first word ending after `start`, and of the first beginning at or after `end`."""
        return self.ended[start], self.begun[end]


class _Extremes:
    """Sparse table: returns the min or max (`pick`) of any range of a list in constant time."""

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
    """Places the tags of a segment in a translation."""

    def __init__(self, segment: Segment, translation: str, links: Iterable[Link]):
        self.text, self.translation = map(_with_letters, (segment.text, translation))
        self.tags = segment.tags
        # For source words with tags within, the end of the last one and of its span in the translation.
        self.parts: dict[int, Span] = {}
        self.source, self.target = _Words(segment.text), _Words(translation)
        count, last = len(self.source.spans), len(self.target.spans)
        firsts, lasts = [last] * count, [-1] * count
        for source, target in self._exact(links):
            if 0 <= source < count and 0 <= target < last:
                firsts[source], lasts[source] = min(firsts[source], target), max(lasts[source], target)
        self.first, self.last = _Extremes(firsts, min), _Extremes(lasts, max)
        self.letters = list(accumulate((letter.isalnum() or letter > LETTERS for letter in self.text), initial=0))

    def _exact(self, links: Iterable[Link]) -> Iterator[Link]:
        """Yield links, with placeholders linked to themselves and, unless part of a longer word, to nothing else."""
        places = self.target.placeholders
        yield from ((word, places[name]) for name, word in self.source.placeholders.items() if name in places)
        yield from (link for link in links if link[0] not in self.source.bare and link[1] not in self.target.bare)

    def spans(self) -> list[Span]:
        """Return the span of each tag, well nested: siblings do not overlap."""
        # A tag without words is empty.
        spans = [self._pair(tag) if self._has_words(tag) else (self._place(tag.start),) * 2 for tag in self.tags]
        groups: dict[int, list[int]] = {}
        for index, tag in enumerate(self.tags):
            groups.setdefault(tag.parent, []).append(index)
        # A tag comes after its parent, so the parent's span is final.
        for parent, group in groups.items():
            low, high = (0, len(self.translation)) if parent < 0 else spans[parent]
            for index in group:
                start, end = spans[index]
                spans[index] = min(max(start, low), high), min(max(end, low), high)
                # An empty tag at the end of its parent stays there.
                if parent >= 0 and self.tags[index].start == self.tags[parent].end:
                    spans[index] = high, high
            self._separate(spans, group)
        return spans

    def _has_words(self, tag: Tag) -> bool:
        first, stop = self.source.within(tag.start, tag.end)
        return tag.start < tag.end and first < stop and bool(self.target.spans)

    def _pair(self, tag: Tag) -> Span:
        """Return the span of a tag that encloses words."""
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
            return self._part(tag, first, start, end)
        # Source characters just outside the pair stay outside if found here too; otherwise, any punctuation does.
        if opening := self.text[before : min(tag.start, before + MAX_PART)]:
            is_there = self.translation.startswith(opening, start, end)
            start = start + len(opening) if is_there else self._without_punctuation(start, end)[0]
        if closing := self.text[tag.end : min(after, tag.end + MAX_PART)]:
            is_there = self.translation.endswith(closing, start, end)
            end = end - len(closing) if is_there else self._without_punctuation(start, end)[1]
        return start, end

    def _part(self, tag: Tag, word: int, start: int, end: int) -> Span:
        """Return the span of a tag around a part of a word, such as the 2 of H2O, or the span of the whole word."""
        inner = self.text[tag.start : tag.end].strip() if tag.end - tag.start < MAX_PART else ""
        before, place = self.parts.get(word, (0, start))
        at = self.translation.find(inner, place if tag.start >= before else start, end) if inner else -1
        if at < 0:
            return start, end
        self.parts[word] = tag.end, at + len(inner)
        return at, at + len(inner)

    def _without_punctuation(self, start: int, end: int) -> Span:
        while start < end and unicodedata.category(self.translation[end - 1]).startswith("P"):
            end -= 1
        while start < end and unicodedata.category(self.translation[start]).startswith("P"):
            start += 1
        return start, end

    def _place(self, offset: int) -> int:
        """Return the place of a tag that encloses no words."""
        if offset == 0:
            return 0
        if not self._has_letters(offset, len(self.text)):
            # Punctuation after the tag at the end of the source stays after it in the translation.
            closing = self.text[offset : offset + MAX_PART].strip()
            return len(self.translation.rstrip().removesuffix(closing) if closing else self.translation)
        following, count, total = self.source.ended[offset], len(self.source.spans), len(self.target.spans)
        if not total:
            return len(self.translation)
        start, end = self.source.spans[self.source.ended[offset - 1]]
        if start < offset and not self._has_letters(offset, end):
            # At the end of a word, or between it and its comma.
            return self._pair(Tag(start, offset, ""))[1]
        word = round(following * total / count)
        if self.last.of(following, following + 1) >= 0:
            word = self.first.of(following, following + 1)
        elif following and (before := self.last.of(following - 1, following)) >= 0:
            word = before + 1
        if word >= total:
            return len(self.translation)
        place, start = self.target.spans[word][0], self.source.spans[following][0]
        # What stands before the tag in its word, such as a bracket or a part of the word, stays before it.
        opening = self.text[start:offset] if offset - start < MAX_PART else ""
        return place + len(opening) if self.translation.startswith(opening, place) else place

    def _has_letters(self, start: int, end: int) -> bool:
        return start < end and self.letters[end] > self.letters[start]

    def _separate(self, spans: list[Span], group: list[int]) -> None:
        """Trim overlapping pairs of a group, and move empty tags out of pairs."""
        previous = None
        for index in sorted((i for i in group if spans[i][0] < spans[i][1]), key=spans.__getitem__):
            start, end = spans[index]
            if previous is not None:
                low, high = spans[previous]
                if low < start < high:
                    spans[previous] = low, low + len(self.translation[low:start].rstrip())
                elif start < high:
                    start = min(high + self._spaces_at(high), max(high, end))
            spans[index] = start, max(start, end)
            previous = index
        place = 0
        wide = sorted(spans[i] for i in group if spans[i][0] < spans[i][1])
        for index in sorted((i for i in group if spans[i][0] >= spans[i][1]), key=lambda i: spans[i][0]):
            start = spans[index][0]
            while place < len(wide) and wide[place][1] <= start:
                place += 1
            if place < len(wide) and wide[place][0] < start:
                start = wide[place][1]
            spans[index] = start, start

    def _spaces_at(self, start: int) -> int:
        """Return the number of white space characters at an offset of the translation."""
        end = start
        while end < len(self.translation) and self.translation[end].isspace():
            end += 1
        return end - start


def _with_tags(segment: Segment, translation: str, spans: list[Span]) -> str:
    """Return a translation as markup, with the tags of a segment at their spans."""
    children: dict[int, list[int]] = {}
    for index in sorted(range(len(spans)), key=lambda i: (*spans[i], i)):
        children.setdefault(segment.tags[index].parent, []).append(index)
    pieces: list[str] = []
    written = 0
    # Stack of tags to open (index) and to close (~index).
    waiting = children.get(-1, [])[::-1]
    while waiting:
        index = waiting.pop()
        place = spans[index][0] if index >= 0 else spans[~index][1]
        pieces.append(segment.markup(translation[written:place]))
        written = place
        if index < 0:
            pieces.append(segment.tags[~index].closing)
            continue
        tag = segment.tags[index]
        pieces.append(tag.opening if tag.closing else _with_spaces(tag.opening, translation, place))
        if tag.closing:
            waiting.append(~index)
        waiting += children.get(index, [])[::-1]
    return "".join([*pieces, segment.markup(translation[written:])])


def _with_spaces(markup: str, translation: str, place: int) -> str:
    """Return an empty tag, surrounded by spaces if its markup begins or ends with one."""
    tag = markup.strip(" ")
    if tag == markup:
        return tag
    before = translation[place - 1 : place]
    return " " * bool(before.strip()) + tag + " " * (not takes_no_space(translation, place))


# Slot of a text in markup: `\0`, a number, `\0`. A NUL of the document itself is doubled.
_SLOT = re.compile("\0(\\d*)\0")


def protect(text: str) -> str:
    """Escape NULs so that no text looks like a slot."""
    return text.replace("\0", "\0\0")


def unprotect(text: str) -> str:
    """Undo `protect`."""
    return text.replace("\0\0", "\0")


def slot(number: int) -> str:
    """Return the slot of a text."""
    return f"\0{number}\0"


def resolve(text: str, fill: Callable[[int], str]) -> str:
    """Fill the slots of a text, recursively."""
    return _SLOT.sub(lambda match: resolve(fill(int(match[1])), fill) if match[1] else "\0", text)
