"""Align the words of given translations: which source word each target word was translated from.

Line n of the target file translates line n of the source file; UTF-8, plain or .gz. For example:

    vanilla-transformer align --model my-model --source test.en --target test.de --output test.align
    vanilla-transformer align --model my-model --source dev.en --target dev.de --set_heads
    vanilla-transformer align --model my-model --source dev.en --target dev.de --set_heads --reference dev.align

Each pair gives one line of source-target links between whitespace-separated words, counted from 0: 0-0 1-2. A target
word is linked to the source word that its tokens attend to most. --set_heads writes no links. It finds the attention
heads that best match --reference, in the same format, or else alignments estimated from the pairs, which takes
thousands of them. It saves these heads in the model's folder, as training does.
"""

import sys
from argparse import Namespace
from itertools import islice
from pathlib import Path
from typing import Any

from ..files import atomic_write, read_line_pairs
from ..options import BatchOptions
from .options import (
    SWITCH,
    OneLineParser,
    add_model_options,
    add_options,
    add_pair_files,
    check_pair_files,
    choose_languages,
    importing,
    load_model_and_tokenizer,
    out_of_memory,
    quiet_unless_terminal,
)

# Pairs that heads are evaluated on.
TRIED_PAIRS = 500


def add_arguments(parser: OneLineParser) -> None:
    add_model_options(parser)
    add_pair_files(parser)
    heads = parser.add_argument_group("attention heads")
    heads.add_argument("--set_heads", **SWITCH, help="Find the heads that align best and save them with the model.")
    heads.add_argument("--reference", metavar="FILE", help="Reference alignments of the pairs, for --set_heads.")
    compute = parser.add_argument_group("computation")
    side = "Tokens per side aligned at once (default: 4096); lower it if memory runs out."
    add_options(parser, compute, BatchOptions, "max_tokens", "chunk_size", max_tokens={"help": side})


def run(arguments: Namespace) -> None:
    if arguments.reference and not arguments.set_heads:
        raise ValueError("--reference needs --set_heads; add it, or leave --reference out")
    if arguments.set_heads and not Path(arguments.model).is_dir():
        raise ValueError(f"--set_heads saves to the model's folder, but {arguments.model} is not one; download it")
    check_pair_files(arguments)
    quiet_unless_terminal()
    model, tokenizer = load_model_and_tokenizer(arguments)
    with importing():
        from ..pretrained.languages import set_languages
    set_languages(tokenizer, **choose_languages(arguments, tokenizer))
    with out_of_memory(f"lower --max_tokens {arguments.max_tokens}"):
        (_set_heads if arguments.set_heads else _align)(arguments, model, tokenizer)


def _align(arguments: Namespace, model: Any, tokenizer: Any) -> None:
    with importing():
        from ..data.alignments import format_pharaoh
        from ..inference.alignment import word_alignments
    pairs = read_line_pairs(arguments.source, arguments.target)
    with atomic_write(arguments.output) as file:
        while chunk := list(islice(pairs, arguments.chunk_size)):
            sources, targets = zip(*chunk, strict=True)
            for links in word_alignments(model, tokenizer, sources, targets, max_tokens=arguments.max_tokens):
                file.write(f"{format_pharaoh(links)}\n".encode())
            file.flush()


def _set_heads(arguments: Namespace, model: Any, tokenizer: Any) -> None:
    with importing():
        from ..data.alignments import read_alignments
        from ..data.features import Features, texts_of
        from ..data.word_alignment import align_corpus
        from ..inference.alignment import find_alignment_heads, set_alignment_heads
    pairs = list(read_line_pairs(arguments.source, arguments.target))
    if not pairs:
        raise ValueError(f"{arguments.source} and {arguments.target} are empty; name files with text")
    sources, targets = zip(*pairs, strict=True)
    texts = texts_of(sources, Features.of(tokenizer))
    if arguments.reference:
        links = list(read_alignments(arguments.reference, [*zip(texts, targets, strict=True)]))
    else:
        links = align_corpus(texts, targets, show_progress=sys.stderr.isatty())
    sources, targets = sources[:TRIED_PAIRS], targets[:TRIED_PAIRS]
    heads, error = find_alignment_heads(
        model, tokenizer, sources, targets, links[:TRIED_PAIRS], max_tokens=arguments.max_tokens
    )
    set_alignment_heads(model, heads)
    model.generation_config.save_pretrained(arguments.model)
    named = ", ".join(f"layer {layer} head {head}" for layer, head in heads)
    print(f"{named}: alignment error rate {100 * error:.1f} % on {len(sources)} pairs")
