"""Protect items that are not translated: links, addresses, code, numbers, dates, emoji, user-defined patterns, ...

Each item of a sentence becomes a numbered placeholder, which models trained with placeholders copy, and is put back
verbatim afterwards.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, pairwise
from typing import Any, NamedTuple

from ..errors import DataError
from ..files import StrPath, read_lines

PLACEHOLDERS = tuple(f"⟦{number}⟧" for number in range(1, 10))
"""Tokens for the first, second, ... item of a sentence."""

PLACEHOLDER = re.compile(r"⟦(\d+)⟧")

_CURRENCY = "[$¢£¥€₩₪₫₴₹₺₽₿]"

_PICTOGRAM = (
    "[\u203c\u2049\u2122\u2139\u2194-\u21aa\u231a-\u23ff\u25aa-\u25fe\u2600-\u27bf\u2934\u2935\u2b05-\u2b55"
    "\u3030\u303d\u3297\u3299\U0001f000-\U0001f1e5\U0001f200-\U0001faff]"
    "[\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]*+"
)

_NAME = r"\.?[\w@+~-]++(?:\.[\w@+~-]++)*+"
_TRAILING = "\\]}'’”»….,;:!?"
_LINK = rf"""\b(?i:(?:https?|ftp)://|www\.)(?:\([^\s<>"()]*+\)|[^\s<>"()])+(?<![{_TRAILING}])"""
LINK = re.compile(_LINK)
_DOMAINS = rf"(?:com|org|net|edu|gov|info|io)(?:\.[a-z]{{2}})?(?::\d+)?(?:/(?:[^\s<>\"()]*[^\s<>\"(){_TRAILING}])?)?"
_FILES = (
    "txt|pdf|docx?|xlsx?|pptx?|od[tsp]|csv|json|xml|ya?ml|html?|md|py|js|cpp|java|exe|zip|gz|jpe?g|png|gif|svg|mp[34]"
)


def _braces(depth: int) -> str:
    """Return a pattern of text in nested braces; ICU quotes braces with apostrophes, and writes an apostrophe twice.

    A quote has no comma, so no message starts inside it, and time stays linear.
    """
    nested = f"|{_braces(depth - 1)}" if depth > 1 else ""
    return rf"\{{(?:[^{{}}']++|''|'[{{}}\#][^\s',]*+'|'{nested})*+\}}"


# Plurals and selects, nested up to three deep with placeholders in the innermost.
MESSAGES = re.compile(
    r"\{\s*+[\w.]++\s*+,\s*+(?:plural|select(?:ordinal)?)\s*+,\s*+(?:offset:\s*+\d++\s*+)?+"
    rf"(?:=?[\w.-]++\s*+{_braces(6)}\s*+)++\}}"
)

# Patterns of the items of each kind. None can start inside one of its own matches, so each character is scanned once.
ITEMS = {
    "code": r"(?<![`\w])(?P<ticks>`++)[^`\n]++(?P=ticks)(?![`\w])",
    "links": rf"{_LINK} | (?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]++)++",
    "placeholders": rf"""
        \$\{{[^{{}}\n]*+\}} | \{{\{{[^{{}}\n]*+\}}\}} | \{{[^{{}}\s]*+\}}
        | {MESSAGES.pattern}
        | \{{\s*+\w++\s*+(?:,\s*+(?:number|date|time|spellout|ordinal|duration)\s*+(?:,[^{{}}]*+)?+)?+\}}
        | %\([^()\s]*+\)[#0+-]*+\d*+(?:\.\d+)?[a-zA-Z]
        | (?<![\w%])%(?:\d+\$)?[#0+-]*+\d*+(?:\.\d+)?(?:hh?|ll?|[jzt])?[diouxXeEfFgGaAcspn@](?!\w)
    """,
    "tags": r"""</?[A-Za-z][\w:-]*+(?:\s++[\w:.@-]++\s*+=\s*+(?:"[^"<]*+"|'[^'<]*+'|[^\s"'<>=`]++))*+\s*+/?>""",
    "entities": r"&(?:\#\d++|\#x[\da-fA-F]++|[A-Za-z]++);",
    "mentions": r"(?<![\w@\#])[@\#][^\W\d]\w*+",
    "identifiers": r"(?<!\w)[^\W_]++(?:_[^\W_]++)++ | (?<![\w.])[A-Za-z_][\w.]*+\(\) | (?<!\w)[A-Z](?:\+\+|\#)(?!\w)",
    "files": rf"""
        (?<![\w.@/\\-])(?:[\w-]++\.)+(?i:{_DOMAINS}|{_FILES})(?![\w-])
        | (?<![\w.<:/\\~])(?:[A-Za-z]:(?:\\{_NAME})++|(?:~|\.\.?)?(?:/{_NAME}){{2,}}+)
    """,
    "emoticons": r"(?<!\S)(?:[:;=][-'^]?[()\[\]DPpOo/\\|*]++|[xX]D++|</?3++|\\o/|\^_*+\^|-_++-)(?!\w)",
    "emoji": rf"(?:[\U0001f1e6-\U0001f1ff]{{2}} | [\d\#*]\ufe0f?\u20e3 | {_PICTOGRAM}(?:\u200d{_PICTOGRAM})*+)++",
    # Numbers, dates and times, with adjacent unit and currency symbols.
    "numbers": rf"""
        (?<!\w)\d{{4}}-\d\d-\d\dT\d\d:\d\d[\d:.]*+(?:Z|[+-]\d\d:?\d\d)?(?!\w)
        | (?<![\w.,])[+\u2212-]?(?:{_CURRENCY}[ \xa0]?)?\d++(?:[.,:/'’-]\d++)*+
          (?:
            \xa0?[%‰] | [ \xa0]?(?:{_CURRENCY}|°[CFK]?)
            | [ap]m | [cdkmµ]?m[²³]? | [km]?g | [cdm]?l | [kMGT]i?B | [kMG]?Hz | k?Wh?
          )?(?!\w)
    """,
}

# Large scripts: vocabularies have only their frequent characters, and spell out the others.
LARGE_SCRIPTS = re.compile(r"(CJK|HANGUL|EGYPTIAN|TANGUT|YI)\b")

# Brackets and quotes that are removed with an item that they enclose.
ENCLOSING = frozenset(("()", "[]", "{}", '""', "''", "“”", "‘’", "«»"))

# Not %: German, French and Spanish write "50 %".
NO_SPACE_BEFORE = frozenset(".,;:!?)]}’”»…")

# Maximum number of characters after the last word that are compared with those of a translation.
MAX_TAIL = 100

# Scripts without spaces between words, matched against the start of a character's name.
UNSPACED_SCRIPTS = re.compile(r"(HALFWIDTH )?(CJK|HIRAGANA|KATAKANA|THAI|LAO|KHMER|MYANMAR|TIBETAN)\b")


Span = tuple[int, int]
"""Start and end within a text."""

Edit = tuple[int, int, str]
"""Start and end within a text, and the replacement."""

Link = tuple[int, int]
"""Indices of aligned source and target words, from 0; white space separates words."""


class Item(NamedTuple):
    """A part of a sentence that is not translated.

    Attributes:
        text: The item.
        start: Its position in the protected text.
        placeholder: The placeholder there; "" if the item was removed instead.
        gap: White space before a removed item, removed with it.
    """

    text: str
    start: int
    placeholder: str
    gap: str


@dataclass(frozen=True)
class ProtectedText:
    """A sentence with its items, in order, replaced with placeholders or removed."""

    text: str
    items: tuple[Item, ...] = ()

    @property
    def placeholders(self) -> tuple[str, ...]:
        """Placeholders in the text."""
        return tuple(item.placeholder for item in self.items if item.placeholder)

    def source_edits(self) -> list[Edit]:
        """Return the edits that turn `text` back into the sentence."""
        items = (item for item in self.items if item.placeholder != item.gap + item.text)
        return [(start, start + len(placeholder), gap + text) for text, start, placeholder, gap in items]

    def missing(self, translation: str) -> list[Item]:
        """Return the items without a placeholder in a translation."""
        present = {match[0] for match in PLACEHOLDER.finditer(translation)}
        return [item for item in self.items if item.placeholder not in present]

    def restore(self, translation: str, links: Iterable[Link] = ()) -> tuple[str, list[Link]]:
        """Put every item into a translation of `text` once, and remove other placeholders.

        An item whose placeholder is missing goes after the target word linked to the nearest source word before it,
        or, without links, to the same relative position.

        Args:
            translation: Translation of `text`.
            links: Links between words of `text` and `translation`, if known.

        Returns:
            The translation of the sentence, and the links between words of the two.
        """
        pairs = list(links)
        if "⟦" in translation and (surplus := self._surplus(translation)):
            translation, pairs = _with_edits(translation, surplus, pairs)
            translation = translation.lstrip(" ")
        if self.items:
            translation, pairs = _with_edits(translation, self._restorations(translation, pairs), pairs)
        if pairs and (edits := self.source_edits()):
            sources = moved(self.text, edits)
            pairs = [(sources[source], target) for source, target in pairs if source in sources]
        return translation, pairs

    def _surplus(self, translation: str) -> list[Edit]:
        """Return the edits that remove placeholders that `text` does not have, or has less often."""
        waiting = Counter(PLACEHOLDER.findall(self.text))
        spans: list[Span] = []
        for match in PLACEHOLDER.finditer(translation):
            waiting[match[1]] -= 1
            if waiting[match[1]] < 0:
                spans.append(match.span())
        return [
            (start - (translation[start - 1 : start] == " " and takes_no_space(translation, end)), end, "")
            for start, end in joined_spans(spans)
        ]

    def _restorations(self, translation: str, links: Iterable[Link]) -> list[Edit]:
        """Return the edits that put every item into a translation."""
        items = {item.placeholder: item for item in self.items if item.placeholder}
        edits = [
            self._restoration(translation, match.span(), items[match[0]])
            for match in PLACEHOLDER.finditer(translation)
            if match[0] in items
        ]
        inserted: dict[int, list[str]] = {}
        for item, place in self._places(translation, links):
            inserted.setdefault(place, []).append(item.text)
        edits += [(place, place, _with_gaps(translation, place, texts)) for place, texts in inserted.items()]
        return sorted(edit for edit in edits if translation[edit[0] : edit[1]] != edit[2])

    def _restoration(self, translation: str, span: Span, item: Item) -> Edit:
        """Return the edit that replaces a placeholder with its item, spaced as in the source."""
        (start, end), stop = span, item.start + len(item.placeholder)
        before, after = translation[start - 1 : start], translation[end : end + 1]
        ends_word = before.isalnum() or before == "⟧" or before in NO_SPACE_BEFORE
        first = " " * (ends_word and not self.text[item.start - 1 : item.start].strip())
        last = " " * (after.isalnum() and not self.text[stop : stop + 1].strip())
        return start, end, first + item.text + last

    def _places(self, translation: str, links: Iterable[Link]) -> Iterator[tuple[Item, int]]:
        """Yield each item whose placeholder is missing, and its position in a translation."""
        if not (missing := self.missing(translation)):
            return
        # Ends of words, before closing punctuation.
        ends = [match.end(1) for match in re.finditer(r"(\S*[\w⟧]|\S+)\S*", translation)]
        # The last target word of each linked source word.
        targets = dict(sorted(links))
        linked = [*targets]
        starts = [match.start() for match in re.finditer(r"\S+", self.text)]
        end_of_words = max((i for i, character in enumerate(self.text, 1) if character.isalnum()), default=0)
        for item in missing:
            num_before, end = bisect_left(starts, item.start), item.start + len(item.placeholder)
            if not num_before or not ends:
                yield item, 0
            elif end >= end_of_words:
                # Only punctuation follows the item: put it before the same punctuation at the end of the translation.
                after = self.text[end : end + MAX_TAIL]
                yield item, len(translation.rstrip(after) if after.strip() else translation)
            else:
                num_linked = bisect_left(linked, num_before)
                relative = round(num_before / len(starts) * len(ends)) - 1
                last = targets[linked[num_linked - 1]] if num_linked else relative
                yield item, ends[min(last, len(ends) - 1)] if last >= 0 else 0


def edited(text: str, edits: Iterable[Edit]) -> str:
    """Apply sorted, non-overlapping edits to a text."""
    pieces, last = [], 0
    for start, end, replacement in edits:
        pieces += [text[last:start], replacement]
        last = end
    return "".join([*pieces, text[last:]])


def masked(text: str, spans: Iterable[Span], mark: str = "x") -> str:
    """Replace each character of the spans, which may overlap, with a mark."""
    return edited(text, [(start, end, mark * (end - start)) for start, end in joined_spans(spans)])


def moved(text: str, edits: Sequence[Edit]) -> dict[int, int]:
    """Map indices of the words of a text, except removed ones, to those after edits; white space separates words."""
    starts = [match.start() for match in re.finditer(r"\S+", edited(text, edits))]
    indices: dict[int, int] = {}
    shift = done = 0
    for index, match in enumerate(re.finditer(r"\S+", text)):
        while done < len(edits) and edits[done][1] <= match.start():
            shift += len(edits[done][2]) - edits[done][1] + edits[done][0]
            done += 1
        start, end, replacement = edits[done] if done < len(edits) else (len(text), 0, "")
        if replacement or match.start() < start or end < match.end():
            indices[index] = max(0, bisect_right(starts, match.start() + shift) - 1)
    return indices


def _with_edits(translation: str, edits: Sequence[Edit], links: list[Link]) -> tuple[str, list[Link]]:
    """Apply edits to a translation and its links."""
    if links and edits:
        targets = moved(translation, edits)
        links = [(source, targets[target]) for source, target in links if target in targets]
    return edited(translation, edits), links


def takes_no_space(text: str, place: int) -> bool:
    """Whether no space belongs at a position of a text: at its end, before white space or before a closing mark."""
    return place == len(text) or text[place].isspace() or text[place] in NO_SPACE_BEFORE


def _with_gaps(text: str, place: int, items: Iterable[str]) -> str:
    """Join items with the spaces needed to insert them at a position in a text."""
    first = " " * bool(place and not text[place - 1].isspace())
    return first + " ".join(items) + " " * (not takes_no_space(text, place))


class Protector:
    """Finds the items of sentences.

    Args:
        patterns: Regular expressions of further items.
        is_known: Whether the vocabulary has a character; words with others are items. None if it has all.
        kinds: Kinds of items, from `ITEMS`.
    """

    def __init__(
        self,
        patterns: Sequence[re.Pattern[str]] = (),
        is_known: Callable[[str], bool] | None = None,
        kinds: Iterable[str] = tuple(ITEMS),
    ):
        self._patterns, self._is_known = patterns, is_known
        self._kinds = _compiled(frozenset(kinds))

    def spans(self, text: str) -> list[Span]:
        """Return the spans of the items in a sentence, sorted.

        If matches of `patterns` overlap, the earlier pattern wins. Otherwise overlapping items are merged, such as a
        name within a link.
        """
        return joined_spans(span for span, _ in self.find(text))

    def find(self, text: str) -> list[tuple[Span, str]]:
        """Return the spans and kinds of the items in a sentence, sorted; they may overlap.

        The kind is "letters" for words that the vocabulary cannot write, and "" for matches of `patterns`.
        """
        own: list[Span] = []
        for pattern in self._patterns:
            earlier = joined_spans(own)
            starts = [start for start, _ in earlier]
            for start, end in (match.span() for match in pattern.finditer(text)):
                at = bisect_left(starts, end)
                if start < end and (at == 0 or earlier[at - 1][1] <= start):
                    own.append((start, end))
        items = [(span, "") for span in own]
        items += ((match.span(), match.lastgroup or "") for kind in self._kinds for match in kind.finditer(text))
        if self._is_known is not None and not text.isascii():
            # Capitals are translated in lower case.
            read = text.lower() if text.isupper() else text
            unknown = _unknown(read if len(read) == len(text) else text, self._is_known)
            items += ((span, "letters") for span in unknown)
        return sorted(items)


@lru_cache
def _compiled(kinds: frozenset[str]) -> tuple[re.Pattern[str], ...]:
    """Return patterns with a group for each kind; numbers have their own, since they may be part of other items."""
    named = [f"(?P<{kind}>{ITEMS[kind]})" for kind in ITEMS if kind in kinds and kind != "numbers"]
    patterns = [re.compile("|".join([r"⟦\d++⟧", *named]), re.VERBOSE)]
    if "numbers" in kinds:
        patterns.append(re.compile(f"(?P<numbers>{ITEMS['numbers']})", re.VERBOSE))
    return tuple(patterns)


def _unknown(text: str, is_known: Callable[[str], bool]) -> Iterator[Span]:
    """Yield the spans of words with unknown letters and of other unknown characters; letter by letter if unspaced."""
    # Combining marks, such as accents, belong to the letters before them.
    letters = ("a" if unicodedata.category(letter).startswith("M") else letter for letter in text)
    for match in re.finditer(r"\w+|[^\w\s]", "".join(letters)):
        unknown = [i for i in range(*match.span()) if not (text[i].isascii() or is_known(text[i]))]
        if unknown and UNSPACED_SCRIPTS.match(unicodedata.name(text[unknown[0]], "")):
            yield from joined_spans([(i, i + 1) for i in unknown])
        elif unknown:
            yield match.span()


def messages(text: str) -> list[Span]:
    """Return the spans of the ICU messages in a text."""
    return [match.span() for match in MESSAGES.finditer(text)]


def unused_placeholders(text: str, placeholders: Iterable[str] | None = None) -> Iterator[str]:
    """Yield those placeholders, by default all there are, that do not occur in a text."""
    used = {match[0] for match in PLACEHOLDER.finditer(text)}
    names = map("⟦{}⟧".format, count(1)) if placeholders is None else placeholders
    return (name for name in names if name not in used)


def with_placeholders(text: str, spans: Iterable[Span], placeholders: Iterable[str] = PLACEHOLDERS) -> ProtectedText:
    """Replace the first items of a sentence with placeholders, and remove the others; adjacent items are merged."""
    pieces: list[str] = []
    items: list[Item] = []
    end = length = 0
    joined = joined_spans(spans)
    names = unused_placeholders(masked(text, joined), placeholders)
    for (start, stop), (following, _) in pairwise([*joined, (len(text), 0)]):
        placeholder = next(names, "")
        while not placeholder and end < start and stop < following and text[start - 1] + text[stop] in ENCLOSING:
            start, stop = start - 1, stop + 1
        whole = piece = text[end:start]
        if not placeholder and takes_no_space(text, stop):
            piece = piece.rstrip()
        pieces += [piece, placeholder]
        items.append(Item(text[start:stop], length + len(piece), placeholder, whole[len(piece) :]))
        length, end = length + len(piece) + len(placeholder), stop
    return ProtectedText("".join([*pieces, text[end:]]), tuple(items))


def protect_pair(source: str, target: str, protector: Protector) -> tuple[str, str]:
    """Replace the items that a sentence and its translation share with placeholders.

    Items that contain white space stay, to keep the word indices of alignments valid.
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
    """Return the placeholders that all vocabularies of a tokenizer contain."""
    sides = [getattr(tokenizer, f"{side}_tokenizer", tokenizer) for side in ("source", "target")]
    return tuple(
        token
        for token in PLACEHOLDERS
        if all(side.convert_tokens_to_ids(token) not in (None, side.unk_token_id) for side in sides)
    )


def read_patterns(path: StrPath) -> list[re.Pattern[str]]:
    """Read regular expressions of text not to translate, one per line; blank lines are skipped.

    Raises:
        DataError: The file cannot be read, or a regular expression is invalid or matches the empty string.
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
    """Compile a regular expression; raise a ValueError if it is invalid or matches the empty string."""
    if not isinstance(pattern, str | re.Pattern):
        raise ValueError(f"{pattern!r} is a {type(pattern).__name__}, not a regular expression; pass strings")
    try:
        compiled = re.compile(pattern)
    # The last two for huge numbers and deeply nested groups.
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"{pattern!r} is not a valid regular expression: {error}; correct it") from None
    if compiled.match(""):
        raise ValueError(f"{pattern!r} matches the empty string; require at least one character")
    return compiled


def joined_spans(spans: Iterable[Span]) -> list[Span]:
    """Merge spans that overlap or touch."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            start, end = joined[-1][0], max(end, joined.pop()[1])
        joined.append((start, end))
    return joined
