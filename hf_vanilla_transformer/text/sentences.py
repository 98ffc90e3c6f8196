"""Split text into sentences, since models are trained on single ones, and put translations into its layout.

Spaces, line ends, blank lines and bullets of the text are kept, but sentences of a line are joined as the script of
the translation joins them.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, pairwise

import sentencex

from ..errors import lone_surrogate
from .languages import base_code
from .protection import LINK, masked, messages

# Where to cut a sentence that is too long: after punctuation within it, else at a space.
CLAUSE_ENDS = re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])")
SPACES = re.compile(r"\s+")
# Before the text of a line: bullets of lists, dashes of dialogues and marks of quoted mail.
BULLETS = re.compile(r"(?:\s*+[-–—*+>#•‣⁃·∙]++(?=\s))*+\s*+")

# Han, kana, bopomofo and their punctuation, but no brackets, which Korean shares: sentences follow without a space.
_UNSPACED = re.compile(
    "[\u2e80-\u2fdf\u3001-\u3007\u301c-\u312f\u31a0-\u31ff\u3220-\u325f\u3280-\u4dbf\u4e00-\u9fff"
    "\uf900-\ufaff\ufe10-\ufe1f\ufe30-\ufe4f\uff01-\uff9f\uffe0-\uffe6\U0001b000-\U0001b16f\U00020000-\U0003ffff]"
)
# Skipped to find the script that a sentence begins or ends in.
_SCRIPTLESS = "\"'“”‘’«»()[]〈〉《》「」『』【】〔〕…—"
_REPLACED_GAPS = ("", " ", "\u3000")

# Closing marks and their opening ones. An English ’ is mostly an apostrophe.
_OPENING = {
    **dict(zip(")]）］」』】》〉〕", "([（［「『【《〈〔", strict=True)),
    **{"”": "“„", "“": "„", "‘": "‚", "»": "«", "«": "»", "›": "‹", "‹": "›", '"': '"'},
}
_PAIRED = re.compile("[" + re.escape("".join({*_OPENING, *"".join(_OPENING.values())})) + "]")

# What continues a sentence after a quotation: Japanese and Korean particles.
_CONTINUATION = re.compile('(?<=[)）」』》〉”’"])[とっはがをにのでもへやかなだ가-힣]|[、，；]')

# Khmer; but ។ល។ is "etc.".
_KHMER_ENDS = re.compile("(?<!។ល)[។៕](?!ល។)")


@dataclass(frozen=True)
class TextLayout:
    """A text as sentences and gaps (white space and bullets) before each and after the last one.

    No sentence is blank, or begins or ends with white space. `is_cut` tells whether some are pieces of a sentence.
    """

    sentences: tuple[str, ...]
    gaps: tuple[str, ...]
    is_cut: bool = False

    def fill(self, sentences: Sequence[str]) -> str:
        """Return the text with these sentences in place of its own."""
        pairs = zip(self.target_gaps(sentences), (*sentences, ""), strict=True)
        return "".join(part for pair in pairs for part in pair)

    def target_gaps(self, sentences: Sequence[str]) -> tuple[str, ...]:
        """Return the gaps around translations: a space, or none in Chinese and Japanese, between those of a line.

        Other gaps, and those between sentences that are their own translations, are as in the source.
        """
        pairs = zip(pairwise(self.sentences), pairwise(sentences), self.gaps[1:-1], strict=True)
        inner = (gap if source == target else _joint(*target, gap) for source, target, gap in pairs)
        return (self.gaps[0], *inner, *self.gaps[1:][-1:])

    def cut(self, cut: Callable[[str], Sequence[str]], bullets: bool = True) -> "TextLayout":
        """Return the layout with every sentence replaced by the pieces from `cut`, which concatenate to it."""
        pieces = [self.gaps[0]]
        for sentence, gap in zip(self.sentences, self.gaps[1:], strict=True):
            pieces += [*cut(sentence), gap]
        layout = _layout(pieces, bullets)
        return replace(layout, is_cut=len(layout.sentences) > len(self.sentences))


def whole(text: str, bullets: bool = True) -> TextLayout:
    """Return the layout of a text that is a single sentence.

    Args:
        text: The text.
        bullets: Whether a bullet at the start belongs to the gap, not to the sentence.
    """
    return _layout(_after_bullets(text, bullets), bullets)


def split_lines(text: str, bullets: bool = False) -> TextLayout:
    """Return the layout of a text whose lines are single sentences; `bullets` as for `whole`."""
    lines = text.splitlines(keepends=True)
    return _layout(chain.from_iterable(_after_bullets(line, bullets) for line in lines), bullets)


def split_sentences(text: str, language: str | None = None, bullets: bool = True) -> TextLayout:
    """Split each line of a text into sentences.

    Args:
        text: The text.
        language: ISO 639-1 code; None or an unsupported language is split like English.
        bullets: Whether a bullet at the start of a line belongs to the gap, not to the sentence.

    Raises:
        ValueError: The text has a lone surrogate.
    """
    if surrogate := lone_surrogate(text):
        raise ValueError(f"the text has {surrogate}; send valid Unicode")
    pieces: list[str] = []
    for line in text.splitlines(keepends=True):
        bullet, rest = _after_bullets(line, bullets)
        pieces += [bullet, *_segment(rest, base_code(language or "en"))]
    return _layout(pieces, bullets)


def _joint(before: str, after: str, gap: str) -> str:
    """Return the gap between the translations of two sentences, given the one in the source."""
    if gap not in _REPLACED_GAPS:
        return gap
    if _UNSPACED.match(before.rstrip(_SCRIPTLESS)[-1:]) or _UNSPACED.match(after.lstrip(_SCRIPTLESS)):
        return ""
    return " " if gap or (before[-1:].strip() and after[:1].strip()) else ""


def _after_bullets(text: str, bullets: bool) -> tuple[str, str]:
    end = BULLETS.match(text).end() if bullets else 0  # type: ignore[union-attr]  # matches an empty text
    return text[:end], text[end:]


def _segment(line: str, language: str) -> list[str]:
    """Split a line into sentences; return it whole if sentencex fails."""
    # sentencex ends no sentence after a link, in Khmer, or at an ellipsis, only at three dots.
    words = _with_items_masked(line)
    spelled = _KHMER_ENDS.sub("。", words).replace("…", "...")
    try:
        pieces: list[str] = sentencex.segment(language, spelled)
    except (KeyboardInterrupt, SystemExit):
        raise
    # A panic of its Rust code, as for "B\u3000.A", is not an Exception.
    except BaseException:
        return [line]
    places = [i for i, character in enumerate(words) for _ in range(3 if character == "…" else 1)]
    ends = [places[end] for end in accumulate(map(len, pieces[:-1]))]
    depths = _depths(words) if ends else []
    cuts = [end for end in ends if not depths[end] and not _CONTINUATION.match(words, end)]
    return [line[start:end] for start, end in pairwise((0, *cuts, len(line)))]


def _depths(text: str) -> list[int]:
    """Return how many pairs of quotation marks or brackets enclose the place before each character."""
    steps = [0] * (len(text) + 1)
    for start, end in _enclosures(text):
        steps[start + 1] += 1
        steps[end] -= 1
    return [*accumulate(steps)]


def _enclosures(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of paired quotation marks and brackets."""
    opened: list[tuple[str, int]] = []
    counts: Counter[str] = Counter()
    for match in _PAIRED.finditer(text):
        mark, start = match[0], match.start()
        opening = _OPENING.get(mark, "")
        if any(map(counts.__getitem__, opening)):
            # Marks opened within the pair are never closed.
            while True:
                other, place = opened.pop()
                counts[other] -= 1
                if other in opening:
                    break
            yield place, match.end()
        # Inches are no quotation marks.
        elif not (mark == '"' and text[start - 1 : start].isdigit()):
            opened.append((mark, start))
            counts[mark] += 1


