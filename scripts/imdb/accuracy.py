"""Accuracy that needs no network, unlike `evaluate.load`."""

from collections.abc import Sequence
from typing import Any

import datasets
import evaluate
import numpy as np

from hf_vanilla_transformer.training.metrics import check_counts


class Accuracy(evaluate.Metric):
    """Fraction 0..1 of examples whose predicted class id equals the label; for `compute_metrics` of a `Trainer`.

    `compute(predictions=..., references=...)` takes N integers each (lists, arrays or CPU tensors) and returns
    `{"accuracy": ...}`. Rows are checked when they are added. In one process they stay in memory; several processes
    (`num_process`) share files in `cache_dir`, as with any metric of `evaluate`.
    """

    def __init__(self, config_name: str | None = None, keep_in_memory: bool | None = None, **kwargs: Any) -> None:
        """Set up the metric; see `evaluate.EvaluationModule` for the arguments."""
        if keep_in_memory is None:
            keep_in_memory = kwargs.get("num_process", 1) == 1
        super().__init__(config_name, keep_in_memory=keep_in_memory, **kwargs)

    def _build_data_dir(self) -> str:
        # evaluate would create this folder in the user's home, used or not.
        return "" if self.keep_in_memory else super()._build_data_dir()

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add rows for `compute` to score.

        Raises:
            ValueError: They are not class ids, or not equally many.
        """
        columns = _check_class_ids(predictions, references)
        super().add_batch(**{name: column.tolist() for name, column in columns.items()}, **kwargs)

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one row for `compute` to score."""
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> dict[str, Any] | None:
        """Score these rows and those added before; None in all but the first of several processes."""
        if predictions is None and references is None and len(self) == 0:
            raise ValueError("nothing to score: pass predictions and references, or add rows with `add_batch` first")
        return super().compute(predictions=predictions, references=references, **kwargs)

    def _info(self) -> evaluate.MetricInfo:
        class_id = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="Fraction of examples whose predicted class equals the label.",
            citation="",
            inputs_description="\n\npredictions: list[int]; references: list[int].",
            features=datasets.Features({"predictions": class_id, "references": class_id}),
        )

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        return {"accuracy": float(np.mean(np.asarray(predictions) == np.asarray(references)))}


def _check_class_ids(predictions: Any, references: Any) -> dict[str, np.ndarray]:
    check_counts(predictions, references)
    columns = {"predictions": np.asarray(predictions), "references": np.asarray(references)}
    for name, column in columns.items():
        if column.ndim != 1 or column.dtype.kind not in "biu":
            raise ValueError(
                f"`{name}` must be class ids, integers of shape (N,), not {column.dtype} of shape {column.shape}; "
                "take `.argmax(-1)` of logits first"
            )
    return columns


__all__ = ["Accuracy"]
