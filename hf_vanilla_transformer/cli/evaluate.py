"""Evaluate translations against references: BLEU, chrF2, chrF++, TER and exact match, with signatures.

Files hold one segment per line, detokenized UTF-8, plain or .gz. For example:

    vanilla-transformer evaluate --predictions test.hyp --references test.de
    zcat test.hyp.gz | vanilla-transformer evaluate --predictions - --references test.de.gz --json scores.json

Several systems in one table, and whether they differ significantly from the first:

    vanilla-transformer evaluate --predictions baseline.hyp new.hyp --references test.de --significance

Outputs that are right or wrong as a whole, by error rates (WER, SER) of sources, which may have several references:

    vanilla-transformer evaluate --predictions test.hyp --pairs test.tsv --metrics wer ser
    vanilla-transformer evaluate --predictions nbest.jsonl --pairs test.tsv --metrics wer --top_k 1 3

A public test set, by its sacreBLEU name:

    vanilla-transformer evaluate --predictions test.hyp --sets multi30k/2016 --langpair en-de
"""

import json
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..data.arguments import DataArguments
from ..errors import as_value_errors
from ..files import atomic_write, check_output_file, read_json_records, read_lines
from ..options import POSITIVE, check_range
from ..text.notation import SMILES, SYMBOLS, WORDS, Notation, find_notation
from .options import SWITCH, OneLineParser, add_options, importing

SystemScores = dict[str, Any]

COMET_MODEL = "Unbabel/wmt22-comet-da"

# Columns of --pairs.
PAIR_OPTIONS = ("source_column", "target_column", "feature_columns", "feature_separator")

METRICS = ("bleu", "lowercase_bleu", "chrf", "chrfpp", "ter", "wer", "ser")


class _TestData(NamedTuple):
    """System outputs and, if given, n-best lists by file name, references per segment, and sources if known."""

    systems: dict[str, list[str]]
    references: list[list[str]]
    sources: list[str]
    hypotheses: dict[str, list[list[str]]]


def add_arguments(parser: OneLineParser) -> None:
    files = parser.add_argument_group("input and output")
    predictions = (
        "Translations, one per line; -: stdin. Several files: one per system, to compare. With --top_k, n-best lists: "
        "the JSON lines of `translate --format json`."
    )
    files.add_argument("--predictions", required=True, nargs="+", metavar="FILE", help=predictions)
    references = "One or more reference files; line n of each belongs to line n of the predictions."
    files.add_argument("--references", nargs="+", metavar="FILE", help=references)
    files.add_argument(
        "--sets",
        nargs="+",
        metavar="NAME",
        help="Instead of --references: sacreBLEU names of test sets, such as multi30k/2016, downloaded once. Each "
        "predictions file then covers all sets in this order.",
    )
    files.add_argument("--langpair", metavar="SOURCE-TARGET", help="Languages of --sets, such as en-de.")
    files.add_argument(
        "--sources",
        metavar="FILE",
        help="Source sentences, for --comet, and for error rates if a source occurs several times.",
    )
    files.add_argument(
        "--pairs",
        metavar="FILE",
        help="Instead of --references and --sources: a file with source and target columns, as for train.",
    )
    add_options(parser, files, DataArguments, *PAIR_OPTIONS, feature_columns={"nargs": "+", "type": str})
    files.add_argument("--json", metavar="FILE", help="Also write the scores to this JSON file.")
    scoring = parser.add_argument_group("scoring")
    scoring.add_argument(
        "--metrics",
        nargs="+",
        choices=METRICS,
        metavar="METRIC",
        help=f"Scores besides exact match, of {', '.join(METRICS)} (default: all but the last two, added if "
        "references are words, symbols or SMILES). wer: share of sources whose output equals none of their "
        "references; ser: errors per symbol (phone, character or atom). Both are in percent and count a repeated "
        "source once.",
    )
    scoring.add_argument(
        "--top_k",
        nargs="+",
        type=int,
        metavar="K",
        help="Also the share of sources with a reference among the best K hypotheses.",
    )
    scoring.add_argument(
        "--symbols",
        choices=(WORDS, SYMBOLS, SMILES),
        help="What ser counts: characters, symbols between white space, or atoms and bonds (default: by how the "
        "references are written).",
    )
    significance = "Also compare systems with the first one by paired bootstrap resampling (not wer and ser)."
    scoring.add_argument("--significance", **SWITCH, help=significance)
    scoring.add_argument("--lowercase", **SWITCH, help="Ignore case.")
    scoring.add_argument(
        "--tokenize",
        help="sacreBLEU's tokenizer for BLEU: 13a (default), intl, zh, char, none (for tokenized text), ...; with "
        "--sets, the default depends on the target language.",
    )
    scoring.add_argument(
        "--comet",
        nargs="?",
        const=COMET_MODEL,
        metavar="MODEL",
        help=f"Also compute COMET, with a model on the Hub (default: {COMET_MODEL}) or a .ckpt file; needs "
        "unbabel-comet's program.",
    )


