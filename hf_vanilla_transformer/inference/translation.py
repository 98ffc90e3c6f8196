"""Translation of text: lines of any length, prepared for the model, in input order, with scores and alignments."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from itertools import islice
from os import PathLike
from re import Pattern
from typing import Any, cast

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.alignments import Link, check_fast
from ..documents import Document
from ..errors import lone_surrogate, one_line
from ..options import POSITIVE, Range, check_choice, check_range
from ..text.sentences import Layout
from .alignment import word_alignments
from .decoding import NO_BEAM_SEARCH, BatchTranslator, Hypothesis, Source, encode
from .ensemble import VanillaTransformerEnsemble
from .glossary import Glossary
from .languages import Languages, directions_of
from .loading import load_model, load_tokenizer
from .output_limits import output_limit, row_limit_options
from .preparation import Preparation, Sentence, SplitSentences, is_suspicious
from .teacher_forcing import cross_attentions, evaluation_mode, position_limit, tightest_limit

logger = logging.get_logger(__name__)

# Sentences of a stream to hold and sort by length at a time.
CHUNK_SIZE = 2048

# What the remarks of hypotheses say of their texts.
REMARKS = {"cut": "had a sentence longer than any in training, which was cut", "short": "came back suspiciously short"}

# Sorts the hypotheses of each sentence.
Reranker = Callable[[Sequence[str], Sequence[Sequence[Hypothesis]]], list[list[Hypothesis]]]


def load(
    name: str | Sequence[str],
    dtype: torch.dtype | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder-decoder, or several that decode as one, and the tokenizer.

    Args:
        name: Folder of both, or their name on the Hub; a list of them for a `VanillaTransformerEnsemble`.
        dtype: Of the weights; by default the saved one.
        device: For example "cuda:1"; by default the machine's accelerator, if it has one.
        trust_remote_code: Whether to run Python code that comes with the model.

    Raises:
        ValueError: Model or tokenizer cannot be loaded (see `load_model`), models do not fit together, or the device
            cannot be used.
    """
    # The model first: its message about untrusted code is clearer.
    load_parts: Any = load_model if isinstance(name, str | PathLike) else VanillaTransformerEnsemble.from_pretrained
    model = load_parts(name, dtype=dtype or "auto", trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(name if isinstance(name, str | PathLike) else name[0], trust_remote_code)
    target = device or torch.accelerator.current_accelerator(check_available=True) or "cpu"
    try:
        # PreTrainedModel hides the type of `to`.
        return cast(Any, model).to(target), tokenizer
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"`device` {target} cannot be used: {one_line(error)}") from error


def translate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], **options: Any
) -> list[list[Hypothesis]]:
    """Translate sentences that fit in memory.

    Args:
        model: Any encoder-decoder with `generate()`.
        tokenizer: The tokenizer it was trained with.
        sentences: Source sentences.
        **options: Those of `translate_lines`; by default all sentences are one chunk.

    Returns:
        `num_hypotheses` hypotheses for each sentence, in order.

    Raises:
        ValueError: As `translate_lines`.
    """
    return list(translate_lines(model, tokenizer, sentences, **{"chunk_size": max(1, len(sentences)), **options}))


