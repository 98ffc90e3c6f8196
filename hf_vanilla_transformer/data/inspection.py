"""Find odd pairs, most likely errors, by comparing each pair with the rest of the corpus."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import datasets
import regex
from transformers import PreTrainedTokenizerBase

from .encoding import encode_pairs
from .features import Features, split_features
from .reading import PAIR_FEATURES, iterate_pairs, spread

TextPair = Mapping[str, str]

SIDES = tuple(PAIR_FEATURES)

# What pairs of each kind have, and the share of pairs that makes the corpus odd; smaller shares may be intended.
KINDS = {
    "empty": ("an empty side", math.inf),  # Counted by training itself.
    "equal": ("the same text on both sides", 0.05),
    "repeated": ("the same text as an earlier pair", 0.5),
    "lengths": ("sides of very different lengths", 0.05),
    "source_script": ("a source in a different script from most", 0.05),
    "target_script": ("a target in a different script from most", 0.05),
    "source_language": ("a source that looks like target-language text", 0.05),
    "target_language": ("a target that looks like source-language text", 0.05),
    "source_mixed": ("a source with words of both languages", 0.05),
    "target_mixed": ("a target with words of both languages", 0.05),
    "copied": ("a target with at least a third of its words from the source", math.inf),  # Usual in related languages.
    "source_unknown": ("a source of mostly unknown tokens", 0.1),
    "target_unknown": ("a target of mostly unknown tokens", 0.1),
    "returns": ("a carriage return inside, the line ending of old Macs", 0.01),
}

# Pairs to sample for statistics, and how many of these `oddities` tokenizes to find unknown tokens.
SAMPLE, TOKENIZED_SAMPLE = 20_000, 1000

# Pairs to tokenize at once.
BATCH = 1000

# A pair is odd if its log length ratio differs from the median by more than MIN_LOG_RATIO and by more than DEVIATIONS
# standard deviations, estimated from the median absolute deviation. RATIO_SLACK characters are added to each length,
# since short texts differ by chance.
MIN_LOG_RATIO, DEVIATIONS, RATIO_SLACK = math.log(2), 6, 16

# A language is identified by its TYPICAL_WORDS most frequent words, each seen at least MIN_COUNT times. A side's own
# words are also at least TIMES as frequent there as on the other side.
TYPICAL_WORDS, MIN_COUNT, TIMES = 100, 3, 5

# A text of at least MIN_WORDS looks like the other side's language if a share of at least MIN_TYPICAL of its words is
# typical there, and at least CLEARLY times the share typical of its own side. If less than MIN_OWN_SHARE of a side's
# texts are clearly in its own language, both sides share one: code, formulas, corrections.
MIN_WORDS, MIN_TYPICAL, CLEARLY, MIN_OWN_SHARE = 4, 0.3, 4, 0.05

# A text of at least MIN_LONG words is in both languages if at least these shares of them are each language's own:
# 9 of Multi30k's 29,000 targets are. Translations share names: 234 of these targets have at least MIN_COPIED of their
# words from the source.
MIN_LONG, MIN_MIXED, MIN_COPIED = 8, 0.15, 1 / 3
# In more of the pairs, it is the task to keep most words, as in modern spelling of old texts.
MAX_COPIED = 0.75

# A character is unfamiliar if it is this many times as frequent as in training, and occurs this often.
UNFAMILIAR_TIMES, MIN_UNFAMILIAR = 10, 5

# With combining marks and joiners. Single letters are symbols, as in a spelling, a formula or a molecule.
_WORD = regex.compile(r"\p{L}[\p{L}\p{M}\u200C\u200D]+")

# Scripts mixed within one language, counted as one.
_EAST_ASIAN = ("CJK", "HIRAGANA", "KATAKANA", "KATAKANA-HIRAGANA", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH")


class Finding(NamedTuple):
    """How many of the inspected pairs are of a kind, with the first of them as (location, pair)."""

    kind: str
    number: int
    of: int
    examples: list[tuple[str, TextPair]]

    def __str__(self) -> str:
        return f"{self.number} of {self.of} pairs ({self.number / self.of:.1%}) have {KINDS[self.kind][0]}"

    @property
    def makes_corpus_odd(self) -> bool:
        return self.number >= KINDS[self.kind][1] * self.of


def inspect_pairs(
    read: Callable[[], Iterable[tuple[str, TextPair]]],
    tokenizer: PreTrainedTokenizerBase | None = None,
    examples: int = 0,
    has_features: bool = False,
) -> tuple[int, list[Finding]]:
    """Find the odd pairs of a corpus in two passes: statistics from a sample, then every pair.

    `read` returns (location, pair) tuples, with locations such as "line 7". Returns the number of pairs, and findings
    in the order of `KINDS` with up to `examples` pairs each. Unknown tokens are counted only with a tokenizer.
    """
    sample = [pair for _, pair in _thinned(read(), SAMPLE)]
    statistics = CorpusStatistics(sample, has_features)
    typical = _typical_words([*map(statistics.texts, sample)])
    counts: Counter[str] = Counter()
    shown: dict[str, list[tuple[str, TextPair]]] = {kind: [] for kind in KINDS}
    seen = SeenPairs()
    number, pairs = 0, iter(read())
    while batch := list(islice(pairs, BATCH)):
        unknown = _unknown(tokenizer, [pair for _, pair in batch])
        for (place, pair), more in zip(batch, unknown, strict=True):
            kinds = [*statistics.kinds_of(pair)]
            if not {"empty", "equal"}.intersection(kinds):
                kinds += _kinds_by_words(typical, statistics.texts(pair))
            kinds += ["repeated"] * seen(pair)
            for kind in (*kinds, *more):
                counts[kind] += 1
                if len(shown[kind]) < examples:
                    shown[kind].append((place, pair))
        number += len(batch)
    if counts["copied"] > MAX_COPIED * number:
        del counts["copied"]
    return number, [Finding(kind, counts[kind], number, shown[kind]) for kind in KINDS if counts[kind]]


def oddities(pairs: Any, tokenizer: PreTrainedTokenizerBase | None = None) -> list[Finding]:
    """Return the findings that make a dataset or stream odd, from a sample of it."""
    sample = sample_of(pairs)
    has_features = Features.of(tokenizer) is not None
    _, findings = inspect_pairs(lambda: (("", pair) for pair in sample), has_features=has_features)
    if tokenizer is not None:
        tokenized = sample[:: _step(len(sample), TOKENIZED_SAMPLE)]
        unknown = Counter(kind for kinds in _unknown(tokenizer, tokenized) for kind in kinds)
        findings += [Finding(kind, count, len(tokenized), []) for kind, count in unknown.items()]
    return [finding for finding in findings if finding.makes_corpus_odd]


def sample_of(pairs: Any) -> list[dict[str, str]]:
    """Return pairs spread evenly over a dataset, or the first ones of a stream."""
    if isinstance(pairs, datasets.Dataset):
        pairs = spread(pairs, SAMPLE)
    return [*islice(iterate_pairs(pairs), SAMPLE)]


def _step(number: int, size: int) -> int:
    return max(1, -(-number // size))


def _thinned(items: Iterable[Any], size: int) -> list[Any]:
    """Return at most `size` evenly spread items, without knowing the total in advance."""
    kept, step = [], 1
    for index, item in enumerate(items):
        if index % step == 0:
            kept.append(item)
        if len(kept) > size:
            kept, step = kept[::2], 2 * step
    return kept


class UnfamiliarCharacter(NamedTuple):
    """A character of one side, and how often it occurs in a split and in training."""

    side: str
    character: str
    number: int
    in_training: int


def count_characters(pairs: Iterable[tuple[str, TextPair]], has_features: bool = False) -> dict[str, Counter[str]]:
    """Count the characters of each side of (location, pair) tuples; features do not count."""
    counts: dict[str, Counter[str]] = {side: Counter() for side in SIDES}
    for _, pair in pairs:
        counts["source"].update(split_features(pair["source"], has_features)[0])
        counts["target"].update(pair["target"])
    return counts


def unfamiliar_characters(
    counts: Mapping[str, Counter[str]], training: Mapping[str, Counter[str]]
) -> list[UnfamiliarCharacter]:
    """Return the characters that are far more frequent than in training, such as another apostrophe, most first."""
    found = []
    for side, known in training.items():
        times = UNFAMILIAR_TIMES * counts[side].total() / max(1, known.total())
        found += [
            UnfamiliarCharacter(side, character, number, known[character])
            for character, number in counts[side].most_common()
            if number >= max(MIN_UNFAMILIAR, times * known[character])
        ]
    return found


class CorpusStatistics:
    """Usual scripts and length ratio of a corpus, estimated from a sample of its pairs; features do not count."""

    def __init__(self, pairs: Sequence[TextPair], has_features: bool = False) -> None:
        self._has_features = has_features
        pairs = [*map(self.texts, pairs)]
        self._scripts = {side: _majority(_script(pair[side]) for pair in pairs) for side in SIDES}
        ratios = [_log_ratio(pair) for pair in pairs if all(pair[side].strip() for side in SIDES)]
        self._ratio = median(ratios) if ratios else 0.0
        # Half of a normal distribution lies within 0.6745 standard deviations.
        deviation = median(abs(ratio - self._ratio) for ratio in ratios) / 0.6745 if ratios else 0.0
        self._max_log_ratio = max(MIN_LOG_RATIO, DEVIATIONS * deviation)

    def texts(self, pair: TextPair) -> TextPair:
        """Return a pair without features."""
        return {**pair, "source": split_features(pair["source"], self._has_features)[0]}

    def kinds_of(self, pair: TextPair) -> Iterator[str]:
        """Yield the kinds of `KINDS` that apply to a pair, judging by its characters."""
        pair = self.texts(pair)
        source, target = (pair[side].strip() for side in SIDES)
        if "\r" in source or "\r" in target:
            yield "returns"
        if not (source and target):
            yield "empty"
            return
        # Some forms of a word are spelled like the word.
        if source == target and not self._has_features:
            yield "equal"
        if abs(_log_ratio(pair) - self._ratio) > self._max_log_ratio:
            yield "lengths"
        for side in SIDES:
            script = _script(pair[side])
            if script and self._scripts[side] and script != self._scripts[side]:
                yield f"{side}_script"


class SeenPairs:
    """Returns whether a pair was seen before."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def __call__(self, pair: TextPair) -> bool:
        number = len(self._seen)
        self._seen.add(hash(tuple(pair[side].strip() for side in SIDES)))
        return len(self._seen) == number


