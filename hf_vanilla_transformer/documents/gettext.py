"""PO: translate the untranslated messages, selected like `msgattrib --untranslated`."""

import re
from collections.abc import Sequence

from ..errors import DataError, one_line
from .segments import resolve
from .template import Document, Source, Template, has_only_messages, lines, with_line_ends

# A comment, or a keyword and a quoted string.
_LINE = re.compile(r'(#.*|((msgctxt|msgid|msgid_plural|msgstr(\[\d+\])?)\s*)?"([^"\\]|\\.)*+")?')


def read_po(source: Source) -> Document:
    """Read a PO file; obsolete, fuzzy and translated messages are left unchanged.

    Raises:
        DataError: The file is not valid PO.
    """
    import polib

    for number, line in enumerate(lines(source.content), start=1):
        if not _LINE.fullmatch(line.strip()):
            raise _fault(source, number, "expected a keyword and a quoted string")
    try:
        # A leading line end keeps polib from taking the text as a path.
        file = polib.pofile("\n" + source.content.replace("\r\n", "\n"))
    except (OSError, ValueError, IndexError, AttributeError) as error:
        at = re.search(r"line (\d+)", str(error))
        raise _fault(source, int(at[1]) - 1 if at else 1, one_line(error).split(" in po file")[0]) from None
    if source.target_lang is not None:
        file.metadata["Language"] = source.target_lang
    # The output encoding, whatever the file declared.
    file.metadata["Content-Type"] = "text/plain; charset=UTF-8"
    declared = re.match(r"\s*nplurals\s*=\s*([1-9])\s*;", file.metadata.get("Plural-Forms", ""))
    template = Template()
    # Messages to write: entry, plural form, text with slots.
    texts: list[tuple[polib.POEntry, int | None, str]] = []
    for entry in file:
        if entry.obsolete or entry.fuzzy or entry.translated() or not entry.msgid or has_only_messages(entry.msgid):
            continue
        if not entry.msgid_plural:
            texts.append((entry, None, template.text_lines(entry.msgid)))
            continue
        forms = int(declared[1]) if declared else len(entry.msgstr_plural) or 2
        singular, plural = template.text_lines(entry.msgid), template.text_lines(entry.msgid_plural)
        # A single form serves every number.
        texts += [
            (entry, form, plural if form or forms == 1 else singular)
            for form in range(forms)
            if not entry.msgstr_plural.get(form)
        ]

    def write(filled: Sequence[str]) -> str:
        for entry, form, text in texts:
            message = resolve(text, filled.__getitem__)
            if form is None:
                entry.msgstr = message
            else:
                entry.msgstr_plural[form] = message
        return with_line_ends(f"{str(file).rstrip()}\n", source.content)

    return Document(tuple(template.segments), write)


def _fault(source: Source, line: int, reason: str) -> DataError:
    return DataError(f"{source.name}, line {line}: invalid PO ({reason}); check it with `msgfmt --check`")
