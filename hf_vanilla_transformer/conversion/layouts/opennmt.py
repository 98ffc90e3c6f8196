"""Layouts of OpenNMT-py 2 and 3 and of their successor Eole.

A checkpoint of OpenNMT-py has `model`, `generator`, `opt` and `vocab`; an Eole folder has config.json and vocab.json.
"""

import re
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...marian_fields import HEAD_FIELDS
from ..rules import STACKS, Layout, ModelKeys, Weights, special_ids
from ..settings import Settings, cannot_express, check_expressible, same_in_both

_SPECIAL = {"pad": "<blank>", "bos": "<s>", "eos": "</s>"}
# OpenNMT-py 2 has attention biases; in OpenNMT-py 3 and Eole they are optional.
_KEYS = ModelKeys(
    embedding="{stack}.embeddings.make_embedding.emb_luts.0",
    positions=("{stack}.embeddings.make_embedding.pe.pe",),
    layers="{stack}.{side}.{i}",
    norms=(("layer_norm", "feed_forward.layer_norm"), ("layer_norm_1", "layer_norm_2", "feed_forward.layer_norm")),
    attentions=(("self_attn",), ("self_attn", "context_attn")),
    projections=("linear_query", "linear_keys", "linear_values", "final_linear"),
    feed_forward=("feed_forward.w_1", "feed_forward.w_2"),
    final_norm="{stack}.layer_norm",
    output="generator",
    sides=("transformer", "transformer_layers"),
    optional=("_proj.bias", "fc1.bias", "fc2.bias", "lm_head.bias"),
)
_EOLE_KEYS = _KEYS._replace(
    embedding="{side}_emb.embeddings",
    # Sinusoids, or learned positions.
    positions=("{side}_emb.pe.pe", "{side}_emb.pe.weight"),
    layers="{stack}.transformer_layers.{i}",
    norms=(
        ("input_layernorm", "post_attention_layernorm"),
        ("input_layernorm", "precontext_layernorm", "post_attention_layernorm"),
    ),
    feed_forward=("mlp.gate_up_proj", "mlp.down_proj"),
    sides=("src", "tgt"),
)

# Values of settings that our model can express; the first is the default.
_EXPRESSIBLE: dict[str, tuple[Any, ...]] = {
    "copy_attn": (False,),
    "decoder_type": ("transformer",),
    "encoder_type": ("transformer",),
    "generator_function": ("softmax",),
    "layer_norm": ("standard",),
    "max_relative_positions": (0,),
    "num_experts": (0,),
    "num_kv": (0,),
    "parallel_residual": (False,),
    "pos_ffn_activation_fn": ("relu", "gelu"),
    "position_encoding": (True,),
    "relative_positions_buckets": (0,),
    "self_attn_type": ("scaled-dot", "scaled-dot-flash"),
    "sliding_window": (0,),
}
_EOLE_ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu", "silu": "silu",
}  # fmt: skip  # a table, not an expression
# Likewise, for the settings of a stack.
_EOLE_EXPRESSIBLE: dict[str, tuple[Any, ...]] = {
    "attn_scaling": (None,),
    "encoder_layer_style": ("standard",),
    "ffn_layernorm": (False,),
    "key_norm": (False,),
    "layer_norm": ("standard", "standardFP32"),
    "mlp_activation_fn": tuple(_EOLE_ACTIVATIONS),
    "num_experts": (0,),
    "parallel_residual": (False,),
    "q_gating": (False,),
    "query_norm": (False,),
    "relative_positions_buckets": (0,),
    "sliding_window": (0,),
    "value_norm": (False,),
}
_EOLE_EXPRESSIBLE_EMBEDDINGS: dict[str, tuple[Any, ...]] = {
    "embedding_type": ("standard",),
    "normalize": (False,),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat", "Learned"),
    "position_shift": (0,),
}


