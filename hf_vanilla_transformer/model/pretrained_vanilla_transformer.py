"""Base class of the models: weight initialization, weight tying, vocabulary resizing, and checks before saving."""

import copy
import inspect
import os
import re
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init

from .compat_vanilla_transformer import CACHE_NAMES
from .configuration_vanilla_transformer import VanillaTransformerConfig
from .hub_code_vanilla_transformer import HubCodeMixin
from .positions_vanilla_transformer import VanillaTransformerSinusoidalPositions

# Called with each newly built model: the installed package accelerates it, code from the Hub leaves it plain.
POST_INIT_HOOKS: list[Callable[[nn.Module], Any]] = []


def run_post_init_hooks(model: nn.Module) -> None:
    for hook in POST_INIT_HOOKS:
        hook(model)


class VanillaTransformerPreTrainedModel(HubCodeMixin, PreTrainedModel):
    """Base class of all models: loading, saving and weight initialization."""

    config_class = VanillaTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True
    _no_split_modules = ["VanillaTransformerEncoderLayer", "VanillaTransformerDecoderLayer"]
    _skip_keys_device_placement = [*CACHE_NAMES]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True

    # {target: source} of the weights that a configuration can tie.
    _tieable_weights_keys: dict[str, str] = {}

    def __init__(self, config: VanillaTransformerConfig, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        # Fields may have changed since the configuration was built.
        self.config.validate()

    @property
    def dummy_inputs(self) -> dict[str, Tensor]:
        """Two rows that `forward` accepts, one of them padded."""
        eos, pad = self.config.eos_token_id, self.config.pad_token_id
        ids = torch.tensor([[eos, eos], [eos, pad]], device=self.device)
        inputs = {"input_ids": ids, "attention_mask": torch.tensor([[1, 1], [1, 0]], device=self.device)}
        if "decoder_input_ids" in inspect.signature(self.forward).parameters:
            inputs["decoder_input_ids"] = torch.full_like(ids[:, :1], self.config.decoder_start_token_id)
        return inputs

    def post_init(self) -> None:
        """Finish construction; drop the entries of parallel plans for modules that this model lacks."""
        super().post_init()
        modules = {re.sub(r"\.\d+(?=\.|$)", ".*", name) for name, _ in self.named_modules()}
        self._tp_plan, self._fsdp_plan = (
            {name: style for name, style in (plan or {}).items() if name in modules}
            for plan in (self._tp_plan, self._fsdp_plan)
        )
        run_post_init_hooks(self)

    def save_pretrained(
        self,
        save_directory: str | os.PathLike[str],
        is_main_process: bool = True,
        state_dict: dict[str, Any] | None = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        """Check that the configuration describes the model, then save; takes the arguments of the base class.

        Raises:
            ValueError: A field is invalid, or was changed after the model was built, so that another model would
                load.
        """
        self.config.validate()
        self._check_config_describes_model(state_dict)
        super().save_pretrained(save_directory, is_main_process, state_dict, *args, **kwargs)

    def _check_config_describes_model(self, state_dict: dict[str, Any] | None) -> None:
        # Quantized and tensor-parallel weights have different shapes in memory and in files.
        if getattr(self, "hf_quantizer", None) is not None or self.tp_size is not None:
            return
        # A user's subclass may take other arguments and add weights.
        build: Any = next(kind for kind in type(self).__mro__ if kind.__module__.endswith("_vanilla_transformer"))
        with torch.device("meta"):
            described: nn.Module = build(copy.deepcopy(self.config))
        self._check_shapes(dict(described.named_parameters(remove_duplicate=False)), state_dict)
        modules = dict(self.named_modules())
        for name, module in described.named_modules():
            if name in modules and (field := _changed_field(name, modules[name], module)):
                raise ValueError(
                    f"{name} was built with another `{field}` than the configuration has now; set fields before "
                    "building the model."
                )

    def _check_shapes(self, described: dict[str, nn.Parameter], state_dict: dict[str, Any] | None) -> None:
        weights = dict(self.named_parameters(remove_duplicate=False))
        for name, expected in described.items():
            # Sharded weights are gathered in `state_dict`; DeepSpeed leaves partitioned ones empty.
            weight: Any = (state_dict or weights).get(name, expected)
            if weight.shape != expected.shape and weight.numel():
                raise ValueError(
                    f"{name} has shape {tuple(weight.shape)}, but the configuration describes "
                    f"{tuple(expected.shape)}; set fields before building the model, or use "
                    "`resize_token_embeddings` for the vocabulary."
                )
        # A wrapped model has additional weights.
        if weights.keys() < described.keys():
            raise ValueError(
                f"the configuration describes {min(described.keys() - weights.keys())}, which the model does not "
                "have; set fields before building the model."
            )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize matrices Xavier-uniform, and embeddings to unit variance after the scaling of section 3.4."""
        if isinstance(module, VanillaTransformerSinusoidalPositions):
            # Not saved, hence uninitialized after `from_pretrained`.
            init.copy_(module.weight, module.compute_weight())
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
        """Resize the source vocabulary, or the shared one with its output projection.

        Takes the arguments of the base class.
        """
        if self.config.share_encoder_decoder_embeddings:
            # Derived from `vocab_size`, which the base class sets.
            self.config.decoder_vocab_size = None
            return super().resize_token_embeddings(*args, **kwargs)
        embeddings = self.get_encoder()._resize_token_embeddings(*args, **kwargs)
        self.config.vocab_size = embeddings.num_embeddings
        return embeddings

    def resize_decoder_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the target vocabulary and the output projection; takes the arguments of `resize_token_embeddings`.

        Raises:
            ValueError: Both sides share one vocabulary.
        """
        if self.config.share_encoder_decoder_embeddings:
            raise ValueError(
                "`share_encoder_decoder_embeddings` is True, so the target has no vocabulary of its own; use "
                "`resize_token_embeddings`."
            )
        embeddings = self.get_decoder()._resize_token_embeddings(*args, **kwargs)
        if (head := self.get_output_embeddings()) is not None:
            self.set_output_embeddings(self._get_resized_lm_head(head, embeddings.num_embeddings))
        self.config.decoder_vocab_size = embeddings.num_embeddings
        self.tie_weights()
        return embeddings

    def tie_weights(self, missing_keys: set[str] | None = None, recompute_mapping: bool = True) -> None:
        """Tie weights; after loading, copy untied weights that the checkpoint stored tied from their source."""
        super().tie_weights(missing_keys, recompute_mapping)
        for name, source_name in self._tieable_weights_keys.items():
            if missing_keys and name in missing_keys and source_name not in missing_keys:
                weight, source = self.get_parameter(name), self.get_parameter(source_name)
                if weight.shape == source.shape and source.device == weight.device:
                    with torch.no_grad():
                        weight.copy_(source)
                    missing_keys.discard(name)


# Module attributes set by fields that do not affect weight shapes.
_FIELDS_WITHOUT_WEIGHTS = {
    "activation_fn": "activation_function",
    "eps": "layer_norm_eps",
    "head_dim": "head_dim",
    "value_head_dim": "value_head_dim",
    "layout": "sinusoidal_layout",
    "is_pre_norm": "norm_position",
}
# Fields that disable norms of these names; `norm_position` disables those within layers.
_NORM_FIELDS = {"layernorm_embedding": "embedding_layer_norm", "layer_norm": "final_layer_norm"}


def _changed_field(name: str, module: nn.Module, described: nn.Module) -> str | None:
    """Return the first of these fields in which a module differs from the described one."""
    if type(module) is nn.LayerNorm and type(described) is nn.Identity:
        return _NORM_FIELDS.get(name.rpartition(".")[2], "norm_position")
    if type(module) is type(described):
        for attribute, field in _FIELDS_WITHOUT_WEIGHTS.items():
            if repr(getattr(module, attribute, None)) != repr(getattr(described, attribute, None)):
                return field
    return None
