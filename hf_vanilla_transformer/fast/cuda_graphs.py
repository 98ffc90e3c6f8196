"""Decoding steps as CUDA graphs: recorded once for a call of `generate()`, then replayed without Python.

With a few hundred rows, a GPU computes a step faster than the host launches its kernels one by one.
"""

from collections.abc import Callable
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from transformers.generation import GenerationMode

from ..model.compat_vanilla_transformer import CACHE
from ..search.beams import can_search
from .linear import is_hooked

DEVICE_TYPE = "cuda"

# Longest static cache: each step attends to all its keys, filled or not.
MAX_STATIC_LENGTH = 512

# Arguments that are the same objects in every step.
CONSTANT_INPUTS = ("encoder_outputs", CACHE)
# Options of `generate()` that need outputs of each step, or a decoding loop of transformers.
STEP_OPTIONS = ("output_attentions", "output_hidden_states", "low_memory", "is_assistant")
SEARCHES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE, GenerationMode.BEAM_SEARCH)


def suits_static_cache(model: Any, options: Any, mode: GenerationMode, inputs: dict[str, Any], length: int) -> bool:
    """Whether steps of `generate()` should run over a static cache of `length` keys, as CUDA graphs need.

    `options` is the generation config of the call, `inputs` are its arguments of `forward`.
    """
    return (
        can_capture(model)
        and mode in SEARCHES
        and length <= MAX_STATIC_LENGTH
        and options.cache_implementation is None
        and options.use_cache is not False
        and not options.disable_compile
        and not any(getattr(options, name, None) for name in STEP_OPTIONS)
        # Transformers returns the cache.
        and (can_search(options) or not options.return_dict_in_generate)
        and all(inputs.get(name) is None for name in (CACHE, "decoder_attention_mask"))
    )


def can_capture(model: Any) -> bool:
    """Whether a step of `model` only launches kernels, on one GPU: no hooks to call, no values to read on the host."""
    # Looked up once: `model.device` takes as long as all checks here.
    config, device = model.config, model.device
    return (
        device.type == DEVICE_TYPE
        # Eager attention builds its mask from values on the host.
        and config._attn_implementation == "sdpa"
        # Learned positions check the length on the host; an ensemble has no positions of its own.
        and getattr(config, "position_embedding_type", None) == "sinusoidal"
        # Neither sharded nor quantized.
        and all(type(weight) is nn.Parameter and weight.device == device for weight in model.parameters())
        and not any(map(is_hooked, model.modules()))
    )


# For each replaying stream, the last graph and the stream it was recorded on; the next graph reuses their memory.
_LAST_GRAPHS: dict[torch.cuda.Stream, tuple[torch.cuda.CUDAGraph, torch.cuda.Stream]] = {}
# CUDA records one graph at a time.
_RECORDING = Lock()


def record(step: Callable[[], Any], device: torch.device) -> tuple[Callable[[], None], Any]:
    """Record the kernels that `step` launches on `device`; return their replay function and the outputs it fills."""
    # `device` need not be the current one.
    with _RECORDING, torch.cuda.device(device):
        graph, current = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        last, stream = _LAST_GRAPHS.get(current) or (None, torch.cuda.Stream())
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            # Other threads, such as a server's, may keep using the GPU.
            graph.capture_begin(pool=last.pool() if last else None, capture_error_mode="thread_local")
            try:
                outputs = step()
            finally:
                graph.capture_end()
        current.wait_stream(stream)
        _LAST_GRAPHS[current] = graph, stream
    return graph.replay, outputs


class RecordedSteps:
    """A forward pass for decoding steps of equal shapes over one static cache.

    The first step runs eagerly, which loads its kernels; the second is recorded. Each step overwrites the previous
    outputs.
    """

    def __init__(self, model: nn.Module, device: torch.device):
        self.forward, self.device, self.is_warm = model, device, False
        self.replay: Callable[[], None] | None = None
        self.inputs: dict[str, Tensor] = {}
        self.outputs: Any = None

    def __call__(self, **inputs: Any) -> Any:
        """Return `forward(**inputs)`."""
        mask = inputs.get("decoder_attention_mask")
        # The padding mask of a prefix is checked on the host.
        if not self.is_warm or (mask is not None and mask.dim() == 2):
            self.is_warm = True
            return self.forward(**inputs)
        if self.replay is None:
            self._record(inputs)
        else:
            for name, static in self.inputs.items():
                static.copy_(inputs[name])
        assert self.replay is not None
        self.replay()
        return self.outputs

    def _record(self, inputs: dict[str, Any]) -> None:
        changing = {k: x.clone() for k, x in inputs.items() if isinstance(x, Tensor) and k not in CONSTANT_INPUTS}
        self.replay, self.outputs = record(lambda: self.forward(**{**inputs, **changing}), self.device)
        self.inputs = changing
