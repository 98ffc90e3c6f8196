"""Faster `generate()` with unchanged results.

Shapes: B sentences, N = B * k rows of k beams, T target length.
"""

from contextlib import AbstractContextManager
from typing import Any, cast

from torch import Tensor

from ..model.compat_vanilla_transformer import CACHE
from ..model.generation_vanilla_transformer import VanillaTransformerGenerationMixin
from ..model.masks_vanilla_transformer import match_batch_size
from ..search.beams import beam_search, can_search, reorder_cache
from .cuda_graphs import RecordedSteps, can_capture, suits_static_cache
from .linear import decoding_products
from .recorded_search import may_be_recorded, recorded_search
from .static_search import StaticBeams, StaticGreedy

# Inputs of the source side, the same in all steps and for all beams of a sentence.
SOURCE_INPUTS = ("encoder_outputs", "attention_mask")


class FastGeneration(VanillaTransformerGenerationMixin):
    """Encodes a source once for all its beams, reorders only self-attention caches, and selects tokens in one pass."""

    # Whether `forward` accepts several target rows per source row.
    shares_sources = True
    # Whether beam search returns scores without `output_scores`.
    returns_beam_scores = True

    def generate(self, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("packing") is not None:
            raise ValueError("`packing` is set, but `generate()` does not support packed sequences; pad them instead.")
        with decoding_products():
            outputs = super().generate(inputs, generation_config, *args, **kwargs)
        repeat_sources(getattr(outputs, CACHE, None))
        return outputs

    def decoding_session(self) -> AbstractContextManager[None]:
        """Return a context in which calls of `generate()` share the routines chosen and weights packed for them."""
        return decoding_products(shared=True)

    def get_compiled_call(self, compile_config: Any) -> Any:
        """Return the forward pass for steps over a static cache: CUDA graphs, or compiled by `compile_config`."""
        if compile_config is None and can_capture(self):
            model: Any = self
            return RecordedSteps(model, model.device)
        return super().get_compiled_call(compile_config)  # type: ignore[misc]  # of `PreTrainedModel`

    def step_call(self, model_kwargs: dict[str, Any], options: Any) -> Any:
        """Return the forward pass for steps of a search, compiled if transformers would compile greedy search."""
        is_compiled = cast(Any, self)._valid_auto_compile_criteria(model_kwargs, options)
        return self.get_compiled_call(options.compile_config) if is_compiled else self

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], mode: Any, batch_size: int, length: int
    ) -> Any:
        """Prepare the cache: a static one on a GPU if steps can be replayed as CUDA graphs."""
        if suits_static_cache(self, generation_config, mode, model_kwargs, length):
            generation_config.cache_implementation = "static"
        if generation_config.compile_config is None:
            # Do not keep the length of the longest cache so far, which only saves `torch.compile` a new shape.
            self._previous_max_cache_length = -1
        base: Any = super()
        return base._prepare_cache_for_generation(generation_config, model_kwargs, mode, batch_size, length)

    def _expand_inputs_for_generation(self, *args: Any, is_encoder_decoder: bool = True, **kwargs: Any) -> Any:
        """Repeat the target's inputs for each beam, but not the source's."""
        base: Any = super()
        if not self.shares_sources:
            return base._expand_inputs_for_generation(*args, is_encoder_decoder=is_encoder_decoder, **kwargs)
        source: dict[str, Any] = {name: kwargs.pop(name) for name in SOURCE_INPUTS if name in kwargs}
        input_ids, kwargs = base._expand_inputs_for_generation(*args, is_encoder_decoder=False, **kwargs)
        return input_ids, {**kwargs, **source}

    def _reorder_cache(self, past_key_values: Any, beam_idx: Tensor) -> Any:
        """Reorder a cache in the searches of transformers."""
        reorder_cache(past_key_values, beam_idx)
        return past_key_values

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """Return the sequences and scores of transformers' beam search, up to ties.

        Each row's best log-probabilities are selected in one pass, while the base class copies, normalizes and adds to
        all of them. What `can_search` excludes, and processes that must step together, are left to the base class.
        """
        options, args = generation_config, (input_ids, logits_processor, stopping_criteria, generation_config)
        if synced_gpus or not can_search(options):
            base: Any = super()
            return base._beam_search(*args, synced_gpus, **model_kwargs)
        if may_be_recorded(self, *args, model_kwargs):
            static = StaticBeams(input_ids, stopping_criteria, options)
            return recorded_search(self, static, input_ids, logits_processor, model_kwargs)
        return beam_search(self, *args, **model_kwargs)

    def _sample(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        streamer: Any = None,
        **model_kwargs: Any,
    ) -> Any:
        """Return the sequences (B, T) of transformers' greedy search or sampling; records greedy steps on a GPU."""
        options: Any = generation_config
        is_plain = not (synced_gpus or streamer or options.do_sample or options.return_dict_in_generate)
        if is_plain and may_be_recorded(self, input_ids, logits_processor, stopping_criteria, options, model_kwargs):
            state = StaticGreedy(input_ids, stopping_criteria, options)
            return recorded_search(self, state, input_ids, logits_processor, model_kwargs)
        base, args = cast(Any, super()), (input_ids, logits_processor, stopping_criteria, options)
        return base._sample(*args, synced_gpus, streamer, **model_kwargs)


def repeat_sources(cache: Any) -> None:
    """Repeat the cached keys and values of each source for its hypotheses, as transformers returns them."""
    cross: Any = getattr(cache, "cross_attention_cache", None)
    if cross is None:
        return
    for own, layer in zip(cache.self_attention_cache.layers, cross.layers, strict=True):
        layer.keys, layer.values = (match_batch_size(x, len(own.keys)) for x in (layer.keys, layer.values))
