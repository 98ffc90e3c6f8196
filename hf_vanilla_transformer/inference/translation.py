"""Translate lines of any length in input order, with scores and alignments."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import islice, repeat
from os import PathLike
from re import Pattern
from typing import Any, cast

import torch
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.features import Features
from ..documents import Document
from ..errors import lone_surrogate, one_line, shorten
from ..options import POSITIVE, check_range
from ..pretrained.languages import Languages, directions_of
from ..pretrained.loading import load_model, load_tokenizer
from ..pretrained.teacher_forcing import cross_attentions, position_limit
from .decoding import Decoder, Hypothesis
from .ensemble import VanillaTransformerEnsemble
from .glossary import Glossary
from .preparation import Preparation, Prepared, SplitSentences, encode
from .translator import MAX_TOKENS, Reranker, Translator, remark_text, sorted_remarks

logger = logging.get_logger(__name__)
remarks_logger = logging.get_logger(f"{__name__}.remarks")

# Lines of a stream to hold and sort by length at a time.
CHUNK_SIZE = 2048


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
    max_tokens: int = MAX_TOKENS,
    max_source_length: int | None = None,
    with_scores: bool = False,
    with_alignments: bool | Iterable[bool] = False,
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
        max_tokens: Most source tokens in a batch, padding included, times the number of beams or samples. With scores
            of greedy search or samples, output tokens count instead, since scores of the whole vocabulary are kept.
        max_source_length: Truncate sources to this many tokens, end token included; None for no truncation.
        with_scores: Whether to return scores.
        with_alignments: Whether to return alignments, from `word_alignments`; one for all lines, or one for each.
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
    check_range(POSITIVE, chunk_size=chunk_size)
    directions, options = directions_of(tokenizer, src_lang, tgt_lang, may_pivot=True)
    translator = Translator(
        model,
        tokenizer,
        Preparation(model, tokenizer, protect, raw, source_prefix, rules),
        num_hypotheses=num_hypotheses,
        max_tokens=max_tokens,
        max_source_length=max_source_length,
        with_scores=with_scores,
        with_alignments=bool(with_alignments),
        glossary=glossary,
        reranker=reranker,
        split_sentences=split_sentences,
        pivot=pivot,
        **options | generation_options,
    )
    are_aligned = _per_line(with_alignments)
    counts, remarks = Counter[str](), Counter[str]()
    iterator, total = (
        iter(checked_sentences(lines, Features.of(tokenizer))),
        len(lines) if isinstance(lines, Sized) else None,
    )
    try:
        with tqdm(total=total, desc="Translating", unit=" sentences", disable=not show_progress) as bar:
            while chunk := list(islice(iterator, chunk_size)):
                texts = translator.prepare(chunk, directions, are_aligned)
                sentences = [sentence for text in texts for sentence in text.sentences]
                if bar.total is not None:
                    bar.total += len(sentences) - len(texts)
                rows = iter(translator.translate(sentences, bar))
                counts["lines"] += len(texts)
                for text in texts:
                    hypotheses = translator.join(text, islice(rows, len(text.sentences)))
                    remarks.update(hypotheses[0].remarks or ())
                    yield hypotheses
    finally:
        _warn(counts + translator.counts, remarks, translator.max_source_length)


def translate_document(
    translate: Callable[..., Iterable[Sequence[Hypothesis]]], document: Document, **options: Any
) -> str | bytes:
    """Translate a document.

    Args:
        translate: `translate_lines` bound to a model, its tokenizer and options. It is called with the texts of the
            document, and `with_alignments` for those with inline tags, to move tags with their words.
        document: Result of `open_document`.
        **options: Further options of `translate`.

    Returns:
        The translation, as text or bytes like the document.

    Raises:
        ValueError: As for `translate_lines`.
    """
    has_tags = [bool(segment.tags) for segment in document.segments]
    texts = [segment.text for segment in document.segments]
    rows = translate(texts, with_alignments=any(has_tags) and has_tags, **options)
    return document.fill((best.text, best.alignment) for best, *_ in rows)


def _per_line(with_alignments: bool | Iterable[bool]) -> Iterator[bool]:
    if isinstance(with_alignments, str):
        raise ValueError(f"`with_alignments` is {with_alignments!r}; pass True or False, or one for each line")
    yield from with_alignments if isinstance(with_alignments, Iterable) else repeat(bool(with_alignments))
    raise ValueError("`with_alignments` has fewer values than there are lines; pass one for all, or one for each")


def _warn(counts: Counter[str], remarks: Counter[str], limit: int | None) -> None:
    if counts["truncated"]:
        logger.warning(
            f"{counts['truncated']} of {counts['sentences']} sentences had more than {limit} tokens and were truncated"
        )
    if remarks:
        texts = [f"{remarks[remark]} {remark_text(remark)}" for remark in sorted_remarks(remarks)]
        remarks_logger.warning(f"of {counts['lines']} lines, {shorten(' and '.join(texts))}")


def checked_sentences(lines: Iterable[Any], features: Features | None = None) -> Iterator[str]:
    if isinstance(lines, str):
        raise ValueError("sentences is one string; pass a list of strings")
    for number, line in enumerate(lines, start=1):
        yield checked_sentence(line, number, features)


def checked_sentence(line: Any, number: int, features: Features | None = None) -> str:
    """Return the line; raise a ValueError with its number if it is no string, not valid Unicode, or lacks features."""
    if not isinstance(line, str):
        raise ValueError(f"sentence {number} is a {type(line).__name__}, not a string; pass strings")
    if surrogate := lone_surrogate(line):
        raise ValueError(f"sentence {number} has {surrogate}; read the text as UTF-8")
    if features and "\n" not in line and line.strip():
        features.check(line, f"sentence {number}")
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
    (ids,) = encode(tokenizer, [source], position_limit(model.config))
    if not ids:
        raise ValueError("the sentence is blank, so there is nothing to attend to; pass some text")
    decoder = Decoder(model, tokenizer, 1, MAX_TOKENS, False, {"num_beams": 1, "do_sample": False})
    ((generated,),) = decoder.decode_batch([Prepared(source, ids=ids)])
    target_ids = generated.ids[1:]
    (weights,) = cross_attentions(model, [(ids, target_ids)])
    source_tokenizer = getattr(tokenizer, "source_tokenizer", tokenizer)
    # Tags begin with a tab.
    source_tokens = [str(source_tokenizer.decode([token])).removeprefix("\t") for token in ids]
    target_tokens = [str(tokenizer.decode([token])) for token in target_ids]
    return weights[-1].mean(0), source_tokens, target_tokens
