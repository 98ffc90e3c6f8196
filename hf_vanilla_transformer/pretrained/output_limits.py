"""Limits of each sentence's output, independent of the rest of its batch: its length, and its repetition."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Integral
from typing import Any

import torch

from ..errors import shorten
from ..options import MAX_COUNT
from ..search.row_limits import ForcedEnd, RowLimits
from ..text.facts import TextFacts
from .teacher_forcing import position_limit

# Section 6.1: "we set the maximum output length during inference to input length + 50".
EXTRA_OUTPUT_TOKENS = 50

# Room beyond the longest target that training had for sources of similar length.
ROOM = 1.1

# Settings of `generate()` that bound the length of an output.
LENGTH_BOUNDS = ("max_length", "max_new_tokens")


class OutputLimits:
    """Limits of a model's outputs.

    The length is the paper's limit or, where training had longer targets, theirs with some room.
    """

    def __init__(self, model: Any) -> None:
        self._positions = position_limit(model.config)
        self._facts = TextFacts()
        # Facts that cannot be used do not matter for text as it is.
        with suppress(ValueError):
            self._facts = TextFacts.of(model.generation_config)

    @property
    def are_learned(self) -> bool:
        """Whether training recorded the lengths of its targets."""
        return bool(self._facts.target_lengths)

    def __call__(self, source_length: int, extra: int = 0) -> int:
        """Return the most tokens of an output, start token included, capped at the model's positions.

        Args:
            source_length: Tokens of the source, end token included.
            extra: Further tokens to allow, for the terms of a glossary.
        """
        trained = int(ROOM * self._facts.target_length(source_length)) + 1
        limit = max(source_length + EXTRA_OUTPUT_TOKENS, trained) + extra
        return min(limit, self._positions or limit)

    def is_loop(self, source: str, output: str) -> bool:
        """Whether an output repeats itself more than the targets of training and its source do."""
        return self._facts.is_loop(source, output)


def check_bounds(options: Mapping[str, Any]) -> None:
    """Raise a ValueError for a length bound that is not an integer from 1 to `MAX_COUNT`; None passes."""
    for name in LENGTH_BOUNDS:
        bound = options.get(name)
        is_integer = isinstance(bound, Integral) and not isinstance(bound, bool)
        if bound is not None and not (is_integer and 0 < bound <= MAX_COUNT):
            raise ValueError(f"`{name}` is {shorten(repr(bound), 100)}; it must be an integer from 1 to {MAX_COUNT:,}")


def given_bounds(options: Mapping[str, Any], config: Any) -> dict[str, int | None]:
    """Return the caller's length bounds, capped at the model's positions; empty if the caller set none."""
    bounds = {name: options.get(name) for name in LENGTH_BOUNDS}
    if all(bound is None for bound in bounds.values()):
        return {}
    limit = position_limit(config)
    return {name: min(bound, limit) if bound and limit else bound for name, bound in bounds.items()}


def row_limit_options(
    limits: Sequence[int], device: torch.device, forced_end: int | list[int] | None = None, **options: Any
) -> dict[str, Any]:
    """Return arguments of `generate()` that end each output as `max_length` would in a batch of its own.

    `forced_end` is the `forced_eos_token_id` that `generate()` will use. Stopping criteria and logits processors in
    `options` are kept.
    """
    # None, because the model's own would take precedence.
    bounds: dict[str, Any] = {"max_length": max(limits), "max_new_tokens": None}
    if min(limits) == max(limits):
        return bounds
    row_limits = RowLimits(torch.tensor(limits, device=device), limits)
    bounds["stopping_criteria"] = [*(options.get("stopping_criteria") or ()), row_limits]
    if forced_end is not None:
        # Before the caller's processors, like the one of `generate()`.
        bounds["logits_processor"] = [ForcedEnd(row_limits, forced_end), *(options.get("logits_processor") or ())]
    return bounds
