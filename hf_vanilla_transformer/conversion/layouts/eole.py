"""Eole's encoder-decoder transformer, successor of OpenNMT-py's: a folder with config.json and vocab.json."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import Tensor

from ...files import read_json_object
from ..reading import FETCH_AGAIN, flatten_settings
from ..rules import (
    EMBEDDING_NAMES,
    POSITION_NAMES,
    STACKS,
    Layout,
    Rule,
    Settings,
    Weights,
    attention_rules,
    linear_rules,
    position_table,
    same_in_both,
    special_ids,
    sublayer_names,
)
from .opennmt import PROJECTIONS, SPECIAL, ids_of_tokens

_EMBEDDINGS = {"encoder": "src_emb", "decoder": "tgt_emb"}
_ATTENTIONS = {"self_attn": "self_attn", "encoder_attn": "context_attn"}
_NORMS = {
    "self_attn_layer_norm": "input_layernorm",
    "encoder_attn_layer_norm": "precontext_layernorm",
    "final_layer_norm": "post_attention_layernorm",
}
_ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu", "silu": "silu",
}  # fmt: skip  # a table, not an expression
# The only values of a stack's settings that our model can express; the first is the default.
_EXPRESSIBLE: dict[str, tuple[Any, ...]] = {
    "attn_scaling": (None,),
    "encoder_layer_style": ("standard",),
    "ffn_layernorm": (False,),
    "key_norm": (False,),
    "layer_norm": ("standard", "standardFP32"),
    "mlp_activation_fn": tuple(_ACTIVATIONS),
    "num_experts": (0,),
    "parallel_residual": (False,),
    "q_gating": (False,),
    "query_norm": (False,),
    "relative_positions_buckets": (0,),
    "sliding_window": (0,),
    "value_norm": (False,),
}
# Likewise, of the embeddings' settings.
_EXPRESSIBLE_EMBEDDINGS: dict[str, tuple[Any, ...]] = {
    "embedding_type": ("standard",),
    "normalize": (False,),
    "position_encoding_type": ("SinusoidalInterleaved", "SinusoidalConcat", "Learned"),
    "position_shift": (0,),
}
_REFUSAL = "which cannot be expressed"


def _rules() -> Iterator[Rule]:
    for stack, key in _EMBEDDINGS.items():
        yield Rule(f"{key}.embeddings.weight", (EMBEDDING_NAMES[stack],))
        # Stored sinusoids, or learned positions.
        for part in ("pe", "weight"):
            yield Rule(f"{key}.pe.{part}", (POSITION_NAMES[stack],), position_table, optional=True)
    for stack in STACKS:
        key, name = f"{stack}.transformer_layers.{{i}}", f"model.{stack}.layers.{{i}}"
        for norm, attention in sublayer_names(stack):
            yield from linear_rules(f"{key}.{_NORMS[norm]}", f"{name}.{norm}")
            if attention:
                attention_key = f"{key}.{_ATTENTIONS[attention]}"
                yield from attention_rules(attention_key, f"{name}.{attention}", PROJECTIONS, optional_bias=True)
        for theirs, ours in (("gate_up_proj", "fc1"), ("down_proj", "fc2")):
            yield from linear_rules(f"{key}.mlp.{theirs}", f"{name}.{ours}", optional_bias=True)
        yield from linear_rules(f"{stack}.layer_norm", f"model.{stack}.layer_norm")
    yield from linear_rules("generator", "lm_head", optional_bias=True)


def _read_settings(folder: Path) -> dict[str, Any]:
    """Return the settings of the model in config.json, and the vocabularies in vocab.json.

    Raises:
        ValueError: A file cannot be read.
    """
    config, vocabulary = folder / "config.json", folder / "vocab.json"
    settings = flatten_settings(read_json_object(config, FETCH_AGAIN)) if config.is_file() else {}
    if vocabulary.is_file():
        settings |= flatten_settings({"vocab": read_json_object(vocabulary, FETCH_AGAIN)})
    return settings


def _prepare(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Return the weights with those that files leave out because they equal others.

    Raises:
        ValueError: The model has a setting that ours lacks.
    """
    parts = {**dict.fromkeys(STACKS, _EXPRESSIBLE), "embeddings": _EXPRESSIBLE_EMBEDDINGS}
    for part, expressible in parts.items():
        for name, values in expressible.items():
            if (value := _setting(settings, part, name, values[0])) not in values:
                raise ValueError(f"the model was trained with Eole's {name}: {value} ({part}), {_REFUSAL}")
    for stack, key in _EMBEDDINGS.items():
        if not {f"{key}.pe.pe", f"{key}.pe.weight"} & weights.keys():
            raise ValueError(f"the {stack} adds no positions to its embeddings ({key}.pe), {_REFUSAL}")
    complete = dict(weights)
    source = complete["src_emb.embeddings.weight"]
    if settings.get("share_embeddings"):
        complete.setdefault("tgt_emb.embeddings.weight", source)
    if settings.get("share_decoder_embeddings") and "tgt_emb.embeddings.weight" in complete:
        complete.setdefault("generator.weight", complete["tgt_emb.embeddings.weight"])
    return complete


def _setting(settings: Settings, part: str, name: str, default: Any) -> Any:
    """Return a setting of a part of the model, or else of the whole."""
    return settings.get(f"{part}_{name}", settings.get(name, default))


def _fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Infer the fields of settings, special tokens and positions.

    Raises:
        ValueError: The stacks differ in what ours share.
    """
    fields: dict[str, Any] = {}
    if weights:
        # Sinusoids are added to scaled embeddings, learned positions to the embeddings themselves.
        fields["scale_embedding"] = "src_emb.pe.pe" in weights
    if "encoder_encoder_type" in settings:
        activation, eps = (
            same_in_both(name, {stack: _setting(settings, stack, name, default) for stack in STACKS}, show=str)
            for name, default in (("mlp_activation_fn", "relu"), ("norm_eps", 1e-5))
        )
        fields |= {"activation_function": _ACTIVATIONS[activation], "layer_norm_eps": eps}
    if tokens := settings.get("vocab_tgt"):
        names = [settings.get(f"vocab_specials_{role}_token", token) for role, token in SPECIAL.items()]
        fields |= ids_of_tokens(tokens, *names, settings.get("vocab_decoder_start_token", "<s>"))
    return fields


# Settings as fields of our configuration.
_SETTING_FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "encoder_heads": lambda heads: {"encoder_attention_heads": heads},
    "decoder_heads": lambda heads: {"decoder_attention_heads": heads},
}

EOLE = Layout(
    name="eole",
    description="encoder-decoder transformer of Eole, a folder with its config.json and vocab.json",
    signature=(
        "src_emb.embeddings.weight",
        "encoder.transformer_layers.{i}.mlp.gate_up_proj.weight",
        "decoder.transformer_layers.{i}.context_attn.linear_keys.weight",
    ),
    rules=tuple(_rules()),
    # `<unk>` 0, `<blank>` 1, `<s>` 2, `</s>` 3.
    defaults={
        "norm_position": "pre",
        "layer_norm_eps": 1e-5,
        "activation_function": "relu",
        **special_ids(pad=1, bos=2, eos=3),
    },
    example="models/step_100000",
    setting_fields=_SETTING_FIELDS,
    argument_fields=("activation_function",),
    # Factors of other models, which this one does not apply.
    ignored_keys=("decoder.transformer_layers.{i}.layer_scalar",),
    preprocess=_prepare,
    infer_fields=_fields,
    read_settings=_read_settings,
    vocabulary_settings=("vocab_src", "vocab_tgt"),
    source_suffix=(),
)

__all__ = ["EOLE"]
