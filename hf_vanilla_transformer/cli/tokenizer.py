r"""Train a tokenizer on text files, for `vanilla-transformer train` or AutoTokenizer.

Files are UTF-8, plain or .gz, with one sentence (or reaction, word, formula, ...) per line. For example:

    # One shared vocabulary: languages with the same script
    vanilla-transformer tokenizer --source_files train.en --target_files train.de --output_dir tokenizer

    # One vocabulary per side: languages with different scripts, or spelling to phonemes
    vanilla-transformer tokenizer --source_files words.txt --target_files phonemes.txt \
        --source_tokenizer_algorithm character --target_tokenizer_algorithm whitespace --output_dir tokenizer

    # SMILES: the same notation on both sides
    vanilla-transformer tokenizer --source_files reactions.txt --tokenizer_algorithm smiles --output_dir tokenizer
"""

import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from ..files import atomic_update, read_lines
from ..options import Range
from ..training.options import ModelOptions
from .options import SWITCH, Number, OneLineParser, add_options, importing

ALGORITHMS = ("bpe", "unigram", "word", "whitespace", "character", "smiles")
TRAINING_OPTIONS = ("vocab_size", "min_frequency", "lowercase", "normalization", "max_length")


def add_arguments(parser: OneLineParser) -> None:
    files = parser.add_argument_group("input and output")
    files.add_argument("--source_files", required=True, nargs="+", metavar="FILE", help="Source text.")
    files.add_argument("--target_files", nargs="+", default=[], metavar="FILE", help="Target text, if any.")
    files.add_argument("--output_dir", required=True, metavar="FOLDER", help="Folder for the tokenizer.")
    files.add_argument("--overwrite", **SWITCH, help="Replace an existing tokenizer in the output folder.")
    vocabulary = parser.add_argument_group("vocabulary")
    vocabulary.add_argument(
        "--tokenizer_algorithm",
        dest="algorithm",
        choices=ALGORITHMS,
        default="bpe",
        help="For prose, bpe (lossless subwords, default) or unigram (likelihood-based subwords); word: words and "
        "punctuation; whitespace: symbols separated by spaces; character: single characters; smiles: atoms and bonds.",
    )
    # Name in earlier releases.
    vocabulary.add_argument("--algorithm", choices=ALGORITHMS, default=SUPPRESS, help=SUPPRESS)
    size = {"default": 8000, "help": "Maximum vocabulary size (default: 8000, for about 100,000 sentences)."}
    frequency = {"default": 1, "help": "Minimum occurrences of a token."}
    add_options(
        parser, vocabulary, ModelOptions, "vocab_size", "min_frequency", vocab_size=size, min_frequency=frequency
    )
    add_options(parser, vocabulary, ModelOptions, "separate_vocabularies")
    sides = {side: {"choices": ALGORITHMS} for side in ("source_tokenizer_algorithm", "target_tokenizer_algorithm")}
    add_options(parser, vocabulary, ModelOptions, *sides, **sides)
    # Name in earlier releases.
    vocabulary.add_argument(
        "--target_algorithm", dest="target_tokenizer_algorithm", choices=ALGORITHMS, default=SUPPRESS, help=SUPPRESS
    )
    text = parser.add_argument_group("text")
    forms = {"choices": ("NFC", "NFD", "NFKC", "NFKD"), "help": "Unicode normalization; NFKC unifies letter widths."}
    add_options(parser, text, ModelOptions, "lowercase", "normalization", normalization=forms)
    text.add_argument("--max_length", type=Number(int, Range(ge=2)), help="Length in tokens that truncation cuts to.")


def run(arguments: Namespace) -> None:
    with importing():
        from ..data.tokenizer_training import train_tokenizer
        from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
    files_of_pair = tuple(VanillaTransformerTokenizer.vocab_files_names.values())
    _check(arguments, ("tokenizer.json", *files_of_pair, "tokenizer_config.json"))
    options = {name: getattr(arguments, name) for name in TRAINING_OPTIONS} | {"show_progress": sys.stderr.isatty()}
    source_algorithm = arguments.source_tokenizer_algorithm or arguments.algorithm
    target_algorithm = arguments.target_tokenizer_algorithm or arguments.algorithm
    is_separate = arguments.separate_vocabularies or source_algorithm != target_algorithm
    source_files = arguments.source_files + ([] if is_separate else arguments.target_files)
    tokenizer = train_tokenizer(_lines(source_files), algorithm=source_algorithm, **options)
    sizes = f"{len(tokenizer)} tokens"
    if is_separate:
        target = train_tokenizer(_lines(arguments.target_files), algorithm=target_algorithm, **options)
        tokenizer = VanillaTransformerTokenizer.from_pair(tokenizer, target)
        sizes += f" for the source, {tokenizer.target_vocab_size} for the target"
    folder = Path(arguments.output_dir)
    with atomic_update(folder, last="tokenizer_config.json") as partial:
        tokenizer.save_pretrained(partial)
        # Leftover vocabularies of a pair would pass for part of the new tokenizer.
        for name in files_of_pair:
            (folder / name).unlink(missing_ok=True)
    print(f"{folder}: {sizes}")
    example = next(filter(str.strip, _lines(arguments.source_files)), "")
    print("For example:", *tokenizer.tokenize(example, verbose=False))


def _check(arguments: Namespace, file_names: tuple[str, ...]) -> None:
    """Check options and output folder before training."""
    for name in ("separate_vocabularies", "target_tokenizer_algorithm"):
        if getattr(arguments, name) and not arguments.target_files:
            raise ValueError(f"--{name} needs --target_files; add them, or leave it out")
    folder = Path(arguments.output_dir)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output_dir {folder} is a file; name a folder")
    present = [name for name in file_names if (folder / name).exists()]
    if present and not arguments.overwrite:
        raise ValueError(f"--output_dir {folder} already holds {present[0]}; name another folder, or pass --overwrite")


def _lines(paths: list[str]) -> Iterator[str]:
    return chain.from_iterable(map(read_lines, paths))
