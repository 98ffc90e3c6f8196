"""Scores by sacreBLEU, error rates and accuracy, without network access."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any
from urllib.error import URLError

from transformers.utils import logging

from ..errors import as_value_errors, not_downloaded, one_line
from ..extras import install_command
from ..text.notation import PROSE, SYMBOLS, WORDS, Notation, split_into_symbols

try:
    from rapidfuzz.distance import Levenshtein
    from sacrebleu.metrics import BLEU, CHRF, TER
    from sacrebleu.metrics.base import Metric
    from sacrebleu.metrics.bleu import MAX_NGRAM_ORDER
    from sacrebleu.significance import PairedTest
except ImportError as error:
    raise ImportError(
        f"{__name__} needs the package {error.name!r}; install it with `{install_command('train')}`"
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

# Samples of fewer segments are too much alike for paired bootstrap resampling.
FEW_SEGMENTS = 50

# Error rates of outputs that are right or wrong as a whole, such as pronunciations, word forms and molecules.
ERROR_RATES = {"wer": "WER", "ser": "SER"}

# Names of all metrics with a signature, in the order of reports.
ALL_METRIC_NAMES = {**ERROR_RATES, **METRIC_NAMES}

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
    sources: Sequence[str] | None = None,
    symbols: str = WORDS,
) -> Scores:
    """Score the detokenized translations, or other outputs, of a corpus.

    sacreBLEU's metrics count lines. The error rates count sources: those that occur several times have the references
    of all their lines, and the prediction of the first one.

    Args:
        predictions: N translations.
        references: N references, or N non-empty lists of references, which may differ in length.
        lowercase: Ignore case, as TER and `lowercase_bleu` always do.
        tokenize: sacreBLEU tokenizer for BLEU: "13a" (mteval's, the default), "intl", "zh", "char", "none" (for
            tokenized text), ...
        metrics: Keys of `METRIC_NAMES` or `ERROR_RATES`: "wer", the share of sources whose prediction equals none of
            their references (100 - accuracy), and "ser", the edits that turn predictions into their closest references
            per symbol of these references.
        sources: N sources, for the error rates; by default, all differ.
        symbols: What "ser" counts: "character", "whitespace" (symbols between white space) or "smiles" (atoms, bonds).

    Returns:
        Each metric by its key, 0..100 (TER and SER can exceed 100; error rates and TER are better if lower); its
        signature, such as `bleu_signature`; and `exact_match`, the percentage of predictions that equal one of their
        references, apart from leading and trailing white space, or 100 - WER if there are error rates.

    Raises:
        ValueError: Predictions and references differ in length, are empty or contain non-strings (the message gives
            the row, counted from 0), or `tokenize` is unknown or cannot be used here.
    """
    rows, metrics = _check_translations(predictions, references), list(metrics)
    rates = [key for key in metrics if key in ERROR_RATES]
    scores: Scores = {}
    for key, metric in _prepare((key for key in metrics if key not in rates), rows, lowercase, tokenize).items():
        scores[key] = metric.corpus_score(predictions, None).score
        scores[f"{key}_signature"] = str(metric.get_signature())
    if rates:
        errors = _error_rates(predictions, rows, sources, symbols, lowercase)
        own = {name: errors[name] for key in rates for name in (key, f"{key}_signature")}
        return {**own, **scores, "exact_match": errors["exact_match"]}
    return {**scores, "exact_match": _exact_matches(predictions, rows, lowercase)}


def paired_bootstrap(
    systems: Mapping[str, Sequence[str]],
    references: References,
    metrics: Iterable[str] = FAST_METRICS,
    lowercase: bool = False,
    tokenize: str | None = None,
) -> dict[str, dict[str, float]]:
    """Compare systems with the first one by paired bootstrap resampling, on 1,000 samples of the test set.

    Args:
        systems: Predictions by name.
        references: As for `translation_scores`.
        metrics: Keys of `METRIC_NAMES`.
        lowercase: As for `translation_scores`.
        tokenize: As for `translation_scores`.

    Returns:
        For each system but the first, the one-sided p-value of the difference in each metric, as in sacreBLEU: how
        likely one of two equally good systems is ahead by at least this much.
    """
    rows = [_check_translations(predictions, references) for predictions in systems.values()][0]
    _, *others = systems
    values: dict[str, dict[str, float]] = {name: {} for name in others}
    for key, metric in _prepare(metrics, rows, lowercase, tokenize).items():
        results: dict[str, list[Any]] = PairedTest([*systems.items()], {key: metric}, None, "bs")()[1]
        # The rest is under the metric's own name, which metrics may share.
        del results["System"]
        ((baseline, *compared),) = results.values()
        for name, result in zip(others, compared, strict=True):
            # For equal scores, sacreBLEU returns the smallest value.
            values[name][key] = 1.0 if result.score == baseline.score else result.p_value
    return values


def top_k_accuracy(
    hypotheses: Sequence[Sequence[str]],
    references: References,
    ks: Iterable[int],
    sources: Sequence[str] | None = None,
    symbols: str = WORDS,
    lowercase: bool = False,
) -> dict[str, float]:
    """Return the percentage of sources with a reference among their best k hypotheses, as `top_1`, `top_3`, ...

    Arguments are those of `translation_scores`, but with a list of hypotheses for each row, best first. Raises a
    ValueError that gives the line, counted from 1, if one has fewer than k.
    """
    ks = sorted(set(ks))
    for row, texts in enumerate(hypotheses):
        if len(texts) < ks[-1]:
            raise ValueError(f"line {row + 1} has {len(texts)} hypotheses, fewer than `top_k` {ks[-1]}")
    rows = _check_translations([texts[0] for texts in hypotheses], references)
    split = _splitter(symbols, lowercase)
    ranks = []
    for row, accepted in _by_source(rows, sources).items():
        wanted = [*map(split, accepted)]
        found = (rank for rank, text in enumerate(hypotheses[row], start=1) if split(text) in wanted)
        ranks.append(next(found, ks[-1] + 1))
    return {f"top_{k}": 100 * sum(rank <= k for rank in ranks) / len(ranks) for k in ks}


def metrics_for(notation: Notation, chooser: str | None = None, final: bool = False) -> tuple[str, ...]:
    """Return the metrics that suit targets of a notation, and the one that selects the best model.

    After training (`final`), prose has all of `METRIC_NAMES`.
    """
    suitable = (METRIC_NAMES if final else FAST_METRICS) if notation.is_prose else ERROR_RATES
    others = next((names for names in (ERROR_RATES, FAST_METRICS) if chooser in names), ())
    return tuple(dict.fromkeys((*suitable, *others)))


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


def tested_metrics(entries: Mapping[str, Any], fast: bool = False) -> dict[str, str]:
    """Return the names of the metrics of the test pairs among the results of a run, or of the fast ones."""
    keys = (*ERROR_RATES, *FAST_METRICS) if fast else ALL_METRIC_NAMES
    return {key: ALL_METRIC_NAMES[key] for key in keys if f"test_{key}" in entries}


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


def _error_rates(
    predictions: Sequence[str],
    rows: Sequence[Sequence[str]],
    sources: Sequence[str] | None,
    symbols: str,
    lowercase: bool,
) -> Scores:
    """Return WER, SER, their signatures and the exact match of sources."""
    symbols = SYMBOLS if symbols == PROSE else symbols
    split, examples = _splitter(symbols, lowercase), _by_source(rows, sources)
    closest = []
    for row, accepted in examples.items():
        prediction = split(predictions[row])
        closest.append(min((Levenshtein.distance(prediction, text), len(text)) for text in map(split, accepted)))
    edits, length = (sum(column) for column in zip(*closest, strict=True))
    right = sum(not distance for distance, _ in closest)
    counts = f"sources:{len(examples)}|refs:{sum(map(len, rows))}|case:{'lc' if lowercase else 'mixed'}"
    return {
        "wer": 100 * (len(closest) - right) / len(closest),
        "wer_signature": counts,
        "ser": 100 * edits / max(1, length),
        "ser_signature": f"{counts}|symbols:{symbols}",
        "exact_match": 100 * right / len(closest),
    }


def _by_source(rows: Sequence[Sequence[str]], sources: Sequence[str] | None) -> dict[int, list[str]]:
    """Return the references of each source by the first row with that source."""
    if sources is not None and len(sources) != len(rows):
        raise ValueError(f"{len(sources)} sources but {len(rows)} references; give one source for each reference")
    first, examples = dict[str, int](), dict[int, list[str]]()
    for row, texts in enumerate(rows):
        number = row if sources is None else first.setdefault(sources[row], row)
        examples.setdefault(number, []).extend(texts)
    return examples


def _splitter(symbols: str, lowercase: bool) -> Callable[[str], Sequence[str]]:
    """Return the function that splits a text, without outer white space, into symbols."""
    split = split_into_symbols(symbols)
    return lambda text: split(text.strip().lower() if lowercase else text.strip())


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
