"""Greedy and beam search with their state at fixed addresses, so that steps can be recorded.

The host learns one step late that a search is done: it launches the next step before it waits for the previous one.
That extra step changes nothing, as all sentences are final.

Shapes: B sentences, k beams, c candidates per sentence, N hypotheses, T length of the longest hypothesis, V target
vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria

from ..search.beams import Beams, blockwise_topk, end_tokens
from ..search.row_limits import RowLimits
from .kernels import replace_by_gradients, suits

# Token buffers are allocated in multiples of this, so that searches with similar limits have the same shapes.
ROOM = 32
# Attributes that a step of `Beams` replaces.
REPLACED = ("running", "running_scores", "finished", "finished_scores", "is_finished", "finished_lengths")


class DeviceState:
    """Length of the hypotheses and whether the search is done, on the device; the host sees the latter a step late."""

    def __init__(self, input_ids: Tensor, stopping_criteria: Any, num_beams: int):
        device = input_ids.device
        self.length = torch.full((), input_ids.shape[1], device=device)
        longest = min(rule.max_length for rule in stopping_criteria if isinstance(rule, MaxLengthCriteria))
        # At least one token, as criteria are checked after it. They may allow more than the option `max_length`.
        self.max_length = max(longest, input_ids.shape[1] + 1)
        # Size of token buffers.
        self.room = -(-self.max_length // ROOM) * ROOM
        # Maximum length of each sentence.
        row_limits = RowLimits.of(stopping_criteria, input_ids, num_beams, self.max_length)
        self.limits = row_limits.limits.clamp(max=self.max_length)
        ends = [rule.eos_token_id for rule in stopping_criteria if isinstance(rule, EosTokenCriteria)]
        self.eos = torch.cat(ends).to(device) if ends else None
        self.is_done = torch.zeros((), dtype=torch.bool, device=device)
        # On the host, whatever the default device is.
        self._host_is_done = torch.zeros((), dtype=torch.bool, device="cpu", pin_memory=device.type == "cuda")
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def copy_from(self, other: "DeviceState") -> None:
        """Overwrite this with the initial state of another search."""
        self.max_length = other.max_length
        overwrite(self, other, "length", "limits", "is_done", *(() if self.eos is None else ("eos",)))

    def append(self, sequences: Tensor, tokens: Tensor) -> Tensor:
        """Write the next token (...) of each sequence (..., T) in place; return which sequences end (...)."""
        sequences.index_copy_(-1, self.length[None], tokens[..., None])
        self.length += 1
        ends = (self.length >= self.limits).expand_as(tokens)
        return ends if self.eos is None else ends | (tokens[..., None] == self.eos).any(-1)

    def last(self, sequences: Tensor) -> Tensor:
        """Return the last tokens (N, 1) of sequences (..., T)."""
        return sequences.index_select(-1, self.length[None] - 1).flatten()[:, None]

    def copy_to_host(self) -> None:
        """Start copying `is_done` to the host."""
        self._host_is_done.copy_(self.is_done, non_blocking=True)
        if self._event:
            self._event.record(torch.cuda.current_stream(self.is_done.device))

    def was_done(self) -> bool:
        """Whether the search was done at the last `copy_to_host`; waits for that copy."""
        if self._event:
            self._event.synchronize()
        return bool(self._host_is_done)


class StaticBeams(Beams):
    """Beams with their state at fixed addresses."""

    def __init__(self, input_ids: Tensor, stopping_criteria: Any, options: Any):
        """Start from prefixes (N, T) that are equal for the beams of a sentence."""
        self.progress = DeviceState(input_ids, stopping_criteria, options.num_beams)
        self.progress.limits = self.progress.limits[:, None]
        super().__init__(input_ids, stopping_criteria, options, room=self.progress.room)
        self.length: Any = self.progress.length
        # A copy: the caller's limits are valid for this call only.
        self.row_limits = RowLimits(self.row_limits.limits.clone(), ())
        self._places = {name: getattr(self, name).clone() for name in REPLACED}
        self._put_back()

    def copy_from(self, other: "StaticBeams") -> None:
        """Overwrite this with the initial state of another search of equal shapes."""
        self.options = other.options
        self.progress.copy_from(other.progress)
        overwrite(self.row_limits, other.row_limits, "limits")
        overwrite(self, other, "can_improve", *REPLACED)

    def extend(self, logits: Tensor, logits_processor: Any, input_ids: Tensor) -> Tensor:
        rows = super().extend(logits, logits_processor, input_ids)
        self._put_back()
        return rows

    def _top_log_probs(
        self, logits: Tensor, count: int, logits_processor: Any, input_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Do not materialize all log-probabilities, unless a processor changes them."""
        only_read = all(getattr(processor, "only_reads", False) for processor in logits_processor)
        if not (only_read and suits(logits)):
            return super()._top_log_probs(logits, count, logits_processor, input_ids)
        values, tokens = blockwise_topk(logits, count)
        best = -replace_by_gradients(logits.contiguous(), tokens[:, 0].contiguous(), 0.0, differentiate=False)
        log_probs = values.float() - values[:, :1].float() + best[:, None]
        # A NaN or infinite logit makes all log-probabilities NaN, which the processors detect.
        return logits_processor(input_ids, log_probs), tokens

    def _put_back(self) -> None:
        for name, place in self._places.items():
            place.copy_(getattr(self, name))
            setattr(self, name, place)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of hypotheses, and size of their token buffers."""
        return self.running.shape[0] * self.running.shape[1], self.running.shape[2]

    def last_tokens(self) -> Tensor:
        return self.progress.last(self.running)

    def _append(self, sequences: Tensor, tokens: Tensor) -> Tensor:
        return self.progress.append(sequences, tokens)

    def _end(self, is_done: Tensor) -> None:
        self.progress.is_done.copy_(is_done)


class StaticGreedy:
    """Greedy search of N hypotheses, padded once they end, as in transformers."""

    def __init__(self, input_ids: Tensor, stopping_criteria: Any, options: Any):
        """Start from prefixes (N, T)."""
        self.options = options
        self.progress = DeviceState(input_ids, stopping_criteria, num_beams=1)
        ends, padding = end_tokens(options), options.pad_token_id
        self.pad = input_ids.new_full((), int(next(iter(ends), 0) if padding is None else padding))
        self.sequences = input_ids.new_zeros(len(input_ids), self.progress.room)
        self.sequences[:, : input_ids.shape[1]] = input_ids
        self.is_finished = torch.zeros_like(input_ids[:, 0], dtype=torch.bool)
        # Length at which the last hypothesis ended.
        self.width = self.progress.length.clone()

    def copy_from(self, other: "StaticGreedy") -> None:
        """Overwrite this with the initial state of another search of equal shapes."""
        self.progress.copy_from(other.progress)
        overwrite(self, other, "pad", "sequences", "is_finished", "width")

    def extend(self, logits: Tensor, logits_processor: Any, input_ids: Tensor) -> None:
        """Extend the hypotheses by one token each, given logits (N, V)."""
        scores = logits.float()
        tokens = (logits_processor(input_ids, scores) if logits_processor else scores).argmax(-1)
        if self.progress.eos is not None:
            tokens = torch.where(self.is_finished, self.pad, tokens)
        self.width += ~self.progress.is_done
        self.is_finished |= self.progress.append(self.sequences, tokens)
        self.progress.is_done.copy_(self.is_finished.all())

    @property
    def shape(self) -> tuple[int, int]:
        """Number of hypotheses, and size of their token buffers."""
        return self.sequences.shape[0], self.sequences.shape[1]

    def last_tokens(self) -> Tensor:
        return self.progress.last(self.sequences)

    def output(self) -> Tensor:
        # A copy: a recorded search runs again.
        return self.sequences[:, : int(self.width)].clone()


def overwrite(target: Any, source: Any, *names: str) -> None:
    """Copy tensors of `source` into those of `target`."""
    for name in names:
        getattr(target, name).copy_(getattr(source, name))
