"""Joey NMT's transformer: a checkpoint, with config.yaml and the vocabularies beside it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from ..reading import flatten_settings, read_yaml_settings
from ..rules import (
    EMBEDDING_NAMES,
    STACKS,
    Layout,
    Rule,
    Settings,
    Weights,
    attention_rules,
    boolean_setting,
    linear_rules,
    position_rules,
    same_in_both,
    special_ids,
    sublayer_names,
)

_SIDES = {"encoder": "src", "decoder": "trg"}
_PROJECTIONS = ("q_layer", "k_layer", "v_layer", "output_layer")
_SPECIAL_IDS = {"pad": 1, "bos": 2, "eos": 3}
# Where the layers of a stack have their norms, unless config.yaml says so.
_DEFAULT_NORMS = {"encoder": "pre", "decoder": "post"}


def _rules() -> Iterator[Rule]:
    attentions = {
        "encoder": {"self_attn": "src_src_att"},
        "decoder": {"self_attn": "trg_trg_att", "encoder_attn": "src_trg_att"},
    }
    for stack, side in _SIDES.items():
        yield Rule(f"{side}_embed.lut.weight", (EMBEDDING_NAMES[stack],))
    for stack in STACKS:
        key, name = f"{stack}.layers.{{i}}", f"model.{stack}.layers.{{i}}"
        norms = ("layer_norm",) if stack == "encoder" else ("x_layer_norm", "dec_layer_norm")
        norm_keys = (*norms, "feed_forward.layer_norm")
        for norm_key, (norm, attention) in zip(norm_keys, sublayer_names(stack), strict=True):
            yield from linear_rules(f"{key}.{norm_key}", f"{name}.{norm}")
            if attention:
                yield from attention_rules(
                    f"{key}.{attentions[stack][attention]}", f"{name}.{attention}", _PROJECTIONS
                )
        for number, ours in ((0, "fc1"), (3, "fc2")):
            yield from linear_rules(f"{key}.feed_forward.pwff_layer.{number}", f"{name}.{ours}")
        yield from linear_rules(f"{stack}.layer_norm", f"model.{stack}.layer_norm")
    yield Rule("decoder.output_layer.weight", ("lm_head.weight",))
    yield from position_rules({stack: f"{stack}.pe.pe" for stack in STACKS})


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return the model's part of config.yaml, the ids of special tokens, and the files of the vocabularies.

    Raises:
        ValueError: config.yaml cannot be read.
    """
    settings: dict[str, Any] = {}
    file = folder / "config.yaml"
    if file.is_file():
        content = read_yaml_settings(file)
        data = content.get("data")
        settings = flatten_settings(content) | flatten_settings({"data": data if isinstance(data, dict) else {}})
    files = {side: folder / f"{side}_vocab.txt" for side in _SIDES.values()}
    return settings | {f"{side}_vocab": str(file) for side, file in files.items() if file.is_file()}


def _fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Infer fields from config.yaml, and the position of norms, which those that end the stacks show too.

    Raises:
        ValueError: The model weighs residuals, or its stacks differ in what ours share.
    """
    fields: dict[str, Any] = special_ids(
        **{role: settings.get(f"data_special_symbols_{role}_id", number) for role, number in _SPECIAL_IDS.items()}
    )
    final = {stack: f"{stack}.layer_norm.weight" in weights for stack in STACKS}
    has_config = "encoder_num_heads" in settings
    if has_config:
        for stack in STACKS:
            if (alpha := settings.get(f"{stack}_alpha", 1.0)) != 1.0:
                raise ValueError(f"the {stack} weighs residuals by alpha: {alpha}, which cannot be expressed")
        fields["activation_function"] = _of_both(settings, "activation", {"encoder": "relu", "decoder": "relu"})
        scales = {stack: settings.get(f"{stack}_embeddings_scale", False) for stack in STACKS}
        if settings.get("tied_embeddings"):
            # The decoder then embeds by the encoder's module.
            scales["decoder"] = scales["encoder"]
        fields["scale_embedding"] = boolean_setting("embeddings: scale", same_in_both("embeddings: scale", scales))
    if any(final.values()) or has_config:
        norms = {stack: "pre" if final[stack] else default for stack, default in _DEFAULT_NORMS.items()}
        fields["norm_position"] = _of_both(settings, "layer_norm", norms)
        fields["final_layer_norm"] = same_in_both("a norm at the end", final)
    return fields


def _of_both(settings: Settings, name: str, defaults: dict[str, Any]) -> Any:
    return same_in_both(name, {stack: settings.get(f"{stack}_{name}", default) for stack, default in defaults.items()})


# Settings in config.yaml as fields of our configuration.
_SETTING_FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "encoder_num_heads": lambda heads: {"encoder_attention_heads": heads},
    "decoder_num_heads": lambda heads: {"decoder_attention_heads": heads},
    "encoder_dropout": lambda probability: {"dropout": probability},
}

JOEY_NMT = Layout(
    name="joeynmt",
    description="transformer of Joey NMT 1 and 2, with the config.yaml and vocabularies of its model folder",
    signature=(
        "src_embed.lut.weight",
        "trg_embed.lut.weight",
        "encoder.layers.{i}.src_src_att.k_layer.weight",
        "decoder.layers.{i}.src_trg_att.k_layer.weight",
    ),
    rules=tuple(_rules()),
    defaults={
        "norm_position": "pre",
        "layer_norm_eps": 1e-6,
        "activation_function": "relu",
        **special_ids(**_SPECIAL_IDS),
    },
    example="models/transformer/best.ckpt",
    setting_fields=_SETTING_FIELDS,
    argument_fields=("norm_position", "activation_function", "scale_embedding"),
    infer_fields=_fields,
    read_settings=_read_settings,
    vocabulary_settings=("src_vocab", "trg_vocab"),
)

__all__ = ["JOEY_NMT"]
