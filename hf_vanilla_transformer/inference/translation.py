"""Translation of text: batches by token budget, results in input order, n-best lists with scores.

Shape legend: B batch, S source length, T target length, n hypotheses a sentence, V target vocabulary.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from os import PathLike
from typing import Any, cast

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import GenerationMixin, LogitsProcessor, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.alignments import Link, check_fast
from ..errors import lone_surrogate, one_line, unknown_words
from ..options import POSITIVE, Range, SearchOptions, check_range, ranges
from .alignment import word_alignments
from .attention import cross_attentions
from .constrained_search import Terms, TermVocabulary, constrained_beam_search
from .ensemble import VanillaTransformerEnsemble
from .glossary import Glossary
from .loading import load_model, load_tokenizer
from .output_limits import given_bounds, output_limit, row_limit_options
from .teacher_forcing import evaluation_mode, position_limit, tightest_limit

logger = logging.get_logger(__name__)

NAN_SCORE = "a score is NaN: activations overflow the model's dtype; compute in float32"

# Fewest beams of a sentence with terms of a glossary.
MIN_CONSTRAINED_BEAMS = 4

# Sentences of a stream to hold and sort by length at a time.
CHUNK_SIZE = 2048

# Tokens of the vocabulary whose scores are looked at; activations of NaN make those of all tokens NaN.
CHECKED_TOKENS = 64

# Without beams, `generate()` warns of each of these that the model has set.
NO_BEAM_SEARCH = {"num_beams": 1, "length_penalty": None, "early_stopping": None}


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Attributes:
        text: The translation.
        score: What beam search ranks by: log-probability / length ** length_penalty, in nats, where the length counts
            generated tokens including the end token. 0 for a blank sentence; None if not asked for. For a sample, the
            model's own probabilities count, whatever the temperature. A reranker puts its own score in its place.
        alignment: Links (source word, target word) between words that white space separates, counted from 0; None if
            not asked for.
    """

    text: str
    score: float | None = None
    alignment: list[Link] | None = None


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
    **generation_options: Any,
) -> Iterator[list[Hypothesis]]:
    """Translate a stream of sentences of any length, chunk by chunk, in order.

    Within a chunk, sentences of similar length are decoded together. A sentence of white space only has empty
    translations. Sources longer than `max_source_length` or the model's positions are truncated; a warning at the end
    counts them.

    Args:
        model: Any encoder-decoder with `generate()`.
        tokenizer: The tokenizer it was trained with.
        lines: Source sentences, read as they are needed.
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
        **generation_options: Passed on to `generate()`: `num_beams`, `length_penalty`, `do_sample`, ... By default an
            output may have `EXTRA_OUTPUT_TOKENS` more tokens than its source. Bounds never exceed the model's
            positions.

    Yields:
        `num_hypotheses` hypotheses for each sentence.

    Raises:
        ValueError: An option is out of range, there are more hypotheses than beams, a sentence is not a string, a
            score is NaN, the tokenizer cannot align, there is only one hypothesis to rerank, or a glossary cannot be
            followed: by sampling, in a model that is none of transformers, with a vocabulary that cannot write a
            translation, or within the length bound.
    """
    if with_alignments:
        check_fast(tokenizer)
    translator = BatchTranslator(
        model, tokenizer, num_hypotheses, max_tokens, with_scores or reranker is not None, generation_options, glossary
    )
    if reranker is not None:
        translator.num_hypotheses = max(num_hypotheses, translator.num_beams)
        if translator.num_hypotheses == 1:
            raise ValueError("reranking needs several hypotheses, but `num_beams` is 1; raise it")
    check_range(POSITIVE, chunk_size=chunk_size)
    check_range(Range(ge=2), max_source_length=max_source_length)
    limit = tightest_limit(max_source_length, position_limit(model.config))
    num_read = num_truncated = 0
    iterator, total = iter(checked_sentences(lines)), len(lines) if isinstance(lines, Sized) else None
    try:
        with tqdm(total=total, desc="Translating", unit=" sentences", disable=not show_progress) as bar:
            while chunk := list(islice(iterator, chunk_size)):
                ids, truncated = encode(tokenizer, chunk, limit)
                num_read, num_truncated = num_read + len(chunk), num_truncated + truncated
                results = translator.translate_chunk(ids, bar, translator.terms(chunk, ids, limit))
                if reranker is not None:
                    results = [hypotheses[:num_hypotheses] for hypotheses in reranker(chunk, results)]
                if with_alignments:
                    results = align_hypotheses(model, tokenizer, chunk, results, max_tokens, limit)
                yield from results
    finally:
        if num_truncated:
            logger.warning(f"{num_truncated} of {num_read} sentences had more than {limit} tokens and were truncated")


