"""Beam search (section 6.1): hypotheses and their best continuations.

Shape legend: B sentences, k beams, N = B * k rows, c candidates kept of each sentence or row, T target length,
V target vocabulary.
"""

from typing import Any

import torch
from torch import Tensor

# The score of a beam that must not be chosen; of finite size, as in transformers, so that sums of it are no NaN.
NEVER = -1e9

# Log-probabilities that are taken at a time on a CPU, so that they stay in its cache, and of them, those whose largest
# is found first.
CACHED_ELEMENTS = 2**20
BLOCK = 128


class Beams:
    """The k running hypotheses of each of B sentences, and the k best that have ended.

    What goes on, what has ended and when all is done follows transformers, so that its settings mean the same.
    """

    def __init__(self, input_ids: Tensor, stopping_criteria: Any, options: Any):
        """Start from the prefixes (N, T), equal for the beams of a sentence."""
        self.stopping_criteria, self.options = stopping_criteria, options
        self.beams, self.length = options.num_beams, input_ids.shape[1]
        self.prompt, sentences = self.length, input_ids.shape[0] // self.beams
        pad, eos = options._pad_token_tensor, options._eos_token_tensor
        # Enough that k go on even if the best of each end.
        self.kept = max(2, 1 + (0 if eos is None else len(eos))) * self.beams
        filler = -1 if eos is None else int(pad or eos[0])
        self.running = input_ids.new_full((sentences, self.beams, options.max_length), filler)
        self.running[..., : self.length] = input_ids.view(sentences, self.beams, -1)
        # Beams that are still equal count once.
        self.running_scores = torch.full((sentences, self.beams), NEVER, device=input_ids.device)
        self.running_scores[:, 0] = 0
        self.ended, self.ended_scores = self.running, torch.full_like(self.running_scores, NEVER)
        self.has_ended = torch.zeros_like(self.ended_scores, dtype=torch.bool)
        self.lengths = torch.full_like(self.has_ended, self.length, dtype=torch.long)
        self.may_improve = torch.ones_like(self.has_ended[:, :1])
        self.is_done = False

    def extend(self, log_probs: Tensor, tokens: Tensor) -> Tensor:
        """Lengthen the hypotheses by one token and return whose past each goes on from, as rows (N).

        Takes candidates for each row, (N, c) of them: their log-probabilities and tokens.
        """
        sentences, (rows, candidates) = self.running.shape[0], log_probs.shape
        scores = self.running_scores[..., None] + log_probs.view(sentences, self.beams, candidates)
        scores, chosen = scores.flatten(1).topk(self.kept)
        beam = chosen // candidates
        sequences = take(self.running, beam)
        sequences[..., self.length] = tokens.view(sentences, -1).gather(1, chosen)
        self.length += 1
        ends = self.stopping_criteria(sequences[..., : self.length].flatten(0, 1), None).view(sentences, self.kept)
        self._collect(sequences, scores, ends)
        self.running_scores, best = (scores + ends * NEVER).topk(self.beams)
        self.running = take(sequences, best)
        self._judge(ends)
        first_rows = torch.arange(0, rows, self.beams, device=beam.device)
        return (take(beam, best) + first_rows[:, None]).flatten()

    def tokens(self) -> Tensor:
        """Return the running hypotheses (N, T)."""
        return self.running[..., : self.length].flatten(0, 1)

    def best(self, count: int) -> Tensor:
        """Return the `count` best of each sentence that have ended, the best first, (B * count, T)."""
        return self.ended[:, :count, : int(self.lengths[:, :count].max())].flatten(0, 1)

    def _collect(self, sequences: Tensor, scores: Tensor, ends: Tensor) -> None:
        """Keep the k best of those that have ended and of those that `ends` (B, c) says end now."""
        ends = ends.clone()
        ends[:, self.beams :] = False
        closed = ~self.may_improve
        if self.options.early_stopping is True:
            closed = closed | self.has_ended.all(1, keepdim=True)
        scores = scores / (self.length - self.prompt) ** self.options.length_penalty + closed * NEVER + ~ends * NEVER
        self.ended_scores, best = torch.cat((self.ended_scores, scores), 1).topk(self.beams)
        self.ended = take(torch.cat((self.ended, sequences), 1), best)
        self.has_ended = take(torch.cat((self.has_ended, ends), 1), best)
        lengths = torch.full_like(ends, self.length, dtype=torch.long)
        self.lengths = take(torch.cat((self.lengths, lengths), 1), best)

    def _judge(self, ends: Tensor) -> None:
        """Find which sentences may still improve, and whether the search is done."""
        options, length = self.options, self.length
        if options.early_stopping == "never" and options.length_penalty > 0:
            length = options.max_length
        best_possible = self.running_scores[:, :1] / (length - self.prompt) ** options.length_penalty
        worst = self.ended_scores.amin(1, keepdim=True).where(self.has_ended, NEVER)
        self.may_improve &= (best_possible > worst).any(1, keepdim=True)
        full = options.early_stopping is True and bool(self.has_ended.all())
        self.is_done = full or not bool(self.may_improve.any()) or bool(ends.all())


def take(x: Tensor, places: Tensor) -> Tensor:
    """Return, of each sentence of `x` (B, c, ...), the candidates at `places` (B, k): (B, k, ...)."""
    return x[torch.arange(len(x), device=x.device)[:, None], places]


def top_log_probs(logits: Tensor, count: int, logits_processor: Any, input_ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return the `count` best tokens of each row of `logits` (N, V), and before them their log-probabilities, (N, c).

    Processors, which may change any log-probability by the tokens so far (N, T), need all of them at once.
    """
    if logits_processor:
        return largest(logits_processor(input_ids, logits.log_softmax(-1, dtype=torch.float32)), count)
    rows = max(1, CACHED_ELEMENTS // logits.shape[1]) if logits.device.type == "cpu" else len(logits)
    parts = [largest(chunk.log_softmax(-1, dtype=torch.float32), count) for chunk in logits.split(rows)]
    values, tokens = zip(*parts, strict=True)
    return torch.cat(values), torch.cat(tokens)


def largest(x: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest of each row of `x` (N, V), or all if there are fewer, and their places, (N, c).

    They lie in the blocks whose maxima are largest, which are found first: a maximum takes a fraction of the time of
    a selection.
    """
    rows, size = x.shape
    whole = size - size % BLOCK
    if whole <= 2 * count * BLOCK:
        values, places = x.topk(min(count, size))
        return values, places
    blocks = x[:, :whole].unflatten(1, (-1, BLOCK)).amax(-1).topk(count, sorted=False).indices
    places = (blocks[..., None] * BLOCK + torch.arange(BLOCK, device=x.device)).flatten(1)
    if whole < size:
        places = torch.cat((places, torch.arange(whole, size, device=x.device).expand(rows, -1)), 1)
    values, chosen = x.gather(1, places).topk(count)
    return values, places.gather(1, chosen)


__all__ = ["Beams", "top_log_probs"]
