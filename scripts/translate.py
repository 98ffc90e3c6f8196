"""Translate text with a trained encoder-decoder, one sentence a line, in the order of the input.

Input is UTF-8, plain or .gz; every line of it gives one line of output. For example:

    python scripts/translate.py --model my-model --input test.en --output test.de
    echo "A dog runs ." | python scripts/translate.py --model my-model
    python scripts/translate.py --model my-model --input test.en --num_beams 5 --num_hypotheses 5 --format json
    python scripts/translate.py --backend ctranslate2 --model my-model-ct2 --input test.en --output test.de

With --format json a line is {"source": ..., "hypotheses": [{"text": ..., "score": ...}, ...]}, the best first. A score
is a translation's log-probability, in nats, divided by its number of tokens to the power of the length penalty. The
folder for --backend ctranslate2 is what scripts/export_model.py --to ctranslate2 wrote.
"""

import json
import os
import sys
from dataclasses import asdict, dataclass, field
from itertools import tee
from typing import Any, Literal

from _imports import importing

with importing():
    import torch
    from transformers.utils.logging import disable_progress_bar

    from hf_vanilla_transformer.cli.options import argument_parser, one_line_errors
    from hf_vanilla_transformer.files import atomic_write, check_output_file, read_lines
    from hf_vanilla_transformer.inference.ctranslate2 import load_ctranslate2
    from hf_vanilla_transformer.inference.translation import CHUNK_SIZE, load, translate_lines

# What a script that reads the output would take for the end of a line.
LINE_ENDS_TO_BLANKS = str.maketrans("\r\n", "  ")


@dataclass
class Arguments:
    """What to translate, with what, and how."""

    model: str = field(metadata={"help": "Folder of the model and its tokenizer, or their name on the Hub."})
    backend: Literal["transformers", "ctranslate2"] = field(
        default="transformers", metadata={"help": "What computes: transformers (default), or ctranslate2."}
    )
    input: list[str] = field(
        default_factory=lambda: ["-"],
        metadata={"help": "Files to translate, one after the other; - (default): stdin."},
    )
    output: str = field(default="-", metadata={"help": "File to write when all is translated; - (default): stdout."})
    format: Literal["text", "json"] = field(
        default="text", metadata={"help": "text (default): the best translation; json: all of them, with scores."}
    )
    num_hypotheses: int = field(default=1, metadata={"help": "Translations of each sentence, with --format json."})
    num_beams: int | None = field(default=None, metadata={"help": "Beams; 1: greedy. Default: the model's setting."})
    length_penalty: float | None = field(
        default=None, metadata={"help": "Above 0 favours long translations. Default: the model's setting."}
    )
    max_source_length: int | None = field(
        default=None, metadata={"help": "Cut sources to so many tokens; how many were cut is reported."}
    )
    max_tokens: int = field(
        default=4096, metadata={"help": "Source tokens x beams decoded at a time; lower it if memory runs out."}
    )
    chunk_size: int = field(
        default=CHUNK_SIZE, metadata={"help": "Lines to read and sort at a time; 1 answers each line at once."}
    )
    bf16: bool = field(default=False, metadata={"help": "Compute in bfloat16: faster where the hardware has it."})
    device: str | None = field(
        default=None, metadata={"help": "cpu, cuda, cuda:1, mps, ... Default: a GPU if any; with ctranslate2 cpu."}
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run Python code that comes with the model; only from sources you trust."}
    )


def main(argv: list[str] | None = None) -> None:
    """Translate; a mistake in the input ends with one line on standard error and status 2."""
    parser = argument_parser(Arguments, __doc__)
    if not sys.stderr.isatty():
        disable_progress_bar()
    try:
        with one_line_errors(parser):
            (arguments,) = parser.parse_args_into_dataclasses(argv)
            _translate(arguments)
    except BrokenPipeError:
        # The reader (head, say) has had enough. Python would complain when it flushes standard output at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except torch.OutOfMemoryError:
        parser.exit(2, f"{parser.prog}: error: out of memory; lower --max_tokens {arguments.max_tokens}\n")


def _load(arguments: Arguments) -> tuple[Any, Any]:
    """Return what translates, and its tokenizer."""
    if arguments.backend == "transformers":
        dtype = torch.bfloat16 if arguments.bf16 else None
        return load(arguments.model, dtype, arguments.device, arguments.trust_remote_code)
    for name in ("bf16", "trust_remote_code"):
        if getattr(arguments, name):
            raise ValueError(f"--{name} is for --backend transformers; leave it out")
    return load_ctranslate2(arguments.model, arguments.device)


def _translate(arguments: Arguments) -> None:
    """Write a line for every line read."""
    if arguments.num_hypotheses > 1 and arguments.format == "text":
        raise ValueError("--num_hypotheses needs --format json; text has one line a sentence")
    check_output_file(arguments.output, arguments.input, "--output")
    model, tokenizer = _load(arguments)
    lines, sources = tee(line for path in arguments.input for line in read_lines(path))
    names = ("num_hypotheses", "num_beams", "length_penalty", "max_source_length", "max_tokens", "chunk_size")
    given: dict[str, Any] = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    as_json = arguments.format == "json"
    translations = translate_lines(
        model, tokenizer, lines, with_scores=as_json, show_progress=sys.stderr.isatty(), **given
    )
    with atomic_write(arguments.output) as file:
        for hypotheses, source in zip(translations, sources, strict=True):
            line = hypotheses[0].text.translate(LINE_ENDS_TO_BLANKS)
            if as_json:
                row = {"source": source, "hypotheses": [asdict(hypothesis) for hypothesis in hypotheses]}
                line = json.dumps(row, ensure_ascii=False)
            file.write(f"{line}\n".encode())
            file.flush()


if __name__ == "__main__":
    main()
