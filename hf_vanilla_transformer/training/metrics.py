"""Translation scores by sacreBLEU, without network access."""

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any
from urllib.error import URLError

from transformers.utils import logging

from ..errors import as_value_errors, not_downloaded, one_line

try:
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import MAX_NGRAM_ORDER
except ImportError as error:
    raise ImportError(
        f"{__name__} needs the package {error.name!r}; install it with `pip install 'hf-vanilla-transformer[train]'`"
    ) from error

logger = logging.get_logger(__name__)

References = Sequence[str] | Sequence[Sequence[str]]
Scores = dict[str, float | str]

# Names in reports, by key.
METRIC_NAMES = {
    "bleu": "BLEU",
    "lowercase_bleu": "BLEU, lower-cased",
    "chrf": "chrF2",
    "chrfpp": "chrF++",
    "ter": "TER",
}

# Fast enough for every evaluation during training; TER takes seconds for a thousand sentences.
FAST_METRICS = ("bleu", "chrf")

DEFAULT_TOKENIZER = "13a"

# sacreBLEU's choices by target language, as ISO 639-1 and 639-3 codes.
LANGUAGE_TOKENIZERS = {
    **dict.fromkeys(("zh", "zho", "cmn", "yue"), "zh"),
    **dict.fromkeys(("ja", "jpn"), "ja-mecab"),
    **dict.fromkeys(("ko", "kor"), "ko-mecab"),
}

# Tokenizers that split only at spaces and punctuation.
SPACE_TOKENIZERS = (DEFAULT_TOKENIZER, "intl", "none")


def translation_scores(
    predictions: Sequence[str],
    references: References,
    lowercase: bool = False,
    tokenize: str | None = None,
    metrics: Iterable[str] = FAST_METRICS,
) -> Scores:
    """Score the detokenized translations of a corpus.

    Args:
        predictions: N translations.
        references: N references, or N non-empty lists of references, which may differ in length.
        lowercase: Ignore case, as TER and `lowercase_bleu` always do.
        tokenize: sacreBLEU tokenizer for BLEU: "13a" (mteval's, the default), "intl", "zh", "char", "none" (for
            tokenized text), ...
        metrics: Keys of `METRIC_NAMES`.

    Returns:
        Each metric by its key, 0..100 (TER can exceed 100; lower is better); its sacreBLEU signature, such as
        `bleu_signature`; and `exact_match`, the percentage of predictions that equal one of their references, apart
        from leading and trailing white space.

    Raises:
        ValueError: Predictions and references differ in length, are empty or contain non-strings (the message gives
            the row, counted from 0), or `tokenize` is unknown or cannot be used here.
    """
    rows = _check_translations(predictions, references)
    scores: Scores = {}
    for key, metric in _prepare(metrics, rows, lowercase, tokenize).items():
        scores[key] = metric.corpus_score(predictions, None).score
        scores[f"{key}_signature"] = str(metric.get_signature())
    return {**scores, "exact_match": _exact_matches(predictions, rows, lowercase)}


def check_tokenizer(tokenize: str, argument: str = "tokenize") -> None:
    """Raise a ValueError that names the argument if a BLEU tokenizer is unknown or cannot be loaded here."""
    if tokenize not in BLEU.TOKENIZERS:
        raise ValueError(f"`{argument}` {tokenize} is unknown; use one of {', '.join(BLEU.TOKENIZERS)}")
    # Some need a package, others a download.
    with as_value_errors(f"`{argument}` {tokenize} cannot be used: "):
        try:
            BLEU(tokenize=tokenize)
        except URLError as error:
            raise ValueError(f"its model {not_downloaded(error)}, or name another tokenizer") from error


def language_tokenizer(language: str | None) -> str:
    """BLEU tokenizer for a target language, such as "zh", "zh-CN" or "zho_Hans"; the default one for None."""
    return LANGUAGE_TOKENIZERS.get(re.split("[-_]", language or "")[0].lower(), DEFAULT_TOKENIZER)