def translate_lines(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    lines: Iterable[str],
    *,
    num_hypotheses: int = 1,
    max_tokens: int = 4096,
    max_source_length: int | None = None,
    with_scores: bool = False,
    with_alignments: bool = False,
    chunk_size: int = CHUNK_SIZE,
    show_progress: bool = False,
    glossary: Glossary | None = None,
    reranker: Reranker | None = None,
    split_sentences: SplitSentences = "auto",
    protect: Iterable[str | Pattern[str]] = (),
    raw: bool = False,
    source_prefix: str = "",
    src_lang: Languages = None,
    tgt_lang: Languages = None,
    **generation_options: Any,
) -> Iterator[list[Hypothesis]]:
    """Translate a stream of lines of any length, chunk by chunk, in order.

    Lines are cut into sentences, and their translations are joined. Within a chunk, sentences of similar length are
    decoded together. A line of white space only has empty translations. `Preparation` tells what becomes of links,
    emoji, capitals and the like. Warnings at the end count lines with a sentence that was cut into pieces, or whose
    translation is suspiciously short, and sources that were truncated to `max_source_length`.

    Args:
        model: Any encoder-decoder with `generate()`.
        tokenizer: The tokenizer it was trained with.
        lines: Source lines of one sentence or several, read as they are needed.
        num_hypotheses: Translations of each sentence; those of a beam search come best first.
        max_tokens: Most source tokens in a batch, padding included, times the number of beams or samples. With
            scores, output tokens count instead, since scores of the whole vocabulary are kept for each.
        max_source_length: Truncate sources to this many tokens, end token included; None truncates none.
        with_scores: Whether to return scores.
        with_alignments: Whether to return alignments, by `word_alignments`.
        chunk_size: Sentences to hold and sort at a time.
        show_progress: Whether to show a progress bar on standard error.
        glossary: Terms whose translations are given: each occurrence in a sentence puts its translation, as whole
            words, into every hypothesis. Sentences with terms are searched with at least `MIN_CONSTRAINED_BEAMS`
            beams, and with half as many more if the translations have more tokens than that.
        reranker: Sorts all hypotheses that the beams find, of which the first `num_hypotheses` are returned: a
            `ChannelReranker`, for example.
        split_sentences: Whether to cut lines into sentences: "auto" does unless the model was trained on lines of
            several sentences.
        protect: Regular expressions of what else is put into the translation as it is: names, for example.
        raw: Whether to give the lines to the model as they are, which also truncates them to the model's positions.
        source_prefix: Put before every sentence, such as "translate English to German: " for T5.
        src_lang: Source language, for multilingual models; None: the tokenizer's current one. Models of this package
            also take a language for each line.
        tgt_lang: Target language, likewise.
        **generation_options: Passed on to `generate()`: `num_beams`, `length_penalty`, `do_sample`, ... By default an
            output may have `EXTRA_OUTPUT_TOKENS` more tokens than its source. Bounds never exceed the model's
            positions.

    Yields:
        `num_hypotheses` hypotheses for each line. The score of several sentences is the mean of those that were
        translated.

    Raises:
        ValueError: An option is out of range, the model does not have a language, there are more hypotheses than
            beams, a line is not a string, a regular expression is none, a score is NaN, the tokenizer cannot align,
            there is only one hypothesis to rerank, or a glossary cannot be followed: by sampling, in a model that is
            none of transformers, with a vocabulary that cannot write a translation, or within the length bound.
    """
    if with_alignments:
        check_fast(tokenizer)
    directions, options = directions_of(tokenizer, src_lang, tgt_lang)
    options |= generation_options
    translator = BatchTranslator(
        model, tokenizer, num_hypotheses, max_tokens, with_scores or reranker is not None, options, glossary
    )
    if reranker is not None:
        translator.num_hypotheses = max(num_hypotheses, translator.num_beams)
        if translator.num_hypotheses == 1:
            raise ValueError("reranking needs several hypotheses, but `num_beams` is 1; raise it")
    check_range(POSITIVE, chunk_size=chunk_size)
    check_range(Range(ge=2), max_source_length=max_source_length)
    check_choice(SplitSentences, split_sentences=split_sentences)
    if raw and split_sentences == "always":
        raise ValueError("`raw` splits no sentences, but `split_sentences` is always; leave one of them out")
    preparation = Preparation(model, tokenizer, protect, raw, source_prefix)
    limit = tightest_limit(max_source_length, position_limit(model.config))
    blank = [Hypothesis("", 0.0 if translator.with_scores else None, [] if with_alignments else None)] * num_hypotheses
    counts = Counter[str]()
    iterator, total = iter(checked_sentences(lines)), len(lines) if isinstance(lines, Sized) else None
    try:
        with tqdm(total=total, desc="Translating", unit=" sentences", disable=not show_progress) as bar:
            while chunk := list(islice(iterator, chunk_size)):
                # After the lines, of which there may be fewer than directions.
                given = list(islice(directions, len(chunk)))
                layouts = [
                    preparation.layout(line, split_sentences, direction and direction[0])
                    for line, direction in zip(chunk, given, strict=True)
                ]
                sentences = [
                    preparation.sentence(each, glossary, direction)
                    for layout, direction in zip(layouts, given, strict=True)
                    for each in layout.sentences
                ]
                if bar.total is not None:
                    bar.total += len(sentences) - len(chunk)
                texts = [sentence.given for sentence in sentences]
                ids, truncated = encode(tokenizer, texts, limit, [sentence.direction for sentence in sentences])
                placeholders = [sentence.placeholders for sentence in sentences]
                sources = list(map(Source, ids, translator.terms(texts, ids, limit), placeholders))
                results = translator.translate_chunk(sources, bar)
                if reranker is not None:
                    results = [hypotheses[:num_hypotheses] for hypotheses in reranker(texts, results)]
                rows = iter(finished(model, tokenizer, sentences, results, with_alignments, max_tokens, limit))
                counts.update(lines=len(chunk), sentences=len(sentences), truncated=truncated)
                for layout in layouts:
                    hypotheses = joined(layout, list(islice(rows, len(layout.sentences)))) or blank
                    counts.update(hypotheses[0].remarks or ())
                    yield hypotheses
    finally:
        _warn(counts, limit)


