"""Translate text, one sentence a line, in the order of the input.

Input is UTF-8, plain or .gz; each line of it gives one line of output. For example:

    vanilla-transformer translate --model my-model --input test.en --output test.hyp
    echo "A dog runs ." | vanilla-transformer translate --model my-model
    vanilla-transformer translate --model my-model --input test.en --num_beams 5 --num_hypotheses 5 --format json
    vanilla-transformer translate --backend ctranslate2 --model my-model-ct2 --input test.en

With --format json a line is {"source": ..., "hypotheses": [{"text": ..., "score": ...}, ...]}, the best first. A score
is the log-probability of a translation, in nats, divided by its number of tokens to the power of the length penalty.
--backend ctranslate2 runs a folder that `vanilla-transformer export --to ctranslate2` wrote.
"""

import json
import sys
from argparse import Namespace
from dataclasses import asdict
from itertools import tee
from typing import Any

from ..files import atomic_write, check_output_file, read_lines
from .options import SWITCH, OneLineParser, add_trust_option, importing, out_of_memory, quiet_unless_terminal

# A program that reads the output would take these for line ends.
LINE_ENDS_TO_SPACES = str.maketrans("\r\n", "  ")

# Passed on where they are given.
SEARCH_OPTIONS = ("num_hypotheses", "num_beams", "length_penalty", "max_source_length", "max_tokens", "chunk_size")


def add_arguments(parser: OneLineParser) -> None:
    files = parser.add_argument_group("input and output")
    files.add_argument("--model", required=True, help="Model and its tokenizer: a folder or a name on the Hub.")
    files.add_argument(
        "--input",
        nargs="+",
        default=["-"],
        metavar="FILE",
        help="Files to translate, in this order; - (default): stdin.",
    )
    files.add_argument("--output", default="-", metavar="FILE", help="Output file; - (default): stdout.")
    files.add_argument(
        "--format",
        choices=("text", "json"),
        default="text",
        help="text (default): the best translation; json: all hypotheses with scores.",
    )
    search = parser.add_argument_group("search")
    search.add_argument("--num_beams", type=int, help="Number of beams; 1: greedy. Default: the model's setting.")
    search.add_argument(
        "--num_hypotheses", type=int, default=1, help="Translations of each sentence, with --format json (default: 1)."
    )
    search.add_argument(
        "--length_penalty", type=float, help="Above 0 favours long translations. Default: the model's setting."
    )
    search.add_argument(
        "--max_source_length",
        type=int,
        help=parser.advanced("Truncate sources to this many tokens; how many were truncated is reported."),
    )
    compute = parser.add_argument_group("computation")
    compute.add_argument(
        "--backend",
        choices=("transformers", "ctranslate2"),
        default="transformers",
        help="transformers (default), or ctranslate2 for an exported model.",
    )
    compute.add_argument("--device", help="cpu, cuda, cuda:1, mps, ... Default: a GPU, if any; ctranslate2: cpu.")
    compute.add_argument("--bf16", **SWITCH, help="Compute in bfloat16: faster on hardware that supports it.")
    compute.add_argument(
        "--max_tokens",
        type=int,
        default=4096,
        help="Source tokens x beams decoded at once (default: 4096); lower it if memory runs out.",
    )
    compute.add_argument(
        "--chunk_size",
        type=int,
        help=parser.advanced("Lines to read and sort at a time; 1 answers each line at once."),
    )
    add_trust_option(parser, compute)


def run(arguments: Namespace) -> None:
    if arguments.num_hypotheses > 1 and arguments.format == "text":
        raise ValueError("--num_hypotheses needs --format json; text has one line a sentence")
    check_output_file(arguments.output, arguments.input, "output")
    with importing():
        from ..inference.translation import translate_lines
    quiet_unless_terminal()
    model, tokenizer = _load(arguments)
    with out_of_memory(f"lower --max_tokens {arguments.max_tokens}"), atomic_write(arguments.output) as file:
        lines, sources = tee(line for path in arguments.input for line in read_lines(path))
        options = {name: value for name in SEARCH_OPTIONS if (value := getattr(arguments, name)) is not None}
        as_json = arguments.format == "json"
        translations = translate_lines(
            model, tokenizer, lines, with_scores=as_json, show_progress=sys.stderr.isatty(), **options
        )
        for hypotheses, source in zip(translations, sources, strict=True):
            line = hypotheses[0].text.translate(LINE_ENDS_TO_SPACES)
            if as_json:
                row = {"source": source, "hypotheses": [asdict(hypothesis) for hypothesis in hypotheses]}
                line = json.dumps(row, ensure_ascii=False)
            file.write(f"{line}\n".encode())
            file.flush()


def _load(arguments: Namespace) -> tuple[Any, Any]:
    """Return the model of the backend and its tokenizer."""
    with importing():
        import torch

        from ..inference.ctranslate2 import load_ctranslate2
        from ..inference.translation import load
    if arguments.backend == "transformers":
        dtype = torch.bfloat16 if arguments.bf16 else None
        return load(arguments.model, dtype, arguments.device, arguments.trust_remote_code)
    if arguments.bf16:
        raise ValueError("--bf16 is for --backend transformers; leave it out")
    return load_ctranslate2(arguments.model, arguments.device, trust_remote_code=arguments.trust_remote_code)
