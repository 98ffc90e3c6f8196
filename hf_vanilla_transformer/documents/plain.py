"""Plain text, one text a line."""

from .template import Document, Source, Template, lines


def read_text(source: Source) -> Document:
    """Take plain text apart; blank lines, and white space around lines, stay."""
    template = Template()
    for line in lines(source.content):
        template.literal(template.text(line))
    return template.document()
