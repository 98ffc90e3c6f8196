"""Greedy and beam search on a GPU, where a whole step is one CUDA graph: forward pass, next tokens, reordered cache.

The host replays the graph, and learns of the end of a search one step later: it never waits for a step that it has not
followed up with another. That one changes nothing, as all sentences are final.

Shapes: B sentences, k beams, c candidates per sentence, N hypotheses, T length of the longest hypothesis, V target
vocabulary.
"""

from typing import Any

import torch
from torch import Tensor
from transformers import EosTokenCriteria, MaxLengthCriteria
from transformers.cache_utils import StaticCache

from ..model.compat_vanilla_transformer import CACHE
from ..search.beams import Beams
from ..search.row_limits import RowLimits
from .cuda_graphs import can_capture, record

# What a step of `StaticBeams` replaces.
REPLACED = ("running", "running_scores", "finished", "finished_scores", "is_finished", "finished_lengths")


def may_be_recorded(model: Any, logits_processor: Any, stopping_criteria: Any, options: Any, inputs: Any) -> bool:
    """Whether all that a step of `generate()` does could be recorded."""
    cache = getattr(inputs.get(CACHE), "self_attention_cache", None)
    return (
        type(cache) is StaticCache
        and options.compile_config is None
        and not options.disable_compile
        and inputs.get("decoder_attention_mask") is None
        and all(type(each) in (EosTokenCriteria, MaxLengthCriteria, RowLimits) for each in stopping_criteria)
        and all(getattr(each, "may_be_recorded", False) for each in logits_processor or ())
        and can_capture(model)
    )


class Progress:
    """How long hypotheses are and whether the search is done, on the device; told to the host a step late."""

    def __init__(self, input_ids: Tensor, stopping_criteria: Any, limits: Tensor):
        device = input_ids.device
        self.length = torch.full((), input_ids.shape[1], device=device)
        self.max_length = min(each.max_length for each in stopping_criteria if isinstance(each, MaxLengthCriteria))
        self.limits = limits.clamp(max=self.max_length)
        ends = [each.eos_token_id for each in stopping_criteria if isinstance(each, EosTokenCriteria)]
        self.eos = torch.cat(ends).to(device) if ends else None
        self.is_done = torch.zeros((), dtype=torch.bool, device=device)
        # On the host whatever the default device is.
        self._told = torch.zeros((), dtype=torch.bool, device="cpu", pin_memory=device.type == "cuda")
        self._event = torch.cuda.Event() if device.type == "cuda" else None

    def append(self, sequences: Tensor, tokens: Tensor) -> Tensor:
        """Write the next token (...) of each sequence (..., T) in place; return which of them end (...)."""
        sequences.index_copy_(-1, self.length[None], tokens[..., None])
        self.length += 1
        ends = (self.length >= self.limits).expand_as(tokens)
        return ends if self.eos is None else ends | (tokens[..., None] == self.eos).any(-1)

    def last(self, sequences: Tensor) -> Tensor:
        """Return the last tokens (N, 1) of sequences (..., T)."""
        return sequences.index_select(-1, self.length[None] - 1).flatten()[:, None]

    def tell(self) -> None:
        """Send word to the host."""
        self._told.copy_(self.is_done, non_blocking=True)
        if self._event:
            self._event.record(torch.cuda.current_stream(self.is_done.device))

    def was_done(self) -> bool:
        """Whether the search was done when `tell` was called last; waits for that word."""
        if self._event:
            self._event.synchronize()
        return bool(self._told)


class StaticBeams(Beams):
    """Beams that stay where they are in memory."""

    def __init__(self, input_ids: Tensor, stopping_criteria: Any, options: Any):
        """Start from prefixes (N, T) that are equal for the beams of a sentence."""
        super().__init__(input_ids, stopping_criteria, options)
        self.progress = Progress(input_ids, stopping_criteria, self.row_limits.limits[:, None])
        self.length: Any = self.progress.length
        self._places = {name: getattr(self, name).clone() for name in REPLACED}

    def extend(self, logits: Tensor, logits_processor: Any, input_ids: Tensor) -> Tensor:
        rows = super().extend(logits, logits_processor, input_ids)
        for name, place in self._places.items():
            place.copy_(getattr(self, name))
            setattr(self, name, place)
        return rows

    def last_tokens(self) -> Tensor:
        return self.progress.last(self.running)

    def result(self, count: int) -> Tensor:
        return self.best(count)

    def _append(self, sequences: Tensor, tokens: Tensor) -> Tensor:
        return self.progress.append(sequences, tokens)

    def _end(self, is_done: Tensor) -> None:
        self.progress.is_done.copy_(is_done)


class StaticGreedy:
    """The likeliest next token of each of N hypotheses, padded once they end, as in transformers."""

    def __init__(self, input_ids: Tensor, stopping_criteria: Any, options: Any):
        """Start from prefixes (N, T)."""
        row_limits = RowLimits.of(stopping_criteria, input_ids, 1, options.max_length)
        self.progress = Progress(input_ids, stopping_criteria, row_limits.limits)
        self.pad = options._pad_token_tensor
        self.sequences = input_ids.new_zeros(len(input_ids), options.max_length)
        self.sequences[:, : input_ids.shape[1]] = input_ids
        self.is_finished = torch.zeros_like(input_ids[:, 0], dtype=torch.bool)
        # Length when the last hypothesis ended.
        self.width = self.progress.length.clone()

    def extend(self, logits: Tensor, logits_processor: Any, input_ids: Tensor) -> None:
        """Extend the hypotheses by one token each, given logits (N, V)."""
        scores = logits.float()
        tokens = (logits_processor(input_ids, scores) if logits_processor else scores).argmax(-1)
        if self.progress.eos is not None:
            tokens = torch.where(self.is_finished, self.pad, tokens)
        self.width += ~self.progress.is_done
        self.is_finished |= self.progress.append(self.sequences, tokens)
        self.progress.is_done.copy_(self.is_finished.all())

    def last_tokens(self) -> Tensor:
        return self.progress.last(self.sequences)

    def result(self, count: int) -> Tensor:
        return self.sequences[:, : int(self.width)]


def static_search(
    model: Any, state: Any, input_ids: Tensor, logits_processor: Any, options: Any, model_kwargs: dict[str, Any]
) -> Tensor:
    """Return the sequences (N, T) that `state`, `StaticBeams` or `StaticGreedy`, finds from prefixes (N, T')."""
    outputs = model._prefill(input_ids, options, model_kwargs, is_first_iteration=not options.is_assistant)
    model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs, is_encoder_decoder=True)
    inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=1, **model_kwargs)
    # That of the first step; the decoder makes its own.
    inputs.pop("decoder_attention_mask", None)
    inputs["return_dict"] = True

    def choose(logits: Tensor) -> None:
        rows = state.extend(logits[:, -1], logits_processor, inputs["decoder_input_ids"])
        if rows is not None:
            model._reorder_cache(inputs[CACHE], rows)

    def step() -> None:
        inputs["decoder_input_ids"] = state.last_tokens()
        choose(model(**inputs).logits)

    choose(outputs.logits)
    # Free the large scores before the next ones arrive.
    del outputs
    run, is_warm = step, False
    for _ in range(state.progress.max_length - input_ids.shape[1] - 1):
        state.progress.tell()
        run()
        if state.progress.was_done():
            break
        if not is_warm:
            # The first step has loaded its kernels.
            run, is_warm = record(step, input_ids.device)[0], True
    return state.result(options.num_return_sequences)


__all__ = ["StaticBeams", "StaticGreedy", "may_be_recorded", "static_search"]