def translate_document(
    translate: Callable[..., Iterable[Sequence[Hypothesis]]], document: Document, **options: Any
) -> str | bytes:
    """Translate a document.

    Args:
        translate: `translate_lines` with a model, its tokenizer and options; called with the texts of the document,
            and `with_alignments` for those with inline tags, which go with their words.
        document: What `open_document` returned.
        **options: Further options of `translate`.

    Returns:
        The translation, text or bytes as the document was.

    Raises:
        ValueError: As `translate_lines`.
    """
    filled: dict[int, str] = {}
    for has_tags in (False, True):
        chosen = {i: each for i, each in enumerate(document.segments) if bool(each.tags) is has_tags}
        texts = [segment.text for segment in chosen.values()]
        translations = translate(texts, with_alignments=has_tags, **options)
        for (i, segment), (best, *_) in zip(chosen.items(), translations, strict=True):
            filled[i] = segment.fill(best.text, best.alignment)
    return document.render(filled[i] for i in range(len(filled)))


def finished(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[Sentence],
    hypotheses: Sequence[Sequence[Hypothesis]],
    with_alignments: bool = False,
    max_tokens: int = 4096,
    max_source_length: int | None = None,
) -> list[list[Hypothesis]]:
    """Return what a model made of prepared sentences as translations of the sentences.

    Unless alignments are asked for, only those are made that tell where an item goes. Other arguments are those of
    `word_alignments` and `translate_lines`.
    """
    pairs = [(sentence, each) for sentence, row in zip(sentences, hypotheses, strict=True) for each in row]
    chosen = [
        i
        for i, (sentence, each) in enumerate(pairs)
        if with_alignments or (tokenizer.is_fast and sentence.needs_links(each.text))
    ]
    alignments = word_alignments(
        model,
        tokenizer,
        [pairs[i][0].given for i in chosen],
        [pairs[i][1].text for i in chosen],
        max_tokens=max_tokens,
        max_source_length=max_source_length,
        directions=[pairs[i][0].direction for i in chosen],
    )
    links = dict(zip(chosen, alignments, strict=True))
    results = []
    for i, (sentence, each) in enumerate(pairs):
        prefix = len(sentence.prefix.split())
        own = [(source - prefix, target) for source, target in links.get(i, ()) if source >= prefix]
        text, alignment = sentence.finished(each.text, own)
        remarks = ["short"] if is_suspicious(sentence.source, text) else None
        results.append(replace(each, text=text, alignment=alignment if with_alignments else None, remarks=remarks))
    rows = iter(results)
    return [list(islice(rows, len(row))) for row in hypotheses]


