"""Split text into sentences, since models are trained on single ones, and put translations into its layout.

Spaces, line ends, blank lines and bullets of the text are kept.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, pairwise

import sentencex

from ..errors import lone_surrogate
from .protection import LINK, MESSAGES

# Where to cut a sentence that is too long: after punctuation within it, else at a space.
CLAUSE_ENDS = re.compile(r"(?<=[,;:–—])\s+|(?<=[，、；：])")
SPACES = re.compile(r"\s+")
# Before the text of a line: bullets of lists, dashes of dialogues and marks of quoted mail.
BULLETS = re.compile(r"(?:\s*+[-–—*+>#•‣⁃·∙]++(?=\s))*+\s*+")

_UNSPLIT = re.compile(f"{LINK.pattern}|{MESSAGES.pattern}")


@dataclass(frozen=True)
class Layout:
    """A text as sentences and gaps (white space and bullets) before each and after the last one.

    No sentence is blank, or begins or ends with white space. `is_cut` tells whether some are pieces of a sentence.
    """

    sentences: tuple[str, ...]
    gaps: tuple[str, ...]
    is_cut: bool = False

    def fill(self, sentences: Sequence[str]) -> str:
        """Return the text with these sentences in place of its own."""
        pairs = zip(self.gaps, (*sentences, ""), strict=True)
        return "".join(part for pair in pairs for part in pair)

    def cut(self, cut: Callable[[str], Sequence[str]]) -> "Layout":
        """Return the layout with every sentence replaced by the pieces from `cut`, which concatenate to it."""
        pieces = [self.gaps[0]]
        for sentence, gap in zip(self.sentences, self.gaps[1:], strict=True):
            pieces += [*cut(sentence), gap]
        layout = _layout(pieces)
        return replace(layout, is_cut=len(layout.sentences) > len(self.sentences))


def whole(text: str) -> Layout:
    """Return the layout of a text that is a single sentence."""
    return _layout(_after_bullets(text))


def split_sentences(text: str, language: str | None = None) -> Layout:
    """Split each line of a text into sentences.

    Args:
        text: The text.
        language: ISO 639-1 code; None or an unsupported language is split like English.

    Raises:
        ValueError: The text has a lone surrogate.
    """
    if surrogate := lone_surrogate(text):
        raise ValueError(f"the text has {surrogate}; send valid Unicode")
    pieces: list[str] = []
    for line in text.splitlines(keepends=True):
        bullets, rest = _after_bullets(line)
        pieces += [bullets, *_segment(rest, language or "en")]
    return _layout(pieces)


def _after_bullets(text: str) -> tuple[str, str]:
    end = BULLETS.match(text).end()  # type: ignore[union-attr]  # matches an empty text
    return text[:end], text[end:]


def _segment(line: str, language: str) -> list[str]:
    """Split a line into sentences; return it whole if sentencex fails."""
    # sentencex ends no sentence after a link, nor at an ellipsis, only at three dots.
    masked = _masked(line)
    spelled = masked.replace("…", "...")
    try:
        pieces: list[str] = sentencex.segment(language, spelled)
    except (KeyboardInterrupt, SystemExit):
        raise
    # A panic of its Rust code, as for "B\u3000.A", is not an Exception.
    except BaseException:
        return [line]
    if spelled == line:
        return pieces
    places = [i for i, each in enumerate(masked) for _ in range(3 if each == "…" else 1)]
    cuts = [places[end] for end in accumulate(map(len, pieces[:-1]))]
    return [line[start:end] for start, end in pairwise((0, *cuts, len(line)))]


def _masked(text: str) -> str:
    """Replace links and ICU messages, which are not split, with letters."""
    return _UNSPLIT.sub(lambda match: "x" * len(match[0]), text)


def _layout(pieces: Iterable[str]) -> Layout:
    sentences: list[str] = []
    gaps = [""]
    for piece in pieces:
        sentence = "" if BULLETS.fullmatch(piece) else piece.strip()
        start = piece.index(sentence) if sentence else len(piece)
        gaps[-1] += piece[:start]
        if sentence:
            sentences.append(sentence)
            gaps.append(piece[start + len(sentence) :])
    return Layout(tuple(sentences), tuple(gaps))


def cut_long_sentence(sentence: str, limit: int, measure: Callable[[str], int]) -> list[str]:
    """Halve a sentence until no piece has more than `limit` tokens by `measure`, between clauses if possible."""
    if len(sentence) < 2 or measure(sentence) <= limit:
        return [sentence]
    middle, masked = len(sentence) / 2, _masked(sentence)
    # Prefer clause ends, in the middle half only; word ends count anywhere.
    clauses = [end for end in _ends(CLAUSE_ENDS, masked) if middle / 2 < end < 1.5 * middle]
    candidates = clauses or _ends(SPACES, masked) or [int(middle)]
    place = min(candidates, key=lambda end: abs(end - middle))
    cut = partial(cut_long_sentence, limit=limit, measure=measure)
    return [*cut(sentence[:place]), *cut(sentence[place:])]


def _ends(pattern: re.Pattern[str], sentence: str) -> list[int]:
    return [match.end() for match in pattern.finditer(sentence) if 0 < match.end() < len(sentence)]
