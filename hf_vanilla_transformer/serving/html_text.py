"""Translation of the text in HTML: markup stays as it is, to the letter."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from html import escape, unescape

# Elements whose content is no prose, comments, declarations, and tags, whose quoted values may hold any character.
# What is never closed goes on to the end, as in a browser; to look for each end again would take quadratic time.
MARKUP = re.compile(
    r"""<(script|style|code|pre|kbd|samp|textarea)\b[^<>]*>.*?(?:</\1\s*>|\Z)|<!--.*?(?:-->|\Z)|<[!?][^<>]*>"""
    r"""|</?[a-z](?:"[^"]*"|'[^']*'|[^'"<>])*>""",
    re.DOTALL | re.IGNORECASE,
)


@dataclass(frozen=True)
class Html:
    """A document as its texts and the markup around them.

    Attributes:
        texts: What stands between two pieces of markup, with characters in place of references such as `&amp;`.
        markup: Before each text, and after the last one.
    """

    texts: tuple[str, ...]
    markup: tuple[str, ...]

    @classmethod
    def parse(cls, document: str) -> "Html":
        """Take a document apart; what is no markup is text."""
        texts, markup = [], [""]
        for piece, is_markup in _pieces(document):
            if is_markup or not unescape(piece).strip():
                markup[-1] += piece
            else:
                texts.append(unescape(piece))
                markup.append("")
        return cls(tuple(texts), tuple(markup))

    def fill(self, texts: Iterable[str]) -> str:
        """Return the document with these texts in place of its own."""
        escaped = (*(escape(text, quote=False) for text in texts), "")
        return "".join(part for pair in zip(self.markup, escaped, strict=True) for part in pair)


@dataclass(frozen=True)
class Plain:
    """A text without markup, in the form of `Html`."""

    texts: tuple[str]

    def fill(self, texts: Iterable[str]) -> str:
        """Return these texts."""
        return "".join(texts)


def _pieces(document: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of a document and whether they are markup."""
    end = 0
    for match in MARKUP.finditer(document):
        yield document[end : match.start()], False
        yield match[0], True
        end = match.end()
    yield document[end:], False


__all__ = ["Html", "Plain"]
