"""What is not translated: links, addresses, placeholders, code, numbers, dates, emoji, and what the user names.

Each such item of a sentence becomes a numbered placeholder, which models that saw them in training copy, and is put
back afterwards to the letter.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..errors import DataError
from ..files import StrPath, read_lines

PLACEHOLDERS = tuple(f"⟦{number}⟧" for number in range(1, 10))
"""Tokens that stand for the first, second, ... item of a sentence."""

PLACEHOLDER = re.compile(r"⟦(\d+)⟧")

_PICTOGRAM = (
    "[\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u25aa-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b55"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001f1e5\U0001f200-\U0001faff]"
    "[\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*+"
)

_NAME = r"\.?[\w@+~-]++(?:\.[\w@+~-]++)*+"
_TRAILING = "\\]}'’”»….,;:!?"
_DOMAINS = rf"(?:com|org|net|edu|gov|info|io)(?:\.[a-z]{{2}})?(?::\d+)?(?:/(?:[^\s<>\"()]*[^\s<>\"(){_TRAILING}])?)?"
_FILES = (
    "txt|pdf|docx?|xlsx?|pptx?|od[tsp]|csv|json|xml|ya?ml|html?|md|py|js|cpp|java|exe|zip|gz|jpe?g|png|gif|svg|mp[34]"
)

# Every alternative begins where no other match of it can, so that each character is looked at once.
ITEMS = re.compile(
    rf"""
    ⟦\d++⟧
    | (?<![`\w])(?P<ticks>`++)[^`\n]++(?P=ticks)(?![`\w])                 # code
    | \b(?i:(?:https?|ftp)://|www\.)(?:\([^\s<>"()]*+\)|[^\s<>"()])+(?<![{_TRAILING}])   # links
    | (?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]++)++                         # addresses
    | \$\{{[^{{}}\n]*+\}} | \{{\{{[^{{}}\n]*+\}}\}} | \{{[^{{}}\s]*+\}}    # placeholders
    | \{{\s*+\w++\s*+,\s*+(?:plural|select(?:ordinal)?)\s*+,                  # ICU messages
      (?:[^{{}}]++|\{{(?:[^{{}}]++|\{{[^{{}}]*+\}})*+\}})++\}}
    | %\([^()\s]*+\)[#0+-]*+\d*+(?:\.\d+)?[a-zA-Z]
    | (?<![\w%])%(?:\d+\$)?[#0+-]*+\d*+(?:\.\d+)?(?:hh?|ll?|[jzt])?[diouxXeEfFgGaAcspn@](?!\w)
    | </?[A-Za-z][\w:-]*+(?:\s++[\w:.@-]++\s*+=\s*+(?:"[^"<]*+"|'[^'<]*+'|[^\s"'<>=`]++))*+\s*+/?>    # markup
    | &(?:\#\d++|\#x[\da-fA-F]++|[A-Za-z]++);
    | (?<![\w@\#])[@\#][^\W\d]\w*+                                         # mentions and tags
    | (?<!\w)[^\W_]++(?:_[^\W_]++)++ | (?<![\w.])[A-Za-z_][\w.]*+\(\)      # identifiers
    | (?<!\w)[A-Z](?:\+\+|\#)(?!\w)
    | (?<![\w.@/\\-])(?:[\w-]++\.)+(?i:{_DOMAINS}|{_FILES})(?![\w-])       # domains and files
    | (?<![\w.<:/\\~])(?:[A-Za-z]:(?:\\{_NAME})++|(?:~|\.\.?)?(?:/{_NAME}){{2,}}+)    # paths
    | (?<!\S)(?:[:;=][-'^]?[()\[\]DPpOo/\\|*]++|[xX]D++|</?3++|\\o/|\^_*+\^|-_++-)(?!\w)    # emoticons
    | (?:[\U0001f1e6-\U0001f1ff]{{2}} | [\d\#*]\ufe0f?\u20e3 | {_PICTOGRAM}(?:\u200d{_PICTOGRAM})*+)++
    """,
    re.VERBOSE,
)

_CURRENCY = "[$¢£¥€₩₪₫₴₹₺₽₿]"

# Numbers, dates and times, with the symbols of units and currencies beside them.
NUMBERS = re.compile(
    rf"""
    (?<!\w)\d{{4}}-\d\d-\d\dT\d\d:\d\d[\d:.]*+(?:Z|[+-]\d\d:?\d\d)?(?!\w)
    | (?<![\w.,])[+\u2212-]?(?:{_CURRENCY}[ \xa0]?)?\d++(?:[.,:/'’-]\d++)*+
      (?:
        \xa0?[%‰] | [ \xa0]?(?:{_CURRENCY}|°[CFK]?)
        | [ap]m | [cdkmµ]?m[²³]? | [km]?g | [cdm]?l | [kMGT]i?B | [kMG]?Hz | k?Wh?
      )?(?!\w)
    """,
    re.VERBOSE,
)

# Scripts of so many letters that vocabularies spell out rare ones.
LARGE_SCRIPTS = re.compile(r"(CJK|HANGUL|EGYPTIAN|TANGUT|YI)\b")

# Brackets and quotes that are left out with all that is in them.
ENCLOSING = frozenset(("()", "[]", "{}", '""', "''", "“”", "‘’", "«»"))

# What no blank stands before.
CLOSING = (" ", *".,;:!?)]}’”»…")

# Scripts, by the first words of their characters' names, that put no blanks between words.
UNSPACED_SCRIPTS = re.compile(r"(HALFWIDTH )?(CJK|HIRAGANA|KATAKANA|THAI|LAO|KHMER|MYANMAR|TIBETAN)\b")


Span = tuple[int, int]
"""Start and end of a part of a text."""

Edit = tuple[int, int, str]
"""Start and end of a part of a text, and what replaces it."""


class Item(NamedTuple):
    """A part of a sentence that is not translated, and where it was in the protected text.

    There its placeholder stands; if there was none for it, "", it was left out together with the gap before it.
    """

    text: str
    start: int
    placeholder: str
    gap: str


@dataclass(frozen=True)
class ProtectedText:
    """A sentence with placeholders instead of its items, which are in order."""

    text: str
    items: tuple[Item, ...] = ()

    @property
    def placeholders(self) -> tuple[str, ...]:
        """The placeholders in the text."""
        return tuple(item.placeholder for item in self.items if item.placeholder)

    def source_edits(self) -> list[Edit]:
        """Return the edits that turn `text` into the sentence."""
        return [(start, start + len(placeholder), gap + text) for text, start, placeholder, gap in self.items]

    def missing(self, translation: str) -> list[Item]:
        """Return the items without a placeholder in a translation."""
        return [item for item in self.items if not item.placeholder or item.placeholder not in translation]

    def edits(self, translation: str, links: Iterable[tuple[int, int]] = ()) -> list[Edit]:
        """Return the edits that give a translation of `text` every item once, and leave no other placeholder.

        By links between source and target words, counted from 0, an item without a placeholder follows the word that
        belongs to the one before it; without links it stands at the same part of the text.
        """
        waiting = {item.placeholder: item for item in self.items if item.placeholder}
        edits = [
            self._restored(translation, match.span(), waiting.pop(match[0], None))
            for match in PLACEHOLDER.finditer(translation)
        ]
        if missing := self.missing(translation):
            # Before the punctuation that closes a word.
            ends = [match.end(1) for match in re.finditer(r"(\S*\w|\S+)\S*", translation)]
            targets: dict[int, int] = {}
            for source, target in links:
                targets[source] = max(target, targets.get(source, -1))
            inserted: dict[int, list[str]] = {}
            for item in missing:
                inserted.setdefault(self._place(item, translation, ends, targets), []).append(item.text)
            edits += [(place, place, _with_gaps(translation, place, texts)) for place, texts in inserted.items()]
        return sorted(edits)

    def _restored(self, translation: str, span: Span, item: Item | None) -> Edit:
        """Return the edit that puts an item in place of a placeholder, apart from others if it was, or removes it."""
        start, end = span
        before, after = translation[:start][-1:], translation[end : end + 1]
        if item is None:
            return start - (before == " " and after in (" ", "")), end, ""
        source_before, source_after = self.text[: item.start][-1:], self.text[item.start + len(item.placeholder) :][:1]
        first = " " * bool((before.isalnum() or before == "⟧") and not source_before.strip())
        last = " " * bool(after.isalnum() and not source_after.strip())
        return start, end, first + item.text + last

    def _place(self, item: Item, translation: str, ends: list[int], targets: dict[int, int]) -> int:
        """Return where in a translation an item goes that has no placeholder there."""
        before, after = self.text[: item.start], self.text[item.start + len(item.placeholder) :]
        if not before.strip() or not ends:
            return 0
        if not any(map(str.isalnum, after)):
            # What closes the source after the item, closes the translation after it too.
            return len(translation.rstrip(after)) if after.strip() else len(translation)
        words = len(before.split())
        linked = next((targets[word] for word in range(words - 1, -1, -1) if word in targets), None)
        if linked is None:
            linked = round(words / len(self.text.split()) * len(ends)) - 1
        return ends[min(linked, len(ends) - 1)] if linked >= 0 else 0


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Return a text after edits, which are sorted and apart."""
    pieces, last = [], 0
    for start, end, replacement in edits:
        pieces += [text[last:start], replacement]
        last = end
    return "".join([*pieces, text[last:]])


def moved(text: str, edits: Sequence[Edit]) -> list[int]:
    """Return the number that each word of a text has after edits; white space separates words."""
    starts = [match.start() for match in re.finditer(r"\S+", edited(text, edits))]
    numbers = []
    for match in re.finditer(r"\S+", text):
        shift = sum(len(replacement) - end + start for start, end, replacement in edits if end <= match.start())
        numbers.append(max(0, bisect_right(starts, match.start() + shift) - 1))
    return numbers


def _with_gaps(text: str, place: int, items: Iterable[str]) -> str:
    """Return items with the blanks that they need at a place in a text."""
    before, after = text[:place], text[place:]
    first = " " * bool(before and not before[-1].isspace())
    return first + " ".join(items) + " " * bool(after and not after.startswith(CLOSING))


class Protector:
    """Finds the items of sentences: numbers, if they count, matches of patterns, words with unknown characters."""

    def __init__(
        self,
        patterns: Sequence[re.Pattern[str]] = (),
        is_known: Callable[[str], bool] | None = None,
        with_numbers: bool = True,
    ):
        self._patterns, self._is_known = patterns, is_known
        self._kinds = (ITEMS, NUMBERS) if with_numbers else (ITEMS,)

    def spans(self, text: str) -> list[Span]:
        """Return where the items of a sentence begin and end.

        Of further items that overlap, the first pattern's counts; those of a link, say, belong to the link.
        """
        found: list[Span] = []
        for pattern in self._patterns:
            earlier = _joined(sorted(found))
            starts = [start for start, _ in earlier]
            for start, end in (match.span() for match in pattern.finditer(text)):
                at = bisect_left(starts, end)
                if start < end and (at == 0 or earlier[at - 1][1] <= start):
                    found.append((start, end))
        found += (match.span() for kind in self._kinds for match in kind.finditer(text))
        if self._is_known is not None and not text.isascii():
            found += _unknown(text, self._is_known)
        return _joined(sorted(found))


def _unknown(text: str, is_known: Callable[[str], bool]) -> Iterator[Span]:
    """Yield the words with unknown letters, other unknown characters, and unknown letters of unspaced scripts."""
    # Marks, as accents may be, belong to the letters before them.
    for match in re.finditer(r"\w+|[^\w\s]", "".join("a" if _is_mark(each) else each for each in text)):
        unknown = [
            i
            for i, character in enumerate(text[slice(*match.span())], match.start())
            if not (character.isascii() or is_known(character))
        ]
        if unknown and UNSPACED_SCRIPTS.match(unicodedata.name(text[unknown[0]], "")):
            yield from _joined([(i, i + 1) for i in unknown])
        elif unknown:
            yield match.span()


def _is_mark(character: str) -> bool:
    return unicodedata.category(character).startswith("M")


def with_placeholders(text: str, spans: Iterable[Span], placeholders: Sequence[str] = PLACEHOLDERS) -> ProtectedText:
    """Return a sentence with placeholders for its first items, and without the others; items that touch are one."""
    pieces: list[str] = []
    items: list[Item] = []
    end = length = 0
    for start, stop in _joined(sorted(spans)):
        placeholder = placeholders[len(items)] if len(items) < len(placeholders) else ""
        while not placeholder and start > end and text[start - 1] + text[stop : stop + 1] in ENCLOSING:
            start, stop = start - 1, stop + 1
        whole = piece = text[end:start]
        if not placeholder and (stop == len(text) or text.startswith(CLOSING, stop)):
            piece = piece.rstrip()
        pieces += [piece, placeholder]
        items.append(Item(text[start:stop], length + len(piece), placeholder, whole[len(piece) :]))
        length, end = length + len(piece) + len(placeholder), stop
    return ProtectedText("".join([*pieces, text[end:]]), tuple(items))


def protect_pair(source: str, target: str, protector: Protector) -> tuple[str, str]:
    """Return a sentence and its translation with placeholders for the items that both have.

    Items with white space stay, so that the words that alignments count stay the same.
    """
    waiting: dict[str, list[Span]] = {}
    for start, end in protector.spans(target):
        waiting.setdefault(target[start:end], []).append((start, end))
    source_edits: list[Edit] = []
    target_edits: list[Edit] = []
    for start, end in protector.spans(source):
        text = source[start:end]
        if waiting.get(text) and len(source_edits) < len(PLACEHOLDERS) and not re.search(r"\s", text):
            placeholder = PLACEHOLDERS[len(source_edits)]
            source_edits.append((start, end, placeholder))
            target_edits.append((*waiting[text].pop(0), placeholder))
    return edited(source, source_edits), edited(target, sorted(target_edits))


def placeholders_of(tokenizer: Any) -> tuple[str, ...]:
    """Return the placeholders that the vocabularies of a tokenizer have."""
    sides = [getattr(tokenizer, f"{side}_tokenizer", tokenizer) for side in ("source", "target")]
    return tuple(
        token
        for token in PLACEHOLDERS
        if all(side.convert_tokens_to_ids(token) not in (None, side.unk_token_id) for side in sides)
    )


def read_patterns(path: StrPath) -> list[re.Pattern[str]]:
    """Read regular expressions of what is not translated, one on each line; blank lines are skipped.

    Raises:
        DataError: The file cannot be read, or a line is no regular expression or matches an empty text.
    """
    patterns = []
    for number, line in enumerate(read_lines(path), start=1):
        if line.strip():
            try:
                patterns.append(checked_pattern(line.rstrip("\r\n")))
            except ValueError as error:
                raise DataError(f"{path}, line {number}: {error}") from None
    return patterns


def checked_pattern(pattern: str | re.Pattern[str]) -> re.Pattern[str]:
    """Compile a regular expression; a ValueError if it is none, or matches an empty text."""
    if not isinstance(pattern, str | re.Pattern):
        raise ValueError(f"{pattern!r} is no regular expression, but a {type(pattern).__name__}; pass strings")
    try:
        compiled = re.compile(pattern)
    # Of huge numbers, and of groups nested too deeply.
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is no regular expression: {error}; correct it") from None
    if compiled.match(""):
        raise ValueError(f"{pattern!r} matches an empty text; write an expression of one character or more")
    return compiled


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Return sorted spans, those that overlap or touch joined."""
    joined: list[Span] = []
    for start, end in spans:
        if joined and start <= joined[-1][1]:
            start, end = joined[-1][0], max(end, joined.pop()[1])
        joined.append((start, end))
    return joined
