"""Translating text with a trained model: batches by tokens, results in the order of the input, n-best with scores."""

import math
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, cast

import torch
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from .loading import load_model, load_tokenizer

logger = logging.get_logger(__name__)

# Section 6.1: "we set the maximum output length during inference to input length + 50".
EXTRA_OUTPUT_TOKENS = 50

# Settings of `generate()` that bound the length of an output.
LENGTH_BOUNDS = ("max_length", "max_new_tokens")

# Lines of a stream that are held and sorted by length at a time.
CHUNK_SIZE = 2048

# Settings that mean nothing to a search without beams: left in place, `generate()` would warn of each.
NO_BEAMS = {"num_beams": 1, "length_penalty": None, "early_stopping": None}


@dataclass(frozen=True)
class Hypothesis:
    """One translation of a sentence.

    Attributes:
        text: The translation.
        score: What beam search ranks by: log-probability / length ** length_penalty, in nats, where the length
            counts the generated tokens with the end token; 0 for a blank sentence; None if not asked for. That of a
            sample is the model's own, whatever the temperature.
    """

    text: str
    score: float | None = None


def load(
    name: str, dtype: torch.dtype | None = None, device: str | None = None, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Return an encoder-decoder and its tokenizer.

    Args:
        name: Folder of both, or their name on the Hub.
        dtype: Of the weights; by default the one that they were saved in.
        device: For example "cuda:1"; by default the accelerator of the machine, if it has one.
        trust_remote_code: Whether to run Python code that comes with the model.

    Raises:
        ValueError: They cannot be loaded whole (see `load_model`), or the device cannot be used; names what it was.
    """
    # The model first: what it says of code that is not trusted is clearer.
    model = load_model(name, dtype=dtype or "auto", trust_remote_code=trust_remote_code)
    tokenizer = load_tokenizer(name, trust_remote_code=trust_remote_code)
    place = device or torch.accelerator.current_accelerator() or "cpu"
    try:
        # The type of PreTrainedModel does not tell of it.
        return cast(Any, model).to(place), tokenizer
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device {place} cannot be used: {error}") from error


def translate(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], **options: Any
) -> list[list[Hypothesis]]:
    """Translate sentences that fit in memory, and return their translations in their order.

    Args:
        model: Any encoder-decoder with `generate()`.
        tokenizer: The tokenizer it was trained with.
        sentences: Source sentences.
        **options: Those of `translate_lines`; `chunk_size` is all sentences by default.

    Returns:
        For each sentence, `num_hypotheses` hypotheses.

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
    chunk_size: int = CHUNK_SIZE,
    show_progress: bool = False,
    **generation_options: Any,
) -> Iterator[list[Hypothesis]]:
    """Translate a stream of sentences of any length, chunk by chunk, in order.

    The sentences of a chunk are decoded in batches of similar length. A sentence of white space only has empty
    translations. Sources with more tokens than `max_source_length`, or than the model has positions for, are cut,
    and a warning says in the end how many were.

    Args:
        model: Any encoder-decoder with `generate()`.
        tokenizer: The tokenizer it was trained with.
        lines: Source sentences; read as they are needed.
        num_hypotheses: Translations of each sentence; those of a beam search come the best first.
        max_tokens: Most source tokens in a batch, padding counted, times the number of beams or samples. With scores,
            output tokens count instead, since the scores of the whole vocabulary are kept for each of them.
        max_source_length: Cut longer sources to so many tokens, the end token kept; None cuts none.
        with_scores: Whether to return scores.
        chunk_size: Sentences to hold and sort at a time.
        show_progress: Whether to show a bar on standard error.
        **generation_options: Passed on to `generate()`: `num_beams`, `length_penalty`, `do_sample`, ... By default
            an output may have `EXTRA_OUTPUT_TOKENS` more tokens than the longest source of its batch. No bound goes
            beyond the positions that the model has.

    Yields:
        For each sentence, `num_hypotheses` hypotheses.

    Raises:
        ValueError: An option is out of its range, there are more hypotheses than beams, a sentence is no string, or a
            score is NaN.
    """
    search = Search(model, tokenizer, num_hypotheses, max_tokens, with_scores, generation_options)
    _at_least(1, chunk_size=chunk_size)
    if max_source_length is not None:
        _at_least(2, max_source_length=max_source_length)
    limit = tightest_limit(max_source_length, position_limit(model.config))
    read = cut = 0
    iterator, total = iter(strings(lines)), len(lines) if isinstance(lines, Sized) else None
    try:
        with tqdm(total=total, desc="Translating", unit=" sentences", disable=not show_progress) as bar:
            while chunk := list(islice(iterator, chunk_size)):
                ids, longer = encode(tokenizer, chunk, limit)
                read, cut = read + len(chunk), cut + longer
                yield from search.run(ids, bar)
    finally:
        if cut:
            logger.warning(f"{cut} of {read} sentences had more than {limit} tokens and were cut")


