"""Translation scores by sacreBLEU, without network access, and significance tests between systems."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import zip_longest
from typing import Any, Literal, get_args
from urllib.error import URLError

from transformers.utils import logging

from ..errors import as_value_errors, not_downloaded, one_line
from ..options import POSITIVE, check_range

try:
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import MAX_NGRAM_ORDER
    from sacrebleu.significance import PairedTest
except ImportError as error:
    raise ImportError(
        f"{__name__} needs the package {error.name!r}; install it with `pip install 'hf-vanilla-transformer[train]'`"
    ) from error

logger = logging.get_logger(__name__)

References = Sequence[str] | Sequence[Sequence[str]]
Scores = dict[str, float | str]
SignificanceTest = Literal["bootstrap", "randomization"]

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

SEED_VARIABLE = "SACREBLEU_SEED"


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


def compare_translations(
    systems: Mapping[str, Sequence[str]],
    references: References,
    test: SignificanceTest = "bootstrap",
    num_samples: int | None = None,
    seed: int | None = None,
    lowercase: bool = False,
    tokenize: str | None = None,
) -> dict[str, Scores]:
    """Score several systems by every metric, and test whether each differs from the first.

    Args:
        systems: N translations of each system, by its name, the baseline first.
        references: As for `translation_scores`.
        test: "bootstrap" (paired bootstrap resampling) or "randomization" (approximate randomization).
        num_samples: Bootstrap resamples (default: 1000) or randomization trials (default: 10,000).
        seed: Random seed (default: the environment variable SACREBLEU_SEED, or 12345).
        lowercase: As for `translation_scores`.
        tokenize: As for `translation_scores`.

    Returns:
        For each system its `translation_scores`; for each metric also its bootstrapped 95 % confidence interval,
        `bleu_mean` plus or minus `bleu_ci`, and, except for the baseline, `bleu_p_value`: the probability of a
        difference at least as large if both systems were equally good.

    Raises:
        ValueError: As for `translation_scores`; or there are fewer than two systems, or `test`, `num_samples` or
            `seed` is invalid.
    """
    if len(systems) < 2:
        raise ValueError("`significance` compares systems; give the `predictions` of two or more")
    if test not in get_args(SignificanceTest):
        raise ValueError(f"`significance` {test} is unknown; use {' or '.join(get_args(SignificanceTest))}")
    _check_sampling(num_samples, seed)
    for predictions in systems.values():
        rows = _check_translations(predictions, references)
    compared: dict[str, Scores] = {name: {} for name in systems}
    with _sacrebleu_seed(seed):
        for key, metric in _prepare(METRIC_NAMES, rows, lowercase, tokenize).items():
            signature, results = _paired_test(metric, systems, test, num_samples)
            for scores, result in zip(compared.values(), results, strict=True):
                scores |= {key: result.score, f"{key}_signature": signature}
                scores |= {f"{key}_mean": float(result.mean), f"{key}_ci": float(result.ci)}
                if result.p_value is not None:
                    # sacreBLEU counts only larger differences, so equal translations would seem to differ.
                    scores[f"{key}_p_value"] = 1.0 if result.score == results[0].score else result.p_value
    for name, scores in compared.items():
        scores["exact_match"] = _exact_matches(systems[name], rows, lowercase)
    return compared


def _check_sampling(num_samples: int | None, seed: int | None) -> None:
    # sacreBLEU takes 0 samples as its default number, and seed 0 as no seed.
    check_range(POSITIVE, num_samples=num_samples, seed=seed)
    variable = os.environ.get(SEED_VARIABLE, "none").strip()
    # sacreBLEU takes "none" to mean a different seed in each run.
    if seed is None and variable.lower() != "none" and not (variable.isdecimal() and int(variable) >= 1):
        raise ValueError(
            f"the environment variable {SEED_VARIABLE} is {variable!r}; set it to a positive integer, or unset it"
        )


def _paired_test(
    metric: Metric, systems: Mapping[str, Sequence[str]], test: SignificanceTest, num_samples: int | None
) -> tuple[str, list[Any]]:
    """Return the signature and a `sacrebleu.significance.Result` for each system.

    Takes one metric at a time, because cased and lower-cased BLEU have the same name in sacreBLEU.
    """
    # The bootstrap computes its confidence interval anyway.
    kind, confidence = ("bs", -1) if test == "bootstrap" else ("ar", 0)
    signatures, table = PairedTest([*systems.items()], {"": metric}, None, kind, num_samples or 0, confidence)()
    ((name, signature),) = signatures.items()
    return str(signature), table[name]


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
    found = language_tokenizer(language)
    try:
        check_tokenizer(found, "bleu_tokenize")
    except ValueError as error:
        logger.warning_once(f"{one_line(error)}; BLEU counts characters instead")
        return "char"
    return found


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


@contextmanager
def _sacrebleu_seed(seed: int | None) -> Iterator[None]:
    """Seed sacreBLEU, which reads its seed only from the environment."""
    if seed is None:
        yield
        return
    old = os.environ.get(SEED_VARIABLE)
    os.environ[SEED_VARIABLE] = str(seed)
    try:
        yield
    finally:
        del os.environ[SEED_VARIABLE]
        if old is not None:
            os.environ[SEED_VARIABLE] = old


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
