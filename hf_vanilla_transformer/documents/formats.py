"""The formats of documents."""

import codecs
import re
from collections.abc import Callable
from pathlib import PurePath

from ..errors import DataError
from ..files import StrPath
from .gettext import read_po
from .html import read_html
from .markdown import read_markdown
from .subtitles import read_srt, read_vtt
from .template import Document, Source, Template
from .xliff import read_xliff


def read_text(source: Source) -> Document:
    """Take plain text apart, a text a line; blank lines, and white space around lines, stay."""
    template = Template()
    template.literal(template.text_lines(source.content))
    return template.document()


_READERS = {
    "text": read_text,
    "html": read_html,
    "markdown": read_markdown,
    "srt": read_srt,
    "vtt": read_vtt,
    "po": read_po,
    "xliff": read_xliff,
}
_ENDINGS = {
    ".txt": "text",
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".md", ".markdown"), "markdown"),
    ".srt": "srt",
    ".vtt": "vtt",
    **dict.fromkeys((".po", ".pot"), "po"),
    **dict.fromkeys((".xlf", ".xliff"), "xliff"),
}
KINDS = tuple(_READERS)

# What says the encoding, within so many characters, as browsers look for it.
_DECLARED = re.compile(r"""<(?:\?xml[^>]*?encoding|meta[^>]*?charset)\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
DECLARATION = 1024


def kind_of(path: StrPath) -> str | None:
    """Return the kind of a document by the ending of its name, or None."""
    return _ENDINGS.get(PurePath(path).suffix.lower())


def open_document(
    content: str | bytes, kind: str, *, name: str = "the document", target_lang: str | None = None
) -> Document:
    """Take a document apart.

    Args:
        content: The document; bytes are UTF-8, with or without a byte order mark.
        kind: One of `KINDS`.
        name: The file, for messages.
        target_lang: Language of the translation, which pages, PO and XLIFF name.

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
        document = _READERS[kind](Source(text.removeprefix(mark), name, target_lang))
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
