"""What the models have in common beside the paper: initial weights, tied weights, sizes of vocabularies."""

import copy
import os
import re
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .configuration_vanilla_transformer import VanillaTransformerConfig
from .hub_code_vanilla_transformer import HubCodeMixin
from .positions_vanilla_transformer import VanillaTransformerSinusoidalPositions


class VanillaTransformerPreTrainedModel(HubCodeMixin, PreTrainedModel):
    """What every model of this package has in common: loading, saving and initial weights."""

    config_class = VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _no_split_modules = ["VanillaTransformerEncoderLayer", "VanillaTransformerDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    # Weights that a configuration may tie, and to what, by their names in a model with both sides.
    _tieable_weights_keys: dict[str, str] = {}

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        # Fields may have been set since the configuration was built.
        self.config.validate()

    def post_init(self) -> None:
        """Finish the construction as every model does; keep of the parallel plans what this model has."""
        super().post_init()
        parts = {re.sub(r"\.\d+(?=\.|$)", ".*", name) for name, _ in self.named_modules()}
        self._tp_plan, self._fsdp_plan = (
            {name: style for name, style in (plan or {}).items() if name in parts}
            for plan in (self._tp_plan, self._fsdp_plan)
        )

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Save as every model does, by the same arguments, if the configuration is valid and describes the model.

        Raises:
            ValueError: A field is impossible, or has been changed since the model was built: another one would load.
        """
        self.config.validate()
        self._check_configuration_fits(state_dict)
        super().save_pretrained(save_directory, is_main_process, state_dict, *args, **kwargs)

    def _check_configuration_fits(self, state_dict: dict[str, Any] | None) -> None:
        if getattr(self, "hf_quantizer", None) is not None or self.tp_size is not None:
            return  # The shapes in memory are not those of the files.
        # A subclass may take other arguments; what it adds is its own affair.
        build: Any = next(kind for kind in type(self).__mro__ if kind.__module__.endswith("_vanilla_transformer"))
        with torch.device("meta"):
            described: nn.Module = build(copy.deepcopy(self.config))
        self._check_weights_fit(dict(described.named_parameters(remove_duplicate=False)), state_dict)
        modules = dict(self.named_modules())
        for name, wanted in described.named_modules():
            if name in modules and (field := _weightless_difference(modules[name], wanted)):
                raise ValueError(
                    f"{name} was built with another `{field}` than the configuration has now: set its fields before "
                    "the model is built."
                )

    def _check_weights_fit(self, described: dict[str, nn.Parameter], state_dict: dict[str, Any] | None) -> None:
        weights = dict(self.named_parameters(remove_duplicate=False))
        for name, wanted in described.items():
            # What is sharded in memory is gathered in the dictionary.
            found: Any = (state_dict or weights).get(name, wanted)
            # DeepSpeed leaves none of a partitioned weight in place.
            if found.shape != wanted.shape and found.numel():
                raise ValueError(
                    f"{name} has the shape {tuple(found.shape)}, but the configuration describes "
                    f"{tuple(wanted.shape)}: set its fields before the model is built, or use "
                    "`resize_token_embeddings` for the vocabulary."
                )
        # Where there are others as well, the model has been wrapped.
        if weights.keys() < described.keys():
            raise ValueError(
                f"the configuration describes {min(described.keys() - weights.keys())}, which the model does not "
                "have: set the fields before the model is built."
            )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier-uniform matrices, embeddings of standard deviation d ** -0.5 so that section 3.4 scales them to 1."""
        if isinstance(module, VanillaTransformerSinusoidalPositions):
            # Not stored with the weights, hence empty after `from_pretrained` until computed here.
            init.copy_(module.weight, module.compute_table())
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            init.normal_(module.weight, std=self.config.init_std)
            if module.padding_idx is not None and not getattr(module.weight, "_is_hf_initialized", False):
                init.zeros_(module.weight[module.padding_idx])
        else:
            super()._init_weights(module)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the source vocabulary; one that both sides share, with the output projection.

        Takes the arguments of the base class.
        """
        if self.config.share_encoder_decoder_embeddings:
            # One number for both from now on, which the base class sets.
            self.config.decoder_vocab_size = None
            return super().resize_token_embeddings(*args, **kwargs)
        embeddings = self.get_encoder()._resize_token_embeddings(*args, **kwargs)
        self.config.vocab_size = embeddings.num_embeddings
        return embeddings

    def resize_decoder_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the target vocabulary and the output projection; takes the arguments of `resize_token_embeddings`.

        Raises:
            ValueError: If both sides share one vocabulary.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "`share_encoder_decoder_embeddings` is True, so the target has no vocabulary of its own: use "
                "`resize_token_embeddings`."
            )
        embeddings = self.get_decoder()._resize_token_embeddings(*args, **kwargs)
        if (head := self.get_output_embeddings()) is not None:
            self.set_output_embeddings(self._get_resized_lm_head(head, embeddings.num_embeddings))
        self.config.decoder_vocab_size = embeddings.num_embeddings
        self.tie_weights()
        return embeddings

    def tie_weights(self, missing_keys: set[str] | None = None, recompute_mapping: bool = True) -> None:
        """Tie what the configuration ties; after loading, start what it does not tie from what it was tied to.

        A checkpoint that stores two tied weights once says nothing else of the weight that this model keeps apart.
        """
        super().tie_weights(missing_keys, recompute_mapping)
        for name, origin in self._tieable_weights_keys.items():
            if missing_keys and name in missing_keys and origin not in missing_keys:
                weight, start = self.get_parameter(name), self.get_parameter(origin)
                if weight.shape == start.shape and start.device == weight.device:
                    with torch.no_grad():
                        weight.copy_(start)
                    missing_keys.discard(name)


# Fields that shape no weight, by the attribute of the module that was built with them.
_WEIGHTLESS_FIELDS = {
    "activation_fn": "activation_function",
    "eps": "layer_norm_eps",
    "head_dim": "head_dim",
    "value_head_dim": "value_head_dim",
    "layout": "sinusoidal_layout",
}


def _weightless_difference(module: nn.Module, described: nn.Module) -> str | None:
    """Return the first field that two modules of one kind were built with differently, if any."""
    if type(module) is type(described):
        for attribute, field in _WEIGHTLESS_FIELDS.items():
            found, wanted = (repr(getattr(each, attribute, None)) for each in (module, described))
            if found != wanted:
                return field
    return None
