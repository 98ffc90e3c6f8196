"""Translate text line by line, in input order.

Input is UTF-8, plain or .gz. Each input line gives one output line, however many sentences it holds. For example:

    vanilla-transformer translate --model my-model --input test.en --output test.hyp
    echo "A dog runs ." | vanilla-transformer translate --model my-model
    vanilla-transformer translate --model my-model --input test.en --num_beams 5 --num_hypotheses 5 --format json
    vanilla-transformer translate --model my-model --input test.en --glossary terms.tsv
    vanilla-transformer translate --model my-model --input test.en --protect names.txt
    vanilla-transformer translate --model my-model --input page.html --output page.de.html
    vanilla-transformer translate --model seed-1 seed-2 seed-3 --input test.en
    vanilla-transformer translate --model my-model --input test.en --num_beams 10 --rerank_model my-reverse-model
    vanilla-transformer translate --backend ctranslate2 --model my-model-ct2 --input test.en
    accelerate launch -m hf_vanilla_transformer translate --model my-model --input test.en --output test.hyp

Lines for a model trained with feature columns have the source, a tab and the tags of each column, also separated by
tabs; --source_column and --feature_columns read them from a file with more columns, such as that used for training:

    vanilla-transformer translate --model my-model --input test.tsv --source_column 0 --feature_columns 2

With --format json, each line is {"source": ..., "hypotheses": [{"text": ..., "score": ...}, ...]}, best first. A score
is the log-probability of the translation, in nats, divided by its number of tokens raised to the length penalty; for
several sentences it is the mean. "remarks" contains "cut" if a sentence was longer than any in training and was
translated in pieces, "corrected" if it had typos that were corrected, "limit" if a translation ended at the length
limit, "short" if one is suspiciously short, "loop" if one repeats itself more than training text does, and "tag X" if
training did not show the tag X. "pivot" is the language that it went through: a multilingual model translates a
direction without training pairs through a language that has them, unless --pivot none.
Files ending in .html, .md, .srt, .vtt, .po or .xliff are translated as documents, keeping their markup.
Text unlike that of training is prepared by rules that training proved, such as copying links and emoji, or translating
capitals into capitals; --raw turns them off, --rules names others. A --protect file has regular expressions for more
text to copy, one per line.
Each line of a --glossary is a source term, a tab and its translation, which appears verbatim in the translation of
every sentence that contains the term. Several models that share a vocabulary translate as an ensemble. --rerank_model,
trained for the reverse direction, reranks beam hypotheses by how probable they make the source; a score then sums
both. On a terminal without --input, the command prompts for sentences and translates each at once.
--alignments adds the source word that each word was translated from, counted from 0: in text as
"Un perro ||| 0-0 1-1", in JSON as "alignment": [[0, 0], [1, 1]].
--backend ctranslate2 runs a folder written by `vanilla-transformer export --to ctranslate2`. The output file appears
once it is complete; the same command with --resume continues an interrupted run.
"""

import json
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from itertools import chain, tee
from typing import Any, cast

from ..data.alignments import format_pharaoh
from ..documents import kind_of, open_document
from ..files import (
    LINE_ENDS_TO_SPACES,
    atomic_write,
    check_output_file,
    disk_errors,
    open_input,
    read_lines,
    replaceable,
)
from ..options import BatchOptions, Range, SearchOptions
from .options import (
    SWITCH,
    Number,
    OneLineParser,
    add_model_options,
    add_options,
    add_text_options,
    choose_languages,
    importing,
    load_by_name,
    load_model_and_tokenizer,
    out_of_memory,
    quiet_unless_terminal,
)
from .prompt import answer_lines

# Passed to `translate_lines` unless None.
SEARCH_OPTIONS = (
    "num_hypotheses", "num_beams", "length_penalty", "no_repeat_ngram_size", "max_new_tokens", "max_source_length",
    "chunk_size", "split_sentences", "raw", "rules", "pivot",
)  # fmt: skip  # a table, not an expression

