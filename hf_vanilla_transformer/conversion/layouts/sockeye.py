"""Sockeye 3's transformer: a parameter file, with `config` and the vocabularies beside it.

Shape legend: d model width [d_model], h heads, d_k key width.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..reading import flatten_settings, read_yaml_settings
from ..rules import (
    EMBEDDING_NAMES,
    PROJECTIONS,
    STACKS,
    Layout,
    Rule,
    Settings,
    Weights,
    linear_rules,
    position_rules,
    same_in_both,
    special_ids,
    split_in_three,
    split_in_two,
    sublayer_names,
)

_EMBEDDINGS = {"encoder": "embedding_source.embedding.weight", "decoder": "embedding_target.embedding.weight"}
# Their names of the sub-layers that ours have; norms are called by them too.
_SUBLAYERS = {
    "encoder": {"self_attn": "self_attention"},
    "decoder": {"self_attn": "autoregr_layer", "encoder_attn": "enc_attention"},
}
# What happens before and after a sub-layer (n: norm, r: residual, d: dropout), by our position of the norm.
_SEQUENCES = {"pre": ("n", "r"), "post": ("", "rn")}
_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "swish1": "silu"}
# The only values of settings that our model can express; a setting that a release lacks has them.
_EXPRESSIBLE: dict[str, tuple[Any, ...]] = {
    **{f"config_{stack}_{name}": (False,) for stack in STACKS
       for name in ("use_glu", "use_lhuc", "block_prepended_cross_attention")},
    "config_decoder_decoder_type": ("transformer",),
    **{f"config_embed_{side}_num_factors": (1,) for side in ("source", "target")},
}  # fmt: skip  # a table, not an expression
_REFUSAL = "which cannot be expressed"


def _rules() -> Iterator[Rule]:
    for stack in STACKS:
        yield Rule(_EMBEDDINGS[stack], (EMBEDDING_NAMES[stack],))
    for stack in STACKS:
        key, name = f"{stack}.layers.{{i}}", f"model.{stack}.layers.{{i}}"
        for norm, attention in sublayer_names(stack):
            theirs = _SUBLAYERS[stack].get(attention, "ff")
            for place in ("pre", "post"):
                yield from linear_rules(f"{key}.{place}_{theirs}.layer_norm", f"{name}.{norm}")
            if attention:
                yield from _attention_rules(f"{key}.{theirs}", f"{name}.{attention}")
        for n in (1, 2):
            yield from linear_rules(f"{key}.ff.ff{n}", f"{name}.fc{n}")
        yield from linear_rules(f"{stack}.final_process.layer_norm", f"model.{stack}.layer_norm")
    yield from linear_rules("output_layer", "lm_head")
    yield from position_rules({stack: f"{stack}.pos_embedding.weight" for stack in STACKS})


def _attention_rules(key: str, name: str) -> Iterator[Rule]:
    query, *key_value, output = (f"{name}.{projection}.weight" for projection in PROJECTIONS)
    if name.endswith("self_attn"):
        yield Rule(f"{key}.ff_in.weight", (query, *key_value), split_in_three)
    else:
        yield Rule(f"{key}.ff_q.weight", (query,))
        yield Rule(f"{key}.ff_kv.weight", tuple(key_value), split_in_two)
    yield Rule(f"{key}.ff_out.weight", (output,))


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings in `config`, and the files of the vocabularies.

    Raises:
        ValueError: The file cannot be read.
    """
    file = folder / "config"
    settings = flatten_settings(read_yaml_settings(file)) if file.is_file() else {}
    files = {side: folder / f"vocab.{side}.0.json" for side in ("src", "trg")}
    return settings | {f"vocab_{side}": str(file) for side, file in files.items() if file.is_file()}