def _typical_words(pairs: Sequence[TextPair]) -> dict[str, _TypicalWords]:
    """Return typical words by side, for each side with a language of its own."""
    counts = {side: Counter(word for pair in pairs for word in _words(pair[side])) for side in SIDES}
    typical = {side: _TypicalWords(counts[side], counts[other]) for side, other in (SIDES, SIDES[::-1])}
    return {side: words for side, words in typical.items() if words.has_own(pair[side] for pair in pairs)}


def _kinds_by_words(typical: Mapping[str, _TypicalWords], texts: TextPair) -> Iterator[str]:
    """Yield the kinds of `KINDS` that apply to the texts of a pair, judging by the words of languages."""
    words = {side: _words(texts[side]) for side in typical}
    others = [side for side, known in typical.items() if known.is_other(words[side])]
    yield from (f"{side}_language" for side in others)
    if len(typical) < len(SIDES):
        return
    for side in SIDES:
        shares = [_share(words[side], typical[each].own) for each in SIDES]
        if side not in others and len(words[side]) >= MIN_LONG and min(shares) >= MIN_MIXED:
            yield f"{side}_mixed"
    source, target = words.values()
    if not others and len(target) >= MIN_WORDS and _share(target, {*source}) >= MIN_COPIED:
        yield "copied"


