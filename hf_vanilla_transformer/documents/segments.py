"""A text to translate as a unit; its inline tags follow the words of the translation, and what is kept stays in it."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from ..text.protection import PLACEHOLDER

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


@dataclass(frozen=True)
class Segment:
    """A text to translate as a unit.

    Attributes:
        text: Without markup, with placeholders for what is not translated, such as code.
        tags: The inline tags, in the order in which they open.
        escape: Writes text in the format of the document.
        kept: The markup of each placeholder.
    """

    text: str
    tags: tuple[Tag, ...] = ()
    escape: Callable[[str], str] = field(default=str, repr=False, compare=False)
    kept: Mapping[str, str] = field(default_factory=dict)

    def fill(self, translation: str, links: Iterable[Link] | None = None) -> str:
        """Return the translation with the tags and what is kept, as markup.

        What is kept stands where its placeholder is, or else at the end. A pair of tags goes around the words that its
        words are linked to, an empty tag before the word that the word after it is linked to; a tag without links goes
        to the same part of the text.
        """
        found = {match[0] for match in PLACEHOLDER.finditer(translation)}
        translation = " ".join([translation, *(each for each in self.kept if each not in found)]).lstrip(" ")
        if not self.tags:
            return self.markup(translation)
        return _written(self, translation, _Placement(self, translation, links or ()).spans())

    def markup(self, text: str) -> str:
        """Return a part of the translation as markup."""
        return PLACEHOLDER.sub(lambda match: self.kept.get(match[0], match[0]), protect(self.escape(text)))


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
        # What is kept counts as a word.
        self.text, self.translation = (PLACEHOLDER.sub(r"x\1x", text) for text in (segment.text, translation))
        self.tags = segment.tags
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
        spans = [self._pair(tag) if self._has_words(tag) else self._empty(tag) for tag in self.tags]
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
        # What its words have before or after the pair, or else any punctuation, stays outside.
        if opening := self.text[before : min(tag.start, before + MAX_PART)]:
            is_there = self.translation.startswith(opening, start, end)
            start = start + len(opening) if is_there else self._without_punctuation(start, end)[0]
        if closing := self.text[tag.end : min(after, tag.end + MAX_PART)]:
            is_there = self.translation.endswith(closing, start, end)
            end = end - len(closing) if is_there else self._without_punctuation(start, end)[1]
        return start, end

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
        pieces.append(segment.markup(translation[written:place]))
        written = place
        if index < 0:
            pieces.append(segment.tags[~index].closing)
            continue
        tag = segment.tags[index]
        pieces.append(tag.opening if tag.closing else _with_blanks(tag.opening, translation, place))
        if tag.closing:
            waiting.append(~index)
        waiting += children.get(index, [])[::-1]
    return "".join([*pieces, segment.markup(translation[written:])])


def _with_blanks(markup: str, translation: str, place: int) -> str:
    """Return an empty tag, between blanks if it has one."""
    tag = markup.strip(" ")
    if tag == markup:
        return tag
    before, after = translation[place - 1 : place], translation[place : place + 1]
    return " " * bool(before.strip()) + tag + " " * bool(after.strip() and after not in CLOSING)


# Places of texts in markup: `\0`, a number, `\0`. A `\0` of the document itself is doubled.
_SLOT = re.compile("\0(\\d*)\0")


def protect(text: str) -> str:
    """Return a text of which no part is a slot."""
    return text.replace("\0", "\0\0")


def unprotect(text: str) -> str:
    """Return the text that `protect` was given."""
    return text.replace("\0\0", "\0")


def slot(number: int) -> str:
    """Return the place of a text."""
    return f"\0{number}\0"


def resolve(text: str, fill: Callable[[int], str]) -> str:
    """Return a text with its slots filled, and those of what fills them."""
    return _SLOT.sub(lambda match: resolve(fill(int(match[1])), fill) if match[1] else "\0", text)
