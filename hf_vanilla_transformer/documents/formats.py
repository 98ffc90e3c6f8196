"""Detect the format of a document, and open it."""

import codecs
import re
from collections.abc import Sequence
from pathlib import PurePath

from ..errors import DataError
from ..extras import install_command
from ..files import StrPath
from .gettext import charset, read_po
from .html import read_html
from .markdown import read_markdown
from .subtitles import read_srt, read_vtt
from .template import Document, Source, Template
from .xliff import read_xliff


def read_text(source: Source) -> Document:
    """Read plain text, one segment per line; blank lines and white space around lines are left unchanged."""
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
_EXTENSIONS = {
    ".txt": "text",
    **dict.fromkeys((".html", ".htm", ".xhtml"), "html"),
    **dict.fromkeys((".md", ".markdown", ".mdx", ".qmd"), "markdown"),
    ".srt": "srt",
    ".vtt": "vtt",
    **dict.fromkeys((".po", ".pot"), "po"),
    **dict.fromkeys((".xlf", ".xliff"), "xliff"),
}
KINDS = tuple(_READERS)

# Declaration of the encoding; like browsers, look for it only in the first characters.
_DECLARED = re.compile(r"""<(?:\?xml[^>]*?encoding|meta[^>]*?charset)\s*=\s*["']?([\w.:-]+)""", re.IGNORECASE)
DECLARATION = 1024


def kind_of(path: StrPath) -> str | None:
    """Return the kind of a document from its file extension, or None."""
    return _EXTENSIONS.get(PurePath(path).suffix.lower())


def open_document(
    content: str | bytes, kind: str, *, name: str = "the document", target_lang: str | None = None
) -> Document:
    """Split a document into segments to translate and the rest.

    Args:
        content: The document; bytes must be UTF-8, with or without a byte order mark, or the charset that the
            header of a PO file declares.
        kind: One of `KINDS`.
        name: File name, for messages.
        target_lang: Language of the translation, to be named in HTML pages, PO and XLIFF.

    Returns:
        A document whose `render` returns the type of `content`, str or bytes.

    Raises:
        DataError: The document cannot be read, or a required package is missing.
    """
    if kind not in KINDS:
        raise DataError(f"{name}: unknown kind {kind!r}; use one of {', '.join(KINDS)}")
    has_charset = kind == "po" and isinstance(content, bytes) and not content.startswith(codecs.BOM_UTF8)
    text = content if isinstance(content, str) else _decoded(content, name, has_charset)
    declared = (
        _DECLARED.search(text[:DECLARATION]) if kind in ("html", "xliff") and isinstance(content, bytes) else None
    )
    if declared and declared[1].lower() not in ("utf-8", "utf8"):
        raise DataError(f"{name} declares the encoding {declared[1]}; save it as UTF-8 and declare that")
    mark = "\ufeff" * text.startswith("\ufeff")
    try:
        document = _READERS[kind](Source(text.removeprefix(mark), name, target_lang))
    except ModuleNotFoundError as error:
        raise DataError(f"{name}: {kind} needs the package {error.name}; run `{install_command('files')}`") from error

    def write(filled: Sequence[str]) -> str | bytes:
        rendered = mark + str(document.write(filled))
        if isinstance(content, str):
            return rendered
        return rendered.encode(charset(rendered, name) if has_charset else "utf-8")

    return Document(document.segments, write)


def _decoded(content: bytes, name: str, has_charset: bool) -> str:
    encoding = charset(content.decode("latin-1"), name) if has_charset else "utf-8"
    try:
        return content.decode(encoding)
    except UnicodeDecodeError as error:
        if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise DataError(f"{name} is UTF-16, not UTF-8; convert it") from None
        line = content.count(b"\n", 0, error.start) + 1
        byte = f"byte 0x{content[error.start]:02x}"
        raise DataError(f"{name}, line {line}: {byte} is not {encoding.upper()}; convert it") from None
