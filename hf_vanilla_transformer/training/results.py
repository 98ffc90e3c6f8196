"""Results of an experiment, as `all_results.json` holds them."""

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from transformers import PreTrainedModel

from .metrics import Scores


@dataclass(frozen=True)
class TrainingResults:
    """Data and training of all sessions of a run.

    Attributes:
        pairs: Pairs kept of each split; a stream, not yet read, is left out.
        seconds: Training time.
        loss: Mean training loss.
        epoch: Passes over the training pairs.
        parameters: Parameters of the model.
        steps: Optimizer steps, skipped ones included.
        skipped_steps: Steps skipped for a loss or gradient that was not finite.
        tokens_per_second: Source and target tokens a second, evaluation included; None for a stream.
        best_checkpoint: Name of the checkpoint that the run ended with, if it was chosen.
        best_metric: Metric that it was chosen by.
    """

    pairs: dict[str, int]
    seconds: float
    loss: float
    epoch: float | None
    parameters: int
    steps: int
    skipped_steps: int = 0
    tokens_per_second: float | None = None
    best_checkpoint: str | None = None
    best_metric: str | None = None

    def as_dict(self) -> dict[str, Any]:
        results: dict[str, Any] = {f"{split}_pairs": count for split, count in self.pairs.items()}
        results |= {"train_runtime": self.seconds, "train_loss": self.loss, "epoch": self.epoch}
        results |= {"parameters": self.parameters, "steps": self.steps, "skipped_steps": self.skipped_steps}
        if self.tokens_per_second is not None:
            results["train_tokens_per_second"] = self.tokens_per_second
        if self.best_checkpoint is not None:
            results |= {"best_checkpoint": self.best_checkpoint, "best_checkpoint_metric": self.best_metric}
        return results


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

    def as_dict(self) -> dict[str, Any]:
        return {f"test_{name}": value for name, value in self.scores.items()}


class Sample(NamedTuple):
    """A sentence pair and its translation."""

    source: str
    reference: str
    translation: str


@dataclass(frozen=True)
class Results:
    """Results of an experiment.

    Attributes:
        training: Data and training.
        choice: The model that is kept.
        test: Its scores on the test pairs, if any.
        sample_split: Split of the samples.
        samples: Some pairs with their translations; may be empty.
    """

    training: TrainingResults
    choice: ModelChoice
    test: FinalScores | None
    sample_split: str
    samples: list[Sample]

    def as_dict(self) -> dict[str, Any]:
        """Flatten to the entries of `all_results.json`."""
        test = self.test.as_dict() if self.test else {}
        return {**self.training.as_dict(), **self.choice.as_dict(), **test, "sample_split": self.sample_split}


__all__ = ["ModelChoice", "Results", "Sample", "FinalScores", "TrainingResults"]
