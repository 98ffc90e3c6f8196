"""Prove the rules for user text: a rule that changes held-out sources must improve their translations."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from sacrebleu.metrics import CHRF
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..inference.preparation import Preparation, PreparedText, encode
from ..pretrained.languages import Direction
from ..pretrained.text_facts import set_facts
from ..text.casing import Case, in_case, lower
from ..text.facts import CASE_RULES, TextFacts

# Number of pairs, of those in other cases or joined, and of those with an item of each kind.
PAIRS, CHANGED_PAIRS, ITEM_PAIRS = 500, 20, 10

# Fewest sources by which a rule is judged: single ones switched off rules that gain 20 BLEU on other text.
FEW = 5

# Sentences of a joined pair.
JOINED = 3

# An item of each kind, appended to both sides.
EXAMPLES = {
    "links": "https://example.org/a?b=1",
    "files": "report_2.pdf",
    "code": "`ls -l`",
    "placeholders": "{name}",
    "tags": "<b>",
    "entities": "&nbsp;",
    "mentions": "@ann",
    "identifiers": "foo_bar",
    "emoticons": ":-)",
    "emoji": "🎉",
    "numbers": "3417",
}


class HeldOut(NamedTuple):
    """A pair not trained on.

    Attributes:
        source: The source, without features.
        target: Its target.
        direction: Languages, if the model has several.
        cells: The features that follow the source.
        rule: The rule for which the pair was changed; "" for a pair as it is.
    """

    source: str
    target: str
    direction: Direction | None
    cells: str = ""
    rule: str = ""


Translate = Callable[..., list[str]]
"""Translates pairs with options of `translate_lines`."""


def prove_rules(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[HeldOut], translate: Translate
) -> TextFacts:
    """Switch off the rules that change sources without improving the translations, measured by chrF.

    Sources are translated as they are and as prepared, until all rules that act improve something or change hardly
    anything. Some pairs are also changed as user text may be: in capitals, title case and lower case, three on a line,
    with an item of each kind at the end. There case does not count. The facts in the model's generation settings are
    updated.

    Returns:
        The facts.
    """
    metrics = {False: CHRF(), True: CHRF(lowercase=True)}
    pairs = [*pairs, *_in_other_cases(pairs), *_joined(pairs), *_with_items(pairs)]

    def scores(chosen: Sequence[HeldOut], **options: Any) -> list[float]:
        outputs = translate(chosen, **options)
        return [
            metrics[bool(pair.rule)].sentence_score(text, [pair.target]).score
            for text, pair in zip(outputs, chosen, strict=True)
        ]

    as_they_are: dict[HeldOut, float] = {}
    while True:
        preparation = Preparation(model, tokenizer)
        used = {pair: rules for pair in pairs if (rules := _rules_used(preparation, pair))}
        changed = [*used]
        if missing := [pair for pair in changed if pair not in as_they_are]:
            as_they_are |= zip(missing, scores(missing, raw=True), strict=True)
        gains: dict[str, list[float]] = {}
        for pair, score in zip(changed, scores(changed) if changed else [], strict=True):
            for rule in used[pair]:
                gains.setdefault(rule, []).append(score - as_they_are[pair])
        judged = {rule: gain for rule, gain in gains.items() if rule in preparation.rules and len(gain) >= FEW}
        useless = {rule: _why(gain) for rule, gain in judged.items() if sum(gain) <= 0}
        if not useless:
            return preparation.facts
        set_facts(model.generation_config, preparation.facts.without(useless))


def _in_other_cases(pairs: Sequence[HeldOut]) -> Iterator[HeldOut]:
    for case in (Case.UPPER, Case.TITLE, Case.LOWER):
        for pair in _some(pairs, CHANGED_PAIRS):
            language = pair.direction and pair.direction[0]
            source = in_case(lower(pair.source, language) if case is Case.LOWER else pair.source, case, language)
            if source != pair.source:
                yield pair._replace(source=source, rule=CASE_RULES[case])


def _joined(pairs: Sequence[HeldOut]) -> Iterator[HeldOut]:
    for first in range(0, len(pairs) - JOINED + 1, max(JOINED, len(pairs) // CHANGED_PAIRS)):
        group = pairs[first : first + JOINED]
        if len({pair.direction for pair in group}) == 1 and not any(pair.cells for pair in group):
            source, target = (" ".join(side) for side in zip(*(pair[:2] for pair in group), strict=True))
            yield HeldOut(source, target, group[0].direction, rule="sentences")


def _with_items(pairs: Sequence[HeldOut]) -> Iterator[HeldOut]:
    for kind, item in EXAMPLES.items():
        for pair in _some(pairs, ITEM_PAIRS):
            yield pair._replace(source=f"{pair.source} {item}", target=f"{pair.target} {item}", rule=kind)


def _some(pairs: Sequence[HeldOut], number: int) -> Sequence[HeldOut]:
    return pairs[:: -(-len(pairs) // number) or 1]


def _why(gains: Sequence[float]) -> str:
    return f"changes {len(gains)} held-out sources, by {sum(gains) / len(gains):+.1f} chrF on average"


def _rules_used(preparation: Preparation, pair: HeldOut) -> frozenset[str]:
    """Return the rules that change a source, if its tokens change; for a changed pair, only the rule it is for."""
    source = pair.source + pair.cells
    (text,) = preparation.prepare([source], [pair.direction])
    rules = rules_used(preparation, text)
    if pair.rule:
        rules &= {pair.rule}
    if not rules:
        return rules
    unprepared = encode(preparation.tokenizer, [source], directions=[pair.direction])
    return frozenset() if [sentence.ids for sentence in text.sentences] == unprepared else rules


def rules_used(preparation: Preparation, text: PreparedText) -> frozenset[str]:
    """Return the names of the rules that change what the model reads of a text, or how its translation looks."""
    layout = text.layout
    used = {"cut"} if layout.is_cut else set()
    if len(layout.sentences) > 1 and not layout.is_cut:
        used |= {"lines" if any("\n" in gap for gap in layout.gaps) else "sentences"} & preparation.rules
    if "bullets" in preparation.rules and layout.gaps[0].strip():
        used.add("bullets")
    return frozenset(used).union(*(sentence.rules for sentence in text.sentences))
