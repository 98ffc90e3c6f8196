"""Layout of x-transformers' `XTransformer`: norms and attentions without biases, learned positions.

Its indices count sub-layers: attention and feed-forward in the encoder, with cross-attention between them in the
decoder. Shape legend: d model width [d_model].
"""

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..rules import ATTENTIONS, Layout, ModelKeys, Weights, special_ids
from ..settings import Settings, boolean_setting, cannot_express
from ..transforms import position_table

# Prefixes of keys and of constructor arguments.
_WRAPPERS = {"encoder": "encoder", "decoder": "decoder.net"}
_ARGUMENTS = {"encoder": "enc_", "decoder": "dec_"}
# Names of a layer's sub-layers after `_by_layers`, in order.
_SUBLAYERS = {stack: [*names, "ff"] for stack, names in ATTENTIONS.items()}
# Where a sub-layer has its norm: before it, or after the residual sum.
_NORMS = {"0": "norm", "2": "post_norm"}
# Options that our model lacks, by regular expressions for the keys of their weights.
_OPTIONS = {
    r"\.0\.\d\.g$": "use_rmsnorm or use_scalenorm",
    r"\.0\.1\.gamma$": "sandwich_norm",
    r"\.to_gamma\.": "use_adaptive_layernorm",
    r"\.ff\.0\.proj\.": "ff_glu",
    r"\.ff\.1\.": "ff_post_act_ln",
    r"rotary_pos_emb\.": "rotary_pos_emb",
    r"\.rel_pos\.": "rel_pos_bias, dynamic_pos_bias or alibi_pos_bias",
    r"\.pos_emb\.scale$": "scaled_sinu_pos_emb",
    r"memory_tokens$": "num_memory_tokens",
    r"\.mem_[kv]$": "attn_num_mem_kv",
    r"\.to_out\.0\.": "attn_on_attn",
    r"qk_norm_[qk]_scale$": "attn_qk_norm_dim_scale",
    r"residual_scale$": "scale_residual",
    r"\.2\.gru\.": "gate_residual",
    r"\.to_v_gate\.": "attn_gate_values",
    r"\.to_value_residual_mix\.": "add_value_residual",
    r"\.pre_tanh_scale$": "use_dynamic_tanh",
    r"\.skip_combines\.": "unet_skips",
    r"\.1\.fn\.": "macaron, use_layerscale or shift_tokens",
}
# Constructor arguments, without the prefix of the stack, that our model can express or that only affect training.
_EXPRESSIBLE = {
    "attn_dim_head", "attn_dropout", "attn_flash", "cross_attn_tokens_dropout", "depth", "emb_dropout", "ff_dropout",
    "ff_mult", "ff_no_bias", "ff_swish", "ff_zero_init_output", "heads", "layer_dropout", "max_seq_len",
    "norm_add_unit_offset", "num_tokens", "pre_norm", "pre_norm_has_final_norm", "use_abs_pos_emb", "verbose",
    "zero_init_branch_output",
}  # fmt: skip  # a table, not an expression


def add_one(tensor: Tensor, d_model: int) -> Tensor:
    """Add one to the weight (d) of a norm, which is stored without it."""
    return tensor + 1


def scale_positions(tensor: Tensor, d_model: int) -> Tensor:
    """Multiply learned positions (L, d) by d^-1/2, as the original does when it adds them."""
    return position_table(tensor, d_model) * d_model**-0.5


# Keys after `_by_layers`.
_KEYS = ModelKeys(
    embedding="{side}.token_emb.emb",
    positions=("{side}.pos_emb.emb.weight",),
    layers="{side}.attn_layers.layers.{i}",
    attentions=(ATTENTIONS["encoder"], ATTENTIONS["decoder"]),
    projections=("to_q", "to_k", "to_v", "to_out"),
    feed_forward=("ff.0.0", "ff.2"),
    final_norm="{side}.attn_layers.final_norm",
    output="decoder.net.to_logits",
    sides=("encoder", "decoder.net"),
    # Releases before 1.31 store beta, which is zero.
    norm_parts=("gamma", "beta"),
    transforms={"embed_positions.weight": scale_positions},
    optional=(".bias",),
)


def _variants() -> Iterator[ModelKeys]:
    """Yield the keys for each norm position, with norm weights stored as they are or minus one."""
    for place in _NORMS.values():
        encoder, decoder = (tuple(f"{name}.{place}" for name in names) for names in _SUBLAYERS.values())
        keys = _KEYS._replace(norms=(encoder, decoder))
        yield keys
        yield keys._replace(
            norm_parts=("gamma_minus_1", "beta"), transforms={**keys.transforms, "norm.weight": add_one}
        )