def usable_tokenizer(language: str | None) -> str:
    """`language_tokenizer`, or "char", with a warning, if that one cannot be used."""
    tokenize = language_tokenizer(language)
    try:
        check_tokenizer(tokenize, "bleu_tokenize")
    except ValueError as error:
        logger.warning_once(f"{one_line(error)}; BLEU counts characters instead")
        return "char"
    return tokenize


def bleu_fault(references: References, tokenize: str | None = None) -> str | None:
    """Why BLEU says little about a corpus; None if it is informative. Arguments as for `translation_scores`."""
    tokenize = tokenize or DEFAULT_TOKENIZER
    split = BLEU(tokenize=tokenize).tokenizer
    rows = [[row] if isinstance(row, str) else row for row in references]
    short = sum(all(len(split(text).split()) < MAX_NGRAM_ORDER for text in row) for row in rows)
    if 2 * short > len(rows):
        return f"{short} of {len(rows)} references have fewer than the {MAX_NGRAM_ORDER} tokens ({tokenize}) it needs"
    unspaced = sum(all(len(text.split()) < 2 for text in row) for row in rows)
    if tokenize in SPACE_TOKENIZERS and 2 * unspaced > len(rows):
        return f"{unspaced} of {len(rows)} references have no space between tokens ({tokenize})"
    return None


def _prepare(
    names: Iterable[str], rows: Sequence[Sequence[str]], lowercase: bool, tokenize: str | None
) -> dict[str, Metric]:
    """Return metrics with the references preprocessed."""
    tokenize = tokenize or DEFAULT_TOKENIZER
    check_tokenizer(tokenize)
    classes: dict[str, Callable[..., Metric]] = {
        # `force` suppresses sacreBLEU's warning about tokenized text, where that is intended or would be repeated.
        "bleu": partial(BLEU, lowercase=lowercase, tokenize=tokenize, force=tokenize == "none"),
        "lowercase_bleu": partial(BLEU, lowercase=True, tokenize=tokenize, force=True),
        "chrf": partial(CHRF, lowercase=lowercase),
        "chrfpp": partial(CHRF, lowercase=lowercase, word_order=2),
        # Ignores case by default.
        "ter": TER,
    }
    # By column, with None where a row has fewer references.
    columns = list(zip_longest(*rows))
    return {name: classes[name](references=columns) for name in names}


def _exact_matches(predictions: Sequence[str], rows: Sequence[Sequence[str]], lowercase: bool) -> float:

    def normalized(text: str) -> str:
        return text.strip().lower() if lowercase else text.strip()

    pairs = zip(predictions, rows, strict=True)
    return 100 * sum(normalized(text) in map(normalized, row) for text, row in pairs) / len(predictions)


def _check_translations(predictions: Sequence[str], references: References) -> list[list[str]]:
    """Return a list of references for each row; raise a ValueError that names an invalid row."""
    check_counts(predictions, references)
    for row, prediction in enumerate(predictions):
        if not isinstance(prediction, str):
            raise ValueError(f"predictions[{row}] must be a string, not {prediction!r}; decode token ids first")
    rows = []
    for row, entry in enumerate(references):
        texts = [entry] if isinstance(entry, str) else entry
        if not isinstance(texts, Sequence) or not len(texts) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"references[{row}] must be a string or a non-empty list of strings, not {entry!r}")
        rows.append(list(texts))
    return rows


def check_counts(predictions: Sequence[Any], references: Sequence[Any]) -> None:
    """Raise a ValueError unless there are equally many predictions and references, and at least one."""
    for name, column in (("predictions", predictions), ("references", references)):
        if isinstance(column, str) or not hasattr(column, "__len__"):
            raise ValueError(f"`{name}` must be a list with one entry for each example, not {column!r}")
    if len(predictions) != len(references):
        raise ValueError(
            f"{len(predictions)} predictions but {len(references)} references; give one entry for each prediction"
        )
    if len(predictions) == 0:
        raise ValueError("`predictions` and `references` are empty; give at least one example")
