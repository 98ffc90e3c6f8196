"""Results of an experiment."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedModel


class Sample(NamedTuple):
    """A sentence pair and its translation."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Results:
    """Results of an experiment.

    Attributes:
        entries: Those of `all_results.json`: data and training, the model that was chosen, and its scores.
        model: The chosen model.
        samples: Some pairs with their translations; may be empty.
        translations: Translations of the test pairs; None without such pairs.
        bleu_fault: Why BLEU says little about the test pairs, if it does.
    """

    entries: dict[str, Any]
    model: PreTrainedModel
    samples: list[Sample]
    translations: list[str] | None = None
    bleu_fault: str | None = None


__all__ = ["Results", "Sample"]