def joined(layout: Layout, hypotheses: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """Return the hypotheses of a text: those of its sentences of the same rank, one after another."""
    return [_joined(layout, row) for row in zip(*hypotheses, strict=True)]


def _joined(layout: Layout, hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    scores = [each.score for each in hypotheses if each.score is not None]
    # 0 is that of what was not translated.
    counted = list(filter(None, scores)) or scores[:1]
    # Those of sentences are "short".
    remarks = ["cut"] * layout.is_cut + ["short"] * any(each.remarks for each in hypotheses)
    alignment: list[Link] | None = None
    if hypotheses[0].alignment is not None:
        alignment, source, target = [], _WordCount(), _WordCount()
        for gap, sentence, each in zip(layout.gaps, layout.sentences, hypotheses, strict=False):
            firsts = source.add(gap, sentence), target.add(gap, each.text)
            alignment += [(firsts[0] + i, firsts[1] + k) for i, k in each.alignment or ()]
    return Hypothesis(
        layout.fill([each.text for each in hypotheses]),
        sum(counted) / len(counted) if counted else None,
        alignment,
        remarks or None,
    )


class _WordCount:
    """Numbers the words of a text that is put together."""

    def __init__(self) -> None:
        self._count, self._is_open = 0, False

    def add(self, gap: str, piece: str) -> int:
        """Add white space and bullets, and a piece; return the number of the piece's first word."""
        goes_on = self._is_open and not gap and not piece[:1].isspace()
        first = self._count + len(gap.split()) - goes_on
        self._count = first + len(piece.split()) if piece else self._count
        self._is_open = not piece[-1].isspace() if piece else self._is_open and not gap
        return first


def _warn(counts: Counter[str], limit: int | None) -> None:
    """Tell what was truncated, cut, or came back short."""
    if counts["truncated"]:
        logger.warning(
            f"{counts['truncated']} of {counts['sentences']} sentences had more than {limit} tokens and were truncated"
        )
    if found := [f"{counts[name]} {text}" for name, text in REMARKS.items() if counts[name]]:
        logger.warning(f"of {counts['lines']} lines, {' and '.join(found)}")


def checked_sentences(lines: Iterable[Any]) -> Iterator[str]:
    if isinstance(lines, str):
        raise ValueError("sentences is one string, whose characters would be the sentences; pass a list of strings")
    for number, line in enumerate(lines, start=1):
        yield checked_sentence(line, number)


def checked_sentence(line: Any, number: int) -> str:
    """Return a line, or raise a ValueError that names it by its number if it is not text that can be encoded."""
    if not isinstance(line, str):
        raise ValueError(f"sentence {number} is a {type(line).__name__}, not a string; pass strings")
    if surrogate := lone_surrogate(line):
        raise ValueError(f"sentence {number} has {surrogate}; read the text as UTF-8")
    return line


def cross_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str
) -> tuple[torch.Tensor, list[str], list[str]]:
    """Translate a sentence greedily and return what each target token attended to.

    Args:
        model: Any encoder-decoder with `generate()` that returns cross-attentions.
        tokenizer: The tokenizer it was trained with.
        source: One sentence; truncated to the model's positions.

    Returns:
        Cross-attention of the last decoder layer, averaged over heads, (T, S), float32 on the CPU: row t produced
        target token t. Then the S source and T target tokens, end tokens included.

    Raises:
        ValueError: The sentence is blank.
    """
    (ids,), _ = encode(tokenizer, [source], position_limit(model.config))
    if not ids:
        raise ValueError("the sentence is blank, so there is nothing to attend to; pass some text")
    input_ids = torch.tensor([ids], device=model.device)
    generate: Any = model.generate
    bounds = row_limit_options([output_limit(len(ids), model.config)], model.device)
    with evaluation_mode(model):
        target = generate(input_ids, do_sample=False, **NO_BEAM_SEARCH, **bounds)
    target_ids = target[0, 1:].tolist()
    (weights,) = cross_attentions(model, [(ids, target_ids)])
    source_tokenizer = getattr(tokenizer, "source_tokenizer", tokenizer)
    source_tokens = [str(source_tokenizer.decode([token])) for token in ids]
    target_tokens = [str(tokenizer.decode([token])) for token in target_ids]
    return weights[-1].mean(0), source_tokens, target_tokens