def run(arguments: Namespace) -> None:
    _check(arguments)
    data = _read(arguments)
    scores = _score(arguments, data)
    if arguments.json is not None:
        with atomic_write(arguments.json) as file:
            file.write(f"{json.dumps(_as_json(arguments, data, scores), indent=2)}\n".encode())
    print("\n\n".join(_report(arguments, data, scores)))


def _check(arguments: Namespace) -> None:
    if bool(arguments.references) + bool(arguments.sets) + bool(arguments.pairs) != 1:
        raise ValueError("give one of `references`, `sets` and `pairs`")
    if bool(arguments.sets) != bool(arguments.langpair):
        raise ValueError("`sets` and `langpair` belong together: --sets multi30k/2016 --langpair en-de")
    for name in ("sets", "pairs"):
        if getattr(arguments, name) and arguments.sources:
            raise ValueError(f"`{name}` includes the sources; leave `sources` out")
    if arguments.comet and not (arguments.sources or arguments.sets or arguments.pairs):
        raise ValueError("`comet` needs the source sentences; give `sources`")
    if arguments.sets and not _set_names(arguments):
        raise ValueError("`sets` names no test set; give at least one, such as multi30k/2016")
    if repeated := [path for path in arguments.predictions if arguments.predictions.count(path) > 1]:
        raise ValueError(f"`predictions` lists {repeated[0]} twice; list each system once")
    if arguments.significance and len(arguments.predictions) == 1:
        raise ValueError("`significance` compares systems, but `predictions` names one; name the baseline first")
    if arguments.significance and arguments.metrics and {*arguments.metrics} <= {"wer", "ser"}:
        raise ValueError("`significance` is not for wer and ser; add another metric, or leave it out")
    for k in arguments.top_k or ():
        check_range(POSITIVE, top_k=k)
    inputs = [*arguments.predictions, *(arguments.references or []), arguments.sources, arguments.pairs]
    if inputs.count("-") > 1:
        raise ValueError("standard input (-) is given twice but can be read only once; use a file instead")
    if arguments.json is not None:
        check_output_file(arguments.json, filter(None, inputs), "json")


