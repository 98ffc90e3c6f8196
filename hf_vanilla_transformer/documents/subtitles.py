"""SubRip and WebVTT: cues are segments, line breaks are tags, and times and settings stay verbatim."""

import re
from collections.abc import Callable
from functools import partial
from html import unescape
from typing import NamedTuple

from ..errors import DataError
from .segments import protect, unprotect
from .template import WHITE_SPACE, Document, Piece, Source, Template

# The time at which a word of a cue appears, and the start of its span, which may have the space before the word.
_TIME = r"<\d+:[\d:.]+>"
_WORD_TIME = re.compile(_TIME)
_SPAN = rf"((?:{_TIME}|<c\b[^<>]*>){{0,8}}<c\b[^<>]*>)"
_SPACE_AFTER, _SPACE_BEFORE = re.compile(rf"(?<=\S){_SPAN} "), re.compile(rf" {_SPAN}(?=\S)")
_TAG = re.compile(rf"(?:{_TIME})?<(/?)([a-z]+)", re.IGNORECASE)
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
# Each speaker, marked with a dash, gets a segment.
_NEW_SPEAKER = re.compile(r"(?<=[\r\n])(?=[-\u2013\u2014]\s?\S)")
# Times as players read them: with other separators, or without milliseconds.
_TIMES = re.compile(r"\s*-?\d[\d:.,]*[ \t]*-->[ \t]*-?\d[\d:.,]*(\s.*)?", re.DOTALL)
_NUMBER = re.compile(r"\W*\d+\W*")
# First line of a block without text to translate.
_OTHER = re.compile(r"(WEBVTT|NOTE|STYLE|REGION)(?=\s|$)")
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "\xa0": "&nbsp;", "\u200e": "&lrm;", "\u200f": "&rlm;"}


class _Format(NamedTuple):
    """Syntax of cues: times, tags and line breaks, and conversion between markup and text."""

    times: re.Pattern[str]
    example: str
    parts: re.Pattern[str]
    text_of: Callable[[str], str]
    markup_of: Callable[[str], str]
    # Whether only empty lines end a cue, which may have a name, and blocks may be notes.
    is_web: bool


_SRT = _Format(
    re.compile(r"\s*\d+:\d\d:\d\d[,.]\d{1,3}\s*-->\s*\d+:\d\d:\d\d[,.]\d{1,3}(\s.*)?", re.DOTALL),
    "00:00:01,000 --> 00:00:02,000",
    # Including the override tags of Advanced SubStation Alpha.
    re.compile(r"(</?[a-z][^<>\r\n]*>|\{\\[^{}\r\n]*\}|[\r\n]\s*)", re.IGNORECASE),
    unprotect,
    lambda text: text.replace("-->", "→"),
    False,
)
_VTT = _Format(
    re.compile(r"\s*(\d+:)?\d\d:\d\d\.\d{3}\s*-->\s*(\d+:)?\d\d:\d\d\.\d{3}(\s.*)?", re.DOTALL),
    "00:01.000 --> 00:02.000",
    # The reading of a ruby text goes with its base, and a time with the span after it.
    re.compile(rf"(<rt\b[^<>]*>[^<>]*(?:</rt>)?|<v\b[^<>]*> *|(?:{_TIME})?<(?!\d)[^<>]*>|<[^<>]*>|[\r\n]\s*)"),
    lambda markup: unprotect(unescape(markup)),
    str,
    True,
)


def read_srt(source: Source) -> Document:
    """Read SubRip as players do: times alone begin a cue, and its text may have blank lines.

    Raises:
        DataError: There is text before the first cue.
    """
    return _Cues(source, _SRT).document()


def read_vtt(source: Source) -> Document:
    """Read WebVTT; notes, styles and regions are left unchanged.

    Raises:
        DataError: The first line is not WEBVTT, or there is text before the first cue.
    """
    if not re.match(r"WEBVTT(?=\s|$)", source.content):
        raise DataError(f"{source.name}, line 1: not WebVTT, which begins with WEBVTT; check the file")
    # Characters are escaped if the file escapes them.
    entities = {mark: name for mark, name in _ENTITIES.items() if mark == "<" or name in source.content}
    ambiguous = re.compile("&" if "&" in entities else r"&(?=#?\w+;)")
    rest = str.maketrans({mark: name for mark, name in entities.items() if mark != "&"})

    def markup_of(text: str) -> str:
        return ambiguous.sub("&amp;", text).translate(rest).replace("-->", "--&gt;")

    return _Cues(source, _VTT._replace(markup_of=markup_of)).document()