# Settings that a resumed run must share with the interrupted one, besides model and input. Batch size, which may have
# been too large for the memory, and device may differ: they change no translation.
SETTINGS = (*SEARCH_OPTIONS, "alignments", "format", "backend", "bf16")


def add_arguments(parser: OneLineParser) -> None:
    add_model_options(parser, several=True)
    files = parser.add_argument_group("input and output")
    input_help = "Files to translate, in this order; - (default): stdin."
    files.add_argument("--input", nargs="+", default=["-"], metavar="FILE", help=input_help)
    column = "Column of the source in input files with columns, by name or position, as for train."
    files.add_argument("--source_column", metavar="COLUMN", help=column)
    columns = "Feature columns, likewise: translates the very file used for training."
    files.add_argument("--feature_columns", nargs="+", metavar="COLUMN", help=columns)
    files.add_argument("--output", default="-", metavar="FILE", help="Output file; - (default): stdout.")
    format_help = "text (default): the best translation; json: all hypotheses with scores."
    files.add_argument("--format", choices=("text", "json"), default="text", help=format_help)
    alignments = 'Also write word alignments: after " ||| " as 0-0 1-2 (source-target), in JSON as "alignment".'
    files.add_argument("--alignments", **SWITCH, help=alignments)
    files.add_argument(
        "--resume", **SWITCH, help="Continue after the lines an interrupted run left in OUTPUT.partial, if any."
    )
    search = parser.add_argument_group("search")
    hypotheses = "Translations per sentence, with --format json or on a terminal."
    names = ("num_beams", "num_hypotheses", "length_penalty", "no_repeat_ngram_size", "max_new_tokens")
    add_options(parser, search, SearchOptions, *names, num_hypotheses={"help": hypotheses})
    terms = "Fixed translations: a term, a tab and its translation per line."
    search.add_argument("--glossary", metavar="FILE", help=terms)
    add_text_options(search)
    search.add_argument(
        "--split_sentences",
        choices=("auto", "never", "always"),
        default="auto",
        help="Split lines into sentences; auto (default): if the model was trained on single ones.",
    )
    search.add_argument(
        "--raw", **SWITCH, help="Pass lines to the model unchanged: do not protect items, change case or split."
    )
    search.add_argument(
        "--rerank_model",
        metavar="MODEL",
        help="Model of the reverse direction that reranks the beam hypotheses, preferring longer ones.",
    )
    weight = "Weight of --rerank_model relative to the translating model (default: 1)."
    search.add_argument("--rerank_weight", type=float, help=weight)
    pivot = "Translate through this language; none: directly. Default: through another if training had no such pairs."
    search.add_argument("--pivot", metavar="none|LANG", help=pivot)
    max_source_length = "Truncate sources to this many tokens; the number truncated is reported."
    search.add_argument("--max_source_length", type=Number(int, Range(ge=2)), help=parser.advanced(max_source_length))
    compute = parser.add_argument_group("computation")
    backend = "transformers (default), or ctranslate2 for an exported model, on the CPU by default."
    compute.add_argument("--backend", choices=("transformers", "ctranslate2"), default="transformers", help=backend)
    add_options(parser, compute, BatchOptions, "max_tokens", "chunk_size", chunk_size={"default": None})


