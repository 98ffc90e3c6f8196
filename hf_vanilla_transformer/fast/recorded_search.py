"""Greedy and beam search on a GPU with one CUDA graph per step: forward pass, next tokens, reordered beams.

Recording takes as long as tens of steps, so a search is kept for later calls with the same shapes and options.
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
from ..search.beams import end_tokens
from ..search.row_limits import RowLimits
from .cuda_graphs import can_capture, record
from .static_search import StaticBeams, StaticGreedy
from .step_cache import StepCache

# Longest prefix that a recorded search decodes, token by token; longer ones are faster in one pass.
MAX_PREFIX = 4
# Arguments of `forward` that recorded searches support.
INPUTS = frozenset(("encoder_outputs", "attention_mask", "use_cache", "logits_to_keep", CACHE))

# Searches of each model by key, least recently used first.
_KEPT: WeakKeyDictionary[Any, OrderedDict[Any, "RecordedSearch"]] = WeakKeyDictionary()
_LOCK = Lock()
# Memory limit of the searches kept for a model: a fraction of the GPU's memory, and bytes on other devices.
KEPT_SHARE, KEPT_BYTES = 1 / 32, 2**28
# Maximum number of searches kept for a model: the driver's memory for their graphs is not counted.
MAX_KEPT = 256
# Packages whose modules compute with nothing but their inputs, parameters and buffers.
PLAIN = ("torch", "transformers", __package__.partition(".")[0])


def may_be_recorded(
    model: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any, options: Any, inputs: Any
) -> bool:
    """Whether a whole step of `generate()` can be recorded."""
    cache = getattr(inputs.get(CACHE), "self_attention_cache", None)
    return (
        type(cache) is StaticCache
        and options.compile_config is None
        and not options.disable_compile
        and input_ids.shape[1] <= MAX_PREFIX
        and input_ids.dtype == torch.long
        and all(inputs[name] is None for name in inputs.keys() - INPUTS)
        and all(type(rule) in (EosTokenCriteria, MaxLengthCriteria, RowLimits) for rule in stopping_criteria)
        and all(getattr(processor, "may_be_recorded", False) for processor in logits_processor or ())
        # Weights cast by autocast are freed when it ends.
        and not torch.is_autocast_enabled(input_ids.device.type)
        and all(map(_is_plain, model.modules()))
        and can_capture(model)
    )


def recorded_search(
    model: Any, state: StaticBeams | StaticGreedy, input_ids: Tensor, logits_processor: Any, inputs: dict[str, Any]
) -> Any:
    """Search from prefixes (N, T) on a GPU; return what `generate()` returns."""
    source = inputs["encoder_outputs"][0], inputs.get("attention_mask")
    processors = list(logits_processor or ())
    key = _key(model, state, input_ids, processors, *source)
    with _LOCK:
        # Removed while it runs, so that no other thread uses it.
        search = _KEPT.setdefault(model, OrderedDict()).pop(key, None)
    if search is None:
        cache = StepCache(model.get_decoder(), *state.shape, *source, is_moved=isinstance(state, StaticBeams))
        search = RecordedSearch(state, cache, [processor.fresh() for processor in processors])
    else:
        search.restart(model, state, *source)
    output = search.run(model, input_ids)
    for processor, recorded in zip(processors, search.processors, strict=True):
        processor.adopt(recorded)
    _keep(model, key, search)
    return output


class RecordedSearch:
    """A search, with all that its recorded step reads and writes except the weights."""

    def __init__(self, state: StaticBeams | StaticGreedy, cache: StepCache, processors: list[Any]):
        self.state, self.cache, self.processors = state, cache, processors
        self._replay: Callable[[], None] | None = None

    def restart(self, model: Any, state: Any, encoded: Tensor, mask: Tensor | None) -> None:
        """Restart with the initial state and the sources of another search of equal shapes."""
        self.state.copy_from(state)
        self.cache.restart(model.get_decoder(), encoded, mask)
        for processor in self.processors:
            processor.restart()

    def run(self, model: Any, input_ids: Tensor) -> Any:
        """Search from prefixes (N, T); return what `generate()` returns."""
        progress, past = self.state.progress, input_ids.shape[1] - 1
        for place in range(past):
            model.get_decoder().decode_step(input_ids[:, place : place + 1], self.cache)
        for steps in range(progress.max_length - past - 1):
            if steps:
                progress.copy_to_host()
            if self._replay:
                self._replay()
            elif not steps:
                # The first step runs eagerly, which loads its kernels.
                self._step(model)
            else:
                self._replay, _ = record(partial(self._step, model), input_ids.device)
                self._replay()
            if steps and progress.was_done():
                break
        return self.state.output()

    def _step(self, model: Any) -> None:
        tokens = self.state.last_tokens()
        logits = model._project(model.get_decoder().decode_step(tokens, self.cache))[:, -1]
        rows = self.state.extend(logits, LogitsProcessorList(self.processors), tokens)
        if rows is not None:
            self.cache.reorder(rows)


def _key(
    model: Any, state: Any, input_ids: Tensor, processors: list[Any], encoded: Tensor, mask: Tensor | None
) -> tuple[Any, ...]:
    """Return all that a recorded step depends on except the contents of tensors."""
    options, device, eos = state.options, input_ids.device, state.progress.eos
    parts = (model.get_decoder(), model.lm_head)
    weights = (weight for part in parts for weight in (*part.parameters(), *part.buffers()))
    return (
        (type(state), input_ids.shape, state.shape, options.num_beams, *map(type, processors)),
        (options.length_penalty, options.early_stopping, options.max_length * (options.early_stopping == "never")),
        (encoded.shape, encoded.dtype, None if mask is None else (mask.shape, mask.dtype)),
        (None if eos is None else eos.shape, len(end_tokens(options))),
        (torch.is_inference_mode_enabled(), torch.are_deterministic_algorithms_enabled()),
        torch.backends.cuda.matmul.fp32_precision,
        # Graphs of other streams may run concurrently, and use other memory.
        torch.cuda.current_stream(device) if device.type == "cuda" else None,
        # With shapes: other weights may reuse an address.
        tuple((weight.data_ptr(), weight.shape) for weight in weights),
    )


def _is_plain(module: Any) -> bool:
    """Whether a module's output depends only on inputs, parameters and buffers: no adapter's scale, no user's method.

    False for plain attention and decoders: recorded steps need accelerated ones.
    """
    kind = type(module)
    return (
        not module.training
        and kind.__module__.partition(".")[0] in PLAIN
        and kind not in (VanillaTransformerAttention, VanillaTransformerDecoder)
    )


def _keep(model: Any, key: Any, search: RecordedSearch) -> None:
    """Keep a search for later calls; evict the least recently used if they take too much memory."""
    device, max_bytes = search.cache.length.device, float(KEPT_BYTES)
    if device.type == "cuda":
        max_bytes = KEPT_SHARE * torch.cuda.get_device_properties(device).total_memory
    with _LOCK:
        kept = _KEPT.setdefault(model, OrderedDict())
        kept[key] = search
        while len(kept) > MAX_KEPT or sum(search.cache.nbytes for search in kept.values()) > max_bytes:
            kept.popitem(last=False)


def forget_searches(model: Any) -> None:
    """Free the searches kept for a model."""
    with _LOCK:
        _KEPT.pop(model, None)
