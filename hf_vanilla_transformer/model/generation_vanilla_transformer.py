"""Faster `GenerationMixin` overrides with unchanged results.

Shapes: B sentences, N = B * k rows of k beams, P cached positions, T target length, V target vocabulary.
"""

from numbers import Integral
from typing import Any, cast

from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.cache_utils import StaticCache
from transformers.masking_utils import create_masks_for_generate

from .attention_vanilla_transformer import mask_padding, match_rows
from .beam_search_vanilla_transformer import Beams, beam_search, select_rows
from .compat_vanilla_transformer import CACHE, check_step, pop_cache
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .cuda_graphs_vanilla_transformer import suits_static_cache
from .linear_vanilla_transformer import decoding_products
from .static_search_vanilla_transformer import StaticBeams, StaticGreedy, may_be_recorded, static_search

# Inputs of a source, the same at every step and for all its beams.
SOURCE_INPUTS = ("encoder_outputs", "attention_mask")
# Settings that count hypotheses.
COUNTS = ("num_beams", "num_return_sequences")


class VanillaTransformerGenerationMixin(GenerationMixin):
    """Encodes a source once for all its beams, reorders only self-attention caches, and selects tokens in one pass."""

    def prepare_inputs_for_generation(  # type: ignore[override]  # passes on the arguments it does not use
        self, input_ids: Any, next_sequence_length: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the arguments of `forward` for the next step of `generate()`.

        Given a filled cache, all target tokens (B, T) and no mask, only the tokens that the cache lacks are decoded;
        the base class would decode all of them again.
        """
        cache = pop_cache(kwargs)
        check_step(input_ids, next_sequence_length, cache)
        if next_sequence_length is None and cache is not None and kwargs.get("decoder_attention_mask") is None:
            seen = cache.get_seq_length()
            next_sequence_length = input_ids.shape[1] - seen if 0 < seen < input_ids.shape[1] else None
        base: Any = super()
        return base.prepare_inputs_for_generation(input_ids, next_sequence_length, **{CACHE: cache}, **kwargs)

    def generate(self, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Decode; takes the arguments of `GenerationMixin.generate`.

        Without `attention_mask`, `pad_token_id` in the source ids is padding.

        Raises:
            RuntimeError: The installed transformers passes no cache that this model knows.
            ValueError: The sources are packed, or an argument is wrong.
        """
        if kwargs.get("cu_seq_lens") is not None:
            raise ValueError("`cu_seq_lens` is set, but `generate()` takes no packed sequences; pad them instead.")
        self._check_counts(generation_config, kwargs)
        base, config = cast(Any, super()), cast(Any, self).config
        if (cache := pop_cache(kwargs)) is not None:
            kwargs[CACHE] = cache
        ids = kwargs.get("input_ids") if inputs is None else inputs
        if (mask := mask_padding(kwargs.get("attention_mask"), ids, config)) is not None:
            kwargs["attention_mask"] = mask
        with decoding_products():
            outputs = base.generate(inputs, generation_config, *args, **kwargs)
        repeat_sources(getattr(outputs, CACHE, None))
        return outputs

    def _check_counts(self, generation_config: Any, options: dict[str, Any]) -> None:
        """Raise a ValueError if a number of hypotheses is not positive."""
        for name in COUNTS:
            settings = (generation_config, self.generation_config)
            values = (options.get(name), *(getattr(each, name, None) for each in settings))
            value = next((each for each in values if each is not None), 1)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"`{name}` is {value!r}, but it must be a positive integer.")

    def _prepare_cache_for_generation(
        self, generation_config: Any, model_kwargs: dict[str, Any], mode: Any, batch_size: int, length: int
    ) -> Any:
        """Prepare the cache: on a GPU a static one, where steps can then be replayed as CUDA graphs."""
        if suits_static_cache(self, generation_config, mode, model_kwargs, length):
            generation_config.cache_implementation = "static"
        if generation_config.compile_config is None:
            # Otherwise the cache is as long as any before, which spares only `torch.compile` another shape.
            self._previous_max_cache_length = -1
        base: Any = super()
        return base._prepare_cache_for_generation(generation_config, model_kwargs, mode, batch_size, length)

    def _expand_inputs_for_generation(self, *args: Any, is_encoder_decoder: bool = True, **kwargs: Any) -> Any:
        """Repeat the target's inputs for each beam, but not the source's."""
        base: Any = super()
        source: dict[str, Any] = {name: kwargs.pop(name) for name in SOURCE_INPUTS if name in kwargs}
        input_ids, kwargs = base._expand_inputs_for_generation(*args, is_encoder_decoder=False, **kwargs)
        return input_ids, {**kwargs, **source}

    def _reorder_cache(self, past_key_values: Any, beam_idx: Tensor) -> Any:
        """Reorder the self-attention cache; the beams of a sentence share the cross-attention cache.

        Fewer rows than the cache has drop sentences.
        """
        own: Any = getattr(past_key_values, "self_attention_cache", past_key_values)
        cross: Any = getattr(past_key_values, "cross_attention_cache", None)
        if cross is not None and len(beam_idx) < (total := own.layers[0].keys.shape[0]):
            for layer in cross.layers:
                layer.keys, layer.values = (select_rows(x, beam_idx, total) for x in (layer.keys, layer.values))
        if isinstance(own, StaticCache):
            # In place: compiled steps expect it where it was.
            cached: Any
            for cached in own.layers:
                for states in (cached.keys, cached.values):
                    states.copy_(states.index_select(0, beam_idx.to(states.device)))
        else:
            own.reorder_cache(beam_idx)
        return past_key_values

    @staticmethod
    def create_masks_for_generate(
        config: VanillaTransformerConfig,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        **kwargs: Any,
    ) -> Any:
        """Return the decoder mask of a step over a static cache; called by `generate()`.

        The padding mask (B, P + T) of a prefix is widened to the cache and keeps one shape for all steps. The decoder
        counts positions by it, which a score mask (B, 1, T, P + T) would not allow.
        """
        cache = pop_cache(kwargs)
        if attention_mask is None:
            return create_masks_for_generate(config, inputs_embeds, None, cache, **kwargs)
        return F.pad(attention_mask, (0, cache.get_max_length() - attention_mask.shape[-1]))

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """Return the sequences (B * num_return_sequences, T) of transformers' beam search, equal scores aside.

        Each row's best log-probabilities are selected in one pass, where the base class copies, normalizes and adds to
        all of them. Steps over a static cache are compiled where the base class compiles those of greedy search.
        Sampling, reported scores and synchronized processes are left to the base class.
        """
        options: Any = generation_config
        if synced_gpus or options.do_sample or options.return_dict_in_generate or options.low_memory:
            base: Any = super()
            return base._beam_search(
                input_ids, logits_processor, stopping_criteria, options, synced_gpus, **model_kwargs
            )
        if may_be_recorded(self, logits_processor, stopping_criteria, options, model_kwargs):
            static = StaticBeams(input_ids, stopping_criteria, options)
            return static_search(self, static, input_ids, logits_processor, options, model_kwargs)
        beams = Beams(input_ids, stopping_criteria, options)
        return beam_search(self, beams, input_ids, logits_processor, options, model_kwargs)

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
        if not (
            synced_gpus
            or streamer
            or options.do_sample
            or options.return_dict_in_generate
            or not may_be_recorded(self, logits_processor, stopping_criteria, options, model_kwargs)
        ):
            state = StaticGreedy(input_ids, stopping_criteria, options)
            return static_search(self, state, input_ids, logits_processor, options, model_kwargs)
        base: Any = super()
        return base._sample(
            input_ids, logits_processor, stopping_criteria, options, synced_gpus, streamer, **model_kwargs
        )


def repeat_sources(cache: Any) -> None:
    """Repeat the cached keys and values of each source for its hypotheses, as transformers returns them."""
    cross: Any = getattr(cache, "cross_attention_cache", None)
    if cross is None:
        return
    for own, layer in zip(cache.self_attention_cache.layers, cross.layers, strict=True):
        layer.keys, layer.values = (match_rows(x, len(own.keys)) for x in (layer.keys, layer.values))


__all__ = ["VanillaTransformerGenerationMixin"]
