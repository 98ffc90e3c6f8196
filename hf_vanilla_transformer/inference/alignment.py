"""Word alignments from cross-attention: each target word is linked to the source word it attends to most.

Shape legend: N layers, h heads, S source length, T target length, s and t source and target words.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from itertools import islice, repeat
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.alignments import alignment_error_rate, words_and_ids
from ..pretrained.languages import Direction, tag_sources
from ..pretrained.teacher_forcing import (
    IdPair,
    batches_of_pairs,
    cross_attentions,
    decoder_layers,
    position_limit,
    tightest_limit,
)
from ..text.protection import Link

# Returns the attention weights of each pair of a batch, (..., T, S).
Attend = Callable[[Sequence[IdPair]], Sequence[torch.Tensor]]

# Least decrease of the error rate for a further head; with a few hundred pairs, smaller ones may be chance.
MIN_GAIN = 0.002

# Most tokens of a source or target to align; the weights of all layers and heads of a base model then take 600 MB.
MAX_TOKENS = 1024


def alignment_heads(model: PreTrainedModel) -> list[list[int]]:
    """Return the [layer, head] pairs whose mean aligns words: those saved, else all heads of the last layer."""
    if heads := getattr(model.generation_config, "alignment_heads", None):
        return heads
    config: Any = model.config
    # T5 calls it `num_heads`.
    count = getattr(config, "decoder_attention_heads", None) or config.num_heads
    return [[decoder_layers(config) - 1, head] for head in range(count)]


def set_alignment_heads(model: PreTrainedModel, heads: Sequence[Sequence[int]]) -> None:
    """Store the heads that align words in the model's generation settings, which are saved with it."""
    settings: Any = model.generation_config
    settings.alignment_heads = [list(head) for head in heads]
    # Settings derived from the configuration would be saved without fields unknown to transformers.
    settings._from_model_config = False


def word_alignments(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    *,
    max_tokens: int = 4096,
    max_source_length: int | None = None,
    directions: Iterable[Direction | None] = repeat(None),
) -> list[list[Link]]:
    """Align the words of translations with those of their sources.

    A target word is linked to the source word with the largest sum of weights between their tokens. Tokens outside of
    words, such as the end token, are ignored. A pair with a blank side has no links.

    Args:
        model: Any encoder-decoder with `generate()` that returns cross-attentions, or an export to CTranslate2.
        tokenizer: The fast tokenizer it was trained with.
        sources: Source sentences.
        targets: A translation of each.
        max_tokens: Most tokens in a batch, padding included, for sources and targets each.
        max_source_length: Truncate sources to this many tokens, end token included; truncated words have no links.
            Sources and targets are also truncated to `MAX_TOKENS` and to the model's positions.
        directions: Languages of each pair, where sources have tags; None for the tokenizer's current ones.

    Returns:
        The links of each pair, (source word, target word) counted from 0, in the order of the target words.

    Raises:
        ValueError: The numbers of sentences differ, or the tokenizer is not a fast one.
    """
    limit = tightest_limit(MAX_TOKENS, position_limit(model.config))
    limits = (tightest_limit(max_source_length, limit), limit)
    scores = _word_scores(token_attention(model), tokenizer, sources, targets, max_tokens, limits, directions)
    return list(map(_links, scores))


def find_alignment_heads(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    sure: Sequence[Collection[Link]],
    possible: Sequence[Collection[Link]] | None = None,
    *,
    max_tokens: int = 4096,
) -> tuple[list[list[int]], float]:
    """Find the heads whose alignments are closest to reference alignments, and their alignment error rate.

    Starts with the best single head and adds heads of its layer while that clearly improves their mean. A few hundred
    pairs suffice. Reference links come from annotators or from a statistical aligner such as `align_corpus`: sure
    links must be found, possible ones may be.

    Returns:
        The [layer, head] pairs, and the error rate.

    Raises:
        ValueError: As for `word_alignments`, or there are no sure links.
    """
    attend: Attend = partial(cross_attentions, model)
    limits = (tightest_limit(MAX_TOKENS, position_limit(model.config)),) * 2
    scores = _word_scores(attend, tokenizer, sources, targets, max_tokens, limits)

    def error(layer: int, *heads: int) -> float:
        links = [_links(None if pair is None else pair[layer, list(heads)].mean(0)) for pair in scores]
        return alignment_error_rate(links, sure, sure if possible is None else possible)

    layers, count = next((pair.shape[:2] for pair in scores if pair is not None), (0, 0))
    lowest, layer, head = min((error(i, k), i, k) for i in range(layers) for k in range(count))
    heads = [head]
    while others := [k for k in range(count) if k not in heads]:
        rate, head = min((error(layer, *heads, k), k) for k in others)
        if rate > lowest - MIN_GAIN:
            break
        lowest, heads = rate, [*heads, head]
    return [[layer, head] for head in heads], lowest


def token_attention(model: Any) -> Attend:
    """Return a function that computes the token attention (T, S) of each pair."""
    if hasattr(model, "alignment_weights"):
        return model.alignment_weights
    layers, heads = zip(*alignment_heads(model), strict=True)
    return lambda pairs: [weights[layers, heads].mean(0) for weights in cross_attentions(model, pairs)]


def _word_scores(
    attend: Attend,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    targets: Sequence[str],
    max_tokens: int,
    limits: tuple[int | None, int | None],
    directions: Iterable[Direction | None] = repeat(None),
) -> list[torch.Tensor | None]:
    """Return the attention from target to source words of each pair, (..., t, s); None if a side is blank."""
    if len(sources) != len(targets):
        raise ValueError(f"there are {len(sources)} sources but {len(targets)} targets; pass one target per source")
    filled = [i for i in range(len(sources)) if sources[i].strip() and targets[i].strip()]
    results: list[torch.Tensor | None] = [None] * len(sources)
    sides = [
        list(words_and_ids(tokenizer, [texts[i] for i in filled], is_target=is_target, max_length=limit))
        for texts, is_target, limit in zip((sources, targets), (False, True), limits, strict=True)
    ]
    pair_directions = list(islice(directions, len(sources)))
    tagged = tag_sources(tokenizer, [ids for _, ids in sides[0]], [pair_directions[i] for i in filled])
    pairs = list(zip(tagged, (ids for _, ids in sides[1]), strict=True))
    for indices in batches_of_pairs(pairs, max_tokens):
        for k, weights in zip(indices, attend([pairs[k] for k in indices]), strict=True):
            source_words, target_words = (_indicators(side[k][0], weights.device) for side in sides)
            rows = target_words[:, : weights.shape[-2]]
            results[filled[k]] = rows @ weights @ source_words.T
    return results


def _indicators(words: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    """Return a matrix (words, tokens) with 1 where a token belongs to a word."""
    count = 1 + max((number for numbers in words for number in numbers), default=-1)
    matrix = torch.zeros(count, len(words), device=device)
    for token, numbers in enumerate(words):
        matrix[list(numbers), token] = 1
    return matrix


def _links(scores: torch.Tensor | None) -> list[Link]:
    """Link each target word to its highest-scoring source word; `scores` (t, s)."""
    if scores is None or not scores.numel():
        return []
    return [(int(source), target) for target, source in enumerate(scores.argmax(-1))]
