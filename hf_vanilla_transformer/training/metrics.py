"""Translation scores that need no network, unlike those of `evaluate.load`."""

from collections.abc import Callable, Sequence
from itertools import zip_longest
from typing import Any

try:
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
    check_counts(predictions, references)
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


def check_counts(predictions: Sequence[Any], references: Sequence[Any]) -> None:
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


__all__ = ["check_counts", "translation_scores"]
