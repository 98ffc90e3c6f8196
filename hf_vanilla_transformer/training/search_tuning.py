"""Tune the search on validation pairs: a setting must improve their translations significantly."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from ..text.facts import TextFacts
from .metrics import FAST_METRICS, FEW_SEGMENTS, bleu_fault, paired_bootstrap, translation_scores
from .text_splits import TextSplits

# Most pairs by which settings are judged, and the p-value below which an improvement counts, divided by the number of
# comparisons for a setting (Bonferroni): more than the least p-value of 1,000 samples, 1 / 1,001.
PAIRS, SIGNIFICANCE = 500, 0.01

# Values to try, one setting after another.
SEARCHES = {"no_repeat_ngram_size": (4, 6), "length_penalty": (0.5, 1.5, 2.0)}

# Most translations of a pair.
SEARCHES_PER_PAIR = 1 + sum(map(len, SEARCHES.values()))


class TunedSetting(NamedTuple):
    """A setting of the search that improves translations.

    Attributes:
        value: Its value.
        before: Scores without it, by metric.
        after: Scores with it.
        p_values: p-value of each difference, as from `paired_bootstrap`.
        pairs: Number of pairs.
    """

    value: float
    before: dict[str, float]
    after: dict[str, float]
    p_values: dict[str, float]
    pairs: int

    @property
    def gain(self) -> float:
        return sum(self.after.values()) - sum(self.before.values())


def why_not_tuned(text: TextSplits) -> str | None:
    """Why the search cannot be tuned on these pairs; None if it can."""
    if text.validation is None or len(text.validation) < FEW_SEGMENTS:
        return f"needs {FEW_SEGMENTS} validation pairs"
    if text.has_several_directions:
        return "all directions share one search"
    return None if text.target_notation.is_prose else "for prose only"


def tune_search(
    model: PreTrainedModel,
    sources: Sequence[str],
    references: Sequence[str],
    translate: Callable[..., list[str]],
    tokenize: str | None = None,
    given: Collection[str] = (),
) -> dict[str, TunedSetting]:
    """Set `no_repeat_ngram_size` and `length_penalty` where this improves the translations of held-out sources.

    A value must improve BLEU or chrF significantly, by paired bootstrap resampling, and lower neither; BLEU counts if
    it suits the references. Repeated n-grams are only blocked if a translation loops.

    Args:
        model: The model; its generation settings are updated.
        sources: Sources not trained on.
        references: Their translations.
        translate: Translates the sources, with options of `generate()`.
        tokenize: sacreBLEU tokenizer for BLEU.
        given: Names of settings that stay.

    Returns:
        The settings that were changed, by name.
    """
    settings: Any = model.generation_config
    facts, tuned = TextFacts.of(settings), dict[str, TunedSetting]()
    metrics = [key for key in FAST_METRICS if key != "bleu" or not bleu_fault(references, tokenize)]
    outputs = translate()
    for name, values in SEARCHES.items():
        if name == "length_penalty":
            can_help = settings.num_beams > 1
        else:
            can_help = any(map(facts.is_loop, sources, outputs))
        if name in given or not can_help:
            continue
        tried = {value: translate(**{name: value}) for value in values}
        if better := _improvements(outputs, tried, references, metrics, tokenize):
            tuned[name] = best = max(better, key=lambda setting: setting.gain)
            setattr(settings, name, best.value)
            outputs = tried[best.value]
    return tuned


def _improvements(
    outputs: Sequence[str],
    tried: dict[float, list[str]],
    references: Sequence[str],
    metrics: Sequence[str],
    tokenize: str | None,
) -> list[TunedSetting]:
    systems = {"": outputs, **{str(value): texts for value, texts in tried.items()}}
    found = paired_bootstrap(systems, references, metrics, tokenize=tokenize)
    limit = SIGNIFICANCE / (len(tried) * len(metrics))

    def scores(texts: Sequence[str]) -> dict[str, float]:
        scored = translation_scores(texts, references, tokenize=tokenize, metrics=metrics)
        return {key: float(scored[key]) for key in metrics}

    before, improvements = scores(outputs), []
    for value, texts in tried.items():
        p_values, after = found[str(value)], scores(texts)
        if min(p_values.values()) < limit and all(after[key] >= before[key] for key in metrics):
            improvements.append(TunedSetting(value, before, after, p_values, len(references)))
    return improvements
