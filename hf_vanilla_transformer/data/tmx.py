"""Read the pairs of a TMX file one unit at a time."""

from collections.abc import Iterator

from ..errors import DataError, one_line
from ..files import read_lines

_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"

# Elements that enclose native markup instead of text.
_CODES = frozenset(("bpt", "ept", "it", "ph", "ut"))


class _Units:
    """Target of an XML parser that collects the texts of each unit by language."""

    def __init__(self) -> None:
        self.complete: list[dict[str, str]] = []
        self._unit: dict[str, str] = {}
        self._language = ""
        self._text: list[str] | None = None
        self._codes = 0

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition("}")[2]
        if name == "tu":
            self._unit = {}
        elif name == "tuv":
            self._language = _normalized(attributes.get(_LANGUAGE) or attributes.get("lang") or "")
        elif name == "seg":
            self._text = []
        self._codes += name in _CODES

    def data(self, text: str) -> None:
        if self._text is not None and not self._codes:
            self._text.append(text)

    def end(self, tag: str) -> None:
        name = tag.rpartition("}")[2]
        self._codes -= name in _CODES
        if name == "seg" and self._text is not None:
            self._unit.setdefault(self._language, " ".join("".join(self._text).split()))
            self._text = None
        elif name == "tu":
            self.complete.append(self._unit)


def _normalized(language: str) -> str:
    return language.lower().replace("_", "-")


def _find(unit: dict[str, str], language: str) -> str | None:
    """Return the text in a language or its first regional variant."""
    variants = (text for name, text in unit.items() if name.startswith(f"{language}-"))
    return unit[language] if language in unit else next(variants, None)


def read_tmx(path: str, source_lang: str | None, target_lang: str | None) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line on which its unit ends, `{"source": str, "target": str}`) for each pair of a TMX file.

    A language without a region, such as en, also matches its regional variants, such as en-US. Units without both
    languages are left out.
    """
    if source_lang is None or target_lang is None:
        raise DataError(f"{path}: TMX may have many languages; set `source_lang` and `target_lang`")
    try:
        from defusedxml import DefusedXmlException
        from defusedxml.ElementTree import DefusedXMLParser, ParseError
    except ModuleNotFoundError:
        raise DataError(f"{path}: TMX needs defusedxml; run `pip install defusedxml`") from None
    units = _Units()
    parser = DefusedXMLParser(target=units)
    wanted = _normalized(source_lang), _normalized(target_lang)
    languages: set[str] = set()
    is_empty = True
    number = 1
    try:
        for number, line in enumerate(read_lines(path, keep_ends=True, any_unicode=True), start=1):
            parser.feed(line)
            for unit in units.complete:
                source, target = (_find(unit, language) for language in wanted)
                languages |= unit.keys()
                if source is not None and target is not None:
                    is_empty = False
                    yield number, {"source": source, "target": target}
            units.complete.clear()
        parser.close()
    except ParseError as error:
        raise DataError(f"{path}, line {error.position[0]}: not XML ({one_line(error)}); export it again") from None
    except DefusedXmlException as error:
        raise DataError(
            f"{path}, line {number}: entity declarations are not allowed ({type(error).__name__}); remove them"
        ) from None
    if is_empty and languages:
        if not (listed := ", ".join(sorted(languages - {""}))[:200]):
            raise DataError(f"{path}: its units name no languages; set xml:lang in each <tuv>")
        raise DataError(
            f"{path}: no unit has {source_lang} and {target_lang}, only {listed}; set `source_lang` and `target_lang`"
        )
