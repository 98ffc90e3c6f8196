"""Score given translations: the log-probability and perplexity a model assigns to each.

Line n of the target file is scored as the translation of line n of the source file; UTF-8, plain or .gz. For example:

    vanilla-transformer score --model my-model --source test.en --target test.de
    vanilla-transformer score --model my-model --source test.en --target test.de --format json --output scores.jsonl

Each pair gives one output line: log-probability in nats, a tab, perplexity; with --format json
{"source": ..., "target": ..., "log_prob": ..., "perplexity": ..., "tokens": [...], "token_log_probs": [...]}.
Corpus totals are printed on standard error.
"""

import json
import sys
from argparse import Namespace
from itertools import islice

from ..files import atomic_write, read_line_pairs
from ..options import BatchOptions
from .options import (
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

# Attributes of a score, in output order.
JSON_FIELDS = ("log_prob", "perplexity", "tokens", "token_log_probs")


def add_arguments(parser: OneLineParser) -> None:
    add_model_options(parser)
    format_help = "text (default): log-probability and perplexity; json: tokens and their log-probabilities too."
    add_pair_files(parser).add_argument("--format", choices=("text", "json"), default="text", help=format_help)
    compute = parser.add_argument_group("computation")
    side = "Tokens per side scored at once (default: 4096); lower it if memory runs out."
    add_options(parser, compute, BatchOptions, "max_tokens", "chunk_size", max_tokens={"help": side})


def run(arguments: Namespace) -> None:
    check_pair_files(arguments)
    with importing():
        from ..inference.scoring import perplexity, score
    quiet_unless_terminal()
    model, tokenizer = load_model_and_tokenizer(arguments)
    options = {"max_tokens": arguments.max_tokens, **choose_languages(arguments, tokenizer)}
    num_pairs, num_tokens, log_prob = 0, 0, 0.0
    with out_of_memory(f"lower --max_tokens {arguments.max_tokens}"), atomic_write(arguments.output) as file:
        pairs = read_line_pairs(arguments.source, arguments.target)
        while chunk := list(islice(pairs, arguments.chunk_size)):
            sources, targets = zip(*chunk, strict=True)
            try:
                scores = score(model, tokenizer, sources, targets, **options)
            except ValueError as error:
                # The error counts lines from the start of the chunk.
                raise ValueError(f"after line {num_pairs}: {error}" if num_pairs else str(error)) from error
            for source, target, pair_score in zip(sources, targets, scores, strict=True):
                line = f"{pair_score.log_prob:.4f}\t{pair_score.perplexity:.4f}"
                if arguments.format == "json":
                    row = {"source": source, "target": target}
                    row |= {name: getattr(pair_score, name) for name in JSON_FIELDS}
                    line = json.dumps(row, ensure_ascii=False)
                file.write(f"{line}\n".encode())
                num_tokens += len(pair_score.token_ids)
                log_prob += pair_score.log_prob
            file.flush()
            num_pairs += len(chunk)
        if not num_pairs:
            raise ValueError(f"{arguments.source} and {arguments.target} are empty; name files with text")
    total = perplexity(log_prob, num_tokens)
    totals = f"{num_pairs} pairs, {num_tokens} tokens: log-probability {log_prob:.4f}, perplexity {total:.4f}"
    print(totals, file=sys.stderr)
