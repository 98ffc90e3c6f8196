"""Classify film reviews: fine-tune BERT on IMDb, and compare it with a Transformer from scratch and with TF-IDF.

BERT alone, as in the original notebook (on a GPU; bert-base takes days on a CPU):

    python scripts/imdb_bert_baseline.py --output_dir runs/imdb

All three on the same texts, with a smaller BERT and fewer texts, for a laptop:

    python scripts/imdb_bert_baseline.py --compare --model_name_or_path path/to/small-bert \
        --max_train_samples 5000 --max_test_samples 5000 --output_dir runs/imdb-compare

The output folder gets the trained models, table.md, results.json, accuracy.png and learning_curves.png.
"""

import sys
from typing import Any

from _imports import importing

with importing():
    import datasets
    import transformers

    from hf_vanilla_transformer.cli.options import dataclass_parser, one_line_errors, parse_dataclasses
    from hf_vanilla_transformer.registration import register
    from imdb.arguments import ComparisonArguments
    from imdb.comparison import compare_classifiers
    from imdb.labelled_text import LabelledTextArguments

    register()


def main(argv: list[str] | None = None) -> None:
    """Train and compare; invalid input exits with status 2 and one line on standard error."""
    kinds: Any = (LabelledTextArguments, ComparisonArguments)
    parser = dataclass_parser(kinds, __doc__)
    transformers.logging.disable_progress_bar()
    show_progress = sys.stderr.isatty()
    if not show_progress:
        datasets.disable_progress_bars()
    with one_line_errors(parser, advice="--resume continues from the last epoch"):
        data_args, args = parse_dataclasses(kinds, parser.parse_args(argv))
        compare_classifiers(data_args, args, show_progress=show_progress)


if __name__ == "__main__":
    main()
