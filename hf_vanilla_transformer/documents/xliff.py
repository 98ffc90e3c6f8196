"""XLIFF 1.2 and 2: translations go into `<target>`, next to `<source>`; everything else stays verbatim."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

from .template import Document, Piece, Source, Template, has_only_messages
from .xliff_parser import XliffToken, read_tokens

# Characters not allowed in XML.
_CONTROLS = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]")

UNITS = ("trans-unit", "segment")
# Inline elements with code, which is not translated, and those that stand for words of the sentence.
CODE, WORDS = frozenset(("bpt", "ept", "it", "ph")), frozenset(("ph", "x"))
# Opening and closing elements that form pairs, with the attributes that link them.
OPENING_TAGS = {"bpt": ("rid", "id"), "bx": ("rid", "id"), "sc": ("id",)}
CLOSING_TAGS = {"ept": ("bpt", ("rid", "id")), "ex": ("bx", ("rid", "id")), "ec": ("sc", ("startRef",))}
# Elements that name the languages, with the attributes for source and target.
LANGUAGES = {"file": ("source-language", "target-language"), "xliff": ("srcLang", "trgLang")}
# States of a target whose text is replaced.
UNTRANSLATED = frozenset(("initial", "needs-translation", "new"))


@dataclass
class _Element:
    """An open element: the index of its tag, and the first and last token of its first child of each name."""

    name: str
    start: int
    translated: bool
    children: dict[str, tuple[int, int]] = field(default_factory=dict)


def read_xliff(source: Source) -> Document:
    """Read XLIFF; targets with text are left unchanged, unless their state marks them as untranslated.

    Raises:
        DataError: The file is not XLIFF, or it declares entities.
    """
    template, tokens = Template(), read_tokens(source)
    markup = _with_language(tokens, source.target_lang)
    written = 0
    opened = [_Element("", 0, True)]
    for index, token in enumerate(tokens):
        if token.opens:
            attributes = token.attributes
            chosen = attributes.get("translate", "yes" if opened[-1].translated else "no")
            opened.append(_Element(token.name, index, chosen == "yes"))
        if token.closes:
            element = opened.pop()
            opened[-1].children.setdefault(element.name, (element.start, index))
            if element.name in UNITS and element.translated and "source" in element.children:
                if not _is_translated(tokens, element):
                    template.literal(*markup[written : element.start])
                    _add_unit(template, tokens, markup, element, index)
                    written = index + 1
    template.literal(*markup[written:])
    return template.document()


def _is_translated(tokens: Sequence[XliffToken], unit: _Element) -> bool:
    """Whether the target of a unit is left unchanged."""
    attributes = tokens[unit.start].attributes
    if attributes.get("approved") == "yes" or attributes.get("state") == "final":
        return True
    if "target" not in unit.children:
        return False
    start, end = unit.children["target"]
    state = tokens[start].attributes.get("state") or attributes.get("state")
    has_content = any(token.name or (token.text or "").strip() for token in tokens[start + 1 : end])
    return state == "final" or (has_content and state not in UNTRANSLATED)


def _with_language(tokens: Sequence[XliffToken], language: str | None) -> list[str]:
    """Return the markup of tokens, with the target language set wherever the source language is named."""
    markup = [token.markup for token in tokens]
    for i, token in enumerate(tokens):
        if language is not None and token.opens and token.name in LANGUAGES:
            source, target = LANGUAGES[token.name]
            if source in token.attributes:
                markup[i] = token.having(**{target: language})
    return markup


def _add_unit(
    template: Template, tokens: Sequence[XliffToken], markup: Sequence[str], unit: _Element, end: int
) -> None:
    """Add a unit with a translated target, or as it is if it has only ICU messages."""
    is_version_2 = unit.name == "segment"
    first, last = unit.children["source"]
    pieces = _pieces(tokens[first + 1 : last])
    if has_only_messages("".join(piece.text or " " for piece in pieces)):
        template.literal(*markup[unit.start : end + 1])
        return
    # A target follows `<source>` or, in 1.2, `<seg-source>`.
    after = max(unit.children[name][1] for name in ("source", "seg-source") if name in unit.children)
    opening = tokens[unit.start]
    template.literal(opening.having(state="translated") if is_version_2 else opening.markup)
    template.literal(*markup[unit.start + 1 : after + 1])
    prefix = markup[first][1:].partition("source")[0]
    if "target" in unit.children:
        start, last_of_target = unit.children["target"]
        template.literal(*markup[after + 1 : start])
        tag, after = XliffToken(re.sub(r"\s*/>\Z", ">", markup[start])), last_of_target
    else:
        # On its own line if the source is.
        before = tokens[first - 1]
        template.literal(before.markup if before.text is not None and not before.text.strip() else "")
        tag = XliffToken(f"<{prefix}target>")
    if is_version_2:
        template.literal(tag.markup)
    else:
        template.literal(tag.having(**{"state": "needs-review-translation", "state-qualifier": "mt-suggestion"}))
    template.paragraph(pieces, _escape)
    template.literal(f"</{prefix}target>", *markup[after + 1 : end + 1])


def _escape(text: str) -> str:
    return escape(_CONTROLS.sub("", text), quote=False)


def _pieces(tokens: Sequence[XliffToken]) -> list[Piece]:
    """Return the pieces of a source; an element with code is one tag, and text marked as untranslatable is kept."""
    pieces: list[Piece] = []
    end = 0
    # Open elements: separate elements are a pair only within the same one, since a translation may move it.
    opened = [-1]
    for index, token in enumerate(tokens):
        if index < end:
            continue
        attributes = token.attributes if token.name else {}
        is_word = token.is_kept or attributes.get("translate") == "no" or attributes.get("mtype") == "protected"
        if (is_word or token.name in CODE) and token.opens >= token.closes:
            end = _end(tokens, index)
            markup = "".join(part.markup for part in tokens[index:end])
            if is_word:
                has_words = any(part.name in WORDS or (part.text or "").strip() for part in tokens[index:end])
                pieces.append(Piece(markup, is_kept=has_words))
            else:
                pieces.append(_tag(markup, token, opened[-1]))
        elif not token.name:
            pieces.append(Piece(token.markup, token.text))
        else:
            if token.closes > token.opens:
                opened.pop()
            pieces.append(_tag(token.markup, token, opened[-1]))
            if token.opens > token.closes:
                opened.append(index)
    return pieces


def _end(tokens: Sequence[XliffToken], start: int) -> int:
    """Return the index after an element, or after an untranslatable range, which ends with the element around it."""
    depth = 0
    for index in range(start, len(tokens)):
        depth += tokens[index].opens - tokens[index].closes
        if depth < 0:
            return index
        if depth == 0 and not all(token.is_kept for token in tokens[index : index + 2]):
            return index + 1
    return len(tokens)


def _tag(markup: str, token: XliffToken, parent: int) -> Piece:
    """Return an inline element or one of its tags; its partner may be a separate element of the same parent."""

    def key(name: str, attributes: Sequence[str]) -> str:
        number = next((token.attributes[name] for name in attributes if name in token.attributes), "")
        return f"{name} {parent} {number}"

    if token.name in OPENING_TAGS:
        return Piece(markup, opens=key(token.name, OPENING_TAGS[token.name]))
    if token.name in CLOSING_TAGS:
        return Piece(markup, closes=key(*CLOSING_TAGS[token.name]))
    if token.name in CODE or token.opens == token.closes:
        # Line breaks, images and formatting have a type.
        return Piece(markup, is_kept=token.name in WORDS and not {"ctype", "type"} & {*token.attributes})
    return Piece.of_tag(markup, token.name, is_closing=token.closes)
