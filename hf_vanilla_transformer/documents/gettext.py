"""PO: translate the untranslated messages, selected like `msgattrib --untranslated`; all else stays verbatim."""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from ..errors import DataError
from .segments import resolve
from .template import Document, Source, Template, has_only_messages, lines

# A comment, or a keyword and a quoted string.
_LINE = re.compile(r'(?:#.*|(?:(msgctxt|msgid_plural|msgid|msgstr(?:\[\d{1,3}\])?)\s*)?("(?:[^"\\]|\\.)*+"))?')
# Keywords that may come before another; "" is the start of a message.
_BEFORE = {
    "msgctxt": ("",),
    "msgid": ("", "msgctxt"),
    "msgid_plural": ("msgid",),
    "msgstr": ("msgid",),
    "msgstr[": ("msgid_plural", "msgstr["),
}

_HEADER = re.compile(
    r'^[ \t]*msgid[ \t]*""[ \t\r]*\n(?:[ \t\r]*(?:#.*)?\n)*[ \t]*msgstr[ \t]*(".*\n?(?:[ \t]*".*\n?)*)', re.MULTILINE
)
_CHARSET = re.compile(r"(?<=charset=)[\w.:-]+", re.IGNORECASE)
# Differs in encodings that are no superset of ASCII.
_ASCII = "".join(map(chr, range(32, 127))) + "\n\r\t\\u0041 +AGE- ~{AA~}"

_ESCAPES = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v", "\\": "\\", '"': '"'}
_ESCAPED = re.compile(r'\\([abfnrtv\\"])')
_TO_ESCAPE = str.maketrans({text: f"\\{name}" for name, text in _ESCAPES.items()})


@dataclass
class _Field:
    """A keyword with its text, which is on the lines from index `start` to before `stop`."""

    start: int
    stop: int
    texts: list[str]

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass
class _Message:
    is_fuzzy: bool = False
    fields: dict[str, _Field] = field(default_factory=dict)


@dataclass
class _Edit:
    """Lines to replace by a keyword and text with slots, or by the header if there is no keyword."""

    start: int
    stop: int
    keyword: str
    text: str


def read_po(source: Source) -> Document:
    """Read a PO file; obsolete, fuzzy and translated messages are left unchanged.

    Raises:
        DataError: The file is not valid PO.
    """
    rows = lines(source.content)
    template = Template()
    header, forms = _Edit(0, 0, "", ""), None
    edits: list[_Edit] = []
    for message in _messages(source, rows):
        msgid = message.fields["msgid"].text
        if not msgid and "msgstr" in message.fields:
            facts = message.fields["msgstr"]
            header = _Edit(facts.start, facts.stop, "", "")
            declared = re.search(r"^Plural-Forms:\s*nplurals\s*=\s*([1-9])\s*;", facts.text, re.MULTILINE)
            forms = int(declared[1]) if declared else None
        elif msgid and not message.is_fuzzy and not has_only_messages(msgid):
            edits += _untranslated(message.fields, forms, template)
    end = "\r\n" if "\r\n" in source.content else "\n"
    if edits and not rows[-1].endswith("\n"):
        rows[-1] += end

    def write(filled: Sequence[str]) -> str:
        parts, written, place = [], 0, 0
        for edit in sorted([header, *edits], key=lambda edit: edit.start) if edits else ():
            parts += rows[written : edit.start]
            if edit is header:
                place = len(parts)
                parts.append("".join(rows[edit.start : edit.stop]))
            else:
                parts.append(_quoted(edit.keyword, resolve(edit.text, filled.__getitem__), end))
            written = edit.stop
        parts += rows[written:]
        if edits:
            parts[place] = _header(parts[place], "".join(parts), source.target_lang, end)
        return "".join(parts)

    return Document(tuple(template.segments), write)


def charset(content: str, name: str) -> str:
    """Return the encoding that a PO file declares in its header, by default UTF-8.

    Args:
        content: The file, of which all but ASCII may be decoded wrongly.
        name: File name, for messages.

    Raises:
        DataError: Python lacks the encoding, or it is no superset of ASCII.
    """
    header = _HEADER.search(content)
    declared = header and _CHARSET.search(header[1])
    # Templates have the placeholder CHARSET.
    if not declared or declared[0].lower() in ("charset", "utf-8", "ascii", "us-ascii"):
        return "utf-8"
    with suppress(LookupError, UnicodeError):
        if _ASCII.encode().decode(declared[0]) == _ASCII:
            return declared[0]
    raise DataError(f"{name}: unknown charset {declared[0]}; convert the file with `msgconv --to-code=UTF-8`")


