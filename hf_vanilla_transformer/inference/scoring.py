"""How likely a model finds a translation: log-probabilities of sentences and of their tokens."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .translation import checked_scores, evaluating, position_limit

# A target is a text, or the ids that `generate()` returned.
Target = str | Sequence[int] | torch.Tensor


@dataclass(frozen=True)
class Score:
    """How likely a model finds one translation.

    Attributes:
        token_ids: Ids of the T target tokens, the end token included.
        tokens: The same as tokens of the target vocabulary.
        token_log_probs: Log-probability of each, given the source and the tokens before it, in nats.
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
        return math.exp(-self.log_prob / len(self.token_ids))


def score(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[Target],
    *,
    max_tokens: int = 4096,
    forced_bos_token_id: int | None = None,
) -> list[Score]:
    """Return how likely a model finds each target as a translation of its source.

    The result equals what `generate()` reports for its own output: the sum of the transition scores, which with
    `length_penalty=0` is the score of a beam. A first token that `generate()` is made to choose counts as certain.
    What `generate()` returned should be passed as ids, since tokenizing its text may cut the text otherwise.

    Args:
        model: Any encoder-decoder with `generate()`.
        tokenizer: The tokenizer it was trained with.
        sources: Source sentences.
        targets: A target for each: a text, or ids, with or without the start token in front; what
            follows the end token is padding.
        max_tokens: Most tokens in a batch, padding counted, sources and targets each.
        forced_bos_token_id: The first token that `generate()` was made to choose, such as the target's language; by
            default the one of the model's generation settings.

    Returns:
        A score for each pair, in their order.

    Raises:
        ValueError: The lists differ in length, an item is no text or has no token, or a side has more tokens than the
            model has positions, and names the pair; or a score is NaN.
    """
    if isinstance(sources, str) or isinstance(targets, str):
        raise ValueError("sources and targets are lists, of one sentence or more; put a single one into a list")
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources but {len(targets)} targets; give one for each")
    if max_tokens < 1:
        raise ValueError(f"max_tokens is {max_tokens}; it must be at least 1")
    pairs = [
        (_source_ids(model, tokenizer, source, number), _target_ids(model, tokenizer, target, number))
        for number, (source, target) in enumerate(zip(sources, targets, strict=True), start=1)
    ]
    if forced_bos_token_id is None:
        forced_bos_token_id = getattr(model.generation_config, "forced_bos_token_id", None)
    scores: dict[int, Score] = {}
    with evaluating(model):
        for places in _batches(pairs, max_tokens):
            log_probs = _token_log_probs(model, [pairs[place] for place in places], forced_bos_token_id)
            for place, row in zip(places, log_probs, strict=True):
                ids = pairs[place][1]
                tokens = list(tokenizer.convert_ids_to_tokens(ids))
                scores[place] = Score(ids, tokens, checked_scores(row[: len(ids)]))
    return [scores[place] for place in range(len(pairs))]


def _source_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, number: int) -> list[int]:
    if not isinstance(source, str):
        raise ValueError(f"source {number} is a {type(source).__name__}, not a string; pass strings")
    return _checked(model, tokenizer(source, verbose=False)["input_ids"], f"source {number}")


def _target_ids(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, target: Target, number: int) -> list[int]:
    """Return the ids that are to be predicted: no start token, and nothing after the end token."""
    if isinstance(target, str):
        ids = tokenizer(text_target=target, verbose=False)["input_ids"]
        return _checked(model, ids, f"target {number}")
    ids = [int(token) for token in target]
    if ids and ids[0] == _start_token_id(model):
        ids = ids[1:]
    end = next((place for place, token in enumerate(ids) if token == tokenizer.eos_token_id), len(ids))
    return _checked(model, ids[: end + 1], f"target {number}")


def _start_token_id(model: PreTrainedModel) -> int | None:
    """Return the id that `generate()` gives the decoder first."""
    settings: Any = model.generation_config
    return settings.bos_token_id if settings.decoder_start_token_id is None else settings.decoder_start_token_id


def _checked(model: PreTrainedModel, ids: list[int], name: str) -> list[int]:
    limit = position_limit(model.config)
    if not ids:
        raise ValueError(f"{name} has no token, not even one for its end; leave the pair out")
    if limit is not None and len(ids) > limit:
        raise ValueError(f"{name} has {len(ids)} tokens, but the model has positions for {limit}; shorten it")
    return ids


def _batches(pairs: Sequence[tuple[list[int], list[int]]], max_tokens: int) -> Iterator[list[int]]:
    """Yield the places of pairs of similar length, so many that no side has more than `max_tokens`, or one."""
    batch: list[int] = []
    lengths = [max(map(len, pair)) for pair in pairs]
    for place in sorted(range(len(pairs)), key=lengths.__getitem__):
        # Sorted, the newest pair is the longest.
        if batch and lengths[place] * (len(batch) + 1) > max_tokens:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _token_log_probs(
    model: PreTrainedModel, pairs: Sequence[tuple[list[int], list[int]]], forced: int | None
) -> list[list[float]]:
    """Return the log-probability of each target token, (B, T) with values of no meaning where there is padding."""
    device = model.device
    sources, targets = ([torch.tensor(row, device=device) for row in side] for side in zip(*pairs, strict=True))
    labels = pad_sequence(targets, batch_first=True, padding_value=-100)
    start = _start_token_id(model)
    if start is None:
        raise ValueError("the generation settings have no decoder_start_token_id; set model.generation_config's")
    # Families shift labels each in its own way, or not at all; `generate()` puts the start token before all of them.
    decoder_input_ids = nn.functional.pad(labels[:, :-1].clamp(min=0), (1, 0), value=start)
    logits = model(
        input_ids=pad_sequence(sources, batch_first=True, padding_value=model.generation_config.pad_token_id or 0),
        attention_mask=pad_sequence([torch.ones_like(row) for row in sources], batch_first=True),
        decoder_input_ids=decoder_input_ids,
        use_cache=False,
    ).logits
    chosen = logits.float().log_softmax(-1).gather(-1, labels.clamp(min=0)[..., None]).squeeze(-1)
    if forced is not None:
        chosen[:, 0] = chosen[:, 0].masked_fill(labels[:, 0] == forced, 0.0)
    return chosen.tolist()


__all__ = ["Score", "Target", "score"]