def run(arguments: Namespace) -> None:
    prompts, kind = _prompts(arguments), _document_kind(arguments)
    if arguments.feature_columns and arguments.source_column is None:
        raise ValueError("--feature_columns needs --source_column; give both, or write lines of source and features")
    if arguments.num_hypotheses > 1 and arguments.format == "text" and not prompts:
        raise ValueError("--num_hypotheses needs --format json; text output has one translation per line")
    others = filter(None, (arguments.rerank_model, arguments.glossary, arguments.protect))
    check_output_file(arguments.output, [*arguments.input, *arguments.model, *others], "output")
    with importing():
        from ..data.features import Features
        from ..inference.fingerprint import model_fingerprint
        from ..inference.glossary import read_glossary
        from ..inference.line_output import Share, line_output
        from ..inference.translation import CHUNK_SIZE, translate_lines
        from ..text.protection import read_patterns
    share = Share(CHUNK_SIZE if arguments.chunk_size is None else arguments.chunk_size)
    to_a_file = replaceable(arguments.output)
    _check_files(arguments, share.size, to_a_file, kind)
    quiet_unless_terminal()
    if arguments.device or arguments.backend == "transformers":
        arguments.device = share.device(arguments.device)
    glossary = read_glossary(arguments.glossary) if arguments.glossary else None
    protect = read_patterns(arguments.protect) if arguments.protect else []
    model, tokenizer = _load(arguments)
    languages = choose_languages(arguments, tokenizer)
    reranker = _load_reranker(arguments, languages)
    as_json = arguments.format == "json"
    chosen = {name: value for name in SEARCH_OPTIONS if (value := getattr(arguments, name)) is not None}
    translate: Any = partial(
        translate_lines,
        model,
        tokenizer,
        max_tokens=arguments.max_tokens,
        with_scores=as_json or arguments.num_hypotheses > 1,
        glossary=glossary,
        reranker=reranker,
        protect=protect,
        **languages,
        **chosen,
    )
    with out_of_memory(f"lower --max_tokens {arguments.max_tokens}"):
        if kind:
            _translate_document(arguments, kind, languages["tgt_lang"], translate)
            return
        if prompts:
            # Warm up, so that the first sentence does not wait.
            translate = partial(translate, with_alignments=arguments.alignments)
            features = Features.of(tokenizer)
            list(translate(["a" + "\t" * features.feature_columns if features else "a"]))
            answer_lines(lambda line: _answer(line, next(translate([line])), as_json))
            return
        lines = _lines(arguments)
        settings = {name: getattr(arguments, name) for name in SETTINGS} | languages
        settings["glossary"] = glossary and glossary.fingerprint()
        settings["protect"] = [pattern.pattern for pattern in protect]
        if to_a_file:
            settings["model"] = model_fingerprint(model, tokenizer)
            settings["rerank_model"] = reranker and model_fingerprint(reranker.model, reranker.tokenizer)
            settings["rerank_weight"] = reranker and reranker.weight
        with line_output(arguments.output, lines, settings, share, arguments.resume) as output:
            sources, pending = tee(output.sources)
            show_progress = sys.stderr.isatty() and share.rank == 0
            translations = translate(sources, with_alignments=arguments.alignments, show_progress=show_progress)
            counts = Counter[str]()
            try:
                for hypotheses, source in zip(translations, pending, strict=True):
                    output.write(_json_line(source, hypotheses) if as_json else _text_line(hypotheses[0], counts))
            finally:
                _warn(counts)


def _lines(arguments: Namespace) -> Iterator[str]:
    """Yield the lines of the input or, from files with columns, the source and the features of each row."""
    if arguments.source_column is None:
        return chain.from_iterable(map(read_lines, arguments.input))
    from ..data.reading import read_sources

    columns = arguments.feature_columns
    return chain.from_iterable(read_sources(path, arguments.source_column, columns) for path in arguments.input)


def _document_kind(arguments: Namespace) -> str | None:
    """Return the document kind of the input, or None for lines of text."""
    names = [path.removesuffix(".gz") for path in arguments.input]
    kinds = {kind for name in names if (kind := kind_of(name)) not in (None, "text")}
    if not kinds:
        return None
    if len(arguments.input) > 1:
        raise ValueError("--input lists a document and other files; translate each document separately")
    refused = {
        "--resume": arguments.resume,
        "--alignments": arguments.alignments,
        "--format json": arguments.format == "json",
        f"--num_hypotheses {arguments.num_hypotheses}": arguments.num_hypotheses > 1,
    }
    if flags := [option for option, is_given in refused.items() if is_given]:
        raise ValueError(f"{flags[0]} applies to lines of text, but {arguments.input[0]} is a document; leave it out")
    return kinds.pop()


