"""Translation scores and accuracy that need no network, unlike `evaluate.load`."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np

try:
    import datasets
    import evaluate
    from sacrebleu.metrics import BLEU, CHRF
except ImportError as error:
    raise ImportError(
        f"{__name__} needs the package {error.name!r}; install it with `pip install 'hf-vanilla-transformer[train]'`"
    ) from error

References = Sequence[str] | Sequence[Sequence[str]]


def translation_scores(
    predictions: Sequence[str], references: References, lowercase: bool = False, tokenize: str = "13a"
) -> dict[str, float | str]:
    """Score the detokenized translations of a corpus.

    Args:
        predictions: N translations.
        references: N references, or N lists of one or more, not necessarily equally many.
        lowercase: Ignore case.
        tokenize: BLEU's tokenizer, one of `sacrebleu`'s: "13a" (that of mteval), "intl", "zh", "char", "none", ...

    Returns:
        `bleu` and `chrf` (chrF2), both 0..100; their `sacrebleu` signatures, `bleu_signature` and `chrf_signature`;
        and `exact_match`, the percentage of predictions that equal one of their references but for white space at
        both ends.

    Raises:
        ValueError: The two differ in length, are empty, or hold anything but strings (the message gives the row,
            counted from 0), or `tokenize` is unknown.
    """
    rows = _check_translations(predictions, references)
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"`tokenize` {tokenize} is unknown; use one of {', '.join(BLEU.TOKENIZERS)}")
    bleu = BLEU(lowercase=lowercase, tokenize=tokenize)
    chrf = CHRF(lowercase=lowercase)
    # sacrebleu takes references column by column, with None where a row has fewer.
    columns = list(zip_longest(*rows))
    matches = [_exact_match(prediction, row, lowercase) for prediction, row in zip(predictions, rows, strict=True)]
    return {
        "bleu": bleu.corpus_score(predictions, columns).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf.corpus_score(predictions, columns).score,
        "chrf_signature": str(chrf.get_signature()),
        "exact_match": 100 * sum(matches) / len(matches),
    }


def _exact_match(prediction: str, references: Sequence[str], lowercase: bool) -> bool:
    normalize: Callable[[str], str] = (lambda text: text.strip().lower()) if lowercase else str.strip
    return normalize(prediction) in map(normalize, references)


def _check_translations(predictions: Sequence[str], references: References) -> list[list[str]]:
    """Return a list of references for each row; raise a ValueError that names a wrong row."""
    _check_counts(predictions, references)
    for row, prediction in enumerate(predictions):
        if not isinstance(prediction, str):
            raise ValueError(f"predictions[{row}] must be a string, not {prediction!r}; decode token ids first")
    rows = [[reference] if isinstance(reference, str) else reference for reference in references]
    for row, alternatives in enumerate(rows):
        is_list = isinstance(alternatives, Sequence) and len(alternatives) > 0
        if not is_list or not all(isinstance(reference, str) for reference in alternatives):
            raise ValueError(
                f"references[{row}] must be a string or a non-empty list of strings, not {alternatives!r}"
            )
    return [list(alternatives) for alternatives in rows]


def _check_counts(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    """Raise a ValueError unless there are equally many predictions and references, and at least one."""
    for name, column in (("predictions", predictions), ("references", references)):
        if isinstance(column, str) or not hasattr(column, "__len__"):
            raise ValueError(f"`{name}` must be a list with one entry for each example, not {column!r}")
    if len(predictions) != len(references):
        raise ValueError(
            f"{len(predictions)} predictions but {len(references)} references; give one reference entry for each"
        )
    if len(predictions) == 0:
        raise ValueError("`predictions` and `references` are empty; give at least one example")


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
    _check_counts(predictions, references)
    columns = {"predictions": np.asarray(predictions), "references": np.asarray(references)}
    for name, column in columns.items():
        if column.ndim != 1 or column.dtype.kind not in "biu":
            raise ValueError(
                f"`{name}` must be class ids, integers of shape (N,), not {column.dtype} of shape {column.shape}; "
                "take `.argmax(-1)` of logits first"
            )
    return columns


__all__ = ["Accuracy", "translation_scores"]