def _separate_heads(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Return the weights with all keys before all values: files hold those of each head together.

    Raises:
        ValueError: The numbers of heads are not in the settings, or the model has a setting that ours lacks.
    """
    for name, values in _EXPRESSIBLE.items():
        if settings.get(name, values[0]) not in values:
            raise ValueError(f"the model was trained with Sockeye's {name}: {settings[name]}, {_REFUSAL}")
    separated = dict(weights)
    for stack in STACKS:
        heads = settings.get(f"config_{stack}_attention_heads")
        if type(heads) is not int or heads < 1:
            raise ValueError(
                "Sockeye's files hold keys and values head by head, and no `config` beside the weights says how many "
                f"heads the {stack} has; put the model's `config` into their folder"
            )
        for key, tensor in weights.items():
            if key.startswith(f"{stack}.layers.") and key.endswith((".ff_in.weight", ".ff_kv.weight")):
                separated[key] = _keys_before_values(key, tensor, heads)
    return separated


def _keys_before_values(key: str, tensor: Tensor, heads: int) -> Tensor:
    """Reorder (2 h d_k, d), or the rows after the queries of (3 h d_k, d).

    Raises:
        ValueError: The rows are no multiple of the heads.
    """
    parts = 3 if key.endswith(".ff_in.weight") else 2
    if tensor.dim() != 2 or len(tensor) % (parts * heads):
        raise ValueError(f"{key} has {len(tensor)} rows, which `config` divides among {heads} heads; use its own one")
    width = len(tensor) // parts
    queries, mixed = tensor[: (parts - 2) * width], tensor[(parts - 2) * width :]
    keys, values = mixed.unflatten(0, (heads, 2, -1)).unbind(1)
    return torch.cat([queries, keys.flatten(0, 1), values.flatten(0, 1)])


def _fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Infer fields that both stacks share.

    Raises:
        ValueError: They differ in them, or our model lacks them.
    """
    sequences, activation = (
        _of_both(settings, names) for names in (("preprocess_sequence", "postprocess_sequence"), ("act_type",))
    )
    steps = tuple((step or "").replace("d", "") for step in sequences)
    position = next((place for place, found in _SEQUENCES.items() if found == steps), None)
    if position is None:
        raise ValueError(f"the model has the steps {sequences} before and after its sub-layers, {_REFUSAL}")
    if activation[0] not in _ACTIVATIONS:
        raise ValueError(f"the model has the activation {activation[0]!r}, {_REFUSAL}")
    return {
        "norm_position": position,
        "final_layer_norm": position == "pre",
        "activation_function": _ACTIVATIONS[activation[0]],
    }


def _of_both(settings: Settings, names: tuple[str, ...]) -> tuple[Any, ...]:
    found = {stack: tuple(settings.get(f"config_{stack}_{name}") for name in names) for stack in STACKS}
    return same_in_both(", ".join(names), found)


# Settings in `config` as fields of our configuration.
_SETTING_FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "config_encoder_attention_heads": lambda heads: {"encoder_attention_heads": heads},
    "config_decoder_attention_heads": lambda heads: {"decoder_attention_heads": heads},
    "config_encoder_dropout_prepost": lambda probability: {"dropout": probability},
    "config_encoder_dropout_attention": lambda probability: {"attention_dropout": probability},
    "config_encoder_dropout_act": lambda probability: {"activation_dropout": probability},
}

SOCKEYE = Layout(
    name="sockeye",
    description="transformer of Sockeye 3, with the config and vocabularies of its model folder",
    signature=(
        *_EMBEDDINGS.values(),
        "encoder.layers.{i}.self_attention.ff_in.weight",
        "decoder.layers.{i}.enc_attention.ff_kv.weight",
    ),
    rules=tuple(_rules()),
    # `<pad>` 0, `<unk>` 1, `<s>` 2, `</s>` 3.
    defaults={"layer_norm_eps": 1e-6, **special_ids(pad=0, bos=2, eos=3)},
    example="model/params.best",
    setting_fields=_SETTING_FIELDS,
    argument_fields=("norm_position", "activation_function"),
    preprocess=_separate_heads,
    infer_fields=_fields,
    read_settings=_read_settings,
    vocabulary_settings=("vocab_src", "vocab_trg"),
)

__all__ = ["SOCKEYE"]
