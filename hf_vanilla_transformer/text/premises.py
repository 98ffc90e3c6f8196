"""Learn from training pairs which rules for user text may act: what they must show, and what they must not.

A rule acts only on text that training did not show, and only where the pairs support its premise. The thresholds were
chosen on 14 corpora (docs/measurements/text_rules.md).
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain

from .casing import Case, case_of, has_case
from .facts import CASE_RULES, Decision
from .protection import ITEMS, UNSPACED_SCRIPTS, Protector, Span
from .sentences import BULLETS, split_sentences

# Share of the sources from which on training has shown a kind of text; far more for several sentences or items, which
# differ from pair to pair. Fewer items than the last are no evidence of what becomes of them.
SEEN_SHARE, SEEN_PARAGRAPHS, SEEN_ITEMS, FEW_ITEMS = 0.005, 0.2, 0.05, 0.001

# Occurrences of an item that the model has learned, and kinds of which such items are recorded: none that identify
# people, as addresses may.
LEARNED, RECORDED = 5, frozenset(("numbers", "entities", "tags", "placeholders", "emoticons", "emoji", "acronyms"))

# Share of the sources, or of those with an item, that counts as most of them.
MOST = 0.5

# Share of the sources without letters that are copied, if they are.
COPIED_SHARE = 0.9

# Largest share of sources with words in capitals, and of capitals among the letters of targets, in prose.
MAX_CAPITAL_WORDS, MAX_CAPITALS = 0.25, 0.15

# Fewest sources with items, or with words in capitals, that tell what becomes of them.
FEW = 5

# Share of the targets of sources with words in capitals that must have some, and how many times that of others it
# must be.
MIN_CAPITALS, CAPITAL_LIFT = 0.1, 10

# Every which source is split into sentences, which takes longest.
SPLIT_EVERY = 10

# What may follow a mark that ends a sentence, and these marks.
AFTER_SENTENCE, SENTENCE_ENDS = " \"'”’»)]」』）", tuple(".!?…。！？｡।။።։؟۔។\u037e")

CAPITAL_WORD = re.compile(r"(?<!\w)[^\W\d_]{2,}(?!\w)")
REPEATED_SPACE = re.compile(r"\s\s|[^\S \n]|\A\s|\s\Z")
WORD = re.compile(r"[^\W\d_]{2,}")
# First letters of a word.
STEM = re.compile(r"(?<!\w)[^\W\d_]{4}")
# Neither letters nor white space.
OTHER = re.compile(r"[^\w\s]|[\d_]")


@dataclass(frozen=True)
class Evidence:
    """What was counted in pairs; most counts are numbers of sources.

    Attributes:
        size: Number of pairs.
        counts: Counts by name.
        cases: Cases of sources.
        items: Sources with items of each kind.
        copied: Those whose items all stand in the target.
        texts: Occurrences of each item that is `RECORDED`.
        copied_texts: Those where it stands in the target.
    """

    size: int
    counts: Counter[str] = field(default_factory=Counter)
    cases: Counter[Case] = field(default_factory=Counter)
    items: Counter[str] = field(default_factory=Counter)
    copied: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    copied_texts: Counter[str] = field(default_factory=Counter)

    def share(self, name: str) -> float:
        return self.counts[name] / max(1, self.size)

    def seen(self, number: int, share: float = SEEN_SHARE) -> bool:
        """Whether so many sources are too many for a rule that acts on what training did not show."""
        return number > 0 and number >= share * self.size

    @cached_property
    def is_text(self) -> bool:
        """Whether most sources consist of words, or are in a script without spaces."""
        return self.share("words") >= MOST or self.counts["unspaced"] >= MOST * max(1, self.counts["letters"])

    @cached_property
    def usual_case(self) -> str:
        """Case of most sources: "lower", "sentence" if capitals only begin sentences and names, or ""."""
        if self.counts["cased"] < MOST * max(1, self.counts["letters"]):
            return ""
        if not self.seen(self.size - self.cases[Case.LOWER]):
            return "lower"
        is_prose = self.is_text and self.share("capital word") < MAX_CAPITAL_WORDS
        return "sentence" if is_prose and self.cases[Case.SENTENCE] >= MOST * self.size else ""


def evidence_of(pairs: Iterable[tuple[str, str]]) -> Evidence:
    """Count in pairs of source and target."""
    evidence, protector = Evidence(len(listed := list(pairs))), Protector()
    for i, (source, target) in enumerate(listed):
        evidence.counts.update(name for name, is_true in _PROPERTIES.items() if is_true(source, target))
        evidence.cases[case_of(source)] += 1
        capital_words, has_target_capitals = _capital_words(source), bool(_capital_words(target))
        evidence.counts["capital word"] += bool(capital_words)
        evidence.counts["target capital word"] += has_target_capitals
        evidence.counts["both capital word"] += bool(capital_words) and has_target_capitals
        acronyms = ((span, "acronyms") for span in capital_words)
        items = ((kind, source[slice(*span)]) for span, kind in [*protector.find(source), *acronyms])
        _count_items(evidence, items, target)
        stems = [word.lower() for word in STEM.findall(source)]
        evidence.counts["stems"] += len(stems)
        evidence.counts["spelled stems"] += sum(map(target.lower().__contains__, stems))
        if i % SPLIT_EVERY == 0:
            evidence.counts["split"] += 1
            evidence.counts["paragraph"] += len(split_sentences(source).sentences) > 1
    evidence.counts.update(_letters(source for source, _ in listed))
    targets = _letters(target for _, target in listed)
    evidence.counts.update({f"target {name}": number for name, number in targets.items()})
    return evidence


def _count_items(evidence: Evidence, items: Iterable[tuple[str, str]], target: str) -> None:
    """Count the items of a source, given with their kinds."""
    kinds: dict[str, bool] = {}
    for kind, item in items:
        kinds[kind] = kinds.get(kind, True) and item in target
        if kind in RECORDED:
            evidence.texts[item] += 1
            evidence.copied_texts[item] += item in target
    evidence.items.update(kinds.keys())
    evidence.copied.update(kind for kind, is_copied in kinds.items() if is_copied)


def _letters(texts: Iterable[str]) -> Counter[str]:
    """Count the letters of texts: all, cased, capital, and those of scripts without spaces."""
    counts: Counter[str] = Counter()
    for character, number in Counter(chain.from_iterable(texts)).items():
        if character.isalpha():
            counts["letters"] += number
            counts["cased"] += number * has_case(character)
            counts["capitals"] += number * character.isupper()
            counts["unspaced"] += number * _is_unspaced(character)
    return counts


def _is_unspaced(letter: str) -> bool:
    return letter > "\u0dff" and bool(UNSPACED_SCRIPTS.match(unicodedata.name(letter, "")))


def _capital_words(text: str) -> list[Span]:
    """Return the spans of words of two or more letters, all of them capitals."""
    return [match.span() for match in CAPITAL_WORD.finditer(text) if case_of(match[0]) is Case.UPPER]


def begins_with_capital(text: str) -> bool:
    return next((character.isupper() for character in text if character.isalpha()), False)


def ends_sentence(text: str) -> bool:
    """Whether a text ends in a mark that ends sentences, apart from quotes and brackets after it."""
    return text.rstrip(AFTER_SENTENCE).endswith(SENTENCE_ENDS)


_PROPERTIES: dict[str, Callable[[str, str], bool]] = {
    "words": lambda source, _: sum(map(bool, map(WORD.search, source.split()))) > 1,
    "capital": lambda source, _: begins_with_capital(source),
    "both capital": lambda source, target: begins_with_capital(source) and begins_with_capital(target),
    "no letters": lambda source, _: not any(map(str.isalpha, source)),
    "no letters copied": lambda source, target: not any(map(str.isalpha, source)) and source.split() == target.split(),
    "mostly other": lambda source, _: 2 * len(OTHER.findall(source)) > len("".join(source.split())),
    "line end": lambda source, _: "\n" in source.strip(),
    "space": lambda source, _: bool(REPEATED_SPACE.search(source)),
    "bullet": lambda source, _: BULLETS.match(source).end() > 0,  # type: ignore[union-attr]  # matches an empty text
    "end": lambda source, _: ends_sentence(source),
    "both end": lambda source, target: ends_sentence(source) and ends_sentence(target),
}


def rules_of(evidence: Evidence, has_placeholders: bool) -> dict[str, Decision]:
    """Return the rules that pairs support; items are placeholders for a model that `has_placeholders`."""
    rules = {name: premise(evidence) for name, premise in _PREMISES.items()}
    cases = {name: case for case, name in CASE_RULES.items() if case.name.lower() != evidence.usual_case}
    rules |= {name: _case_rule(evidence, case) for name, case in cases.items()}
    rules |= {kind: _item_rule(evidence, kind, 1.0 if has_placeholders else SEEN_ITEMS) for kind in ITEMS}
    # Training never replaces them with placeholders.
    rules["acronyms"] = _item_rule(evidence, "acronyms", SEEN_SHARE)
    return rules


def _item_rule(evidence: Evidence, kind: str, share: float) -> Decision:
    """Return the rule for a kind of items: training had none, or copies them but had them in less than a share."""
    number, copied = evidence.items[kind], evidence.copied[kind]
    if number < FEW or not evidence.seen(number, FEW_ITEMS):
        return _in_text(evidence, f"{number} of {evidence.size} sources have {kind}")
    why = f"{copied} of {number} sources with {kind} have them in the target"
    if copied < MOST * number:
        return Decision(False, why)
    if share < 1 and evidence.seen(number, share):
        return Decision(False, f"{number} of {evidence.size} sources have {kind}, so the model learns them")
    return _in_text(evidence, why)


def _in_text(evidence: Evidence, why: str, is_on: bool = True) -> Decision:
    if not evidence.is_text:
        return Decision(False, f"{_of(evidence, 'words')} have several words")
    return Decision(is_on, why)


def _of(evidence: Evidence, name: str) -> str:
    return f"{evidence.counts[name]} of {evidence.size} sources"


def _case_rule(evidence: Evidence, case: Case) -> Decision:
    if not evidence.usual_case:
        return Decision(False, "the sources have no usual case")
    number = evidence.cases[case]
    why = f"{number} of {evidence.size} sources are in {case.name.lower()} case"
    if case is Case.LOWER and evidence.share("capital") < MOST:
        return Decision(False, f"only {_of(evidence, 'capital')} begin with a capital")
    return Decision(not evidence.seen(number), why)


def _restore_case(evidence: Evidence) -> Decision:
    """Capitals of sources go with capitals of targets: at the start of most, and in words if some have them."""
    counts, size = evidence.counts, evidence.size
    both, own = counts["both capital word"], counts["capital word"]
    others, without = counts["target capital word"] - both, size - own
    if counts["both capital"] < MOST * size or own < FEW:
        is_on = evidence.share("both capital") >= COPIED_SHARE
        is_on &= counts["target capitals"] < MAX_CAPITALS * counts["target letters"]
        return Decision(is_on, f"{counts['both capital']} of {size} pairs begin with a capital on both sides")
    is_on = both / own > max(MIN_CAPITALS, CAPITAL_LIFT * others / max(1, without))
    return Decision(
        is_on, f"{both} of {own} sources with words in capitals, {others} of {without} others have targets with some"
    )


def _no_letters(evidence: Evidence) -> Decision:
    number, copied = evidence.counts["no letters"], evidence.counts["no letters copied"]
    if number:
        why = f"{copied} of {number} sources without letters are their target"
        return Decision(copied >= COPIED_SHARE * number, why)
    why = f"no source is without letters, {evidence.counts['mostly other']} of {evidence.size} have few"
    return Decision(not evidence.seen(evidence.counts["mostly other"]), why)


def _sentences(evidence: Evidence) -> Decision:
    counts = evidence.counts
    if evidence.share("end") < MOST:
        return Decision(False, f"only {_of(evidence, 'end')} end like a sentence")
    is_on = counts["paragraph"] < SEEN_PARAGRAPHS * counts["split"]
    return _in_text(evidence, f"{counts['paragraph']} of {counts['split']} sources have several sentences", is_on)


def _unseen(name: str, what: str) -> Callable[[Evidence], Decision]:
    """Return the premise of text, in which hardly any source has something."""

    def premise(evidence: Evidence) -> Decision:
        return _in_text(evidence, f"{_of(evidence, name)} {what}", not evidence.seen(evidence.counts[name]))

    return premise


def _typos(evidence: Evidence) -> Decision:
    """Typos do not matter to targets, which are not spelled like their sources, as the forms of a word are."""
    number, spelled = evidence.counts["stems"], evidence.counts["spelled stems"]
    why = f"{spelled} of {number} words of sources begin like one of the target"
    return _in_text(evidence, why, spelled < MOST * number)


def _words(evidence: Evidence) -> Decision:
    return _in_text(evidence, f"{_of(evidence, 'words')} have several words")


_PREMISES: dict[str, Callable[[Evidence], Decision]] = {
    "lines": lambda evidence: Decision(
        not evidence.seen(evidence.counts["line end"]), f"{_of(evidence, 'line end')} have several lines"
    ),
    "sentences": _sentences,
    "cut": _sentences,
    "bullets": _unseen("bullet", "begin with a bullet"),
    "spaces": _unseen("space", "have other white space than single spaces"),
    "marks": _words,
    "restore_case": _restore_case,
    "typos": _typos,
    "no_letters": _no_letters,
    "letters": _words,
}


def learned_items(evidence: Evidence, has_placeholders: bool) -> list[str]:
    """Return the items that training showed, most frequent first, but those that it replaced with placeholders."""

    def is_replaced(item: str, number: int) -> bool:
        return evidence.copied_texts[item] >= MOST * number and not CAPITAL_WORD.fullmatch(item)

    return [
        item
        for item, number in evidence.texts.most_common()
        if number >= LEARNED and not (has_placeholders and is_replaced(item, number))
    ]


def noise_faults(evidence: Evidence) -> dict[str, str]:
    """Return why noise of some kinds would teach what the pairs contradict, by kind."""
    rules = rules_of(evidence, has_placeholders=True)
    faults: dict[str, str] = {}
    if wrong := [rule for kind in ITEMS if not (rule := rules[kind]).is_on]:
        faults["items"] = wrong[0].why
    if "lower_case" not in rules or not rules["lower_case"].is_on:
        faults["lower"] = _case_rule(evidence, Case.LOWER).why
    if not rules["typos"].is_on:
        faults["typos"] = rules["typos"].why
    if evidence.counts["both end"] < MOST * evidence.size:
        faults["punctuation"] = f"only {evidence.counts['both end']} of {evidence.size} pairs end like sentences"
    return faults
