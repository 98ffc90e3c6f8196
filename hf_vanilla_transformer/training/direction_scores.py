"""Scores of translations by direction, and their mean."""

from collections.abc import Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, cast

import datasets
import numpy as np
from transformers import PreTrainedTokenizerBase
from transformers.trainer_utils import EvalPrediction

from ..data.augmentation import has_placeholders, protect_pairs
from .metrics import FAST_METRICS, translation_scores, usable_tokenizer
from .text_splits import TextSplits


def corpus_scorer(
    tokenizer: PreTrainedTokenizerBase, text: TextSplits, pairs: datasets.Dataset, bleu_tokenize: str | None = None
) -> Any:
    """Return a `compute_metrics` that scores generated ids against the targets of pairs, by direction."""
    columns = pairs[:]
    references = (protect_pairs(columns) if has_placeholders(tokenizer) else columns)["target"]

    def score(prediction: EvalPrediction) -> dict[str, float]:
        ids = cast(np.ndarray, prediction.predictions)
        texts = tokenizer.batch_decode(ids.clip(min=0), skip_special_tokens=True)  # -100 pads short rows
        scores = scores_by_direction(text, pairs, cast(list[str], texts), bleu_tokenize, references=references)
        return numbers(scores)

    return score


def scores_by_direction(
    text: TextSplits,
    pairs: datasets.Dataset,
    translations: Sequence[str],
    tokenize: str | None,
    metrics: Iterable[str] = FAST_METRICS,
    references: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Score translations by `translation_scores`; of several directions each, as `bleu_en-de`, and their mean.

    Args:
        text: Names the directions.
        pairs: What was translated.
        translations: Translations of the pairs.
        tokenize: BLEU's tokenizer; None for that of each target language.
        metrics: Some of `METRIC_NAMES`.
        references: By default the targets of the pairs.
    """
    references = pairs["target"][:] if references is None else references
    found = {
        direction: translation_scores(
            [translations[row] for row in rows],
            [references[row] for row in rows],
            tokenize=tokenize or usable_tokenizer(direction[1]),
            metrics=metrics,
        )
        for direction, rows in text.rows_by_direction(pairs).items()
    }
    first = next(iter(found.values()))
    if len(found) == 1:
        return first
    columns: dict[str, Any] = {name: [scores[name] for scores in found.values()] for name in first}
    means = {
        # Of languages that are split in other ways, signatures differ.
        name: " and ".join(dict.fromkeys(column)) if isinstance(first[name], str) else mean(column)
        for name, column in columns.items()
    }
    own = {
        f"{name}_{'-'.join(map(str, direction))}": value
        for direction, scores in found.items()
        for name, value in scores.items()
    }
    return means | own


def numbers(scores: Mapping[str, Any]) -> dict[str, float]:
    """Return scores without their signatures."""
    return {name: value for name, value in scores.items() if not isinstance(value, str)}
