"""Layout of Sockeye 3's transformer: a parameter file with `config` and the vocabularies beside it.

Shape legend: d model width [d_model], h heads, d_k key width.
"""

from typing import Any

import torch
from torch import Tensor

from ..rules import STACKS, Layout, ModelKeys, Weights, special_ids
from ..settings import Settings, cannot_express, check_expressible, same_in_both

_SELF_ATTENTION = ModelKeys(
    embedding="embedding_{side}.embedding",
    positions=("{stack}.pos_embedding.weight",),
    norms=(
        ("pre_self_attention.layer_norm", "pre_ff.layer_norm"),
        ("pre_autoregr_layer.layer_norm", "pre_enc_attention.layer_norm", "pre_ff.layer_norm"),
    ),
    attentions=(("self_attention",), ("autoregr_layer",)),
    projections=("ff_in", "ff_in", "ff_in", "ff_out"),
    feed_forward=("ff.ff1", "ff.ff2"),
    final_norm="{stack}.final_process.layer_norm",
    output="output_layer",
    sides=("source", "target"),
    optional=("_proj.bias",),
)
_KEYS = (
    _SELF_ATTENTION,
    _SELF_ATTENTION._replace(attentions=((), ("", "enc_attention")), projections=("ff_q", "ff_kv", "ff_kv", "ff_out")),
    _SELF_ATTENTION._replace(
        norms=(
            ("post_self_attention.layer_norm", "post_ff.layer_norm"),
            ("post_autoregr_layer.layer_norm", "post_enc_attention.layer_norm", "post_ff.layer_norm"),
        )
    ),
)
# Steps before and after a sub-layer (n: norm, r: residual, d: dropout), by our norm position.
_SEQUENCES = {"pre": ("n", "r"), "post": ("", "rn")}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish1": "silu"}
# Values of settings that our model can express; the first is the default.
_EXPRESSIBLE: dict[str, tuple[Any, ...]] = {
    **{f"config_{stack}_{name}": (False,) for stack in STACKS
       for name in ("use_glu", "use_lhuc", "block_prepended_cross_attention")},
    "config_decoder_decoder_type": ("transformer",),
    **{f"config_embed_{side}_num_factors": (1,) for side in ("source", "target")},
}  # fmt: skip  # a table, not an expression


def _separate_heads(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Put all keys before all values; files interleave them by head, so the number of heads must be known."""
    check_expressible("Sockeye", settings, _EXPRESSIBLE)
    separated = dict(weights)
    for stack in STACKS:
        heads = settings.get(f"config_{stack}_attention_heads")
        if type(heads) is not int or heads < 1:
            raise ValueError(
                "Sockeye's files interleave keys and values by head, and no `config` beside the weights gives the "
                f"number of heads of the {stack}; put the model's `config` into their folder"
            )
        for key, tensor in weights.items():
            if key.startswith(f"{stack}.layers.") and (".ff_in." in key or ".ff_kv." in key):
                separated[key] = _keys_before_values(key, tensor, heads)
    return separated


def _keys_before_values(key: str, tensor: Tensor, heads: int) -> Tensor:
    """Reorder (2 h d_k, ...), or the rows after the queries of (3 h d_k, ...)."""
    parts = 3 if ".ff_in." in key else 2
    if not tensor.dim() or len(tensor) % (parts * heads):
        raise ValueError(
            f"{key} has {len(tensor)} rows, which do not split into the {heads} heads of `config`; use the model's "
            "own `config`"
        )
    width = len(tensor) // parts
    queries, mixed = tensor[: (parts - 2) * width], tensor[(parts - 2) * width :]
    keys, values = mixed.unflatten(0, (heads, 2, -1)).unbind(1)
    return torch.cat([queries, keys.flatten(0, 1), values.flatten(0, 1)])


def _fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Infer fields that both stacks share."""
    names = ("preprocess_sequence", "postprocess_sequence", "act_type")
    *sequences, activation = (
        same_in_both(name, (settings.get(f"config_{stack}_{name}") for stack in STACKS)) for name in names
    )
    steps = tuple((step or "").replace("d", "") for step in sequences)
    position = next((place for place, expected in _SEQUENCES.items() if expected == steps), None)
    if position is None:
        raise cannot_express(f"the model has the processing steps {sequences} before and after its sub-layers")
    if activation not in _ACTIVATIONS:
        raise cannot_express(f"the model has the activation {activation!r}")
    return {
        "norm_position": position,
        "final_layer_norm": position == "pre",
        "activation_function": _ACTIVATIONS[activation],
    }


SOCKEYE = Layout(
    name="sockeye",
    description="transformer of Sockeye 3, with the config and vocabularies of its model folder",
    keys=_KEYS,
    # `<pad>` 0, `<unk>` 1, `<s>` 2, `</s>` 3.
    defaults={"layer_norm_eps": 1e-6, **special_ids(pad=0, bos=2, eos=3)},
    example="model/params.best",
    setting_fields={
        **{f"config_{stack}_attention_heads": (f"{stack}_attention_heads",) for stack in STACKS},
        "config_encoder_dropout_prepost": ("dropout",),
        "config_encoder_dropout_attention": ("attention_dropout",),
        "config_encoder_dropout_act": ("activation_dropout",),
    },
    argument_fields=("norm_position", "activation_function"),
    preprocess=_separate_heads,
    infer_fields=_fields,
    settings_files=("config",),
    vocabulary_settings=("vocab.src.0.json", "vocab.trg.0.json"),
)
