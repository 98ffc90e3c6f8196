"""Evaluate translations against references: BLEU, chrF2 and exact match, with their signatures.

One segment a line, detokenized UTF-8, plain or .gz. For example:

    vanilla-transformer evaluate --predictions test.hyp --references test.de
    zcat test.hyp.gz | vanilla-transformer evaluate --predictions - --references test.de.gz --json scores.json
"""

import json
from argparse import Namespace
from typing import Any

from ..files import atomic_write, check_output_file, read_lines
from .options import SWITCH, OneLineParser, importing


def add_arguments(parser: OneLineParser) -> None:
    files = parser.add_argument_group("input and output")
    files.add_argument("--predictions", required=True, metavar="FILE", help="Translations, one a line; -: stdin.")
    files.add_argument(
        "--references",
        required=True,
        nargs="+",
        metavar="FILE",
        help="One or more files of references; line n of each belongs to line n of the predictions.",
    )
    files.add_argument("--json", metavar="FILE", help="Also write the scores to this JSON file.")
    scoring = parser.add_argument_group("scoring")
    scoring.add_argument("--lowercase", **SWITCH, help="Ignore case.")
    scoring.add_argument(
        "--tokenize",
        default="13a",
        help="sacreBLEU's tokenizer for BLEU: 13a (default), intl, zh, char, none, ...",
    )


def run(arguments: Namespace) -> None:
    if arguments.json is not None:
        check_output_file(arguments.json, [arguments.predictions, *arguments.references], "json")
    scores = _scores(arguments)
    if arguments.json is not None:
        with atomic_write(arguments.json) as file:
            file.write(f"{json.dumps(scores, indent=2)}\n".encode())
    print(f"BLEU         {scores['bleu']:6.2f}  {scores['bleu_signature']}")
    print(f"chrF2        {scores['chrf']:6.2f}  {scores['chrf_signature']}")
    print(f"exact match  {scores['exact_match']:6.2f}  % of {scores['segments']} segments")


def _scores(arguments: Namespace) -> dict[str, Any]:
    """Return the scores of the predictions; raises ValueError if the files differ in their number of lines."""
    with importing():
        from ..training.metrics import translation_scores
    predictions = list(read_lines(arguments.predictions))
    references = [list(read_lines(path)) for path in arguments.references]
    for path, lines in zip(arguments.references, references, strict=True):
        if len(lines) != len(predictions):
            raise ValueError(
                f"{arguments.predictions} has {len(predictions)} lines but {path} has {len(lines)}; "
                "line n of one must translate line n of the other"
            )
    rows = [list(row) for row in zip(*references, strict=True)]
    scores = translation_scores(predictions, rows, lowercase=arguments.lowercase, tokenize=arguments.tokenize)
    return {**scores, "segments": len(predictions)}