def _translate_document(arguments: Namespace, kind: str, target_lang: str | None, translate: Any) -> None:
    from ..inference.translation import translate_document

    (path,) = arguments.input
    with open_input(path) as file:
        document = open_document(file.read(), kind, name=path, target_lang=target_lang)
    content = translate_document(translate, document, show_progress=sys.stderr.isatty())
    with disk_errors(arguments.output, "make room"), atomic_write(arguments.output) as output:
        output.write(cast(bytes, content))


def _prompts(arguments: Namespace) -> bool:
    """Whether to prompt: input comes from a terminal and output goes to standard output."""
    return arguments.input == ["-"] and arguments.output == "-" and bool(sys.stdin) and sys.stdin.isatty()


def _answer(source: str, hypotheses: Sequence[Any], as_json: bool) -> str:
    if as_json:
        return _json_line(source, hypotheses)
    if len(hypotheses) == 1:
        return _text_line(hypotheses[0])
    return "\n".join(f"{hypothesis.score:8.3f}  {_text_line(hypothesis)}" for hypothesis in hypotheses)


def _text_line(hypothesis: Any, counts: Counter[str] | None = None) -> str:
    text = hypothesis.text.translate(LINE_ENDS_TO_SPACES)
    if counts is not None:
        counts.update(lines=1, flattened=text != hypothesis.text)
    return text if hypothesis.alignment is None else f"{text} ||| {format_pharaoh(hypothesis.alignment)}".rstrip()


def _warn(counts: Counter[str]) -> None:
    from ..inference.translation import remarks_logger

    if counts["flattened"]:
        remarks_logger.warning(
            f"of {counts['lines']} lines, {counts['flattened']} had a translation of several lines, written as one; "
            "--format json keeps line ends"
        )


def _json_line(source: str, hypotheses: Sequence[Any]) -> str:
    rows = [{name: value for name, value in row.items() if value is not None} for row in map(asdict, hypotheses)]
    return json.dumps({"source": source, "hypotheses": rows}, ensure_ascii=False)


def _check_files(arguments: Namespace, processes: int, to_a_file: bool, kind: str | None) -> None:
    """Refuse input that several processes cannot share, and output that cannot be merged or resumed."""
    if processes > 1 and kind:
        raise ValueError(f"{arguments.input[0]} is a document, which {processes} processes cannot share; use one")
    if arguments.resume and not to_a_file:
        raise ValueError("--resume needs --output FILE, where finished lines are kept")
    if processes > 1 and not to_a_file:
        raise ValueError(f"{processes} processes need --output FILE to merge their lines")
    if processes > 1 and "-" in arguments.input:
        raise ValueError(f"standard input cannot be shared by {processes} processes; name files with --input")


def _load(arguments: Namespace) -> tuple[Any, Any]:
    if arguments.backend == "transformers":
        return load_model_and_tokenizer(arguments)
    with importing():
        from ..inference.ctranslate2 import load_ctranslate2
    if len(arguments.model) > 1:
        raise ValueError("an ensemble needs --backend transformers; name one model")
    for name in ("glossary", "bf16"):
        if getattr(arguments, name):
            raise ValueError(f"--{name} needs --backend transformers; leave it out")
    return load_ctranslate2(arguments.model[0], arguments.device, trust_remote_code=arguments.trust_remote_code)


def _load_reranker(arguments: Namespace, languages: dict[str, Any]) -> Any:
    weight = arguments.rerank_weight
    if arguments.rerank_model is None:
        if weight is not None:
            raise ValueError("--rerank_weight needs --rerank_model; name a model of the reverse direction")
        return None
    with importing():
        from ..inference.reranking import ChannelReranker
        from ..pretrained.languages import model_languages
    model, its_tokenizer = load_by_name(arguments.rerank_model, arguments)
    what = f"--rerank_model {arguments.rerank_model}"
    chosen: dict[str, Any] = {} if weight is None else {"weight": weight}
    chosen |= model_languages(its_tokenizer, languages["tgt_lang"], languages["src_lang"], what)
    return ChannelReranker(model, its_tokenizer, max_tokens=arguments.max_tokens, **chosen)
