"""Reproduce the tutorials that this model grew from, and print what each gives here as a row of a table.

    python scripts/reproduce_tutorials.py phrases
    python scripts/reproduce_tutorials.py copy --light
    python scripts/reproduce_tutorials.py opus_books --preset small --train_file spa.tsv
    python scripts/reproduce_tutorials.py all

opus_books takes Helsinki-NLP/opus_books of the Hub unless other pairs are named, as for train_translation.py; `base`,
its default shape, wants a GPU. A run that was interrupted goes on where it was when it is started again.
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
    """Reproduce; a mistake in the input ends with one line on standard error and status 2."""
    kinds: Any = (TutorialArguments, DataArguments)
    parser = dataclass_parser(kinds, __doc__)
    parser.add_argument("name", choices=[*TUTORIALS, "all"], help="The tutorial, or all of them.")
    transformers.logging.disable_progress_bar()
    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    with one_line_errors(parser, advice="the same command goes on"):
        chosen = parser.parse_args(argv)
        args, data_args = parse_dataclasses(kinds, chosen)
        reproduce(TUTORIALS if chosen.name == "all" else {chosen.name: TUTORIALS[chosen.name]}, args, data_args)


if __name__ == "__main__":
    main()
