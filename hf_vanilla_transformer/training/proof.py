"""Prove the rules for user text on held-out pairs: a rule that changes a source there must improve its translation."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from sacrebleu.metrics import CHRF
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..inference.decoding import encode
from ..inference.languages import Direction
from ..inference.preparation import Preparation
from ..inference.text_facts import set_facts
from ..text.casing import Case, in_case, lower
from ..text.facts import CASE_RULES, TextFacts

# Number of pairs, and of those that are also translated in each of three cases.
PAIRS, CASE_PAIRS = 500, 50


class HeldOut(NamedTuple):
    """A pair not trained on, its languages if the model has several, and the case that its source was put in."""

    source: str
    target: str
    direction: Direction | None
    case: Case | None = None


Translate = Callable[..., list[str]]
"""Translates pairs with options of `translate_lines`."""


def prove_rules(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, pairs: Sequence[HeldOut], translate: Translate
) -> TextFacts:
    """Switch off the rules that change sources of pairs without improving the translations, measured by chrF.

    Sources are translated as they are and as prepared, until all rules that act improve something or change nothing;
    some of them also in capitals, title case and lower case, where case does not count in the translation. The facts
    in the model's generation settings are updated.

    Returns:
        The facts.
    """
    metrics = {False: CHRF(), True: CHRF(lowercase=True)}
    pairs = [*pairs, *_in_other_cases(pairs)]

    def scores(chosen: Sequence[HeldOut], **options: Any) -> list[float]:
        outputs = translate(chosen, **options)
        return [
            metrics[pair.case is not None].sentence_score(text, [pair.target]).score
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
        useless = {rule: _why(gain, len(pairs)) for rule, gain in gains.items() if sum(gain) <= 0}
        if not useless:
            return preparation.facts
        set_facts(model.generation_config, preparation.facts.without(useless))


def _in_other_cases(pairs: Sequence[HeldOut]) -> Iterator[HeldOut]:
    """Yield some of the pairs with sources in capitals, title case and lower case."""
    for case in (Case.UPPER, Case.TITLE, Case.LOWER):
        for pair in pairs[:: -(-len(pairs) // CASE_PAIRS) or 1]:
            language = pair.direction and pair.direction[0]
            source = in_case(lower(pair.source, language) if case is Case.LOWER else pair.source, case, language)
            if source != pair.source:
                yield pair._replace(source=source, case=case)


def _why(gains: Sequence[float], pairs: int) -> str:
    mean = sum(gains) / len(gains)
    return f"changes {len(gains)} of {pairs} held-out sources, by {mean:+.1f} chrF on average"


def _rules_used(preparation: Preparation, pair: HeldOut) -> frozenset[str]:
    """Return the rules that change a source, if its tokens change; for one in another case, only that of the case."""
    rules = preparation.rules_used(pair.source, pair.direction)
    if pair.case is not None:
        rules &= {CASE_RULES[pair.case]}
    if not rules:
        return rules
    layout = preparation.layout(pair.source, "auto", pair.direction and pair.direction[0])
    texts = [preparation.sentence(sentence, None, pair.direction).given for sentence in layout.sentences]
    own, read = (encode(preparation.tokenizer, lines)[0] for lines in ([pair.source], texts))
    return frozenset() if own == read else rules
