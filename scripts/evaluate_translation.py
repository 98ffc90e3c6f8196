"""Score translations against references: BLEU, chrF2 and exact match, with signatures to quote beside them.

One segment a line, detokenized UTF-8, plain or .gz. For example:

    python scripts/evaluate_translation.py --predictions predictions.de --references test.de
    zcat out.de.gz | python scripts/evaluate_translation.py --predictions - --references test.de.gz --json scores.json
"""

import json
from dataclasses import dataclass, field

from _imports import importing

with importing():
    from hf_vanilla_transformer.cli.options import argument_parser, one_line_errors
    from hf_vanilla_transformer.files import atomic_write, check_output_file, read_lines
    from hf_vanilla_transformer.training.metrics import translation_scores


@dataclass
class Arguments:
    """What to score, and how."""

    predictions: str = field(metadata={"help": "File of translations, one a line; - reads standard input."})
    references: list[str] = field(
        metadata={"help": "One or more files of references; line n of each belongs to line n of the predictions."}
    )
    lowercase: bool = field(default=False, metadata={"help": "Compare without regard to case."})
    tokenize: str = field(
        default="13a",
        metadata={"help": "Tokenizer of BLEU: 13a (default), intl, zh, char, none, ... (see sacrebleu)."},
    )
    json: str | None = field(default=None, metadata={"help": "Also write the scores to this JSON file."})


def main(argv: list[str] | None = None) -> None:
    """Print the scores; a mistake in the input ends with one line on standard error and status 2."""
    parser = argument_parser(Arguments, __doc__)
    with one_line_errors(parser):
        (arguments,) = parser.parse_args_into_dataclasses(argv)
        if arguments.json is not None:
            check_output_file(arguments.json, [arguments.predictions, *arguments.references], "--json")
        scores = _score(arguments)
        if arguments.json is not None:
            with atomic_write(arguments.json) as file:
                file.write(f"{json.dumps(scores, indent=2)}\n".encode())
    print(f"BLEU         {scores['bleu']:6.2f}  {scores['bleu_signature']}")
    print(f"chrF2        {scores['chrf']:6.2f}  {scores['chrf_signature']}")
    print(f"exact match  {scores['exact_match']:6.2f}  % of {scores['segments']} segments")


def _score(arguments: Arguments) -> dict[str, float | str]:
    """Read the files and compare them; raises ValueError where their lines do not pair up."""
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


if __name__ == "__main__":
    main()
