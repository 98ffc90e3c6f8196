"""BPE-dropout: training pairs segmented differently in each epoch (Provilkov et al. 2020)."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from itertools import accumulate, pairwise
from typing import Any

from tokenizers import PreTokenizedString, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

# Rank of two tokens that no merge joins.
NEVER = float("inf")


class DroppingTokenizer:
    """Tokenizer that drops each merge with a given probability.

    Its tokens depend only on the seed, the epoch, the side and the text, so that training is reproducible: the
    tokenizers library's own dropout cannot be seeded.

    Raises:
        ValueError: The tokenizer is not a fast BPE tokenizer, or it marks continuing subwords or word ends.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, probability: float, seed: int = 0) -> None:
        self.tokenizer, self.probability, self.seed = tokenizer, probability, seed
        self.epoch, self.side = 0, "text"
        self._dropping = self._with_dropout()

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, text: Any = None, text_target: Any = None, **options: Any) -> Any:
        """Tokenize with dropout, otherwise like the wrapped tokenizer."""
        encoded = []
        for self.side, sentences in {"text": text, "text_target": text_target}.items():
            if sentences is not None:
                encoded.append(self._dropping(**{self.side: sentences}, **options))
        if len(encoded) > 1:
            encoded[0]["labels"] = encoded[1]["input_ids"]
        return encoded[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["tokenizer"], name)

    def __getstate__(self) -> dict[str, Any]:
        # A pre-tokenizer in Python cannot be pickled.
        return {name: value for name, value in self.__dict__.items() if name != "_dropping"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._dropping = self._with_dropout()

    def _with_dropout(self) -> PreTrainedTokenizerFast:
        copied = copy.deepcopy(self.tokenizer)
        if not isinstance(copied, PreTrainedTokenizerFast):
            kind = type(self.tokenizer).__name__
            raise ValueError(f"`bpe_dropout` needs a fast BPE tokenizer, not {kind}; leave it out, or train BPE")
        # A shared vocabulary, or one for each side.
        for side in filter(None, (copied, getattr(copied, "target_tokenizer", None))):
            backend = side.backend_tokenizer
            if not isinstance(backend.model, models.BPE):
                kind = type(backend.model).__name__
                raise ValueError(f"`bpe_dropout` needs a BPE vocabulary, not {kind}; leave it out, or train BPE")
            if backend.model.continuing_subword_prefix or backend.model.end_of_word_suffix:
                raise ValueError(
                    "`bpe_dropout` does not support marks for continuing subwords or word ends; leave it out"
                )
            merges = json.loads(backend.to_str())["model"]["merges"]
            ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
            # Words arrive split into tokens, which must not be split further.
            backend.model.ignore_merges = True
            dropout = pre_tokenizers.PreTokenizer.custom(_MergesWithDropout(ranks, self))
            inner = backend.pre_tokenizer
            backend.pre_tokenizer = dropout if inner is None else pre_tokenizers.Sequence([inner, dropout])
        return copied


class _MergesWithDropout:
    """Pre-tokenizer that splits words into tokens (algorithm 1 of Provilkov et al. 2020)."""

    def __init__(self, ranks: dict[tuple[str, str], int], settings: DroppingTokenizer) -> None:
        self.ranks, self.settings = ranks, settings

    def pre_tokenize(self, text: PreTokenizedString) -> None:
        content = "".join(word for word, *_ in text.get_splits(offset_type="byte"))
        own = self.settings
        draw = random.Random(f"{own.seed} {own.epoch} {own.side} {content}").random

        def split(_: int, word: Any) -> list[Any]:
            tokens = self.tokens(word.normalized, draw)
            edges = [0, *accumulate(map(len, tokens))]
            return [word[start:end] for start, end in pairwise(edges)] if len(tokens) > 1 else [word]

        text.split(split)

    def tokens(self, word: str, draw: Callable[[], float]) -> list[str]:
        """Merge the characters of a word, lowest rank first; at each step, each candidate may be dropped."""
        parts, rank, probability = [*word], self.ranks.get, self.settings.probability
        ranks = [rank(pair, NEVER) for pair in pairwise(parts)]
        while True:
            for at in sorted(range(len(ranks)), key=ranks.__getitem__):
                if ranks[at] == NEVER:
                    return parts
                if draw() >= probability:
                    break
            else:
                return parts
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
            del ranks[at]
            if at > 0:
                ranks[at - 1] = rank((parts[at - 1], parts[at]), NEVER)
            if at < len(ranks):
                ranks[at] = rank((parts[at], parts[at + 1]), NEVER)
