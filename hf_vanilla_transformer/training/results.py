"""Results of an experiment."""

from dataclasses import dataclass
from typing import Any, NamedTuple

from transformers import PreTrainedModel


class Sample(NamedTuple):
    """A sentence pair and its translation; `direction`, of a model of several, is such as "en to de"."""

    source: str
    reference: str
    translation: str
    direction: str = ""

    def lines(self) -> dict[str, str]:
        """Return what is shown of it by name, each on one line, the direction first."""
        direction = {"direction": self.direction} if self.direction else {}
        texts = {name: getattr(self, name) for name in ("source", "reference", "translation")}
        return {name: " ".join(text.split()) for name, text in {**direction, **texts}.items()}


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