def _with_items_masked(text: str) -> str:
    """Replace links and ICU messages, which are not split, with letters."""
    return masked(text, [*messages(text), *(match.span() for match in LINK.finditer(text))])


def _layout(pieces: Iterable[str], bullets: bool = True) -> TextLayout:
    sentences: list[str] = []
    gaps = [""]
    for piece in pieces:
        sentence = "" if bullets and BULLETS.fullmatch(piece) else piece.strip()
        start = piece.index(sentence) if sentence else len(piece)
        gaps[-1] += piece[:start]
        if sentence:
            sentences.append(sentence)
            gaps.append(piece[start + len(sentence) :])
    return TextLayout(tuple(sentences), tuple(gaps))


def cut_long_sentence(sentence: str, limit: int, measure: Callable[[str], int]) -> list[str]:
    """Halve a sentence until no piece has more than `limit` tokens by `measure`, between clauses if possible."""
    if len(sentence) < 2 or measure(sentence) <= limit:
        return [sentence]
    middle, words = len(sentence) / 2, _with_items_masked(sentence)
    # Prefer clause ends, in the middle half only; word ends count anywhere.
    clauses = [end for end in _ends(CLAUSE_ENDS, words) if middle / 2 < end < 1.5 * middle]
    candidates = clauses or _ends(SPACES, words) or [int(middle)]
    place = min(candidates, key=lambda end: abs(end - middle))
    cut = partial(cut_long_sentence, limit=limit, measure=measure)
    return [*cut(sentence[:place]), *cut(sentence[place:])]


def _ends(pattern: re.Pattern[str], sentence: str) -> list[int]:
    return [match.end() for match in pattern.finditer(sentence) if 0 < match.end() < len(sentence)]
