"""Which evaluation of a run is the best one: the metric that decides, and what breaks its ties."""

import math
from collections.abc import Mapping

from transformers import TrainerState, TrainingArguments

# Scores of an evaluation, besides its loss.
METRICS = ("bleu", "chrf", "exact_match")

# Those that break ties, the first one first.
TIE_BREAKERS = ("chrf", "exact_match", "bleu")


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
