"""The formats of documents."""

import codecs
import re
from collections.abc import Callable
from pathlib import PurePath
from typing import NamedTuple

from ..errors import DataError
from ..files import StrPath
from .gettext import read_po
from .html import read_html
from .markdown import read_markdown
from .plain import read_text
from .subtitles import read_srt, read_vtt
from .template import Document, Source
from .xliff import read_xliff


class _Format(NamedTuple):
    read: Callable[[Source], Document]
    endings: tuple[str, ...]


_FORMATS = {
    "text": _Format(read_text, (".txt",)),
    "html": _Format(read_html, (".html", ".htm", ".xhtml")),
    "markdown": _Format(read_markdown, (".md", ".markdown")),
    "srt": _Format(read_srt, (".srt",)),
    "vtt": _Format(read_vtt, (".vtt",)),
    "po": _Format(read_po, (".po", ".pot")),
    "xliff": _Format(read_xliff, (".xlf", ".xliff")),
}
KINDS = tuple(_FORMATS)

# What says the encoding, within so many characters, as browsers look for it.
_DECLARED = re.compile(r"""<(?:\?xml[^>]*?encoding|meta[^>]*?charset)\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
DECLARATION = 1024


def kind_of(path: StrPath) -> str | None:
    """Return the kind of a document by the ending of its name, or None."""
    ending = PurePath(path).suffix.lower()
    return next((kind for kind, each in _FORMATS.items() if ending in each.endings), None)


def open_document(
    content: str | bytes, kind: str, *, name: str = "the document", target_lang: str | None = None
) -> Document:
    """Take a document apart.

    Args:
        content: The document; bytes are UTF-8, with or without a byte order mark.
        kind: One of `KINDS`.
        name: The file, for messages.
        target_lang: Language of the translation, which PO and XLIFF name.

    Returns:
        A document of which `render` returns what `content` is, text or bytes.

    Raises:
        DataError: The document cannot be read, or a package that it takes is missing.
    """
    if kind not in KINDS:
        raise DataError(f"{name}: unknown kind {kind!r}; there are {', '.join(KINDS)}")
    text = content if isinstance(content, str) else _decoded(content, name)
    declared = (
        _DECLARED.search(text[:DECLARATION]) if kind in ("html", "xliff") and isinstance(content, bytes) else None
    )
    if declared and declared[1].lower() not in ("utf-8", "utf8"):
        raise DataError(f"{name} declares the encoding {declared[1]}; save it as UTF-8, and declare that")
    mark = "\ufeff" * text.startswith("\ufeff")
    try:
        document = _FORMATS[kind].read(Source(text.removeprefix(mark), name, target_lang))
    except ModuleNotFoundError as error:
        raise DataError(
            f'{name}: {kind} needs the package {error.name}; run `pip install "hf-vanilla-transformer[files]"`'
        ) from error
    encode: Callable[[str], str | bytes] = str if isinstance(content, str) else str.encode
    return Document(document.segments, lambda filled: encode(mark + str(document.write(filled))))


def _decoded(content: bytes, name: str) -> str:
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{name} is UTF-16, not UTF-8; convert it") from None
        line = content.count(b"\n", 0, error.start) + 1
        raise DataError(f"{name}, line {line}: byte 0x{content[error.start]:02x} is not UTF-8; convert it") from None
