"""Which evaluation of a run is the best one: the metric that decides, and what breaks its ties."""

import math
from collections.abc import Mapping
from typing import Any

from transformers import Seq2SeqTrainer, TrainerState, TrainingArguments
from transformers.utils import logging

from .arguments import VanillaTransformerTrainingArguments
from .options import AUTO_METRIC

logger = logging.get_logger(__name__)

# Scores of an evaluation, besides its loss.
METRICS = ("bleu", "chrf", "exact_match")

# Those that break ties, the first one first.
TIE_BREAKERS = ("chrf", "exact_match", "bleu")


class BestModelTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` in which other metrics decide where `metric_for_best_model` ties.

    BLEU is 0 in every evaluation on targets of fewer than four tokens, and `Trainer` would keep the first checkpoint.
    """

    args: VanillaTransformerTrainingArguments
    _told_of_tie = False

    def choose_metric(self, metrics: Mapping[str, float], prefix: str) -> None:
        """Choose the metric by what an evaluation computes, unless it is chosen: BLEU or else the loss.

        Args:
            metrics: Of the evaluation.
            prefix: Of their names; of several evaluation sets, the first one decides.
        """
        sets = [f"eval_{name}" for name in self.eval_dataset] if isinstance(self.eval_dataset, dict) else ["eval"]
        if self.args.metric_for_best_model != AUTO_METRIC or prefix not in sets[:1]:
            return
        computed = f"{prefix}_bleu" in metrics
        metric = f"{prefix}_{'bleu' if computed else 'loss'}".removeprefix("eval_")
        if metric != "bleu":
            logger.warning(f"evaluation computes no eval_bleu: eval_{metric} decides which model is best")
        self.args.metric_for_best_model, self.args.greater_is_better = metric, computed

    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if breaks_tie(self.args, self.state, metrics):
            self._tell_of_tie(metrics)
            # Whatever equals it is then better.
            self.state.best_metric = None
        return super()._determine_best_metric(metrics, trial)

    def _tell_of_tie(self, metrics: Mapping[str, float]) -> None:
        if not self._told_of_tie:
            name = metric_name(self.args)
            logger.warning(
                f"step {self.state.global_step}: {name} is {metrics[name]:g} as before and cannot tell which model is "
                "better; chrF, exact match and, if all are 0, the loss decide where it ties"
            )
        self._told_of_tie = True


def metric_name(args: TrainingArguments) -> str:
    """Name of the metric of the best model in an evaluation."""
    return f"eval_{str(args.metric_for_best_model).removeprefix('eval_')}"


def breaks_tie(args: TrainingArguments, state: TrainerState, metrics: Mapping[str, float]) -> bool:
    """Whether an evaluation equals the best one so far in the metric that decides, and is better in those after it.

    Args:
        args: Name of the metric.
        state: Best value so far, and the log of all evaluations.
        metrics: Of the evaluation, that of the current step.
    """
    name = metric_name(args)
    value = metrics.get(name)
    if value is None or value != state.best_metric:
        return False
    tied = [each for each in state.log_history if each.get(name) == value and each["step"] != state.global_step]
    return bool(tied) and all(_rank(metrics, name) > _rank(each, name) for each in tied)


def _rank(evaluation: Mapping[str, float], name: str) -> tuple[float, ...]:
    """What is compared of evaluations that are equal by the metric of this name; more is better."""
    known = next((metric for metric in (*METRICS, "loss") if name.endswith(f"_{metric}")), None)
    prefix = name.removesuffix(known) if known else "eval_"
    scores = [evaluation.get(f"{prefix}{metric}", 0.0) for metric in TIE_BREAKERS]
    loss = evaluation.get(f"{prefix}loss", math.inf)
    # Of translations that score the same, the later ones are no improvement; of those that score nothing, they may be.
    return (*scores, -loss if math.isfinite(loss) and not any((evaluation[name], *scores)) else -math.inf)


__all__ = ["METRICS", "TIE_BREAKERS", "BestModelTrainer", "breaks_tie", "metric_name"]
