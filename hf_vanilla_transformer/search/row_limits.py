"""A length limit for each sentence of a batch.

Shapes: B sentences, N rows (equally many per sentence), T target length, V target vocabulary.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, StoppingCriteria


class RowLimits(StoppingCriteria):
    """Ends the hypotheses of each sentence at its own limit, as `max_length` would if it were decoded alone.

    Valid for one call of `generate()`: a search drops finished sentences.
    """

    def __init__(self, limits: Tensor, lengths: Iterable[int]):
        """Take the maximum length of each sentence (B), including the start token, and the same on the host."""
        self.limits, self.lengths = limits, frozenset(lengths)

    @classmethod
    def of(cls, stopping_criteria: Any, input_ids: Tensor, num_beams: int, max_length: int) -> "RowLimits":
        """Return the limits among the criteria of a search from prefixes (N, T), by default `max_length` for all."""
        if own := [criterion for criterion in stopping_criteria if isinstance(criterion, cls)]:
            return own[0]
        return cls(torch.full((len(input_ids) // num_beams,), max_length, device=input_ids.device), [max_length])

    def __call__(self, input_ids: Tensor, scores: Any = None, **kwargs: Any) -> Tensor:
        """Return which hypotheses (N, T) have reached their limit."""
        return self.of_rows(len(input_ids)) <= input_ids.shape[1]

    def of_rows(self, count: int) -> Tensor:
        """Return the limits of `count` rows, in the order of their sentences."""
        return self.limits.repeat_interleave(count // len(self.limits))

    def keep(self, sentences: Tensor) -> None:
        """Drop the sentences for which `sentences` (B) is false."""
        self.limits = self.limits[sentences]


class ForcedEnd(LogitsProcessor):
    """Forces an end token as the last token within each sentence's limit, as `forced_eos_token_id` does."""

    def __init__(self, row_limits: RowLimits, tokens: int | list[int]):
        self.row_limits, self.tokens = row_limits, tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Allow only end tokens in the scores (N, V) of hypotheses (N, T) whose next token reaches the limit."""
        length = input_ids.shape[1] + 1
        if length not in self.row_limits.lengths:
            return scores
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self.tokens] = 0
        return forced.where(self.row_limits.of_rows(len(scores))[:, None] == length, scores)
