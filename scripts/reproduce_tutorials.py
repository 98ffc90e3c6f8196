"""Reproduce the tutorials that this model grew from, and print each result as a table row.

    python scripts/reproduce_tutorials.py phrases
    python scripts/reproduce_tutorials.py copy --light
    python scripts/reproduce_tutorials.py opus_books --preset small --train_file spa.tsv
    python scripts/reproduce_tutorials.py all

opus_books reads Helsinki-NLP/opus_books from the Hub unless the options name other pairs, as for train_translation.py;
its default shape, `base`, needs a GPU. Repeating the command resumes an interrupted run.
"""

import sys
from typing import Any

from _imports import importing

with importing():
    import datasets
    import transformers

    from hf_vanilla_transformer.cli.options import dataclass_parser, one_line_errors, parse_dataclasses
    from hf_vanilla_transformer.data.arguments import DataArguments
    from hf_vanilla_transformer.registration import register
    from tutorials.common import TutorialArguments
    from tutorials.run import TUTORIALS, reproduce

    register()


def main(argv: list[str] | None = None) -> None:
    """Reproduce tutorials; invalid input exits with status 2 and one line on standard error."""
    kinds: Any = (TutorialArguments, DataArguments)
    parser = dataclass_parser(kinds, __doc__)
    parser.add_argument("name", choices=[*TUTORIALS, "all"], help="The tutorial, or all of them.")
    transformers.logging.disable_progress_bar()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    with one_line_errors(parser, advice="repeat the command to resume"):
        chosen = parser.parse_args(argv)
        args, data_args = parse_dataclasses(kinds, chosen)
        reproduce(TUTORIALS if chosen.name == "all" else {chosen.name: TUTORIALS[chosen.name]}, args, data_args)


if __name__ == "__main__":
    main()