def _read(arguments: Namespace) -> _TestData:
    """Read all files; raise a ValueError if their numbers of lines differ."""
    hypotheses = {path: _read_hypotheses(path) for path in arguments.predictions} if arguments.top_k else {}
    systems = {path: [texts[0] for texts in lists] for path, lists in hypotheses.items()}
    systems = systems or {path: list(read_lines(path)) for path in arguments.predictions}
    if arguments.pairs:
        sources, references = _read_pairs(arguments)
        sizes = [(arguments.pairs, len(references))]
    elif arguments.sets:
        with importing():
            from ..training.public_sets import read_public_sets
        sources, references = read_public_sets(_set_names(arguments), arguments.langpair)
        sizes = [(" + ".join(_set_names(arguments)), len(references))]
    else:
        columns = [list(read_lines(path)) for path in arguments.references]
        # Lengths are compared below.
        references = [list(row) for row in zip(*columns, strict=False)]
        sources = list(read_lines(arguments.sources)) if arguments.sources else []
        sizes = [(path, len(lines)) for path, lines in zip(arguments.references, columns, strict=True)]
        sizes += [(arguments.sources, len(sources))] if arguments.sources else []
    for path, predictions in systems.items():
        for other, size in sizes:
            if len(predictions) != size:
                raise ValueError(
                    f"{path} has {len(predictions)} lines but {other} has {size}; "
                    "line n of one must belong to line n of the other"
                )
    return _TestData(systems, references, sources, hypotheses)


def _read_hypotheses(path: str) -> list[list[str]]:
    """Read the n-best lists that `translate --format json` writes."""
    lists = []
    for where, record in read_json_records(path):
        try:
            lists.append([hypothesis["text"] for hypothesis in record["hypotheses"]])
        except (KeyError, TypeError):
            lists.append([])
        if not lists[-1]:
            raise ValueError(f"{where}: no hypotheses; write them by translate --num_hypotheses 5 --format json")
    return lists


def _read_pairs(arguments: Namespace) -> tuple[list[str], list[list[str]]]:
    """Read sources and references from a file with columns."""
    with importing():
        from ..data.reading import check_files, located_pairs
    data_args = DataArguments(test_file=arguments.pairs, **{name: getattr(arguments, name) for name in PAIR_OPTIONS})
    check_files((arguments.pairs,))
    pairs = [pair for _, pair in located_pairs((arguments.pairs,), data_args)]
    return [pair["source"] for pair in pairs], [[pair["target"]] for pair in pairs]


def _set_names(arguments: Namespace) -> list[str]:
    """Return the names of the test sets, separated by spaces or, as in sacreBLEU, by commas."""
    return [name for word in arguments.sets for name in word.split(",") if name]


def _score(arguments: Namespace, data: _TestData) -> dict[str, SystemScores]:
    with importing():
        from ..training.metrics import METRIC_NAMES, paired_bootstrap, top_k_accuracy, translation_scores
    symbols = arguments.symbols or _notation(data).algorithm
    options: Any = {"lowercase": arguments.lowercase, "sources": data.sources or None, "symbols": symbols}
    metrics = _metric_names(arguments, data)
    if arguments.comet:
        # Check first: it is often missing.
        from ..training.comet import comet_program, comet_scores

        comet_program()
    scores: dict[str, SystemScores] = {
        path: translation_scores(
            predictions, data.references, **options, tokenize=_tokenizer(arguments), metrics=metrics
        )
        for path, predictions in data.systems.items()
    }
    for path, lists in data.hypotheses.items():
        with as_value_errors(f"{path}, "):
            scores[path] |= top_k_accuracy(lists, data.references, arguments.top_k, **options)
    if arguments.significance:
        keys = [key for key in metrics if key in METRIC_NAMES]
        p_values = paired_bootstrap(data.systems, data.references, keys, arguments.lowercase, _tokenizer(arguments))
        for path, values in p_values.items():
            scores[path]["p_values"] = values
    if arguments.comet:
        for path, score in comet_scores(data.systems, data.sources, data.references, arguments.comet).items():
            scores[path] |= {"comet": score, "comet_model": arguments.comet}
    return scores


def _notation(data: _TestData) -> Notation:
    return find_notation(text for row in data.references for text in row)


def _metric_names(arguments: Namespace, data: _TestData) -> dict[str, str]:
    """Return the names of the metrics to compute, by key: those given, or those of translations and suitable ones."""
    from ..training.metrics import ALL_METRIC_NAMES, METRIC_NAMES, metrics_for

    keys = arguments.metrics or {*METRIC_NAMES, *metrics_for(_notation(data))}
    return {key: name for key, name in ALL_METRIC_NAMES.items() if key in keys}


