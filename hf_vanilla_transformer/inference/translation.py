"""Translate lines of any length in input order, with scores and alignments."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence, Sized
from dataclasses import replace
from functools import partial
from itertools import islice
from os import PathLike
from re import Pattern
from typing import Any, cast

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.alignments import check_fast
from ..documents import Document
from ..errors import lone_surrogate, one_line
from ..options import POSITIVE, Range, check_choice, check_range
from ..pretrained.languages import DIRECTLY, Languages, choose_pivot, directions_of, recorded_pivots
from ..pretrained.loading import load_model, load_tokenizer
from ..pretrained.output_limits import OutputLimits, row_limit_options
from ..pretrained.teacher_forcing import cross_attentions, evaluation_mode, position_limit, tightest_limit
from ..text.protection import Link
from ..text.sentences import Layout
from .alignment import word_alignments
from .decoding import NO_BEAM_SEARCH, BatchTranslator, Hypothesis, Source, encode
from .ensemble import VanillaTransformerEnsemble
from .glossary import Glossary
from .pivoting import after, legs
from .preparation import Preparation, Sentence, SplitSentences, is_suspicious

logger = logging.get_logger(__name__)
remarks_logger = logging.get_logger(f"{__name__}.remarks")

# Lines of a stream to hold and sort by length at a time.
CHUNK_SIZE = 2048

# Warning text for each remark of a hypothesis.
REMARKS = {
    "cut": "had a sentence longer than any in training, which was cut",
    "corrected": "had typos, which were corrected",
    "limit": "ended at the length limit (`max_new_tokens` raises it)",
    "short": "came back suspiciously short",
}

# Takes sentences and the hypotheses of each, and returns them sorted, best first.
Reranker = Callable[[Sequence[str], Sequence[Sequence[Hypothesis]]], list[list[Hypothesis]]]


def load(
    name: str | Sequence[str],
    dtype: torch.dtype | None = None,
    device: str | None = None,
    trust_remote_code: bool = False,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder-decoder, or an ensemble, and its tokenizer.

    Args:
        name: Folder or Hub name of model and tokenizer; a list of them for a `VanillaTransformerEnsemble`.
        dtype: Dtype of the weights; by default the saved one.
        device: For example "cuda:1"; by default the machine's accelerator, else the CPU.
        trust_remote_code: Whether to run Python code that comes with the model.

    Raises:
        ValueError: The model or tokenizer cannot be loaded (see `load_model`), the models are incompatible, or the
            device cannot be used.
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
        **options: Options of `translate_lines`; by default all sentences are one chunk.

    Returns:
        `num_hypotheses` hypotheses for each sentence, in order.

    Raises:
        ValueError: As for `translate_lines`.
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
    rules: Iterable[str] | None = None,
    source_prefix: str = "",
    src_lang: Languages = None,
    tgt_lang: Languages = None,
    pivot: str | None = None,
    **generation_options: Any,
) -> Iterator[list[Hypothesis]]:
    """Translate a stream of lines of any length, chunk by chunk, in order.

    Lines are split into sentences and their translations joined. Within a chunk, sentences of similar length are
    decoded together. A blank line has empty translations. `inference.preparation` describes how links, emoji, capitals
    and the like are handled. Warnings at the end count lines with a sentence that was cut into pieces or a
    suspiciously short translation, and sentences truncated to `max_source_length`.

    Args:
        model: Any encoder-decoder with `generate()`.
        tokenizer: The tokenizer it was trained with.
        lines: Source lines of one or more sentences, read lazily.
        num_hypotheses: Translations of each line; those of a beam search come best first.
        max_tokens: Most source tokens in a batch, padding included, times the number of beams or samples. With
            scores, output tokens count instead, since scores of the whole vocabulary are kept for each.
        max_source_length: Truncate sources to this many tokens, end token included; None for no truncation.
        with_scores: Whether to return scores.
        with_alignments: Whether to return alignments, from `word_alignments`.
        chunk_size: Lines to hold and sort at a time.
        show_progress: Whether to show a progress bar on standard error.
        glossary: Terms with required translations: every hypothesis contains, as whole words, the translation of each
            occurrence in the sentence. Sentences with terms are searched with at least `MIN_CONSTRAINED_BEAMS`
            beams, and with half as many more if the translations have more tokens than that.
        reranker: Sorts all hypotheses of the beams, for example a `ChannelReranker`; the first `num_hypotheses` are
            returned.
        split_sentences: Whether to split lines into sentences: "auto" does if the model was trained on single ones.
        protect: Regular expressions of further text to copy into the translation unchanged, such as names.
        raw: Whether to pass lines to the model as they are, truncated to its positions.
        rules: Names of the rules for text that act, from `hf_vanilla_transformer.text.facts.RULES`, or "all"; by
            default those that training found to help.
        source_prefix: Prefix of every sentence, such as "translate English to German: " for T5.
        src_lang: Source language, for multilingual models; None for the tokenizer's current one. Models of this
            package also take a language for each line.
        tgt_lang: Target language, likewise.
        pivot: Language to translate through, for models of this package with several directions; "none" for direct
            translation. By default, a direction without training pairs goes through a language with training pairs
            for both legs, unless the model records another choice, or there is a glossary or reranker.
        **generation_options: Passed on to `generate()`: `num_beams`, `length_penalty`, `do_sample`, ... By default an
            output may have `EXTRA_OUTPUT_TOKENS` more tokens than its source, or as many as training had. Bounds never
            exceed the model's positions.

    Yields:
        `num_hypotheses` hypotheses for each line. The score of several sentences is the mean over those that were
        translated. Through another language, they are translations of the best one into it, with their own scores,
        and alignments are composed.

    Raises:
        ValueError: An option is out of range, the model lacks a language, there are more hypotheses than beams, a line
            is not a string, a regular expression is invalid, a score is NaN, the tokenizer cannot align, there is only
            one hypothesis to rerank, `pivot` is not a language of training for a direction or comes with a glossary or
            reranker, or a glossary cannot be followed: when sampling, with a model not from transformers, or because
            the vocabulary cannot write a translation or the length bound leaves no room.
    """
    if with_alignments:
        check_fast(tokenizer)
    directions, options = directions_of(tokenizer, src_lang, tgt_lang, may_pivot=True)
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
        raise ValueError("`raw` does not split sentences, but `split_sentences` is always; leave one of them out")
    if reranker is not None or (glossary is not None and glossary.entries):
        if pivot not in (None, DIRECTLY):
            raise ValueError(f"`pivot` {pivot} goes with neither glossary nor reranker; leave it out")
        pivot = DIRECTLY
    pivot_for = partial(choose_pivot, tokenizer, recorded_pivots(model), pivot)
    preparation = Preparation(model, tokenizer, protect, raw, source_prefix, rules)
    limit = tightest_limit(max_source_length, position_limit(model.config))
    blank = [Hypothesis("", 0.0 if translator.with_scores else None, [] if with_alignments else None)] * num_hypotheses
    counts = Counter[str]()
    iterator, total = iter(checked_sentences(lines)), len(lines) if isinstance(lines, Sized) else None
    try:
        with tqdm(total=total, desc="Translating", unit=" sentences", disable=not show_progress) as bar:
            for leg in legs(iterator, directions, chunk_size, pivot_for):
                chunk, line_directions = leg.lines, leg.directions
                layouts = [
                    preparation.layout(line, split_sentences, direction and direction[0])
                    for line, direction in zip(chunk, line_directions, strict=True)
                ]
                sentences = [
                    preparation.sentence(each, glossary, direction)
                    for layout, direction in zip(layouts, line_directions, strict=True)
                    for each in layout.sentences
                ]
                if bar.total is not None:
                    bar.total += len(sentences) - len(chunk) * leg.is_last
                texts = [sentence.given for sentence in sentences]
                ids, truncated = encode(tokenizer, texts, limit, [sentence.direction for sentence in sentences])
                placeholders = [sentence.placeholders for sentence in sentences]
                sources = list(map(Source, ids, translator.terms(texts, ids, limit), placeholders))
                results = translator.translate_chunk(sources, bar)
                if reranker is not None:
                    results = [hypotheses[:num_hypotheses] for hypotheses in reranker(texts, results)]
                if not leg.is_last:
                    results = [hypotheses[:1] for hypotheses in results]
                rows = iter(finished(model, tokenizer, sentences, results, with_alignments, max_tokens, limit))
                counts.update(lines=len(chunk) * leg.is_last, sentences=len(sentences), truncated=truncated)
                for layout, first in zip(layouts, leg.firsts, strict=True):
                    hypotheses = joined(layout, list(islice(rows, len(layout.sentences)))) or blank
                    if not leg.is_last:
                        leg.best.append(hypotheses[0])
                        continue
                    hypotheses = after(first, hypotheses)
                    counts.update(hypotheses[0].remarks or ())
                    yield hypotheses
    finally:
        _warn(counts, limit)


def translate_document(
    translate: Callable[..., Iterable[Sequence[Hypothesis]]], document: Document, **options: Any
) -> str | bytes:
    """Translate a document.

    Args:
        translate: `translate_lines` bound to a model, its tokenizer and options. It is called with the texts of the
            document, with `with_alignments` for those with inline tags, to move tags with their words.
        document: Result of `open_document`.
        **options: Further options of `translate`.

    Returns:
        The translation, as text or bytes like the document.

    Raises:
        ValueError: As for `translate_lines`.
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
    """Turn the model's outputs for prepared sentences into translations of the original ones.

    Without `with_alignments`, only sentences with an item to place are aligned. Other arguments are those of
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
        remarks = {*(each.remarks or ()), *(["corrected"] if "typos" in sentence.rules else ())}
        remarks |= {"short"} if is_suspicious(sentence.source, text) else set()
        results.append(
            replace(each, text=text, alignment=alignment if with_alignments else None, remarks=_sorted(remarks))
        )
    rows = iter(results)
    return [list(islice(rows, len(row))) for row in hypotheses]


def joined(layout: Layout, hypotheses: Sequence[Sequence[Hypothesis]]) -> list[Hypothesis]:
    """Return the hypotheses of a text, joining those of its sentences rank by rank."""
    return [_joined(layout, row) for row in zip(*hypotheses, strict=True)]


def _joined(layout: Layout, hypotheses: Sequence[Hypothesis]) -> Hypothesis:
    scores = [each.score for each in hypotheses if each.score is not None]
    # Sentences that were not translated have a score of 0.
    counted = list(filter(None, scores)) or scores[:1]
    found = {remark for each in hypotheses for remark in each.remarks or ()}
    if layout.is_cut:
        found.add("cut")
    alignment: list[Link] | None = None
    if hypotheses[0].alignment is not None:
        alignment, source, target = [], _WordCount(), _WordCount()
        gaps = zip(layout.gaps, layout.target_gaps([each.text for each in hypotheses]), strict=True)
        for (gap, target_gap), sentence, each in zip(gaps, layout.sentences, hypotheses, strict=False):
            firsts = source.add(gap, sentence), target.add(target_gap, each.text)
            alignment += [(firsts[0] + i, firsts[1] + k) for i, k in each.alignment or ()]
    return Hypothesis(
        layout.fill([each.text for each in hypotheses]),
        sum(counted) / len(counted) if counted else None,
        alignment,
        _sorted(found),
        next((each.pivot for each in hypotheses if each.pivot), None),
    )


def _sorted(remarks: Collection[str]) -> list[str] | None:
    return [remark for remark in REMARKS if remark in remarks] or None


class _WordCount:
    """Counts the words of a text as it is joined from pieces."""

    def __init__(self) -> None:
        self._count, self._is_open = 0, False

    def add(self, gap: str, piece: str) -> int:
        """Append a gap (white space and bullets) and a piece; return the index of the piece's first word."""
        goes_on = self._is_open and not gap and not piece[:1].isspace()
        first = self._count + len(gap.split()) - goes_on
        self._count = first + len(piece.split()) if piece else self._count
        self._is_open = not piece[-1].isspace() if piece else self._is_open and not gap
        return first


