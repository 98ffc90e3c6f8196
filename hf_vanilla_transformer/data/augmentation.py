"""Noise in training text: what users type (placeholders, lowercase, typos, other punctuation), and copied targets."""

import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..errors import did_you_mean
from ..model.tokenization_vanilla_transformer import SPECIAL_TOKENS
from ..text.protection import PLACEHOLDER, PLACEHOLDERS, Link, Protector, edited, placeholders_of, protect_pair
from .alignments import word_spans
from .arguments import NONE
from .features import Features, split_features
from .reading import ALIGNMENT_COLUMN, TEXT_COLUMNS

DEFAULT = "default"

# Half again as much noise, including upper and title case, cost 2.8 BLEU on Multi30k.
DEFAULT_SHARES = {"items": 0.2, "lower": 0.05, "typos": 0.05, "punctuation": 0.05}

Columns = Mapping[str, Sequence[Any]]
"""`source`, `target` and, for aligned pairs, `ALIGNMENT_COLUMN`."""

MAX_INSERTED, MAX_TYPOS = 3, 2
# Contexts around an inserted item, mostly none.
FORMS = (*["{}"] * 9, "({})", '"{}"', "{},", "{}:")
# Share of items inserted at the end of the sentence, where emoji mostly are.
END_SHARE = 0.3

# Final punctuation marks, and what people type instead; a full-width mark becomes a full-width one.
FINAL_MARK = re.compile(r"[.!?…。！？]+\Z")
MARKS = ("", "", "!", "?", "...", "!!!")
WIDE = str.maketrans({"!": "！", "?": "？", ".": "…"})
INVERTED_MARK = re.compile("[¿¡]")

WORD = re.compile(r"[^\W\d_]{3,}")
NEIGHBOURS = {
    letter: row[max(0, i - 1) : i] + row[i + 1 : i + 2]
    for row in ("qwertyuiop", "asdfghjkl", "zxcvbnm")
    for i, letter in enumerate(row)
}


def parse_shares(text: str) -> dict[str, float]:
    """Parse `none`, `"items=0.2,typos=0.05"` or `"default,copies=0.5"` into the share of batches with each kind."""
    has_default, given = split_shares(text)
    return {kind: share for kind, share in ((DEFAULT_SHARES if has_default else {}) | given).items() if share}


def split_shares(text: str) -> tuple[bool, dict[str, float]]:
    """Return whether the default noise is on, and the shares of the kinds that are named."""
    parts = [part.strip() for part in text.split(",")]
    shares: dict[str, float] = {}
    for part in parts if text != NONE else ():
        kind, _, number = (piece.strip() for piece in part.partition("="))
        if part == DEFAULT:
            continue
        if kind not in KINDS:
            raise ValueError(
                f"`augment`: unknown kind of noise {kind!r}{did_you_mean(kind, KINDS)}; write {NONE}, {DEFAULT} or "
                f"shares of {', '.join(KINDS)}, as in items=0.2,typos=0.05 or {DEFAULT},{COPIES}=0.5"
            )
        if kind in shares:
            raise ValueError(f"`augment` sets {kind} twice; remove one")
        try:
            shares[kind] = float(number)
        except ValueError:
            shares[kind] = -1.0
        if not 0 <= shares[kind] <= 1:
            raise ValueError(f"`augment`: the share in {kind}={number} must be a number from 0 to 1")
    return DEFAULT in parts, shares


