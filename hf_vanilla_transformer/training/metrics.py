"""Translation scores and accuracy as `evaluate` metrics that work without a network.

`evaluate.load("sacrebleu")` downloads a script; the classes here do not. They follow the `evaluate.Metric` interface
(`compute`, `add_batch`, `add`, `evaluate.combine`) on top of the `sacrebleu` library.
"""

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
    """Score detokenized translations of a whole corpus.

    Args:
        predictions: N translations.
        references: N reference translations, or N lists of one or more (their number may differ from row to row).
        lowercase: Compare without regard to case.
        tokenize: BLEU's tokenizer, one of `sacrebleu`'s: "13a" (as mteval), "intl", "zh", "char", "none", ...

    Returns:
        `bleu` and `chrf` (chrF2), both 0..100, each with its `sacrebleu` signature (`bleu_signature`,
        `chrf_signature`), and `exact_match`: the percentage 0..100 of predictions that equal one of their references
        when white space at both ends is left out.

    Raises:
        ValueError: The two differ in length, are empty, hold something else than strings (the message gives the
            row, counted from 0), or `tokenize` is unknown.
    """
    rows = _check_translations(predictions, references)
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"tokenize={tokenize!r} is unknown; use one of {', '.join(BLEU.TOKENIZERS)}")
    bleu = BLEU(lowercase=lowercase, tokenize=tokenize)
    chrf = CHRF(lowercase=lowercase)
    # sacrebleu wants one stream for each reference, where None stands for a reference that a row does not have.
    streams = list(zip_longest(*rows))
    matches = [_exact_match(prediction, row, lowercase) for prediction, row in zip(predictions, rows, strict=True)]
    return {
        "bleu": bleu.corpus_score(predictions, streams).score,
        "bleu_signature": str(bleu.get_signature()),
        "chrf": chrf.corpus_score(predictions, streams).score,
        "chrf_signature": str(chrf.get_signature()),
        "exact_match": 100 * sum(matches) / len(matches),
    }


def _exact_match(prediction: str, references: Sequence[str], lowercase: bool) -> bool:
    """Whether a prediction equals a reference, white space at both ends aside."""
    normalize: Callable[[str], str] = (lambda text: text.strip().lower()) if lowercase else str.strip
    return normalize(prediction) in map(normalize, references)


def _check_translations(predictions: Sequence[str], references: References) -> list[list[str]]:
    """Return the references as lists, or raise a `ValueError` that names the offending row."""
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
    """Raise a `ValueError` unless there are as many predictions as references, and at least one."""
    for name, column in (("predictions", predictions), ("references", references)):
        if isinstance(column, str) or not hasattr(column, "__len__"):
            raise ValueError(f"{name} must be a list with one entry for each example, not {column!r}")
    if len(predictions) != len(references):
        raise ValueError(
            f"{len(predictions)} predictions but {len(references)} references; give one reference entry for each"
        )
    if len(predictions) == 0:
        raise ValueError("predictions and references are empty; give at least one example")


class _OfflineMetric(evaluate.Metric):
    """An `evaluate.Metric` that checks its rows when they are added, and leaves no file behind.

    In one process the rows stay in memory; several processes (`num_process`) meet in `cache_dir` as with any other
    metric of `evaluate`.
    """

    def __init__(self, config_name: str | None = None, keep_in_memory: bool | None = None, **kwargs: Any) -> None:
        """Set up the metric; see `evaluate.EvaluationModule` for the arguments."""
        if keep_in_memory is None:
            keep_in_memory = kwargs.get("num_process", 1) == 1
        super().__init__(config_name, keep_in_memory=keep_in_memory, **kwargs)

    def _build_data_dir(self) -> str:
        # evaluate would make this folder in the user's home even where nothing will be written to it.
        return "" if self.keep_in_memory else super()._build_data_dir()

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add rows to those that `compute` will score; raises `ValueError` for rows that cannot be scored."""
        predictions, references = self._check(predictions, references)
        super().add_batch(predictions=predictions, references=references, **kwargs)

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one row to those that `compute` will score; raises `ValueError` if it cannot be scored."""
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def compute(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> dict[str, Any] | None:
        """Score the rows given here and those added before; None in all but the first of several processes."""
        if predictions is None and references is None and len(self) == 0:
            raise ValueError("nothing to score: pass predictions and references, or add rows with `add_batch` first")
        return super().compute(predictions=predictions, references=references, **kwargs)

    def _check(self, predictions: Any, references: Any) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the rows in the form that `_info` declares, or raise `ValueError`."""
        raise NotImplementedError


class TranslationMetric(_OfflineMetric):
    """BLEU, chrF and exact match of translations.

    `compute(predictions=..., references=..., lowercase=False, tokenize="13a")` takes and returns what
    `translation_scores` does.
    """

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description="Corpus BLEU, chrF2 and exact match of detokenized translations.",
            citation="https://aclanthology.org/W18-6319",
            inputs_description="\n\npredictions: list[str]; references: list[str] or list[list[str]].",
            features=datasets.Features({"predictions": text, "references": datasets.List(text)}),
            reference_urls=["https://github.com/mjpost/sacrebleu"],
        )

    def _check(self, predictions: Any, references: Any) -> tuple[Sequence[str], Sequence[list[str]]]:
        return predictions, _check_translations(predictions, references)

    def _compute(
        self, predictions: Sequence[str], references: References, lowercase: bool = False, tokenize: str = "13a"
    ) -> dict[str, float | str]:
        return translation_scores(list(predictions), list(references), lowercase=lowercase, tokenize=tokenize)


class Accuracy(_OfflineMetric):
    """The fraction 0..1 of examples whose predicted class id equals the label.

    `compute(predictions=..., references=...)` takes N class ids each (a list, an array or a CPU tensor of integers)
    and returns `{"accuracy": ...}`.
    """

    def _info(self) -> evaluate.MetricInfo:
        class_id = datasets.Value("int64")
        return evaluate.MetricInfo(
            description="The fraction of examples whose predicted class equals the label.",
            citation="",
            inputs_description="\n\npredictions: list[int]; references: list[int].",
            features=datasets.Features({"predictions": class_id, "references": class_id}),
        )

    def _check(self, predictions: Any, references: Any) -> tuple[Sequence[int], Sequence[int]]:
        _check_counts(predictions, references)
        columns = {"predictions": np.asarray(predictions), "references": np.asarray(references)}
        for name, column in columns.items():
            if column.ndim != 1 or column.dtype.kind not in "biu":
                raise ValueError(
                    f"{name} must be class ids, integers of shape (N,), not {column.dtype} of shape {column.shape}; "
                    "take `.argmax(-1)` of logits first"
                )
        return columns["predictions"].tolist(), columns["references"].tolist()

    def _compute(self, predictions: Sequence[int], references: Sequence[int]) -> dict[str, float]:
        return {"accuracy": float(np.mean(np.asarray(predictions) == np.asarray(references)))}
