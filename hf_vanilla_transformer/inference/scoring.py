"""Score given translations: log-probabilities of their tokens under a model.

Shape legend: B batch, T target length.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.features import Features
from ..errors import unknown_words
from ..options import POSITIVE, check_range
from ..pretrained.languages import Direction, Languages, directions_of, tag_sources
from ..pretrained.teacher_forcing import (
    IdPair,
    batches_of_pairs,
    evaluation_mode,
    force_targets,
    position_limit,
    start_token_id,
)
from .decoding import checked_scores

# Text, or ids as returned by `generate()`.
Target = str | Sequence[int] | torch.Tensor


@dataclass(frozen=True)
class Score:
    """Probability of one translation under a model.

    Attributes:
        token_ids: Ids of the T target tokens, end token included.
        tokens: The same tokens as strings of the target vocabulary.
        token_log_probs: Log-probability of each, given the source and the preceding tokens, in nats.
    """

    token_ids: list[int]
    tokens: list[str]
    token_log_probs: list[float]

    @property
    def log_prob(self) -> float:
        """Log-probability of the translation, the sum over its tokens, in nats."""
        return math.fsum(self.token_log_probs)

    @property
    def perplexity(self) -> float:
        """Inverse of the geometric mean of the tokens' probabilities."""
        return perplexity(self.log_prob, len(self.token_ids))


def perplexity(log_prob: float, tokens: int) -> float:
    """Return exp(-log_prob / tokens), the inverse geometric mean probability; infinite on overflow."""
    try:
        return math.exp(-log_prob / tokens)
    except OverflowError:
        return math.inf


def score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[Target],
    *,
    max_tokens: int = 4096,
    forced_bos_token_id: int | None = None,
    truncation: bool = False,
    src_lang: Languages = None,
    tgt_lang: Languages = None,
) -> list[Score]:
    """Score each target as a translation of its source.

    The result equals what `generate()` reports for its own output: the sum of transition scores, which is a beam's
    score with `length_penalty=0`. A first token forced on `generate()` counts as certain. Pass output of `generate()`
    as ids: tokenizing its text may split it differently.

    Args:
        model: Any encoder-decoder with `generate()`.
        tokenizer: The tokenizer it was trained with.
        sources: Source sentences.
        targets: Text or ids for each source. Ids may include the start token; ids after the end token are ignored.
        max_tokens: Most tokens in a batch, padding included, for sources and targets each.
        forced_bos_token_id: The first token forced on `generate()`, such as the target language; by default that of
            the model's generation settings.
        truncation: Whether to truncate sources and targets to the model's positions.
        src_lang: Source language, as for `translate_lines`.
        tgt_lang: Target language, likewise.

    Returns:
        A score for each pair, in order.

    Raises:
        ValueError: The lists differ in length, an item is not text or has no tokens, an item exceeds the model's
            positions without `truncation`, or a score is NaN. Messages about an item name it.
    """
    if isinstance(sources, str) or isinstance(targets, str):
        raise ValueError("`sources` and `targets` must be lists of sentences; put a single sentence into a list")
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources but {len(targets)} targets; pass one target per source")
    check_range(POSITIVE, max_tokens=max_tokens)
    limit = position_limit(model.config)
    directions, options = directions_of(tokenizer, src_lang, tgt_lang)
    pairs = [
        (
            _checked_ids(_source_ids(tokenizer, source, number, direction), f"source {number}", limit, truncation),
            _checked_ids(_target_ids(model, tokenizer, target, number), f"target {number}", limit, truncation),
        )
        for number, source, target, direction in zip(count(1), sources, targets, directions, strict=False)
    ]
    if forced_bos_token_id is None:
        saved = getattr(model.generation_config, "forced_bos_token_id", None)
        forced_bos_token_id = options.get("forced_bos_token_id", saved)
    scores: dict[int, Score] = {}
    with evaluation_mode(model):
        for indices in batches_of_pairs(pairs, max_tokens):
            log_probs = _token_log_probs(model, [pairs[i] for i in indices], forced_bos_token_id)
            for i, row in zip(indices, log_probs, strict=True):
                ids = pairs[i][1]
                tokens = list(getattr(tokenizer, "target_tokenizer", tokenizer).convert_ids_to_tokens(ids))
                scores[i] = Score(ids, tokens, checked_scores(row[: len(ids)]))
    return [scores[i] for i in range(len(pairs))]


def _source_ids(
    tokenizer: PreTrainedTokenizerBase, source: str, number: int, direction: Direction | None
) -> list[int]:
    if not isinstance(source, str):
        raise ValueError(f"source {number} is a {type(source).__name__}, not a string; pass strings")
    if features := Features.of(tokenizer):
        features.check(source, f"source {number}")
    with unknown_words(tokenizer, [source]):
        return tag_sources(tokenizer, [tokenizer(source, verbose=False)["input_ids"]], [direction])[0]


def _target_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Target, number: int) -> list[int]:
    """Return the ids to predict, from after the start token through the end token."""
    if isinstance(target, str):
        with unknown_words(tokenizer, (), [target]):
            return tokenizer(text_target=target, verbose=False)["input_ids"]
    if not isinstance(target, Iterable):
        raise ValueError(f"target {number} is a {type(target).__name__}, not a string or ids; pass either")
    ids = [int(token) for token in target]
    if ids and ids[0] == start_token_id(model):
        ids = ids[1:]
    end = next((i for i, token in enumerate(ids) if token == tokenizer.eos_token_id), len(ids))
    return ids[: end + 1]


def _checked_ids(ids: list[int], name: str, limit: int | None, truncation: bool) -> list[int]:
    if not ids:
        raise ValueError(f"{name} has no tokens, not even an end token; leave the pair out")
    if limit is not None and len(ids) > limit and not truncation:
        raise ValueError(f"{name} has {len(ids)} tokens, but the model has positions for {limit}; shorten it")
    return ids[:limit]


def _token_log_probs(model: PreTrainedModel, pairs: Sequence[IdPair], forced: int | None) -> list[list[float]]:
    """Return the log-probability of each target token, (B, T); values at padding are meaningless."""
    outputs, labels = force_targets(model, pairs)
    log_probs = outputs.logits.float().log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    if forced is not None:
        log_probs[:, 0] = log_probs[:, 0].masked_fill(labels[:, 0] == forced, 0.0)
    return log_probs.tolist()
