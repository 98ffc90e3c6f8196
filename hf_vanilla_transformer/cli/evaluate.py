"""Evaluate translations against references: BLEU, chrF2, chrF++, TER and exact match, with signatures.

Files hold one segment per line, detokenized UTF-8, plain or .gz. For example:

    vanilla-transformer evaluate --predictions test.hyp --references test.de
    zcat test.hyp.gz | vanilla-transformer evaluate --predictions - --references test.de.gz --json scores.json

Several systems, in one table:

    vanilla-transformer evaluate --predictions baseline.hyp new.hyp --references test.de

A public test set, by its sacreBLEU name:

    vanilla-transformer evaluate --predictions test.hyp --sets multi30k/2016 --langpair en-de
"""

import json
from argparse import Namespace
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..files import atomic_write, check_output_file, read_lines
from .options import SWITCH, OneLineParser, importing

SystemScores = dict[str, Any]

COMET_MODEL = "Unbabel/wmt22-comet-da"


class _TestData(NamedTuple):
    """System outputs by file name, references per segment, and sources if known."""

    systems: dict[str, list[str]]
    references: list[list[str]]
    sources: list[str]


def add_arguments(parser: OneLineParser) -> None:
    files = parser.add_argument_group("input and output")
    predictions = "Translations, one per line; -: stdin. Several files: one per system, to compare."
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
    files.add_argument("--sources", metavar="FILE", help="Source sentences; only --comet needs them.")
    files.add_argument("--json", metavar="FILE", help="Also write the scores to this JSON file.")
    scoring = parser.add_argument_group("scoring")
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
    if bool(arguments.references) == bool(arguments.sets):
        raise ValueError("give either `references` or `sets`")
    if bool(arguments.sets) != bool(arguments.langpair):
        raise ValueError("`sets` and `langpair` belong together: --sets multi30k/2016 --langpair en-de")
    if arguments.sets and arguments.sources:
        raise ValueError("`sets` includes the sources; leave `sources` out")
    if arguments.comet and not (arguments.sources or arguments.sets):
        raise ValueError("`comet` needs the source sentences; give `sources`")
    if arguments.sets and not _set_names(arguments):
        raise ValueError("`sets` names no test set; give at least one, such as multi30k/2016")
    if repeated := [path for path in arguments.predictions if arguments.predictions.count(path) > 1]:
        raise ValueError(f"`predictions` lists {repeated[0]} twice; list each system once")
    inputs = [*arguments.predictions, *(arguments.references or []), arguments.sources]
    if inputs.count("-") > 1:
        raise ValueError("standard input (-) is given twice but can be read only once; use a file instead")
    if arguments.json is not None:
        check_output_file(arguments.json, filter(None, inputs), "json")


def _read(arguments: Namespace) -> _TestData:
    """Read all files; raise a ValueError if their numbers of lines differ."""
    systems = {path: list(read_lines(path)) for path in arguments.predictions}
    if arguments.sets:
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
                    "line n of one must translate line n of the other"
                )
    return _TestData(systems, references, sources)


def _set_names(arguments: Namespace) -> list[str]:
    """Return the names of the test sets, separated by spaces or, as in sacreBLEU, by commas."""
    return [name for word in arguments.sets for name in word.split(",") if name]


def _score(arguments: Namespace, data: _TestData) -> dict[str, SystemScores]:
    with importing():
        from ..training.metrics import METRIC_NAMES, translation_scores
    options: Any = {"lowercase": arguments.lowercase, "tokenize": _tokenizer(arguments)}
    if arguments.comet:
        # Check first: it is often missing.
        from ..training.comet import comet_program, comet_scores

        comet_program()
    scores: dict[str, SystemScores] = {
        path: translation_scores(predictions, data.references, **options, metrics=METRIC_NAMES)
        for path, predictions in data.systems.items()
    }
    if arguments.comet:
        for path, score in comet_scores(data.systems, data.sources, data.references, arguments.comet).items():
            scores[path] |= {"comet": score, "comet_model": arguments.comet}
    return scores


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
    from ..training.metrics import METRIC_NAMES, bleu_fault

    first = next(iter(scores.values()))
    names = {**METRIC_NAMES, "exact_match": "exact match"}
    notes = {key: first[f"{key}_signature"] for key in METRIC_NAMES}
    notes["exact_match"] = f"% of {len(data.references)} segments"
    if arguments.comet:
        names["comet"], notes["comet"] = "COMET", arguments.comet
    fault = bleu_fault(data.references, _tokenizer(arguments))
    advice = "rely on chrF2 and exact match, or choose the language's tokenizer (--tokenize zh, ja-mecab, char, ...)"
    remarks = [f"BLEU says little about this text: {fault}; {advice}"] if fault else []
    if len(scores) == 1:
        return [_aligned([(name, _shown(key, first), notes[key]) for key, name in names.items()], "<><"), *remarks]
    header = ("", *names.values())
    rows = [(path, *(_shown(key, system) for key in names)) for path, system in scores.items()]
    table = _aligned([header, *rows], "<" + ">" * len(names))
    return [table, _aligned([(name, notes[key]) for key, name in names.items()], "<<"), *remarks]


def _shown(key: str, scores: SystemScores) -> str:
    # COMET scores range from about 0 to 1.
    return f"{scores[key]:.{4 if key == 'comet' else 2}f}"


def _aligned(rows: Iterable[Sequence[str]], sides: str) -> str:
    """Format a table; `sides` aligns each column left ("<") or right (">")."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    return "\n".join(line.format(*row).rstrip() for row in rows)
