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
    """Return a tokenizer that has learned further merges of BPE on new texts; old tokens keep their ids.

    Args:
        tokenizer: A fast tokenizer of BPE, of one vocabulary or one a side.
        texts: Texts of the sides that it is called with.
        size: Most new tokens of a vocabulary.

    Raises:
        ValueError: The tokenizer is none of BPE.
    """
    files: dict[str, tuple[Any, tuple[str, ...]]] = {"tokenizer.json": (tokenizer, SIDES)}
    if hasattr(tokenizer, "target_vocab_size"):
        files = {f"{side}_tokenizer.json": (getattr(tokenizer, f"{side}_tokenizer"), (side,)) for side in SIDES}
    with TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        for name, (each, sides) in files.items():
            backend = _bpe_backend(each)
            merges = _learn_merges(backend, texts(*sides), size)
            Path(folder, name).write_text(_with_merges(backend, merges), encoding="utf-8")
        return load_tokenizer(folder)


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
    counts = _count_words(backend, texts)
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


def _count_words(backend: Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """Count the parts of texts that merges stay within."""
    normalize = backend.normalizer.normalize_str if backend.normalizer else str
    split = backend.pre_tokenizer.pre_tokenize_str
    return Counter(word for text in texts for word, _ in split(normalize(text)))


def _merged(tokens: list[str], pair: Merge) -> list[str]:
    merged: list[str] = []
    for token in tokens:
        if merged and (merged[-1], token) == pair:
            merged[-1] += token
        else:
            merged.append(token)
    return merged


def _with_merges(backend: Tokenizer, merges: list[Merge]) -> str:
    """Return the tokenizer.json of a tokenizer with further merges."""
    content = json.loads(backend.to_str())
    next_id = 1 + max(backend.get_vocab(with_added_tokens=True).values())
    content["model"]["vocab"] |= {"".join(pair): next_id + i for i, pair in enumerate(merges)}
    content["model"]["merges"] += merges
    return json.dumps(content, ensure_ascii=False)


@torch.no_grad()
def add_embeddings(model: PreTrainedModel, before: PreTrainedTokenizerBase, after: PreTrainedTokenizerBase) -> None:
    """Give new tokens embeddings: each begins as the mean of those that it was written in before.

    Args:
        model: Its matrices become larger where they are too small.
        before: Tokenizer of the model.
        after: The same with more tokens, whose ids follow.
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
