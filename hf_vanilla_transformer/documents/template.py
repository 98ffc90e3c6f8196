"""A document as its markup, to the letter, with places for texts."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .segments import Piece, Segment, read_segment
from .slots import protect, resolve, slot


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


class Template:
    """Collects the markup of a document, and its texts."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._parts: list[str] = []

    def literal(self, markup: str) -> None:
        """Add what stays as it is."""
        self._parts.append(markup)

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

    def paragraph(self, pieces: Sequence[Piece], escape: Callable[[str], str]) -> None:
        """Add a text with tags."""
        before, segment, after = read_segment(pieces, escape)
        self._parts += [before, self.slot(segment) if segment else "", after]

    def document(self, tidy: Callable[[str], str] = str, finish: Callable[[str], str] = str) -> Document:
        """Return the document; `tidy` corrects what fills a segment, and `finish` the whole."""
        template = "".join(self._parts)

        def write(filled: Sequence[str]) -> str:
            return finish(resolve(template, lambda number: tidy(filled[number])))

        return Document(tuple(self.segments), write)


def lines(text: str) -> list[str]:
    r"""Return the lines of a text with their ends, which are "\n" and "\r\n"."""
    return re.findall(r"[^\n]*\n|[^\n]+", text)