def _prepare(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Refuse what our model cannot express, and give the output projection its key in release 3."""
    check_expressible("OpenNMT-py", settings, _EXPRESSIBLE)
    if any(key.endswith("feed_forward.w_3.weight") for key in weights):
        raise cannot_express("the model has gated feed-forward sub-layers (w_3)")
    if not all(f"{stack}.embeddings.make_embedding.pe.pe" in weights for stack in STACKS):
        raise cannot_express("the model has no sinusoidal positions (make_embedding.pe.pe)")
    return {re.sub(r"^generator\.0\.", "generator.", key): tensor for key, tensor in weights.items()}


def _fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Infer dropout and, from the target vocabulary, special tokens."""
    dropouts = {name: settings[name] for name in ("dropout", "attention_dropout") if name in settings}
    for name, rate in dropouts.items():
        # A list is a schedule; take its first value.
        dropouts[name] = rate[0] if isinstance(rate, list) and rate else rate
    return dropouts | _ids(settings, *_SPECIAL.values(), settings.get("decoder_start_token", "<s>"))


def _ids(settings: Settings, *special: str) -> dict[str, int | None]:
    """Return the ids of pad, bos, eos and start tokens; None for a missing one."""
    tokens = settings.get("vocab_tgt")
    if not tokens or not isinstance(tokens, list):
        return {}
    return special_ids(*(tokens.index(token) if token in tokens else None for token in special))


def _prepare_eole(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Refuse what our model cannot express, and copy shared weights, which files store once."""
    parts = {**dict.fromkeys(STACKS, _EOLE_EXPRESSIBLE), "embeddings": _EOLE_EXPRESSIBLE_EMBEDDINGS}
    for part, expressible in parts.items():
        for name, values in expressible.items():
            value, shown = _setting(settings, part, name, values[0]), f"{name} ({part})"
            check_expressible("Eole", {shown: value}, {shown: values})
    for stack, side in zip(STACKS, _EOLE_KEYS.sides, strict=True):
        if not {f"{side}_emb.pe.pe", f"{side}_emb.pe.weight"} & weights.keys():
            raise cannot_express(f"the {stack} adds no positions to its embeddings ({side}_emb.pe)")
    complete = dict(weights)
    if settings.get("share_embeddings"):
        complete.setdefault("tgt_emb.embeddings.weight", complete["src_emb.embeddings.weight"])
    if settings.get("share_decoder_embeddings") and "tgt_emb.embeddings.weight" in complete:
        complete.setdefault("generator.weight", complete["tgt_emb.embeddings.weight"])
    return complete


def _setting(settings: Settings, part: str, name: str, default: Any) -> Any:
    """Return a setting of one part of the model, or else of the whole model."""
    return settings.get(f"{part}_{name}", settings.get(name, default))


def _eole_fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Infer fields from settings, the target vocabulary and position tables."""
    names = [settings.get(f"vocab_specials_{role}_token", token) for role, token in _SPECIAL.items()]
    fields: dict[str, Any] = _ids(settings, *names, settings.get("vocab_decoder_start_token", "<s>"))
    if weights:
        # Sinusoids are added to scaled embeddings, learned positions to unscaled ones.
        fields["scale_embedding"] = "src_emb.pe.pe" in weights
    if "encoder_encoder_type" in settings:
        activation, eps = (
            same_in_both(name, (_setting(settings, stack, name, default) for stack in STACKS))
            for name, default in (("mlp_activation_fn", "relu"), ("norm_eps", 1e-5))
        )
        fields |= {"activation_function": _EOLE_ACTIVATIONS[activation], "layer_norm_eps": eps}
    return fields


OPEN_NMT = Layout(
    name="opennmt-py",
    description="transformer of OpenNMT-py 2 and 3, with the vocabularies in its checkpoint",
    keys=(_KEYS,),
    # `<unk>` 0, `<blank>` 1, `<s>` 2, `</s>` 3.
    defaults={
        "norm_position": "pre",
        "layer_norm_eps": 1e-6,
        "activation_function": "relu",
        **special_ids(pad=1, bos=2, eos=3),
    },
    example="model_step_100000.pt",
    setting_fields={
        "heads": HEAD_FIELDS,
        "pos_ffn_activation_fn": ("activation_function",),
        "norm_eps": ("layer_norm_eps",),
    },
    argument_fields=("activation_function",),
    preprocess=_prepare,
    infer_fields=_fields,
    vocabulary_settings=("vocab_src", "vocab_tgt"),
    source_suffix=(),
)

EOLE = replace(
    OPEN_NMT,
    name="eole",
    description="encoder-decoder transformer of Eole, a folder with its config.json and vocab.json",
    keys=(_EOLE_KEYS,),
    defaults={**OPEN_NMT.defaults, "layer_norm_eps": 1e-5},
    example="models/step_100000",
    setting_fields={f"{stack}_heads": (f"{stack}_attention_heads",) for stack in STACKS},
    # Stored, but unused in this model.
    ignored_keys=("decoder.transformer_layers.{i}.layer_scalar",),
    preprocess=_prepare_eole,
    infer_fields=_eole_fields,
    settings_files=("config.json", "vocab.json"),
)