def encode(
    tokenizer: PreTrainedTokenizerBase, sentences: Sequence[str], max_source_length: int | None = None
) -> tuple[list[list[int]], int]:
    """Turn source sentences into ids.

    Args:
        tokenizer: Any tokenizer.
        sentences: Source sentences.
        max_source_length: Cut longer sources to so many tokens, the end token kept; None cuts none.

    Returns:
        The ids of each sentence, none for a blank one, and how many sentences were cut.
    """
    ids: list[list[int]] = [[] for _ in sentences]
    places = [i for i, sentence in enumerate(sentences) if sentence.strip()]

    def fill(places: list[int], **truncation: Any) -> None:
        if places:
            texts = [sentences[i] for i in places]
            rows = tokenizer(texts, return_attention_mask=False, verbose=False, **truncation)["input_ids"]
            for i, row in zip(places, rows, strict=True):
                ids[i] = row

    fill(places)
    longer = [i for i in places if max_source_length is not None and len(ids[i]) > max_source_length]
    # The tokenizer knows which special tokens a cut text must keep, and on which side it is to be cut.
    fill(longer, truncation=True, max_length=max_source_length)
    return ids, len(longer)


def strings(lines: Iterable[Any]) -> Iterator[str]:
    """Yield the lines, or say which of them is no text."""
    if isinstance(lines, str):
        raise ValueError("sentences is one string, whose characters would be the sentences; pass a list of strings")
    for number, line in enumerate(lines, start=1):
        yield checked_string(line, number)


def checked_string(line: Any, number: int) -> str:
    """Return the line of that number, counted from 1.

    Raises:
        ValueError: It is no text; says what it is.
    """
    if not isinstance(line, str):
        raise ValueError(f"sentence {number} is a {type(line).__name__}, not a string; pass strings")
    try:
        line.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"sentence {number} holds U+{ord(line[error.start]):04X} at position {error.start}, half of a "
            "surrogate pair and no character; read the text as UTF-8"
        ) from None
    return line


def checked_scores(scores: list[float]) -> list[float]:
    """Return the scores, or raise a ValueError if one is NaN: what was chosen by it is no translation."""
    if any(map(math.isnan, scores)):
        raise ValueError("a score is NaN: the model's numbers overflow in its dtype; compute in float32")
    return scores


def position_limit(config: Any) -> int | None:
    """Return the most tokens of a side that a model has positions for; None where it computes them for any."""
    if getattr(config, "position_embedding_type", None) == "sinusoidal":
        return None
    return getattr(config, "max_position_embeddings", None)


def tightest_limit(*lengths: int | None) -> int | None:
    """Return the least of several lengths, None standing for no limit."""
    return min((length for length in lengths if length is not None), default=None)