def _tokenizer(arguments: Namespace) -> str:
    from ..training.metrics import language_tokenizer

    return arguments.tokenize or language_tokenizer((arguments.langpair or "").rpartition("-")[2])


def _as_json(arguments: Namespace, data: _TestData, scores: dict[str, SystemScores]) -> SystemScores:
    """Return the content of the JSON file: the scores of one system, or a list of systems."""
    test: SystemScores = {"segments": len(data.references)}
    if arguments.sets:
        test |= {"sets": _set_names(arguments), "langpair": arguments.langpair}
    if len(scores) == 1:
        return {**next(iter(scores.values())), **test}
    systems = [{"predictions": path, **system} for path, system in scores.items()]
    return {**test, "systems": systems}


def _report(arguments: Namespace, data: _TestData, scores: dict[str, SystemScores]) -> list[str]:
    """Return the paragraphs to print."""
    from ..training.metrics import ERROR_RATES, bleu_fault

    first = next(iter(scores.values()))
    names = _metric_names(arguments, data)
    notes = {key: first[f"{key}_signature"] for key in names}
    counted = f"% of {len(set(data.sources)) or len(data.references)} sources"
    has_rates = not ERROR_RATES.keys().isdisjoint(names)
    fault = bleu_fault(data.references, _tokenizer(arguments)) if "bleu" in names else None
    names["exact_match"] = "exact match"
    notes["exact_match"] = counted if has_rates else f"% of {len(data.references)} segments"
    for k in sorted(set(arguments.top_k or ())):
        names[f"top_{k}"], notes[f"top_{k}"] = f"top {k}", counted
    if arguments.comet:
        names["comet"], notes["comet"] = "COMET", arguments.comet
    better = "WER and SER" if has_rates else "chrF2 and exact match"
    advice = f"rely on {better}, or choose the language's tokenizer (--tokenize zh, ja-mecab, char, ...)"
    remarks = [f"BLEU says little about this text: {fault}; {advice}"] if fault else []
    if len(scores) == 1:
        return [_aligned([(name, _shown(key, first), notes[key]) for key, name in names.items()], "<><"), *remarks]
    header = ("", *names.values())
    rows = [(path, *(_shown(key, system) for key in names)) for path, system in scores.items()]
    table = _aligned([header, *rows], "<" + ">" * len(names))
    signatures = _aligned([(name, notes[key]) for key, name in names.items()], "<<")
    return [table, *_p_values(scores, names, len(data.references)), signatures, *remarks]


def _p_values(scores: dict[str, SystemScores], names: dict[str, str], number: int) -> list[str]:
    """Return the table of p-values of so many segments, if there are any."""
    from ..training.metrics import FEW_SEGMENTS

    baseline, *others = scores
    rows = [(path, scores[path].get("p_values", {})) for path in others]
    keys = [key for key in names if any(key in values for _, values in rows)]
    if not keys:
        return []
    table = [(f"p, against {baseline}", *(names[key] for key in keys))]
    table += [(path, *(f"{values[key]:.3f}" for key in keys)) for path, values in rows]
    few = [f"p of fewer than {FEW_SEGMENTS} segments says little"] if number < FEW_SEGMENTS else []
    return [_aligned(table, "<" + ">" * len(keys)), *few]


def _shown(key: str, scores: SystemScores) -> str:
    # COMET scores range from about 0 to 1.
    return f"{scores[key]:.{4 if key == 'comet' else 2}f}"


def _aligned(rows: Iterable[Sequence[str]], sides: str) -> str:
    """Format a table; `sides` aligns each column left ("<") or right (">")."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return "\n".join(line.format(*row).rstrip() for row in rows)