def _by_layers(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Rename keys to have layer indices and sub-layer names instead of the original's sub-layer indices.

    Norm weights become `gamma_minus_1` where the original adds 1 to them: from release 1.31 on, unless a constructor
    argument disables that.
    """
    _refuse_options(weights, settings)
    renamed: dict[str, str] = {}
    for stack, wrapper in _WRAPPERS.items():
        prefix = f"{wrapper}.attn_layers."
        own = {key: tensor for key, tensor in weights.items() if key.startswith(prefix)}
        new_keys = {key: prefix + _with_layer(key.removeprefix(prefix), stack) for key in own}
        if _has_offset(stack, own, settings):
            new_keys = {key: re.sub(r"\.gamma$", ".gamma_minus_1", new) for key, new in new_keys.items()}
        renamed |= new_keys
    return {renamed.get(key, key): tensor for key, tensor in weights.items()}


def _with_layer(key: str, stack: str) -> str:
    """Return the key with layer index and sub-layer name; another order of sub-layers is a ValueError."""
    match = re.fullmatch(r"layers\.(\d{1,6})\.(?:0\.([02])\.(gamma|beta)|1\.(ff\.)?(.+))", key)
    if match is None:
        return key
    index, place, part, is_ff, rest = match.groups()
    names = _SUBLAYERS[stack]
    layer, sublayer = divmod(int(index), len(names))
    if (is_ff or (rest or "").startswith("to_q.")) and bool(is_ff) != (names[sublayer] == "ff"):
        raise cannot_express(
            f"the sub-layers of the {stack} are not in the order {', '.join(names)} (macaron, sandwich_coef, "
            f"custom_layers, ...): {key}"
        )
    return f"layers.{layer}.{names[sublayer]}.{f'{_NORMS[place]}.{part}' if place else rest}"


def _has_offset(stack: str, weights: Weights, settings: Settings) -> bool:
    """Return whether the original adds 1 to norm weights; a ValueError if the stored ones seem to include it."""
    name = f"{_ARGUMENTS[stack]}norm_add_unit_offset"
    if name in settings:
        return boolean_setting(name, settings[name])
    if any(key.endswith(".beta") for key in weights):
        return False
    gammas = [tensor.flatten() for key, tensor in weights.items() if key.endswith(".gamma")]
    if gammas and (mean := float(torch.cat(gammas).double().mean())) > 0.5:
        raise ValueError(
            f"gamma averages {mean:.2g} in the norms of the {stack}, to which x-transformers adds 1 by default; set "
            f'whether it did in a config.json beside the weights: {{"{name}": false}} or true'
        )
    return True


def _refuse_options(weights: Weights, settings: Settings) -> None:
    for key, tensor in weights.items():
        option = next((option for pattern, option in _OPTIONS.items() if re.search(pattern, key)), None)
        queries = weights.get(key.replace(".to_k.", ".to_q."), tensor)
        if key.endswith(".to_k.weight") and tensor.shape != queries.shape:
            option = "attn_kv_heads or attn_one_kv_head"
        if option is not None:
            raise cannot_express(f"the model was built with x-transformers' {option} ({key})")
    for key in (f"{wrapper}.pos_emb.emb.weight" for wrapper in _WRAPPERS.values()):
        if key not in weights:
            raise cannot_express(f"there is no {key}: the model was built with x-transformers' use_abs_pos_emb=False")
    for name, value in settings.items():
        argument = re.fullmatch("(?:enc|dec)_(.+)", name)
        if argument and value and argument[1] not in _EXPRESSIBLE:
            raise cannot_express(f"the model was built with x-transformers' {name}={value!r}")


def _fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Infer the activation from constructor arguments, and norm positions from weights."""
    swish = {bool(settings.get(f"{prefix}ff_swish")) for prefix in _ARGUMENTS.values()}
    if len(swish) > 1:
        raise cannot_express("encoder and decoder differ in ff_swish")
    ends = {"pre": ".norm.", "post": ".post_norm.", "final": ".final_norm."}
    places = []
    for wrapper in _WRAPPERS.values():
        own = [key for key in weights if key.startswith(f"{wrapper}.attn_layers.")]
        places.append({place for place, end in ends.items() if any(end in key for key in own)})
    encoder, decoder = places
    if encoder != decoder or {"pre", "post"} <= encoder:
        raise cannot_express(
            f"the norms are {sorted(encoder)} in the encoder and {sorted(decoder)} in the decoder (pre_norm, "
            "pre_and_post_norm, pre_norm_has_final_norm)"
        )
    fields: dict[str, Any] = {"activation_function": "silu"} if True in swish else {}
    if encoder:
        fields |= {"norm_position": "post" if "post" in encoder else "pre", "final_layer_norm": "final" in encoder}
    return fields


X_TRANSFORMERS = Layout(
    name="x-transformers",
    description="XTransformer of x-transformers, from release 1.27 on",
    keys=tuple(_variants()),
    own_signature=tuple(
        f"{wrapper}.{key}"
        for wrapper in _WRAPPERS.values()
        for key in ("token_emb.emb.weight", "attn_layers.layers.{i}.1.to_q.weight")
    ),
    defaults={
        "norm_position": "pre",
        "layer_norm_eps": 1e-5,
        "activation_function": "gelu",
        "scale_embedding": False,
        "position_embedding_type": "learned",
        **special_ids(pad=0, bos=1, eos=2),
    },
    example="model.pt --config encoder_attention_heads=8 decoder_start_token_id=1 eos_token_id=2",
    setting_fields={"enc_heads": ("encoder_attention_heads",), "dec_heads": ("decoder_attention_heads",)},
    argument_fields=("decoder_start_token_id", "eos_token_id"),
    preprocess=_by_layers,
    infer_fields=_fields,
    source_suffix=(),
)
