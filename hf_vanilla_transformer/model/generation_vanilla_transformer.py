"""Additions to `GenerationMixin`: checked arguments, padding inferred from ids, target languages.

Shapes: B sentences, P cached positions, T target length.
"""

from numbers import Integral
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import GenerationMixin
from transformers.masking_utils import create_masks_for_generate

from .compat_vanilla_transformer import CACHE, check_step, pop_cache
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .masks_vanilla_transformer import mask_padding

# Options that are numbers of hypotheses.
COUNTS = ("num_beams", "num_return_sequences")
# Arguments that `generate()` passes on to the model, whose `forward` does not take them.
TOKENIZERS = ("tokenizer", "assistant_tokenizer")


class VanillaTransformerGenerationMixin(GenerationMixin):
    """`GenerationMixin` that infers padding from ids, checks arguments, and sets the target language."""

    def prepare_inputs_for_generation(  # type: ignore[override]  # forwards the arguments it does not use
        self, input_ids: Any, next_sequence_length: int | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Return the arguments of `forward` for the next step of `generate()`.

        Given a filled cache, all target tokens (B, T) and no mask, only uncached tokens are decoded; the base class
        would decode all of them again.
        """
        cache = pop_cache(kwargs)
        for name in TOKENIZERS:
            kwargs.pop(name, None)
        check_step(input_ids, next_sequence_length, cache)
        if next_sequence_length is None and cache is not None and kwargs.get("decoder_attention_mask") is None:
            seen = cache.get_seq_length()
            next_sequence_length = input_ids.shape[1] - seen if 0 < seen < input_ids.shape[1] else None
        base: Any = super()
        return base.prepare_inputs_for_generation(input_ids, next_sequence_length, **{CACHE: cache}, **kwargs)

    def generate(self, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        """Decode; takes the arguments of `GenerationMixin.generate`.

        Without `attention_mask`, every `pad_token_id` in the source ids counts as padding. A `forced_bos_token_id`
        among the `language_ids` of the model's generation config is the target language: it replaces the language
        token that each source begins with.

        Raises:
            RuntimeError: The installed transformers passes no cache that this model supports.
            ValueError: An argument is invalid.
        """
        self._check_settings(generation_config, kwargs)
        base: Any = super()
        ids = kwargs.get("input_ids") if inputs is None else inputs
        kwargs["attention_mask"] = mask_padding(kwargs.get("attention_mask"), ids, cast(Any, self).config)
        if (cache := pop_cache(kwargs)) is not None:
            kwargs[CACHE] = cache
        if (tokenizer := kwargs.get("tokenizer")) is not None:
            # `stop_strings` are compared with target tokens.
            kwargs["tokenizer"] = getattr(tokenizer, "target_tokenizer", tokenizer)
        language = self._setting("forced_bos_token_id", generation_config, kwargs)
        languages = getattr(self.generation_config, "language_ids", None) or []
        if language in languages:
            ids = _with_language(ids, language, languages, kwargs)
            inputs, kwargs = None, {**kwargs, "input_ids": ids, "forced_bos_token_id": None}
        return base.generate(inputs, generation_config, *args, **kwargs)

    def _check_settings(self, generation_config: Any, options: dict[str, Any]) -> None:
        guidance = self._setting("guidance_scale", generation_config, options, default=1)
        if guidance != 1:
            raise ValueError(
                f"`guidance_scale` is {guidance!r}, but classifier-free guidance needs a decoder-only model; leave it "
                "out, or set it to 1"
            )
        for name in COUNTS:
            value = self._setting(name, generation_config, options, default=1)
            if not isinstance(value, Integral) or value < 1:
                raise ValueError(f"`{name}` is {value!r}; it must be a positive integer.")

    def _setting(self, name: str, generation_config: Any, options: dict[str, Any], default: Any = None) -> Any:
        """Return the value of an option that `generate()` will use."""
        configs = (generation_config, self.generation_config)
        values = (options.get(name), *(getattr(config, name, None) for config in configs))
        return next((value for value in values if value is not None), default)

    @staticmethod
    def create_masks_for_generate(
        config: VanillaTransformerConfig, inputs_embeds: Tensor, attention_mask: Tensor | None, **kwargs: Any
    ) -> Any:
        """Return the decoder mask of a step over a static cache; called by `generate()`.

        The padding mask (B, P + T) of a prefix is padded to the cache's length, so that all steps have one shape. The
        decoder counts positions with it, which a score mask (B, 1, T, P + T) would not allow.
        """
        cache = pop_cache(kwargs)
        if attention_mask is None:
            return create_masks_for_generate(config, inputs_embeds, None, cache, **kwargs)
        return F.pad(attention_mask, (0, cache.get_max_length() - attention_mask.shape[-1]))


def _with_language(ids: Any, language: int, languages: list[int], options: dict[str, Any]) -> Tensor:
    """Replace the first token of source ids (B, S), one of `languages`, with `language`."""
    if ids is None or options.get("encoder_outputs") is not None:
        raise ValueError(
            "`forced_bos_token_id` is a language, whose token belongs at the start of the source; pass `input_ids`, "
            "and no `encoder_outputs`"
        )
    mask = options.get("attention_mask")
    first = ids.new_zeros(len(ids), 1) if mask is None else mask.int().argmax(1, keepdim=True)
    known = ids.new_tensor(languages)
    if not torch.isin(ids.gather(1, first), known).all():
        raise ValueError(
            "`forced_bos_token_id` is a language, but a source does not begin with a language token; tokenize it with "
            "special tokens"
        )
    return ids.scatter(1, first, language)
