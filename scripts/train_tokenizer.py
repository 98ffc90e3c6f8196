r"""Train a tokenizer on text files, and save it for training a model or for AutoTokenizer.

The files are UTF-8, plain or gzip, one sentence (or reaction, word, formula, ...) a line. For example:

    # One vocabulary for both sides: two languages of one script
    python scripts/train_tokenizer.py --source_files train.en --target_files train.de --output_dir tokenizer

    # One vocabulary per side: languages of different scripts, or spelling to phonemes
    python scripts/train_tokenizer.py --source_files words.txt --target_files phonemes.txt \
        --separate_vocabularies --algorithm character --target_algorithm whitespace --output_dir tokenizer

    # SMILES: the same notation on both sides
    python scripts/train_tokenizer.py --source_files reactions.txt --algorithm character --output_dir tokenizer
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Literal

from _imports import importing

with importing():
    from hf_vanilla_transformer.cli.options import argument_parser, one_line_errors
    from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
    from hf_vanilla_transformer.files import read_lines
    from hf_vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerTokenizer

_ALGORITHMS = Literal["bpe", "unigram", "word", "whitespace", "character"]
_FILES_OF_SIDES = tuple(VanillaTransformerTokenizer.vocab_files_names.values())
_FILES = ("tokenizer.json", *_FILES_OF_SIDES, "tokenizer_config.json")


@dataclass
class Arguments:
    """What to train on, and how."""

    source_files: list[str] = field(metadata={"help": "Files of source text."})
    output_dir: str = field(metadata={"help": "Folder to save the tokenizer in; made if it is not there."})
    target_files: list[str] = field(default_factory=list, metadata={"help": "Files of target text, if it differs."})
    separate_vocabularies: bool = field(
        default=False, metadata={"help": "One vocabulary per side instead of one for both."}
    )
    algorithm: _ALGORITHMS = field(
        default="bpe",
        metadata={
            "help": "bpe (lossless sub-words) or unigram (likelihood sub-words) for prose; word for words and "
            "punctuation; whitespace for symbols set apart by blanks; character for single characters."
        },
    )
    target_algorithm: _ALGORITHMS | None = field(
        default=None, metadata={"help": "The target's algorithm, where the vocabularies are separate and it differs."}
    )
    vocab_size: int = field(
        default=8000, metadata={"help": "Tokens per vocabulary, at most; 8000 suits some 100,000 sentences."}
    )
    min_frequency: int = field(default=1, metadata={"help": "Occurrences below which nothing becomes a token."})
    lowercase: bool = field(default=False, metadata={"help": "Lower-case all text; translations are lower-case then."})
    normalization: Literal["NFC", "NFD", "NFKC", "NFKD"] | None = field(
        default=None, metadata={"help": "Unicode normalization: NFC, NFD, NFKC or NFKD; NFKC unifies widths."}
    )
    max_length: int | None = field(default=None, metadata={"help": "Tokens at which truncation cuts a text."})
    overwrite: bool = field(default=False, metadata={"help": "Replace a tokenizer that is in the output folder."})


class _HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Shows defaults, and keeps the line breaks of the examples."""


def main(argv: Sequence[str] | None = None) -> None:
    """Train and save; a mistake in the input ends with one line on standard error and status 2."""
    parser = argument_parser(Arguments, __doc__, formatter_class=_HelpFormatter)
    with one_line_errors(parser):
        (arguments,) = parser.parse_args_into_dataclasses(argv)
        _check(arguments)
        _train(arguments)


def _check(arguments: Arguments) -> None:
    """Find what is wrong before the training, not after it."""
    if arguments.separate_vocabularies and not arguments.target_files:
        raise ValueError("--separate_vocabularies needs --target_files; name them, or leave it out")
    if arguments.target_algorithm and not arguments.separate_vocabularies:
        raise ValueError("--target_algorithm needs --separate_vocabularies; one vocabulary has one algorithm")
    folder = Path(arguments.output_dir)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output_dir {folder} is a file; name a folder")
    present = [name for name in _FILES if (folder / name).exists()]
    if present and not arguments.overwrite:
        raise ValueError(f"--output_dir {folder} holds {present[0]} already; name another, or pass --overwrite")


def _train(arguments: Arguments) -> None:
    """Train on the files, put the tokenizer in place of what was there, and report what came out."""
    keys = ("vocab_size", "min_frequency", "lowercase", "normalization", "max_length")
    options = {key: getattr(arguments, key) for key in keys} | {"show_progress": sys.stderr.isatty()}
    source_files = arguments.source_files + ([] if arguments.separate_vocabularies else arguments.target_files)
    tokenizer = train_tokenizer(_lines(source_files), algorithm=arguments.algorithm, **options)
    sizes = f"{len(tokenizer)} tokens"
    if arguments.separate_vocabularies:
        algorithm = arguments.target_algorithm or arguments.algorithm
        target = train_tokenizer(_lines(arguments.target_files), algorithm=algorithm, **options)
        tokenizer = VanillaTransformerTokenizer.from_pair(tokenizer, target)
        sizes += f" for the source, {tokenizer.target_vocab_size} for the target"
    folder = Path(arguments.output_dir)
    # A vocabulary per side may be there from before; left behind, it would pass for part of the new tokenizer.
    for name in _FILES_OF_SIDES:
        (folder / name).unlink(missing_ok=True)
    tokenizer.save_pretrained(folder)
    print(f"{folder}: {sizes}")
    example = next(filter(str.strip, _lines(arguments.source_files)), "")
    print("For example:", *tokenizer.tokenize(example))


def _lines(paths: list[str]) -> Iterator[str]:
    return chain.from_iterable(map(read_lines, paths))


if __name__ == "__main__":
    main()
