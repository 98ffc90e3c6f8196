"""Vocabularies of a model that is trained further: new tokens, and their embeddings."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from ..inference.loading import load_tokenizer

# The texts of some sides, "source" and "target".
Texts = Callable[..., Iterable[str]]

# Two tokens that become one.
Merge = tuple[str, str]

SIDES = ("source", "target")

# Fewest occurrences of a new token, as where a vocabulary is learned.
MIN_FREQUENCY = 2


def vocabulary_sizes(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Sizes of the source and of the target vocabulary."""
    return len(tokenizer), getattr(tokenizer, "target_vocab_size", len(tokenizer))


def extend_tokenizer(tokenizer: PreTrainedTokenizerBase, texts: Texts, size: int) -> PreTrainedTokenizerBase:
    """Return a tokenizer that has learned up to `size` further merges of BPE on new texts; old tokens keep their ids.

    Of a vocabulary for each side, both learn as many.
    """
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        if hasattr(tokenizer, "target_vocab_size"):
            for side in SIDES:
                content = _extended(getattr(tokenizer, f"{side}_tokenizer"), texts(side), size)
                Path(folder, f"{side}_tokenizer.json").write_text(content, encoding="utf-8")
        else:
            Path(folder, "tokenizer.json").write_text(_extended(tokenizer, texts(*SIDES), size), encoding="utf-8")
        return load_tokenizer(folder)


def _extended(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], size: int) -> str:
    """Return the tokenizer.json of a tokenizer with further merges."""
    backend = _bpe_backend(tokenizer)
    content = json.loads(backend.to_str())
    merges = _learn_merges(backend, texts, size)
    next_id = 1 + max(backend.get_vocab(with_added_tokens=True).values())
    content["model"]["vocab"] |= {"".join(pair): next_id + i for i, pair in enumerate(merges)}
    content["model"]["merges"] += merges
    return json.dumps(content, ensure_ascii=False)


def _bpe_backend(tokenizer: PreTrainedTokenizerBase) -> Tokenizer:
    backend = tokenizer.backend_tokenizer if isinstance(tokenizer, PreTrainedTokenizerFast) else None
    model = backend.model if backend else None
    is_plain = isinstance(model, models.BPE) and not (model.continuing_subword_prefix or model.end_of_word_suffix)
    if backend is None or backend.pre_tokenizer is None or not is_plain:
        raise ValueError(
            "`extend_vocab` needs a tokenizer of BPE, as `tokenizer_algorithm=bpe` learns it; leave it out"
        )
    return backend


def _learn_merges(backend: Tokenizer, texts: Iterable[str], size: int) -> list[Merge]:
    """Return the merges that BPE would learn next if it went on with these texts."""
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    split = backend.pre_tokenizer.pre_tokenize_str
    # Merges stay within words.
    counts = Counter(word for text in texts for word, _ in split(normalize(text)))
    segments = {word: [token.value for token in backend.model.tokenize(word)] for word in counts}
    pairs: Counter[Merge] = Counter()
    words: defaultdict[Merge, set[str]] = defaultdict(set)

    def count(word: str, sign: int) -> None:
        for pair in pairwise(segments[word]):
            pairs[pair] += sign * counts[word]
            words[pair].add(word)

    for word in counts:
        count(word, 1)
    known, merges = set(backend.get_vocab()), list[Merge]()
    while len(merges) < size and (most := max(pairs.values(), default=0)) >= MIN_FREQUENCY:
        # Of equally frequent ones the first in the alphabet, whatever the order of the texts.
        pair = min(each for each, frequency in pairs.items() if frequency == most)
        token = "".join(pair)
        # One that other merges make already would change what follows from those.
        if token not in known:
            known.add(token)
            merges.append(pair)
            for word in words.pop(pair):
                count(word, -1)
                segments[word] = _merged(segments[word], pair)
                count(word, 1)
        del pairs[pair]
    return merges


def _merged(tokens: list[str], pair: Merge) -> list[str]:
    merged: list[str] = []
    for token in tokens:
        if merged and (merged[-1], token) == pair:
            merged[-1] += token
        else:
            merged.append(token)
    return merged


@torch.no_grad()
def add_embeddings(model: PreTrainedModel, before: PreTrainedTokenizerBase, after: PreTrainedTokenizerBase) -> None:
    """Give new tokens embeddings, in larger matrices if needed: each is the mean of those it was written in before.

    `after` is the tokenizer `before` with more tokens, whose ids follow.
    """
    old, new = vocabulary_sizes(before), vocabulary_sizes(after)
    if old == new:
        return
    # PreTrainedModel has no method for the decoder's vocabulary, and hides the type of its modules.
    resizable: Any = model
    config: Any = model.config
    if new[0] > config.vocab_size:
        resizable.resize_token_embeddings(new[0], mean_resizing=False)
    if new[1] > (getattr(config, "decoder_vocab_size", None) or config.vocab_size):
        resizable.resize_decoder_token_embeddings(new[1], mean_resizing=False)
    inputs, outputs = resizable.get_decoder().get_input_embeddings(), resizable.get_output_embeddings()
    matrices = ((resizable.get_input_embeddings(),), (inputs, outputs))
    for side, modules in zip(SIDES, matrices, strict=True):
        pieces = _pieces(*(getattr(each, f"{side}_tokenizer", each) for each in (before, after)))
        for module in modules:
            for token, ids in pieces.items():
                module.weight[token] = module.weight[ids].mean(0)


def _pieces(before: Any, after: Any) -> dict[int, list[int]]:
    """Return the ids of new tokens, each with those that the tokenizer wrote it in before."""
    known = before.get_vocab()

    def write(token: str) -> list[int]:
        if before.is_fast:
            # Not by the tokenizer: a token of BPE may be no text.
            return [part.id for part in before.backend_tokenizer.model.tokenize(token)]
        return before.encode(token, add_special_tokens=False)

    return {i: write(token) for token, i in after.get_vocab().items() if token not in known}