class _TypicalWords:
    """Frequent words that identify the language of a side and that of the other."""

    def __init__(self, counts: Counter[str], others: Counter[str]) -> None:
        scale = TIMES * counts.total() / max(1, others.total())
        own = (word for word, count in counts.most_common() if count >= max(MIN_COUNT, scale * others[word]))
        self.own = frozenset(islice(own, TYPICAL_WORDS))
        self.other = frozenset(word for word, count in others.most_common(TYPICAL_WORDS) if count >= MIN_COUNT)

    def has_own(self, texts: Iterable[str]) -> bool:
        """Whether enough texts are clearly in a language that the other side lacks."""
        shares = [shares for text in texts if (shares := self._shares(_words(text)))]
        clear = sum(own >= MIN_TYPICAL and own > other for own, other in shares)
        return bool(shares) and clear >= MIN_OWN_SHARE * len(shares)

    def is_other(self, words: Sequence[str]) -> bool:
        """Whether the words of a text look like those of the other side."""
        own, other = self._shares(words) or (0.0, 0.0)
        return other >= max(MIN_TYPICAL, CLEARLY * own)

    def _shares(self, words: Sequence[str]) -> tuple[float, float] | None:
        """Return the shares of words typical of this side and of the other; None for a short text."""
        if len(words) < MIN_WORDS:
            return None
        return _share(words, self.own), _share(words, self.other)


def _share(words: Sequence[str], known: Collection[str]) -> float:
    return sum(word in known for word in words) / len(words) if words else 0.0


def _words(text: str) -> list[str]:
    return _WORD.findall(text.casefold())


def _log_ratio(pair: TextPair) -> float:
    source, target = (len(pair[side].strip()) + RATIO_SLACK for side in SIDES)
    return math.log(target / source)


def _majority(values: Iterable[str | None]) -> str | None:
    """Return the majority value, ignoring None; None if there is no majority."""
    counts = Counter(filter(None, values))
    return next((value for value, count in counts.items() if 2 * count > counts.total()), None)


def _script(text: str) -> str | None:
    """Return the script of most letters, such as "LATIN"; None without letters or a majority."""
    if text.isascii():
        return "LATIN" if any(map(str.isalpha, text)) else None
    return _majority(map(_script_of, text))


@lru_cache(maxsize=1 << 16)
def _script_of(character: str) -> str | None:
    if not character.isalpha():
        return None
    script = unicodedata.name(character, "").partition(" ")[0]
    return _EAST_ASIAN[0] if script in _EAST_ASIAN else script


def _unknown(tokenizer: PreTrainedTokenizerBase | None, pairs: Sequence[TextPair]) -> list[list[str]]:
    """Return for each pair the kinds of those sides where more than half of the tokens are unknown."""
    if tokenizer is None or tokenizer.unk_token_id is None:
        return [[] for _ in pairs]
    encoded = encode_pairs(tokenizer, {side: [pair[side] for pair in pairs] for side in SIDES})
    kinds: list[list[str]] = [[] for _ in pairs]
    for side, column in zip(SIDES, ("input_ids", "labels"), strict=True):
        for pair_kinds, ids in zip(kinds, encoded[column], strict=True):
            # Without the end token.
            if 2 * ids.count(tokenizer.unk_token_id) > max(1, len(ids) - 1):
                pair_kinds.append(f"{side}_unknown")
    return kinds