def has_placeholders(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether the vocabulary has all placeholders."""
    return placeholders_of(tokenizer) == PLACEHOLDERS


def protect_pairs(texts: Mapping[str, list[Any]], features: Features | None = None) -> dict[str, list[Any]]:
    """Replace items found on both sides of a pair with placeholders."""
    protector = Protector()
    sources = [split_features(source, features) for source in texts["source"]]
    pairs = [protect_pair(text, target, protector) for (text, _), target in zip(sources, texts["target"], strict=True)]
    protected = [text + cells for (text, _), (_, cells) in zip(pairs, sources, strict=True)]
    return {**texts, "source": protected, "target": [target for _, target in pairs]}


@dataclass(frozen=True)
class _Pair:
    """A sentence and its translation; `links` is the word alignment, if there is one."""

    source: str
    target: str
    links: tuple[Link, ...] | None = None


class Noise:
    """Adds noise to some batches, chosen anew in each epoch.

    A batch has a kind of noise in all of its pairs or in none, since a few longer pairs would mean padding for all
    others. The result depends only on the seed, the epoch and the texts of the batch, so that training is
    reproducible. Added tokens of the tokenizer stay intact.
    """

    def __init__(self, shares: Mapping[str, float], seed: int, tokenizer: PreTrainedTokenizerBase) -> None:
        self.shares, self.seed, self.features = shares, seed, Features.of(tokenizer)
        tokens = {*tokenizer.get_added_vocab()} - {*PLACEHOLDERS} - {*SPECIAL_TOKENS.values()}
        self._fixed = re.compile("|".join([r"(⟦\d+⟧", *map(re.escape, sorted(tokens, reverse=True))]) + ")")

    def __call__(self, texts: Columns, epoch: int) -> dict[str, list[Any]]:
        """Return the columns of a batch with the noise of an epoch."""
        columns = {name: [*texts[name]] for name in TEXT_COLUMNS if name in texts}
        draw = random.Random(f"{self.seed} {epoch} {texts['source']} {texts['target']}")
        kinds = [change for kind, change in NOISE.items() if draw.random() < self.shares.get(kind, 0)]
        if COPIES in self.shares and draw.random() < self.shares[COPIES]:
            kinds = [_copy, *kinds]
        if not kinds:
            return columns
        for i, (source, target) in enumerate(zip(texts["source"], texts["target"], strict=True)):
            links = None
            if ALIGNMENT_COLUMN in texts:
                flat = texts[ALIGNMENT_COLUMN][i]
                links = tuple(zip(flat[::2], flat[1::2], strict=True))
            text, cells = split_features(source, self.features)
            pair = _Pair(text, target, links)
            for change in kinds:
                pair = change(pair, draw, self._fixed)
            columns["source"][i], columns["target"][i] = pair.source + cells, pair.target
            if pair.links is not None:
                columns[ALIGNMENT_COLUMN][i] = [*chain.from_iterable(pair.links)]
        return columns


def _other_mark(pair: _Pair, draw: random.Random, fixed: re.Pattern[str]) -> _Pair:
    """Drop or replace the final punctuation mark of both sides."""
    new, sides = draw.choice(MARKS), list[str]()
    for text in (pair.source, pair.target):
        head, mark = _final_mark(text)
        # Spanish would need a matching mark at the start.
        if not mark or INVERTED_MARK.search(text):
            return pair
        sides.append((head + (new if mark.isascii() else new.translate(WIDE))).rstrip())
    # A mark after a space counts as a word.
    counts = [len(text.split()) for text in sides]
    links = pair.links and tuple(link for link in pair.links if link[0] < counts[0] and link[1] < counts[1])
    source, target = sides
    return _Pair(source, target, links)


def _final_mark(text: str) -> tuple[str, str]:
    """Split off the final punctuation mark; "" if there is none, or nothing else."""
    match = FINAL_MARK.search(text)
    return (text[: match.start()], match[0]) if match and text[: match.start()].strip() else (text, "")


def _lower(pair: _Pair, draw: random.Random, fixed: re.Pattern[str]) -> _Pair:
    parts = fixed.split(pair.source)
    parts[::2] = map(str.lower, parts[::2])
    return replace(pair, source="".join(parts))


def _typos(pair: _Pair, draw: random.Random, fixed: re.Pattern[str]) -> _Pair:
    words = [*WORD.finditer(fixed.sub(lambda match: " " * len(match[0]), pair.source))]
    chosen = draw.sample(words, min(len(words), draw.randint(1, MAX_TYPOS)))
    edits = sorted((*word.span(), _typo(word[0], draw)) for word in chosen)
    return replace(pair, source=edited(pair.source, edits))


def _typo(word: str, draw: random.Random) -> str:
    at = draw.randrange(len(word) - 1)
    letter, following = word[at], word[at + 1]
    neighbour = draw.choice(NEIGHBOURS.get(letter.lower(), letter))
    neighbour = neighbour.upper() if letter.isupper() else neighbour
    two = draw.choice((following + letter, following, letter + letter + following, neighbour + following))
    return word[:at] + two + word[at + 2 :]


def _insert_items(pair: _Pair, draw: random.Random, fixed: re.Pattern[str]) -> _Pair:
    """Insert placeholders at corresponding positions, and number all of them in source order."""
    before = len(PLACEHOLDER.findall(pair.source))
    for i in range(min(draw.randint(1, MAX_INSERTED), len(PLACEHOLDERS) - before)):
        pair = _with_item(pair, f"⟦{len(PLACEHOLDERS) + 1 + i}⟧", draw)
    return _numbered(pair)


def _numbered(pair: _Pair) -> _Pair:
    """Number the placeholders of a pair in source order."""
    placeholders = dict.fromkeys(match[0] for match in PLACEHOLDER.finditer(pair.source))
    numbered = dict(zip(placeholders, PLACEHOLDERS, strict=False))
    source, target = (
        PLACEHOLDER.sub(lambda match: numbered.get(match[0], match[0]), text) for text in (pair.source, pair.target)
    )
    return replace(pair, source=source, target=target)


def _with_item(pair: _Pair, placeholder: str, draw: random.Random) -> _Pair:
    item = draw.choice(FORMS).format(placeholder)
    if draw.random() < END_SHARE:
        before_mark = draw.random() < 0.5
        ends = [_at_end(text, item, before_mark) for text in (pair.source, pair.target)]
    else:
        place = draw.randrange(len(pair.source.split()))
        ends = [
            _insert_before(place, pair.source, item),
            _insert_before(_target_place(pair, place), pair.target, item),
        ]
    (source, i), (target, j) = ends
    links = pair.links
    if links is not None:
        links = (*((s + (s >= i), t + (t >= j)) for s, t in links), (i, j))
    return _Pair(source, target, links)


def _target_place(pair: _Pair, place: int) -> int:
    """Return the index of the target word to insert before, given that of the source word."""
    if place == 0:
        return 0
    links = pair.links or ()
    if previous := [target for source, target in links if source == place - 1]:
        return max(previous) + 1
    following = [target for source, target in links if source == place]
    return min(following, default=round(place / len(pair.source.split()) * len(pair.target.split())))


def _insert_before(place: int, text: str, item: str) -> tuple[str, int]:
    """Insert an item before a word, or at the end; return the text and the index of the item."""
    spans = word_spans(text)
    if place >= len(spans):
        return _at_end(text, item, before_mark=True)
    start = spans[place][0]
    return f"{text[:start]}{item} {text[start:]}", place


def _at_end(text: str, item: str, before_mark: bool) -> tuple[str, int]:
    text, item = text.rstrip(), item.rstrip(",:")
    words = len(text.split())
    head, mark = _final_mark(text) if before_mark else (text, "")
    if mark and head[-1].isspace():
        return f"{head}{item} {mark}", words - 1
    return f"{head} {item}{mark}", words


def _copy(pair: _Pair, draw: random.Random, fixed: re.Pattern[str]) -> _Pair:
    """Replace the source with the target; other noise then makes them differ, as in a denoising autoencoder."""
    links = None if pair.links is None else tuple((i, i) for i in range(len(pair.target.split())))
    return _numbered(_Pair(pair.target, pair.target, links))


NOISE: dict[str, Callable[[_Pair, random.Random, re.Pattern[str]], _Pair]] = {
    "punctuation": _other_mark,
    "lower": _lower,
    "typos": _typos,
    "items": _insert_items,
}
COPIES = "copies"
KINDS = (*NOISE, COPIES)
