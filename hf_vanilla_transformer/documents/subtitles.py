"""SubRip and WebVTT: cues are segments, line breaks are tags, and times and settings stay verbatim."""

import re
from collections.abc import Callable
from functools import partial
from html import escape, unescape
from typing import NamedTuple

from ..errors import DataError
from .segments import protect, unprotect
from .template import Document, Piece, Source, Template, lines, with_line_ends

_TAG = re.compile(r"<(/?)([a-z]+)", re.IGNORECASE)
# Each speaker, marked with a dash, gets a segment.
_NEW_SPEAKER = re.compile(r"(?<=\n)(?=[-\u2013\u2014]\s?\S)")


class _Format(NamedTuple):
    """Syntax of cues: times, tags and line breaks, and conversion between markup and text."""

    times: re.Pattern[str]
    example: str
    parts: re.Pattern[str]
    text_of: Callable[[str], str]
    markup_of: Callable[[str], str]


_SRT = _Format(
    re.compile(r"\s*\d+:\d\d:\d\d[,.]\d{1,3}\s*-->\s*\d+:\d\d:\d\d[,.]\d{1,3}(\s.*)?\s*"),
    "00:00:01,000 --> 00:00:02,000",
    # Including the override tags of Advanced SubStation Alpha.
    re.compile(r"(</?[a-z][^<>\n]*>|\{\\[^{}\n]*\}|\n\s*)", re.IGNORECASE),
    unprotect,
    lambda text: text.replace("-->", "→"),
)
_VTT = _Format(
    re.compile(r"\s*(\d+:)?\d\d:\d\d\.\d{3}\s*-->\s*(\d+:)?\d\d:\d\d\.\d{3}(\s.*)?\s*"),
    "00:01.000 --> 00:02.000",
    re.compile(r"(<[^<>]*>|\n\s*)"),
    lambda markup: unprotect(unescape(markup)),
    partial(escape, quote=False),
)


def read_srt(source: Source) -> Document:
    """Read SubRip.

    Raises:
        DataError: A cue has no times, or no blank line before it.
    """
    return _read(source, _SRT, lambda number, first: not first.strip(), without_times=-1)


def read_vtt(source: Source) -> Document:
    """Read WebVTT; notes, styles and regions are left unchanged.

    Raises:
        DataError: The first line is not WEBVTT, or a cue has no times or no blank line before it.
    """
    if not re.match(r"WEBVTT(?=\s|$)", source.content):
        raise DataError(f"{source.name}, line 1: not WebVTT, which begins with WEBVTT; check the file")
    other = re.compile(r"(NOTE|STYLE|REGION)(?=\s|$)")
    return _read(source, _VTT, lambda number, first: number == 1 or bool(other.match(first)), without_times=0)


def _read(source: Source, kind: _Format, stays: Callable[[int, str], bool], without_times: int) -> Document:
    """Read the blocks of a file as cues, except those that `stays` selects by number and text of the first line.

    The error for a block without times names its line with index `without_times`.
    """
    template = Template()
    for number, block in _blocks(source.content):
        if stays(number, block[0]):
            _check_alone(block, 1, number, source, kind)
            template.literal(*block)
            continue
        at = next((i for i, line in enumerate(block) if "-->" in line), range(len(block))[without_times])
        if at > 1 or not kind.times.fullmatch(block[at]):
            raise DataError(
                f"{source.name}, line {number + at}: {block[at].strip()[:80]!r} instead of the times of a cue; write "
                f"them as in {kind.example}"
            )
        _check_alone(block, at + 1, number, source, kind)
        template.literal(*block[: at + 1])
        _add_text(template, "".join(block[at + 1 :]), kind)
    return template.document(_without_blank_lines, partial(with_line_ends, content=source.content))


def _check_alone(block: list[str], rest: int, number: int, source: Source, kind: _Format) -> None:
    """Raise a DataError if another cue begins in `block[rest:]`; `number` is that of the first line of `block`."""
    for line, text in enumerate(block[rest:], start=number + rest):
        if kind.times.fullmatch(text):
            raise DataError(f"{source.name}, line {line}: no blank line before the cue with these times; insert one")


def _blocks(content: str) -> list[tuple[int, list[str]]]:
    """Split a file at blank lines, which end the block before them; return (number of first line, lines) of each."""
    blocks: list[tuple[int, list[str]]] = []
    blank = True
    for number, line in enumerate(lines(protect(content).replace("\r\n", "\n")), start=1):
        if not blocks or (blank and line.strip()):
            blocks.append((number, []))
        blank = not line.strip()
        blocks[-1][1].append(line)
    return blocks


def _add_text(template: Template, text: str, kind: _Format) -> None:
    for speech in _NEW_SPEAKER.split(text):
        dash = re.match(r"[-\u2013\u2014]?[ \t]*", speech)[0]  # type: ignore[index] # it matches anything
        template.literal(dash)
        pieces: list[Piece] = []
        for part in kind.parts.split(speech.removeprefix(dash)):
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


def _without_blank_lines(filled: str) -> str:
    """Return the text of a cue without blank lines, which would end it."""
    return "\n".join(filter(None, map(str.strip, filled.split("\n"))))
