"""What training showed about the text of a model: which rules for user text act, on which evidence.

Training learns them from its pairs (`text.premises`), proves them on validation pairs, and saves them as the entry
`text_facts` of the generation settings.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from ..errors import did_you_mean, shorten
from .casing import Case
from .protection import ITEMS
from .repetition import count_repeats

VERSION = 1

# Name of the generation setting.
ENTRY = "text_facts"

# What each rule does with a text.
RULES = {
    "lines": "lines are translated one by one",
    "sentences": "the sentences of a line are translated one by one",
    "cut": "a sentence longer than any in training is cut into pieces",
    "bullets": "bullets at the start of a line are copied",
    "spaces": "white space counts as a single space",
    "marks": "typographic marks that were rare in training are replaced with plain ones",
    "upper_case": "text in capitals is read in the usual case",
    "title_case": "text in title case is read in the usual case",
    "sentence_case": "text with some capitals is read in the usual case",
    "lower_case": "text without capitals is read in the usual case",
    "restore_case": "a translation of text in capitals or title case gets that case",
    "typos": "typos in frequent words are corrected",
    "no_letters": "text without letters is copied",
    "acronyms": "unknown words in capitals are copied",
    "letters": "characters missing from the vocabulary are replaced, or their words copied",
    **{kind: f"{kind} are copied" for kind in ITEMS},
}

# Names of rules by the case of a text.
CASE_RULES = {
    Case.UPPER: "upper_case",
    Case.TITLE: "title_case",
    Case.SENTENCE: "sentence_case",
    Case.LOWER: "lower_case",
}


class Decision(NamedTuple):
    """Whether a rule acts, and what was counted."""

    is_on: bool
    why: str


@dataclass(frozen=True)
class TextFacts:
    """Facts about the training pairs, by which user text is prepared.

    Attributes:
        rules: Rules by name.
        usual_case: Case of most sources, "sentence" or "lower"; "" if none of them, so that no case rule acts.
        has_capitals: Whether most sources begin with a capital.
        marks: Typographic marks that are not rare.
        items: Items that the model has learned to translate.
        source_length: Tokens of the longest source, end token included; 0 if unknown.
        target_lengths: Pairs (source length, target length), sorted: sources of up to the former length, but longer
            than that of the pair before, had targets of up to the latter, in tokens with the end token.
        repeats: How often a block of words or characters stands in a row in all targets but a few; 0 if unknown.
        spellings: Frequent words whose usual case differs from what the vocabulary suggests, by source language.
        words: Frequent words, to correct typos, by source language.
        lookalikes: Rarer words that look like typos of them, by source language.
        pivots: For directions without training pairs, such as "de-fr", the language through which validation pairs are
            translated best; "" for none.
        vocabulary_sizes: Number of tokens of each vocabulary.
        vocabulary_digest: Digest of these tokens.
        version: Version of this format.
    """

    rules: Mapping[str, Decision] = field(default_factory=dict)
    usual_case: str = ""
    has_capitals: bool = False
    marks: str = ""
    items: Sequence[str] = field(default_factory=list)
    source_length: int = 0
    target_lengths: Sequence[Sequence[int]] = field(default_factory=list)
    repeats: int = 0
    spellings: Mapping[str, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)
    lookalikes: Mapping[str, str] = field(default_factory=dict)
    pivots: Mapping[str, str] = field(default_factory=dict)
    vocabulary_sizes: Sequence[int] = field(default_factory=list)
    vocabulary_digest: str = ""
    version: int = VERSION

    @property
    def active(self) -> frozenset[str]:
        """Names of the rules that act."""
        return frozenset(name for name, rule in self.rules.items() if rule.is_on)

    def without(self, rules: Mapping[str, str]) -> "TextFacts":
        """Return the facts with some rules off, given the reason of each."""
        return replace(self, rules={**self.rules, **{name: Decision(False, why) for name, why in rules.items()}})

    def target_length(self, source_length: int) -> int:
        """Return the length of the longest target of sources about as long as this one, in tokens; 0 if unknown."""
        steps = self.target_lengths
        at = next((i for i, (length, _) in enumerate(steps) if source_length <= length), len(steps))
        longest = max((target for _, target in steps[max(0, at - 1) : at + 2]), default=0)
        # Beyond the longest source, in proportion.
        return -(-longest * source_length // steps[-1][0]) if steps and at == len(steps) else longest

    def is_loop(self, source: str, translation: str) -> bool:
        """Whether a translation repeats itself more than the targets of training do, and more than its source."""
        if not self.repeats or (repeats := count_repeats(translation)) <= self.repeats:
            return False
        return repeats > count_repeats(source)

    def to_entry(self) -> dict[str, Any]:
        """Return the facts as JSON values."""
        return {**asdict(self), "rules": {name: rule._asdict() for name, rule in self.rules.items()}}

    @classmethod
    def of(cls, settings: Any) -> "TextFacts":
        """Return the facts in generation settings, without any rule if there are none; see `from_entry`."""
        entry = getattr(settings, ENTRY, None)
        return cls() if entry is None else cls.from_entry(entry)

    @classmethod
    def from_entry(cls, entry: Any) -> "TextFacts":
        """Read facts from JSON values; raise a ValueError that names the field if one is unusable."""
        if not isinstance(entry, Mapping):
            raise unusable("the entry", entry, "it must be an object")
        version = entry.get("version", 0)
        if _is_count(version) and version > VERSION:
            raise unusable("version", version, f"this release reads up to {VERSION}; install a newer one")
        entry = {**_ADDED, **entry}
        for name, is_usable in _CHECKS.items():
            if name not in entry or not is_usable(entry[name]):
                raise unusable(name, entry.get(name), "it was edited or damaged; train again")
        if unknown := entry.keys() - _CHECKS.keys():
            raise unusable(min(unknown), entry[min(unknown)], "there is no such field; remove it")
        return cls(**{**entry, "rules": {name: Decision(**rule) for name, rule in entry["rules"].items()}})


def inactive_rules(rules: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line for each reason why rules, given as JSON values, do not act, with their names."""
    names: dict[str, list[str]] = {}
    for name, rule in rules.items():
        if not rule["is_on"]:
            names.setdefault(rule["why"], []).append(name)
    return [f"{', '.join(those)}: {why}" for why, those in names.items()]


