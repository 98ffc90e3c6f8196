"""SubRip and WebVTT: a cue is a text; line breaks in it are tags, and times and settings stay to the letter."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from html import escape, unescape

from ..errors import DataError
from .segments import Piece
from .slots import protect, unprotect
from .template import Document, Source, Template, lines

_SRT_TIMES = re.compile(r"\s*\d+:\d\d:\d\d[,.]\d{1,3}\s*-->\s*\d+:\d\d:\d\d[,.]\d{1,3}(\s.*)?\s*")
_VTT_TIMES = re.compile(r"\s*(\d+:)?\d\d:\d\d\.\d{3}\s*-->\s*(\d+:)?\d\d:\d\d\.\d{3}(\s.*)?\s*")
# Tags, commands of Advanced SubStation Alpha, line breaks.
_SRT_PARTS = re.compile(r"(</?[a-z][^<>\n]*>|\{\\[^{}\n]*\}|\n\s*)", re.IGNORECASE)
_VTT_PARTS = re.compile(r"(<[^<>]*>|\n\s*)")
_TAG = re.compile(r"<(/?)([a-z]+)", re.IGNORECASE)
# Speakers, each after a dash, have texts of their own.
_NEW_SPEAKER = re.compile(r"(?<=\n)(?=[-\u2013\u2014]\s?\S)")


def read_srt(source: Source) -> Document:
    """Take SubRip apart.

    Raises:
        DataError: A cue has no times.
    """
    template = Template()
    for number, block in _blocks(source.content):
        if not block[0].strip():
            template.literal("".join(block))
            continue
        at = next((i for i, line in enumerate(block) if "-->" in line), len(block) - 1)
        if not _SRT_TIMES.fullmatch(block[at]) or at > 1:
            raise _no_times(source, number + at, block[at], "00:00:01,000 --> 00:00:02,000")
        _add_cue(template, block, at, _SRT_PARTS, unprotect, lambda text: text.replace("-->", "→"))
    return template.document(_without_blank_lines, partial(_with_line_ends, source.content))


def read_vtt(source: Source) -> Document:
    """Take WebVTT apart; notes, styles and regions stay.

    Raises:
        DataError: The first line is not WEBVTT, or a cue has no times.
    """
    if not re.match(r"WEBVTT(?=\s|$)", source.content):
        raise DataError(f"{source.name}, line 1: not WebVTT, which begins with WEBVTT; check the file")
    template = Template()
    for index, (number, block) in enumerate(_blocks(source.content)):
        at = next((i for i, line in enumerate(block) if "-->" in line), -1)
        if index == 0 or re.match(r"(NOTE|STYLE|REGION)(?=\s|$)", block[0]):
            template.literal("".join(block))
        elif at < 0 or at > 1 or not _VTT_TIMES.fullmatch(block[at]):
            raise _no_times(source, number + max(at, 0), block[max(at, 0)], "00:01.000 --> 00:02.000")
        else:
            _add_cue(template, block, at, _VTT_PARTS, lambda markup: unprotect(unescape(markup)), _escape_vtt)
    return template.document(_without_blank_lines, partial(_with_line_ends, source.content))


_escape_vtt = partial(escape, quote=False)


def _no_times(source: Source, number: int, line: str, example: str) -> DataError:
    return DataError(
        f"{source.name}, line {number}: {line.strip()[:80]!r} instead of a cue's times, such as {example}; correct it"
    )


def _blocks(content: str) -> list[tuple[int, list[str]]]:
    """Return the lines between blank lines, which end the block before them, and the number of the first of each."""
    blocks: list[tuple[int, list[str]]] = []
    blank = True
    for number, line in enumerate(lines(protect(content).replace("\r\n", "\n")), start=1):
        if blank and line.strip():
            blocks.append((number, []))
        blank = not line.strip()
        if not blocks:
            blocks.append((number, []))
        blocks[-1][1].append(line)
    return blocks


def _add_cue(
    template: Template,
    block: Sequence[str],
    at: int,
    parts: re.Pattern[str],
    text_of: Callable[[str], str],
    write: Callable[[str], str],
) -> None:
    template.literal("".join(block[: at + 1]))
    for speech in _NEW_SPEAKER.split("".join(block[at + 1 :])):
        dash = re.match(r"[-\u2013\u2014]?[ \t]*", speech)[0]  # type: ignore[index] # it matches anything
        template.literal(dash)
        pieces: list[Piece] = []
        for part in parts.split(speech.removeprefix(dash)):
            tag = _TAG.match(part)
            if not parts.fullmatch(part):
                pieces.append(Piece(part, text_of(part)))
            elif not part.strip():
                # The blank belongs to the text; the line break goes between the same words.
                pieces += [Piece("", " "), Piece(part)]
            elif tag:
                name = tag[2].lower()
                pieces.append(Piece(part, None, None if tag[1] else name, name if tag[1] else None))
            else:
                pieces.append(Piece(part))
        template.paragraph(pieces, write)


def _without_blank_lines(filled: str) -> str:
    """Return the text of a cue without blank lines, which would end it."""
    return "\n".join(filter(None, map(str.strip, filled.split("\n"))))


def _with_line_ends(content: str, rendered: str) -> str:
    return rendered.replace("\n", "\r\n") if "\r\n" in content else rendered