def _warn(counts: Counter[str], limit: int | None) -> None:
    if counts["truncated"]:
        logger.warning(
            f"{counts['truncated']} of {counts['sentences']} sentences had more than {limit} tokens and were truncated"
        )
    if found := [f"{counts[name]} {text}" for name, text in REMARKS.items() if counts[name]]:
        remarks_logger.warning(f"of {counts['lines']} lines, {' and '.join(found)}")


def checked_sentences(lines: Iterable[Any]) -> Iterator[str]:
    if isinstance(lines, str):
        raise ValueError("sentences is one string; pass a list of strings")
    for number, line in enumerate(lines, start=1):
        yield checked_sentence(line, number)


def checked_sentence(line: Any, number: int) -> str:
    """Return the line; raise a ValueError with its number if it is not a string or not valid Unicode."""
    if not isinstance(line, str):
        raise ValueError(f"sentence {number} is a {type(line).__name__}, not a string; pass strings")
    if surrogate := lone_surrogate(line):
        raise ValueError(f"sentence {number} has {surrogate}; read the text as UTF-8")
    return line


def cross_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str
) -> tuple[torch.Tensor, list[str], list[str]]:
    """Translate a sentence greedily and return the cross-attention of each target token.

    Args:
        model: Any encoder-decoder with `generate()` that returns cross-attentions.
        tokenizer: The tokenizer it was trained with.
        source: One sentence; truncated to the model's positions.

    Returns:
        Cross-attention of the last decoder layer, averaged over heads, (T, S), float32 on the CPU: row t predicted
        target token t. Then the S source and T target tokens, end tokens included.

    Raises:
        ValueError: The sentence is blank.
    """
    (ids,), _ = encode(tokenizer, [source], position_limit(model.config))
    if not ids:
        raise ValueError("the sentence is blank, so there is nothing to attend to; pass some text")
    input_ids = torch.tensor([ids], device=model.device)
    generate: Any = model.generate
    bounds = row_limit_options([OutputLimits(model)(len(ids))], model.device)
    with evaluation_mode(model):
        target = generate(input_ids, do_sample=False, **NO_BEAM_SEARCH, **bounds)
    target_ids = target[0, 1:].tolist()
    (weights,) = cross_attentions(model, [(ids, target_ids)])
    source_tokenizer = getattr(tokenizer, "source_tokenizer", tokenizer)
    source_tokens = [str(source_tokenizer.decode([token])) for token in ids]
    target_tokens = [str(tokenizer.decode([token])) for token in target_ids]
    return weights[-1].mean(0), source_tokens, target_tokens