def chosen_rules(names: Iterable[str]) -> frozenset[str]:
    """Return the rules with these names; "all" stands for all. Raises a ValueError for an unknown name."""
    if isinstance(names, str | bytes | Mapping) or not isinstance(names, Iterable):
        raise ValueError(f"`rules` is {shorten(repr(names), 80)}; pass a list of names")
    chosen = {name if isinstance(name, str) else repr(name) for name in names}
    if unknown := chosen - RULES.keys() - {"all"}:
        name = min(unknown)
        raise ValueError(
            f"`rules`: there is no rule {name!r}{did_you_mean(name, RULES)}; use {', '.join(RULES)} or all"
        )
    return frozenset(RULES if "all" in chosen else chosen)


def unusable(name: str, value: Any, problem: str) -> ValueError:
    return ValueError(
        f"`{ENTRY}` in the generation settings cannot be used: {name} is {shorten(repr(value), 80)}; {problem}, or "
        "set `raw` to translate text as it is"
    )


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < 2**31


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(map(_is_text, [*value, *value.values()]))


def _is_counts(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_count, value))


def _are_steps(value: Any) -> bool:
    if not isinstance(value, list | tuple) or not all(_is_counts(step) and len(step) == 2 for step in value):
        return False
    lengths = [length for length, _ in value]
    return 0 not in lengths and lengths == sorted({*lengths})


def _is_rule(is_on: Any, why: Any) -> bool:
    return type(is_on) is bool and _is_text(why)


def _are_rules(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        name in RULES and isinstance(rule, Mapping) and {*rule} == {*Decision._fields} and _is_rule(**rule)
        for name, rule in value.items()
    )


# Values of fields that older entries lack.
_ADDED = {"repeats": 0}

# Tests of the values of each field.
_CHECKS: dict[str, Callable[[Any], bool]] = {
    "version": lambda value: _is_count(value) and value == VERSION,
    "rules": _are_rules,
    "usual_case": lambda value: value in ("", "sentence", "lower"),
    "has_capitals": lambda value: type(value) is bool,
    "marks": _is_text,
    "items": lambda value: isinstance(value, list | tuple) and all(map(_is_text, value)),
    "source_length": _is_count,
    "target_lengths": _are_steps,
    "repeats": _is_count,
    "spellings": _is_texts,
    "words": _is_texts,
    "lookalikes": _is_texts,
    "pivots": _is_texts,
    "vocabulary_sizes": _is_counts,
    "vocabulary_digest": _is_text,
}