def align_hypotheses(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[str],
    hypotheses: Sequence[Sequence[Hypothesis]],
    max_tokens: int = 4096,
    max_source_length: int | None = None,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each sentence with alignments; takes the arguments of `translate_lines`."""
    sources = [sentence for sentence, own in zip(sentences, hypotheses, strict=True) for _ in own]
    targets = [hypothesis.text for own in hypotheses for hypothesis in own]
    alignments = iter(
        word_alignments(model, tokenizer, sources, targets, max_tokens=max_tokens, max_source_length=max_source_length)
    )
    return [[replace(hypothesis, alignment=next(alignments)) for hypothesis in own] for own in hypotheses]


def encode(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_source_length: int | None = None
) -> tuple[list[list[int]], int]:
    """Tokenize source sentences.

    Args:
        tokenizer: Any tokenizer.
        sentences: Source sentences.
        max_source_length: Truncate sources to this many tokens, end token included; None truncates none.

    Returns:
        The ids of each sentence, none for a blank one, and how many sentences were truncated.
    """
    ids: list[list[int]] = [[] for _ in sentences]

    def tokenize(indices: list[int], **truncation: Any) -> None:
        if indices:
            texts = [sentences[i] for i in indices]
            with unknown_words(tokenizer, texts):
                rows = tokenizer(texts, return_attention_mask=False, verbose=False, **truncation)["input_ids"]
            for i, row in zip(indices, rows, strict=True):
                ids[i] = row

    tokenize([i for i, sentence in enumerate(sentences) if sentence.strip()])
    too_long = [i for i, row in enumerate(ids) if max_source_length is not None and len(row) > max_source_length]
    # Only the tokenizer knows which special tokens to keep, and which side to truncate.
    tokenize(too_long, truncation=True, max_length=max_source_length)
    return ids, len(too_long)


def checked_sentences(lines: Iterable[Any]) -> Iterator[str]:
    """Yield the lines, each checked by `checked_sentence`."""
    if isinstance(lines, str):
        raise ValueError("sentences is one string, whose characters would be the sentences; pass a list of strings")
    for number, line in enumerate(lines, start=1):
        yield checked_sentence(line, number)


def checked_sentence(line: Any, number: int) -> str:
    """Return a line if it is text that can be encoded.

    Raises:
        ValueError: It is not; names the line by its number, counted from 1.
    """
    if not isinstance(line, str):
        raise ValueError(f"sentence {number} is a {type(line).__name__}, not a string; pass strings")
    if surrogate := lone_surrogate(line):
        raise ValueError(f"sentence {number} has {surrogate}; read the text as UTF-8")
    return line


def checked_scores(scores: list[float]) -> list[float]:
    """Return the scores, or raise a ValueError if one is NaN: a search guided by NaN finds no translation."""
    if any(map(math.isnan, scores)):
        raise ValueError(NAN_SCORE)
    return scores


class RefuseNaN(LogitsProcessor):
    """Raises a ValueError where scores (N, V) are NaN: rubbish would be decoded from them.

    Either at once, or, since every look at an accelerator waits for it, when `check` is called after the search.
    """

    # Our beam search gives it a few rows at a time.
    only_reads = True

    def __init__(self, at_once: bool) -> None:
        self.at_once, self.may_be_recorded = at_once, not at_once
        self._found: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        # Several, as some tokens may be barred.
        found = scores[:, :: 1 + scores.shape[1] // CHECKED_TOKENS].isnan().any()
        # In place, as a recorded step expects it.
        self._found = found if self._found is None else self._found.logical_or_(found)
        if self.at_once:
            self.check()
        return scores

    def check(self) -> None:
        """Raise a ValueError if any score so far was NaN."""
        if self._found is not None and self._found:
            raise ValueError(NAN_SCORE)


def decoding_session(model: Any) -> AbstractContextManager[None]:
    """Return a context in which calls of `generate()` share what they find out about the model's weights, if any."""
    return model.decoding_session() if hasattr(model, "decoding_session") else nullcontext()


class BatchTranslator:
    """Decodes batches with fixed settings; its arguments are those of `translate_lines`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        num_hypotheses: int,
        max_tokens: int,
        with_scores: bool,
        options: dict[str, Any],
        glossary: Glossary | None = None,
    ) -> None:
        if "generation_config" in options:
            raise ValueError("`generation_config` is not accepted; pass its settings by name, such as num_beams=4")
        self.model, self.tokenizer, self.options = model, tokenizer, options
        # PreTrainedModel hides the type of `generate`.
        self.generate: Any = model.generate
        self.num_hypotheses, self.max_tokens, self.with_scores = num_hypotheses, max_tokens, with_scores
        self.num_beams = num_beams = self._setting("num_beams", 1)
        check_range(POSITIVE, num_hypotheses=num_hypotheses, max_tokens=max_tokens, num_beams=num_beams)
        check_range(ranges(SearchOptions)["length_penalty"], length_penalty=self._setting("length_penalty", 1.0))
        if num_hypotheses > num_beams and (num_beams > 1 or not self._setting("do_sample", False)):
            raise ValueError(
                f"{num_hypotheses} hypotheses need as many beams, but `num_beams` is {num_beams}; raise it"
            )
        # PEFT wraps them.
        self._takes_processors = isinstance(getattr(model, "get_base_model", lambda: model)(), GenerationMixin)
        self._glossary, self._vocabulary = glossary, None
        if glossary is not None and glossary.entries:
            if not isinstance(model, GenerationMixin):
                raise ValueError(
                    "a glossary needs a model of transformers; leave it out, or use `backend=transformers`"
                )
            if self._setting("do_sample", False):
                raise ValueError("a glossary is followed by beam search, not by sampling; leave out `do_sample`")
            self._vocabulary = TermVocabulary.of(tokenizer)
            self._vocabulary.phrases(tokenizer, glossary.translations())

    def terms(self, sentences: Sequence[str], ids: list[list[int]], limit: int | None = None) -> list[Terms | None]:
        """Return the terms of each sentence, or None if it has none; `limit` as it was for the ids."""
        if self._glossary is None or self._vocabulary is None:
            return [None] * len(sentences)
        source_tokenizer = getattr(self.tokenizer, "source_tokenizer", self.tokenizer)
        found: list[Terms | None] = []
        for sentence, row in zip(sentences, ids, strict=True):
            # No term that may have been cut off.
            if len(row) == limit:
                sentence = str(source_tokenizer.decode(row, skip_special_tokens=True))
            translations = self._glossary.translations_in(sentence) if row else []
            phrases = self._vocabulary.phrases(self.tokenizer, translations)
            found.append(Terms(self._vocabulary, phrases) if phrases else None)
        return found

    def translate_chunk(
        self, ids: list[list[int]], bar: tqdm, terms: Sequence[Terms | None] | None = None
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, given by its ids and its terms."""
        terms = terms or [None] * len(ids)
        blank = Hypothesis("", 0.0 if self.with_scores else None)
        results = [[blank] * self.num_hypotheses for _ in ids]
        bar.update(sum(not row for row in ids))
        with decoding_session(self.model):
            for indices in self._batches(ids, terms):
                constraints = [each for i in indices if (each := terms[i])]
                sequences, scores = self.generate_batch([ids[i] for i in indices], constraints)
                texts = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
                hypotheses = iter(Hypothesis(text, score) for text, score in zip(texts, scores, strict=True))
                for i in indices:
                    results[i] = list(islice(hypotheses, self.num_hypotheses))
                bar.update(len(indices))
        return results

    def _batches(self, ids: list[list[int]], terms: Sequence[Terms | None]) -> Iterator[list[int]]:
        """Yield the indices of sentences to decode together, which all have terms, and as many beams, or none."""
        groups: dict[int, list[int]] = {}
        for i in (i for i, row in enumerate(ids) if row):
            groups.setdefault(self._constrained_beams(terms[i]), []).append(i)
        for num_beams, group in sorted(groups.items()):
            # From long to short: if memory runs out, it does so at once.
            order = sorted(group, key=lambda i: -len(ids[i]))
            while order:
                size = self.batch_size(len(ids[order[0]]), num_beams)
                yield order[:size]
                order = order[size:]

    def _constrained_beams(self, terms: Terms | None) -> int:
        """Return the number of beams to search for terms with; 0 if there are none."""
        if terms is None:
            return 0
        num_beams = max(self.num_beams, MIN_CONSTRAINED_BEAMS)
        # Hypotheses that miss more and fewer tokens share the beams. Only two numbers, so that batches are few.
        return num_beams if terms.start.needed <= num_beams else num_beams + num_beams // 2

    def _setting(self, name: str, default: Any) -> Any:
        """Return the setting `generate()` uses: the option, else the model's own, else the default."""
        candidates = (self.options.get(name), getattr(self.model.generation_config, name, None))
        return next((value for value in candidates if value is not None), default)

    def batch_size(self, longest: int, num_beams: int = 0) -> int:
        """Return how many sources of at most `longest` tokens to decode at a time; `num_beams` if they have terms."""
        bounds = filter(None, given_bounds(self.options, self.model.config).values())
        outputs = max(bounds, default=output_limit(longest, self.model.config)) if self.with_scores else 0
        rows = max(self.num_beams, self.num_hypotheses)
        return max(1, self.max_tokens // (max(rows, num_beams) * max(longest, outputs)))

    def generate_batch(
        self, ids: list[list[int]], terms: Sequence[Terms] = ()
    ) -> tuple[torch.Tensor, Sequence[float | None]]:
        """Return target ids (B * n, T) and scores of sources that are not blank, all of them with terms or none."""
        bounds: dict[str, Any] = given_bounds(self.options, self.model.config)
        limits = [] if bounds else self._limits(ids, terms)
        input_ids = pad_sequence(
            [torch.tensor(row) for row in ids], batch_first=True, padding_value=self.tokenizer.pad_token_id or 0
        )
        self._check_ids(int(input_ids.max()))
        lengths = torch.tensor([len(row) for row in ids])
        num_beams = max(map(self._constrained_beams, terms), default=self.num_beams)
        options = self.options | (NO_BEAM_SEARCH if num_beams == 1 else {})
        if terms:
            options |= {
                "num_beams": num_beams,
                "custom_generate": constrained_beam_search,
                "terms": terms,
                # The beams that terms add do not prolong the search.
                "num_finished": max(self.num_beams, MIN_CONSTRAINED_BEAMS),
            }
        # Drawing from NaN would end the process's use of a GPU.
        refuse_nan = RefuseNaN(at_once=self.model.device.type == "cpu" or self._setting("do_sample", False))
        forced_end = None
        if self._takes_processors:
            # The last one, after those of the caller.
            options["logits_processor"] = [*(options.get("logits_processor") or ()), refuse_nan]
            forced_end = self._setting("forced_eos_token_id", None)
        if limits:
            bounds = row_limit_options(limits, self.model.device, forced_end, **options)
        with evaluation_mode(self.model):
            output = self.generate(
                input_ids=input_ids.to(self.model.device),
                attention_mask=(torch.arange(input_ids.shape[1]) < lengths[:, None]).long().to(self.model.device),
                num_return_sequences=self.num_hypotheses,
                # Without scores, our beam search selects tokens in one pass.
                return_dict_in_generate=self.with_scores,
                output_scores=self.with_scores and num_beams > 1,
                output_logits=self.with_scores and num_beams == 1,
                **options | bounds,
            )
        refuse_nan.check()
        sequences = output.sequences if self.with_scores else output
        # Without an end token, a row goes on until the longest has ended.
        rows = torch.tensor(limits or [sequences.shape[1]] * len(ids)).repeat_interleave(self.num_hypotheses)
        is_output = (torch.arange(sequences.shape[1]) < rows[:, None]).to(sequences.device)
        scores = checked_scores(self._scores(output, is_output)) if self.with_scores else [None] * len(sequences)
        return sequences.where(is_output, self.tokenizer.pad_token_id or 0), scores

    def _limits(self, ids: list[list[int]], terms: Sequence[Terms]) -> list[int]:
        """Return the most tokens of each sentence's output."""
        extras = [each.start.needed for each in terms] or [0] * len(ids)
        return [output_limit(len(row), self.model.config, extra) for row, extra in zip(ids, extras, strict=True)]

    def _check_ids(self, largest: int) -> None:
        embeddings: Any = self.model.get_input_embeddings() if isinstance(self.model, PreTrainedModel) else None
        if embeddings is not None and largest >= (size := len(embeddings.weight)):
            raise ValueError(
                f"`tokenizer` gives the id {largest}, but `model` has {size} source tokens; use the tokenizer that "
                "the model was trained with"
            )

    def _scores(self, output: Any, is_output: torch.Tensor) -> list[float]:
        """Return what beam search ranks by, also where there are no beams; tokens count if `is_output` (N, T)."""
        if getattr(output, "sequences_scores", None) is not None:
            return output.sequences_scores.tolist()
        # `compute_transition_scores` would take the source's vocabulary size for the target's.
        tokens = output.sequences[:, -len(output.logits) :]
        steps = zip(output.logits, tokens.split(1, dim=1), strict=True)
        log_probs = torch.cat([logits.float().log_softmax(-1).gather(1, token) for logits, token in steps], dim=1)
        forced = self._setting("forced_bos_token_id", None)
        if forced is not None and output.sequences.shape[1] == tokens.shape[1] + 1:
            # Right after the start token nothing else could follow: certain, as in a beam search.
            log_probs[:, 0] = log_probs[:, 0].masked_fill(tokens[:, 0] == forced, 0.0)
        ends = torch.tensor(self._setting("eos_token_id", []), dtype=tokens.dtype, device=tokens.device)
        is_end = torch.isin(tokens, ends).long()
        generated = (is_end.cumsum(1) == is_end) & is_output[:, -tokens.shape[1] :]  # through the first end token
        total = log_probs.masked_fill(~generated, 0.0).sum(1)
        return (total / generated.sum(1) ** self._setting("length_penalty", 1.0)).tolist()


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


__all__ = [
    "BatchTranslator",
    "Hypothesis",
    "Reranker",
    "align_hypotheses",
    "checked_scores",
    "checked_sentence",
    "checked_sentences",
    "cross_attention",
    "encode",
    "load",
    "position_limit",
    "tightest_limit",
    "translate",
    "translate_lines",
]
