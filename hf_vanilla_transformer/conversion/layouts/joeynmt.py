"""Layout of Joey NMT's transformer: a checkpoint with config.yaml and the vocabularies beside it."""

from collections.abc import Mapping
from typing import Any

from ..rules import STACKS, Layout, ModelKeys, Weights, special_ids
from ..settings import Settings, boolean_setting, cannot_express, same_in_both

_KEYS = ModelKeys(
    embedding="{side}_embed.lut",
    positions=("{stack}.pe.pe",),
    norms=(("layer_norm", "feed_forward.layer_norm"), ("x_layer_norm", "dec_layer_norm", "feed_forward.layer_norm")),
    attentions=(("src_src_att",), ("trg_trg_att", "src_trg_att")),
    projections=("q_layer", "k_layer", "v_layer", "output_layer"),
    feed_forward=("feed_forward.pwff_layer.0", "feed_forward.pwff_layer.3"),
    final_norm="{stack}.layer_norm",
    output="decoder.output_layer",
    sides=("src", "trg"),
    optional=("lm_head.bias",),
)
_SPECIAL_IDS = {"pad": 1, "bos": 2, "eos": 3}
# Norm positions unless config.yaml sets them.
_DEFAULT_NORMS = {"encoder": "pre", "decoder": "post"}


def _fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Infer fields from config.yaml, and the norm position also from norms at the end of the stacks."""

    def of_both(name: str, defaults: Mapping[str, Any]) -> Any:
        return same_in_both(name, [settings.get(f"{stack}_{name}", defaults[stack]) for stack in STACKS])

    fields: dict[str, Any] = special_ids(
        **{role: settings.get(f"data_special_symbols_{role}_id", number) for role, number in _SPECIAL_IDS.items()}
    )
    final = {stack: f"{stack}.layer_norm.weight" in weights for stack in STACKS}
    has_config = "encoder_num_heads" in settings
    if has_config:
        for stack in STACKS:
            if (alpha := settings.get(f"{stack}_alpha", 1.0)) != 1.0:
                raise cannot_express(f"the {stack} scales residuals by alpha: {alpha}")
        fields["activation_function"] = of_both("activation", dict.fromkeys(STACKS, "relu"))
        scales = {stack: settings.get(f"{stack}_embeddings_scale", False) for stack in STACKS}
        if settings.get("tied_embeddings"):
            # The decoder then uses the encoder's embedding module.
            scales["decoder"] = scales["encoder"]
        scale = same_in_both("embeddings: scale", scales.values())
        fields["scale_embedding"] = boolean_setting("embeddings: scale", scale)
    if any(final.values()) or has_config:
        norms = {stack: "pre" if final[stack] else default for stack, default in _DEFAULT_NORMS.items()}
        fields["norm_position"] = of_both("layer_norm", norms)
        fields["final_layer_norm"] = same_in_both("a norm at the end", final.values())
    return fields


JOEY_NMT = Layout(
    name="joeynmt",
    description="transformer of Joey NMT 1 and 2, with the config.yaml and vocabularies of its model folder",
    keys=(_KEYS,),
    defaults={
        "norm_position": "pre",
        "layer_norm_eps": 1e-6,
        "activation_function": "relu",
        **special_ids(**_SPECIAL_IDS),
    },
    example="models/transformer/best.ckpt",
    setting_fields={
        **{f"{stack}_num_heads": (f"{stack}_attention_heads",) for stack in STACKS},
        "encoder_dropout": ("dropout",),
    },
    argument_fields=("norm_position", "activation_function", "scale_embedding"),
    infer_fields=_fields,
    settings_files=("config.yaml",),
    vocabulary_settings=("src_vocab.txt", "trg_vocab.txt"),
)
