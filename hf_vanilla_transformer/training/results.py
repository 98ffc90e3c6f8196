"""Results of an experiment, as `all_results.json` holds them."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from .metrics import Scores


@dataclass(frozen=True)
class ModelChoice:
    """The better of the trained model and the average of its last checkpoints.

    Attributes:
        name: "trained" or "averaged".
        model: The model of that name.
        validation_scores: Scores of each candidate by metric; none without validation pairs.
        averaged_checkpoints: Number of checkpoints in the average, if there is one.
        metric: Metric of the choice; None without validation pairs.
    """

    name: str
    model: PreTrainedModel
    validation_scores: dict[str, dict[str, float]] = field(default_factory=dict)
    averaged_checkpoints: int | None = None
    metric: str | None = None

    def as_dict(self) -> dict[str, Any]:
        results: dict[str, Any] = {}
        if self.averaged_checkpoints is not None:
            results["averaged_checkpoints"] = self.averaged_checkpoints
        for name, scores in self.validation_scores.items():
            results |= {f"validation_{name}_{metric}": score for metric, score in scores.items()}
        if self.metric is not None:
            results["chosen_model_metric"] = self.metric
        return {**results, "chosen_model": self.name}


@dataclass(frozen=True)
class FinalScores:
    """Translations of the test pairs, and their `translation_scores` by every metric.

    Attributes:
        translations: One a pair.
        scores: Of them.
        bleu_fault: Why BLEU says little about such text, if it does.
    """

    translations: list[str]
    scores: Scores
    bleu_fault: str | None = None


class Sample(NamedTuple):
    """A sentence pair and its translation."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Results:
    """Results of an experiment.

    Attributes:
        training: Data and training, by name.
        choice: The model that is kept.
        test: Its scores on the test pairs, if any.
        sample_split: Split of the samples.
        samples: Some pairs with their translations; may be empty.
    """

    training: dict[str, Any]
    choice: ModelChoice
    test: FinalScores | None
    sample_split: str
    samples: list[Sample]

    def as_dict(self) -> dict[str, Any]:
        """Flatten to the entries of `all_results.json`."""
        test = {f"test_{name}": value for name, value in self.test.scores.items()} if self.test else {}
        return {**self.training, **self.choice.as_dict(), **test, "sample_split": self.sample_split}


__all__ = ["FinalScores", "ModelChoice", "Results", "Sample"]