def _output_bounds(model: PreTrainedModel, options: dict[str, Any], longest: int) -> dict[str, int | None]:
    """Return the caller's bounds of an output, or one by the longest source, within the model's positions."""
    bounds = {name: options.get(name) for name in LENGTH_BOUNDS}
    if not any(bounds.values()):
        # The other bound stays None: a model's own max_new_tokens would win over it.
        bounds["max_length"] = longest + EXTRA_OUTPUT_TOKENS
    limit = position_limit(model.config)
    return {name: min(bound, limit) if bound and limit else bound for name, bound in bounds.items()}


def _at_least(minimum: int, **arguments: int) -> None:
    for name, value in arguments.items():
        if value < minimum:
            raise ValueError(f"{name} is {value}; it must be at least {minimum}")


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Switch dropout and gradients off for a while."""
    training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(training)


class Search:
    """Decodes one chunk after the other by the same settings; its arguments are those of `translate_lines`."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        num_hypotheses: int,
        max_tokens: int,
        with_scores: bool,
        options: dict[str, Any],
    ) -> None:
        if "generation_config" in options:
            raise ValueError("generation_config is not taken; pass its settings by name, such as num_beams=4")
        self.model, self.tokenizer, self.options = model, tokenizer, options
        # The type of PreTrainedModel does not tell of it.
        self.generate: Any = model.generate
        self.num_hypotheses, self.max_tokens, self.with_scores = num_hypotheses, max_tokens, with_scores
        self.num_beams = num_beams = self._setting("num_beams", 1)
        _at_least(1, num_hypotheses=num_hypotheses, max_tokens=max_tokens, num_beams=num_beams)
        if not math.isfinite(length_penalty := self._setting("length_penalty", 1.0)):
            raise ValueError(f"length_penalty is {length_penalty}; it must be finite, or no score can be compared")
        if num_hypotheses > num_beams and (num_beams > 1 or not self._setting("do_sample", False)):
            raise ValueError(f"{num_hypotheses} hypotheses need as many beams, but num_beams is {num_beams}; raise it")
        self.rows_per_sentence = max(num_beams, num_hypotheses)

    def run(self, ids: list[list[int]], bar: tqdm) -> list[list[Hypothesis]]:
        """Return the hypotheses of each sentence, given by its ids."""
        blank = Hypothesis("", 0.0 if self.with_scores else None)
        results = [[blank] * self.num_hypotheses for _ in ids]
        # From long to short, so that what needs the most memory comes first.
        order = sorted((i for i, row in enumerate(ids) if row), key=lambda i: -len(ids[i]))
        bar.update(len(ids) - len(order))
        while order:
            size = self._batch_size(len(ids[order[0]]))
            places, order = order[:size], order[size:]
            hypotheses = iter(self._translate_batch([ids[i] for i in places]))
            for i in places:
                results[i] = list(islice(hypotheses, self.num_hypotheses))
            bar.update(len(places))
        return results

    def _setting(self, name: str, default: Any) -> Any:
        """Return what `generate()` uses: the option, else the model's own setting, else its default."""
        found = (self.options.get(name), getattr(self.model.generation_config, name, None))
        return next((value for value in found if value is not None), default)

    def _batch_size(self, longest: int) -> int:
        """Return how many sentences to decode at a time."""
        bounds = _output_bounds(self.model, self.options, longest).values()
        outputs = max(filter(None, bounds)) if self.with_scores else 0
        return max(1, self.max_tokens // (self.rows_per_sentence * max(longest, outputs)))

    def _translate_batch(self, ids: list[list[int]]) -> list[Hypothesis]:
        """Return the hypotheses of all sentences of a batch, one after the other."""
        sequences, scores = self.generate_batch(ids)
        texts = self.tokenizer.batch_decode(sequences, skip_special_tokens=True)
        return [Hypothesis(text, score) for text, score in zip(texts, scores, strict=True)]

    def generate_batch(self, ids: list[list[int]]) -> tuple[torch.Tensor, Sequence[float | None]]:
        """Return the target ids (B * num_hypotheses, T) of sources that are not blank, and scores."""
        input_ids = pad_sequence(
            [torch.tensor(row) for row in ids], batch_first=True, padding_value=self.tokenizer.pad_token_id or 0
        )
        lengths = torch.tensor([len(row) for row in ids])
        beams = NO_BEAMS if self.num_beams == 1 else {}
        with evaluating(self.model):
            output = self.generate(
                input_ids=input_ids.to(self.model.device),
                attention_mask=(torch.arange(input_ids.shape[1]) < lengths[:, None]).long().to(self.model.device),
                num_return_sequences=self.num_hypotheses,
                return_dict_in_generate=True,
                output_scores=self.with_scores and self.num_beams > 1,
                output_logits=self.with_scores and self.num_beams == 1,
                **self.options | beams | _output_bounds(self.model, self.options, int(lengths.max())),
            )
        if not self.with_scores:
            return output.sequences, [None] * len(output.sequences)
        return output.sequences, checked_scores(self._scores(output))

    def _scores(self, output: Any) -> list[float]:
        """Return what beam search ranked the sequences by, or the same quantity for a search without beams."""
        if getattr(output, "sequences_scores", None) is not None:
            return output.sequences_scores.tolist()
        # `compute_transition_scores` would take the source's vocabulary size for the target's.
        tokens = output.sequences[:, -len(output.logits) :]
        steps = zip(output.logits, tokens.split(1, dim=1), strict=True)
        log_probs = torch.cat([logits.float().log_softmax(-1).gather(1, token) for logits, token in steps], dim=1)
        forced = self._setting("forced_bos_token_id", None)
        if forced is not None and output.sequences.shape[1] == tokens.shape[1] + 1:
            # After a lone start token nothing else could follow: certain, as in a beam search.
            log_probs[:, 0] = log_probs[:, 0].masked_fill(tokens[:, 0] == forced, 0.0)
        ends = torch.tensor(self._setting("eos_token_id", []), dtype=tokens.dtype, device=tokens.device)
        is_end = torch.isin(tokens, ends).long()
        generated = is_end.cumsum(1) == is_end  # up to the first end token, and with it
        total = log_probs.masked_fill(~generated, 0.0).sum(1)
        return (total / generated.sum(1) ** self._setting("length_penalty", 1.0)).tolist()


def cross_attention(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str
) -> tuple[torch.Tensor, list[str], list[str]]:
    """Translate a sentence greedily and return what its target tokens attended to.

    Args:
        model: Any encoder-decoder with `generate()` that returns cross-attentions.
        tokenizer: The tokenizer it was trained with.
        source: One sentence; cut if it is longer than the model's positions.

    Returns:
        The last decoder layer's cross-attention, averaged over its heads, (T, S), on the CPU in float32: row t is
        what produced target token t; the S source and T target tokens, their end tokens included.

    Raises:
        ValueError: The sentence is blank.
    """
    (ids,), _ = encode(tokenizer, [source], position_limit(model.config))
    if not ids:
        raise ValueError("the sentence is blank, so nothing can be attended to; pass some text")
    input_ids = torch.tensor([ids], device=model.device)
    generate: Any = model.generate
    implementation = model.config._attn_implementation
    model.set_attn_implementation("eager")  # the only one that returns weights
    try:
        with evaluating(model):
            target = generate(input_ids, do_sample=False, **NO_BEAMS, **_output_bounds(model, {}, len(ids)))
            output = model(input_ids=input_ids, decoder_input_ids=target[:, :-1], output_attentions=True)
    finally:
        model.set_attn_implementation(implementation)
    source_side = getattr(tokenizer, "source_tokenizer", tokenizer)
    source_tokens = [str(source_side.decode([token])) for token in ids]
    target_tokens = [str(tokenizer.decode([token])) for token in target[0, 1:].tolist()]
    return output.cross_attentions[-1][0].mean(0).float().cpu(), source_tokens, target_tokens


__all__ = [
    "Hypothesis",
    "Search",
    "checked_scores",
    "checked_string",
    "cross_attention",
    "encode",
    "evaluating",
    "load",
    "position_limit",
    "strings",
    "translate",
    "translate_lines",
]
