"""What this model does its own way within `generate()` of transformers: the same results by less work.

Shape legend: B sentences, N = B * k rows of k beams, P cached positions, T target length, V target vocabulary.
"""

from typing import Any

from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.cache_utils import Cache
from transformers.masking_utils import create_masks_for_generate

from .beam_search_vanilla_transformer import Beams, top_log_probs
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .cpu_ops_vanilla_transformer import packing

# What `generate()` passes on of the source, the same at every step and for all beams.
ENCODER_SIDE = ("encoder_outputs", "attention_mask")


class VanillaTransformerGenerationMixin(GenerationMixin):
    """Beams that share their source, caches of which only the beams' own part moves, scores that are read once."""

    def prepare_inputs_for_generation(  # type: ignore[override]  # arguments that are only passed on stay unnamed
        self, input_ids: Any, next_sequence_length: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the arguments of `forward` for the next step of `generate()`.

        Where a cache is handed to `generate()` with all target tokens (B, T) and no mask of them, only those that it
        has not seen are decoded; the base class would decode all of them again.
        """
        cache, mask = kwargs.get("past_key_values"), kwargs.get("decoder_attention_mask")
        if next_sequence_length is None and cache is not None and mask is None:
            seen = cache.get_seq_length()
            next_sequence_length = input_ids.shape[1] - seen if 0 < seen < input_ids.shape[1] else None
        base: Any = super()
        return base.prepare_inputs_for_generation(input_ids, next_sequence_length, **kwargs)

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Decode as every model of transformers does, by the same arguments."""
        base: Any = super()
        with packing():
            return base.generate(*args, **kwargs)

    def _expand_inputs_for_generation(self, *args: Any, is_encoder_decoder: bool = True, **kwargs: Any) -> Any:
        """Repeat what belongs to the target for each beam; the source is encoded once for all beams of a sentence."""
        base: Any = super()
        source: dict[str, Any] = {name: kwargs.pop(name) for name in ENCODER_SIDE if name in kwargs}
        input_ids, kwargs = base._expand_inputs_for_generation(*args, is_encoder_decoder=False, **kwargs)
        return input_ids, {**kwargs, **source}

    def _reorder_cache(self, past_key_values: Any, beam_idx: Tensor) -> Any:
        """Let beams go on from others of their sentence, which have the same encoder: only their own past moves."""
        getattr(past_key_values, "self_attention_cache", past_key_values).reorder_cache(beam_idx)
        return past_key_values

    @staticmethod
    def create_masks_for_generate(
        config: VanillaTransformerConfig,
        inputs_embeds: Tensor,
        attention_mask: Tensor | None,
        past_key_values: Cache,
        **kwargs: Any,
    ) -> Any:
        """Return the decoder mask of one step over a static cache; `generate()` calls this.

        The mask (B, P + T) of a padded prefix is only widened to the cache, so that its shape stays the same at
        every step: the decoder counts positions by it, which a ready-made mask (B, 1, T, P + T) would not tell.
        """
        if attention_mask is None:
            return create_masks_for_generate(config, inputs_embeds, None, past_key_values, **kwargs)
        return F.pad(attention_mask, (0, past_key_values.get_max_length() - attention_mask.shape[-1]))

    def _beam_search(
        self,
        input_ids: Tensor,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """Return the sequences (B * num_return_sequences, T) that beam search of transformers returns.

        Among candidates of equal scores, which bfloat16 has many of, either may choose another.

        Of each row's log-probabilities only the best are taken out, in one reading; the base class copies, normalizes
        and adds to all of them. It is left to it where it samples, reports what it saw, or waits for other processes.
        """
        options: Any = generation_config
        if synced_gpus or options.do_sample or options.return_dict_in_generate or options.low_memory:
            base: Any = super()
            return base._beam_search(
                input_ids, logits_processor, stopping_criteria, options, synced_gpus, **model_kwargs
            )
        model: Any = self
        beams = Beams(input_ids, stopping_criteria, options)
        outputs = model._prefill(input_ids, options, model_kwargs, is_first_iteration=not options.is_assistant)
        while True:
            model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs, is_encoder_decoder=True)
            origin = beams.extend(*top_log_probs(outputs.logits[:, -1], beams.kept, logits_processor, input_ids))
            # The scores of a whole vocabulary are large: gone before the next ones come.
            del outputs
            if beams.is_done:
                return beams.best(options.num_return_sequences)
            if (cache := model_kwargs.get("past_key_values")) is not None:
                model_kwargs["past_key_values"] = model._reorder_cache(cache, origin)
            input_ids = beams.tokens()
            step = 1 if model_kwargs["use_cache"] else None
            inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=step, **model_kwargs)
            outputs = model(**inputs, return_dict=True)


__all__ = ["VanillaTransformerGenerationMixin"]
