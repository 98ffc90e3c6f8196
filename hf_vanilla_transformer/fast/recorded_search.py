"""Greedy and beam search on a GPU, where a whole step is one CUDA graph: forward pass, next tokens, order of beams.

Recording takes as long as tens of steps, so a search is kept for later calls of equal shapes and settings.
"""

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from transformers import EosTokenCriteria, LogitsProcessorList, MaxLengthCriteria
from transformers.cache_utils import StaticCache

from ..model.compat_vanilla_transformer import CACHE
from ..model.modeling_vanilla_transformer import VanillaTransformerAttention, VanillaTransformerDecoder
from ..search.row_limits import RowLimits
from .cuda_graphs import can_capture, record
from .static_search import StaticBeams, StaticGreedy
from .step_cache import StepCache

# Longer prefixes are decoded at once rather than token by token.
MAX_PREFIX = 4
# Arguments of `forward` that a search takes.
INPUTS = frozenset(("encoder_outputs", "attention_mask", "use_cache", "logits_to_keep", CACHE))

# Searches of a model, the latest last, by what they were recorded for.
_KEPT: WeakKeyDictionary[Any, OrderedDict[Any, "RecordedSearch"]] = WeakKeyDictionary()
_LOCK = Lock()
# Part of a GPU's memory that the kept searches of a model may take, and bytes where it has none of its own.
KEPT_SHARE, KEPT_BYTES = 1 / 32, 2**28
# Most searches of a model: the driver's memory for their graphs is not counted.
MAX_KEPT = 256
# Packages whose modules compute with nothing but their inputs, parameters and buffers.
PLAIN = ("torch", "transformers", __package__.partition(".")[0])


def may_be_recorded(
    model: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, options: Any, inputs: Any
) -> bool:
    """Whether all that a step of `generate()` does could be recorded."""
    cache = getattr(inputs.get(CACHE), "self_attention_cache", None)
    return (
        type(cache) is StaticCache
        and options.compile_config is None
        and not options.disable_compile
        and input_ids.shape[1] <= MAX_PREFIX
        and input_ids.dtype == torch.long
        and all(inputs[name] is None for name in inputs.keys() - INPUTS)
        and all(type(each) in (EosTokenCriteria, MaxLengthCriteria, RowLimits) for each in stopping_criteria)
        and all(getattr(each, "may_be_recorded", False) for each in logits_processor or ())
        # The weights that autocast casts are gone with it.
        and not torch.is_autocast_enabled(input_ids.device.type)
        and all(map(_is_plain, model.modules()))
        and can_capture(model)
    )


def recorded_search(
    model: Any, state: StaticBeams | StaticGreedy, input_ids: Tensor, logits_processor: Any, inputs: dict[str, Any]
) -> Tensor:
    """Return the sequences (N, T) that `state` finds from prefixes (N, T') on a GPU."""
    source = inputs["encoder_outputs"][0], inputs.get("attention_mask")
    processors = list(logits_processor or ())
    key = _key(model, state, input_ids, processors, *source)
    with _LOCK:
        # Out of the way of other threads while it runs.
        search = _KEPT.setdefault(model, OrderedDict()).pop(key, None)
    if search is None:
        cache = StepCache(model.get_decoder(), *state.shape, *source, is_moved=isinstance(state, StaticBeams))
        search = RecordedSearch(state, cache, [each.fresh() for each in processors])
    else:
        search.restart(model, state, *source)
    found = search.run(model, input_ids)
    for each, recorded in zip(processors, search.processors, strict=True):
        each.adopt(recorded)
    _keep(model, key, search)
    return found


class RecordedSearch:
    """A search, and all that its recorded step reads and writes but the weights."""

    def __init__(self, state: StaticBeams | StaticGreedy, cache: StepCache, processors: list[Any]):
        self.state, self.cache, self.processors = state, cache, processors
        self._replay: Callable[[], None] | None = None

    def restart(self, model: Any, state: Any, encoded: Tensor, mask: Tensor | None) -> None:
        """Begin again with the start of another search of equal shapes, and its sources."""
        self.state.become(state)
        self.cache.restart(model.get_decoder(), encoded, mask)
        for each in self.processors:
            each.restart()

    def run(self, model: Any, input_ids: Tensor) -> Tensor:
        """Return the sequences (N, T) found from prefixes (N, T')."""
        progress, past = self.state.progress, input_ids.shape[1] - 1
        for place in range(past):
            model.get_decoder().decode_step(input_ids[:, place : place + 1], self.cache)
        for steps in range(progress.max_length - past - 1):
            if steps:
                progress.tell()
            if self._replay:
                self._replay()
            elif not steps:
                # Loads its kernels.
                self._step(model)
            else:
                self._replay, _ = record(partial(self._step, model), input_ids.device)
                self._replay()
            if steps and progress.was_done():
                break
        # The next search will overwrite it.
        return self.state.result().clone()

    def _step(self, model: Any) -> None:
        tokens = self.state.last_tokens()
        logits = model._project(model.get_decoder().decode_step(tokens, self.cache))[:, -1]
        rows = self.state.extend(logits, LogitsProcessorList(self.processors), tokens)
        if rows is not None:
            self.cache.reorder(rows)


def _key(
    model: Any, state: Any, input_ids: Tensor, processors: list[Any], encoded: Tensor, mask: Tensor | None
) -> tuple[Any, ...]:
    """Return all that a recorded step depends on but for the contents of tensors."""
    options, device = state.options, input_ids.device
    ends = (state.progress.eos, options._eos_token_tensor)
    parts = (model.get_decoder(), model.lm_head)
    weights = (each for part in parts for each in (*part.parameters(), *part.buffers()))
    return (
        (type(state), input_ids.shape, state.shape, options.num_beams, *map(type, processors)),
        (options.length_penalty, options.early_stopping, options.max_length * (options.early_stopping == "never")),
        (encoded.shape, encoded.dtype, None if mask is None else (mask.shape, mask.dtype)),
        tuple(None if each is None else each.shape for each in ends),
        (torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()),
        torch.backends.cuda.matmul.fp32_precision,
        # Graphs of other streams may run at the same time, and have other memory.
        torch.cuda.current_stream(device) if device.type == "cuda" else None,
        # Others may lie where weights have been.
        tuple((each.data_ptr(), each.shape) for each in weights),
    )


def _is_plain(module: Any) -> bool:
    """Whether inputs, parameters and buffers decide what a module computes, not an adapter's scale or a user's method.

    Recorded steps need modules that are accelerated.
    """
    kind = type(module)
    return (
        not module.training
        and kind.__module__.partition(".")[0] in PLAIN
        and kind not in (VanillaTransformerAttention, VanillaTransformerDecoder)
    )


def _keep(model: Any, key: Any, search: RecordedSearch) -> None:
    """Keep a search for later calls; forget those of long ago if they take too much memory."""
    device, most = search.cache.length.device, float(KEPT_BYTES)
    if device.type == "cuda":
        most = KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory
    with _LOCK:
        kept = _KEPT.setdefault(model, OrderedDict())
        kept[key] = search
        while len(kept) > MAX_KEPT or sum(each.cache.nbytes for each in kept.values()) > most:
            kept.popitem(last=False)


def forget_searches(model: Any) -> None:
    """Free the searches that are kept for a model."""
    with _LOCK:
        _KEPT.pop(model, None)