class _Cues:
    """Collects the cues of a file."""

    def __init__(self, source: Source, kind: _Format):
        self._source, self._kind = source, kind
        self._template = Template()
        self._faults: list[str] = []
        # Lines of text that are to be added, and lines of the block so far.
        self._text: list[str] = []
        self._lines = 0
        # Whether the block has no text to translate, and whether it and the file have had times.
        self._is_other = self._has_times = self._has_cues = False

    def document(self) -> Document:
        number = 0
        for number, row in enumerate(_LINE.findall(protect(self._source.content)), start=1):
            self._add(number, row)
        self._add_text(number + 1)
        if self._faults:
            others = f", like {len(self._faults) - 1} more" if len(self._faults) > 1 else ""
            # Lazily: help and errors of options appear at once.
            from transformers.utils import logging

            logging.get_logger(__name__).warning(f"{self._source.name}, {self._faults[0]}; kept as it is{others}")
        content = self._source.content
        times = {time: order for order, time in enumerate(_WORD_TIME.findall(content))}
        return self._template.document(partial(_tidy, times=times, space_after=bool(_SPACE_AFTER.search(content))))

    def _add(self, number: int, row: str) -> None:
        if not row.strip(WHITE_SPACE):
            self._add_text(number)
            self._template.literal(row)
            # A line of spaces ends no block of WebVTT.
            if not (self._kind.is_web and row.strip("\r\n")):
                self._lines, self._is_other, self._has_times = 0, False, False
            return
        self._lines += 1
        if self._lines == 1:
            self._is_other = self._kind.is_web and bool(_OTHER.match(row))
        may_be_times = "-->" in row and self._lines < 3 and not (self._is_other or self._has_times)
        if may_be_times or _TIMES.fullmatch(row):
            self._add_times(number, row)
        elif self._is_other:
            self._template.literal(row)
        else:
            self._text.append(row)

    def _add_times(self, number: int, row: str) -> None:
        is_named = self._text and (_NUMBER.fullmatch(self._text[-1]) or (self._kind.is_web and self._lines == 2))
        name = self._text.pop() if is_named else ""
        if self._has_times or self._is_other:
            self._faults.append(f"line {number}: no blank line before the cue with these times")
        if not self._kind.times.fullmatch(row):
            self._faults.append(f"line {number}: times are written as in {self._kind.example}")
        self._add_text(number - bool(name))
        self._template.literal(name, row)
        self._is_other, self._has_times, self._has_cues = False, True, True

    def _add_text(self, stop: int) -> None:
        """Add the text before line number `stop`."""
        start = stop - len(self._text)
        for number, row in enumerate(() if self._has_cues else self._text, start):
            if any(map(str.isalpha, row)):
                raise DataError(
                    f"{self._source.name}, line {number}: {row.strip()[:80]!r} instead of the times of a cue; write "
                    f"them as in {self._kind.example}"
                )
        if self._text and not self._has_times:
            self._faults.append(f"line {start}: text without times")
        for speech in _NEW_SPEAKER.split("".join(self._text)):
            _add_speech(self._template, speech, self._kind)
        self._text = []


def _add_speech(template: Template, speech: str, kind: _Format) -> None:
    dash = re.match(r"[-\u2013\u2014]?[ \t]*", speech)[0]  # type: ignore[index] # it matches anything
    template.literal(dash)
    pieces: list[Piece] = []
    text = _SPACE_AFTER.sub(r" \1", speech.removeprefix(dash))
    for part in kind.parts.split(text):
        tag = _TAG.match(part)
        if not kind.parts.fullmatch(part):
            pieces.append(Piece(part, kind.text_of(part)))
        elif not part.strip():
            # The space belongs to the text; the line break becomes a tag between the same words.
            pieces += [Piece("", " "), Piece(part)]
        elif tag:
            pieces.append(Piece.of_tag(part, tag[2].lower(), is_closing=bool(tag[1])))
        else:
            pieces.append(Piece(part))
    template.paragraph(pieces, kind.markup_of)


def _tidy(filled: str, times: dict[str, int], space_after: bool) -> str:
    """Return the text of a cue without blank lines, which would end it, and with its word times in order."""
    texts = re.split(r"(\r\n|\r|\n)", filled)
    text = "".join(texts[1:2]).join(filter(None, (text.strip(WHITE_SPACE) for text in texts[::2])))
    in_order = iter(sorted(_WORD_TIME.findall(text), key=lambda time: times.get(time, 0)))
    text = _WORD_TIME.sub(lambda _: next(in_order), text)
    return _SPACE_BEFORE.sub(r"\1 ", text) if space_after else text
