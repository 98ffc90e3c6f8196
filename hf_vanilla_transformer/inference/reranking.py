"""Reranking of n-best lists by how well a model of the reverse direction finds the source in a translation.

As in a noisy channel (Yee et al. 2019), but with the mean over the source's tokens: sums divided by the length of the
translation favour long ones and lose BLEU.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .decoding import Hypothesis
from .scoring import score


class ChannelReranker:
    """Sorts hypotheses by score + weight * mean log-probability of a token of the source, given the hypothesis.

    The sum takes the place of the score. Sides beyond the positions of the model are truncated.

    Args:
        model: An encoder-decoder of the reverse direction: from the language of the hypotheses to that of the sources.
        tokenizer: The tokenizer it was trained with; it need not be that of the translating model.
        weight: What the reverse model counts; on Multi30k, 1 was at most 0.3 BLEU below the best of 0.1 to 1.5.
        max_tokens: Most tokens in a batch, padding included, for each side.
        src_lang: Source language of the model, that of the hypotheses, if it is multilingual.
        tgt_lang: Its target language, likewise.

    Raises:
        ValueError: The weight is not finite.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        weight: float = 1.0,
        max_tokens: int = 4096,
        src_lang: str | None = None,
        tgt_lang: str | None = None,
    ):
        if not math.isfinite(weight):
            raise ValueError(f"`rerank_weight` is {weight}; it must be finite, or scores cannot be compared")
        self.model, self.tokenizer, self.weight = model, tokenizer, weight
        self._options: dict[str, Any] = {"max_tokens": max_tokens, "src_lang": src_lang, "tgt_lang": tgt_lang}

    def __call__(self, sentences: Sequence[str], lists: Sequence[Sequence[Hypothesis]]) -> list[list[Hypothesis]]:
        """Return the list of each sentence sorted, the best first; those of blank sentences stay as they are."""
        pairs = [
            (hypothesis.text, sentence)
            for sentence, hypotheses in zip(sentences, lists, strict=True)
            for hypothesis in hypotheses
            if sentence.strip()
        ]
        texts, sources = [text for text, _ in pairs], [source for _, source in pairs]
        scores = iter(score(self.model, self.tokenizer, texts, sources, truncation=True, **self._options))
        results = []
        for sentence, hypotheses in zip(sentences, lists, strict=True):
            if sentence.strip():
                found = [(each, next(scores)) for each in hypotheses]
                sums = [(each.score or 0.0) + self.weight * own.log_prob / len(own.token_ids) for each, own in found]
                hypotheses = [replace(each, score=total) for each, total in zip(hypotheses, sums, strict=True)]
            results.append(sorted(hypotheses, key=lambda each: -(each.score or 0.0)))
        return results