def _messages(source: Source, rows: Sequence[str]) -> Iterator[_Message]:
    message, last, name = _Message(), "", ""
    for index, row in enumerate(rows):
        line = row.strip()
        match = _LINE.fullmatch(line)
        if not match:
            raise _fault(source, index, "expected a keyword and a quoted string")
        keyword, string = match.groups()
        kind = "".join(keyword.partition("[")[:2]) if keyword else ""
        if last.startswith("msgstr") and (line.startswith("#") or kind in ("msgctxt", "msgid")):
            yield message
            message, last = _Message(), ""
        if line.startswith("#,"):
            message.is_fuzzy |= "fuzzy" in map(str.strip, line[2:].split(","))
        elif line.startswith("#~") and not last:
            # Flags before an obsolete message are its own.
            message = _Message()
        elif keyword:
            if last not in _BEFORE[kind]:
                raise _fault(source, index, f"{keyword} after {last or 'another message'}")
            last, name = kind, keyword
            message.fields[name] = _Field(index, index + 1, [_unquoted(string)])
        elif string:
            if not last:
                raise _fault(source, index, "a quoted string without a keyword")
            message.fields[name].texts.append(_unquoted(string))
            message.fields[name].stop = index + 1
    if last and not last.startswith("msgstr"):
        raise _fault(source, len(rows) - 1, f"no msgstr after {name}")
    if last:
        yield message


def _untranslated(fields: dict[str, _Field], forms: int | None, template: Template) -> Iterator[_Edit]:
    """Yield an edit for each missing translation of a message; `forms` is the number of plural forms, if declared."""
    texts = {name: field.text for name, field in fields.items()}
    if "msgid_plural" not in fields:
        if not texts["msgstr"]:
            yield _Edit(fields["msgstr"].start, fields["msgstr"].stop, "msgstr", template.text_lines(texts["msgid"]))
        return
    written = [name for name in fields if name.startswith("msgstr")]
    count = forms or len(written)
    missing = [form for form in range(count) if not texts.get(f"msgstr[{form}]")]
    if not missing:
        return
    singular, plural = template.text_lines(texts["msgid"]), template.text_lines(texts["msgid_plural"])
    last = max(fields[name].stop for name in written)
    for form in missing:
        keyword = f"msgstr[{form}]"
        start, stop = (fields[keyword].start, fields[keyword].stop) if keyword in fields else (last, last)
        # A single form serves every number.
        yield _Edit(start, stop, keyword, plural if form or count == 1 else singular)


def _header(header: str, content: str, language: str | None, end: str) -> str:
    """Return the msgstr of the header, perhaps "", with the language and an encoding for the content."""
    named = re.search(r'(?:"|\\n)Language:[ \t]*([A-Za-z]*)', header)
    if language is not None and (not named or named[1].lower() != re.split("[-_@]", language)[0].lower()):
        header = _with_fact(header, "Language", language, end)
    declared = _CHARSET.search(header)
    if not declared and not content.isascii():
        return _with_fact(header, "Content-Type", "text/plain; charset=UTF-8", end)
    with suppress(LookupError, UnicodeError):
        if not declared or content.encode(declared[0]):
            return header
    return _CHARSET.sub("UTF-8", header, count=1)


def _with_fact(header: str, name: str, value: str, end: str) -> str:
    if not header:
        header = f'msgid ""{end}msgstr ""{end}{end}'
    changed, count = re.subn(rf'((?:"|\\n){name}:)[^\\"]*', lambda match: f"{match[1]} {value}", header, count=1)
    if count:
        return changed
    body = header.rstrip()
    separator = "" if body.endswith(('\\n"', ' ""')) else "\\n"
    return f'{body}{end}"{separator}{name}: {value}\\n"{header[len(body) :]}'


def _unquoted(string: str) -> str:
    return _ESCAPED.sub(lambda match: _ESCAPES[match[1]], string[1:-1])


def _quoted(keyword: str, text: str, end: str) -> str:
    """Return a keyword and its text, on a line for each line of the text."""
    texts = lines(text)
    strings = [f'"{line.translate(_TO_ESCAPE)}"{end}' for line in (texts if len(texts) == 1 else ["", *texts])]
    return f"{keyword} {''.join(strings)}"


def _fault(source: Source, index: int, reason: str) -> DataError:
    return DataError(f"{source.name}, line {index + 1}: invalid PO ({reason}); check it with `msgfmt --check`")
