"""OpenNMT-py's transformer, of releases 2 and 3, whose checkpoints hold `model`, `generator`, `opt` and `vocab`."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor

from ...marian_fields import HEAD_FIELDS
from ..rules import (
    EMBEDDING_NAMES,
    STACKS,
    Layout,
    Rule,
    Settings,
    Weights,
    attention_rules,
    linear_rules,
    position_rules,
    special_ids,
    sublayer_names,
)

_EMBEDDINGS = {stack: f"{stack}.embeddings.make_embedding.emb_luts.0.weight" for stack in STACKS}
_POSITIONS = {stack: f"{stack}.embeddings.make_embedding.pe.pe" for stack in STACKS}
_LAYERS = {"encoder": "encoder.transformer.{i}", "decoder": "decoder.transformer_layers.{i}"}
SPECIAL = {"pad": "<blank>", "bos": "<s>", "eos": "</s>"}
PROJECTIONS = ("linear_query", "linear_keys", "linear_values", "final_linear")
# The only values of options that our model can express; an option that a release lacks has them.
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
_REFUSAL = "which cannot be expressed"


def _rules() -> Iterator[Rule]:
    for stack in STACKS:
        yield Rule(_EMBEDDINGS[stack], (EMBEDDING_NAMES[stack],))
    for stack, key in _LAYERS.items():
        name = f"model.{stack}.layers.{{i}}"
        attentions = {"self_attn": "self_attn", "encoder_attn": "context_attn"}
        norms = ("layer_norm",) if stack == "encoder" else ("layer_norm_1", "layer_norm_2")
        keys = (*norms, "feed_forward.layer_norm")
        for norm_key, (norm, attention) in zip(keys, sublayer_names(stack), strict=True):
            yield from linear_rules(f"{key}.{norm_key}", f"{name}.{norm}")
            if attention:
                attention_key = f"{key}.{attentions[attention]}"
                # Release 2 has these biases, release 3 by an option.
                yield from attention_rules(attention_key, f"{name}.{attention}", PROJECTIONS, optional_bias=True)
        for n in (1, 2):
            yield from linear_rules(f"{key}.feed_forward.w_{n}", f"{name}.fc{n}", optional_bias=True)
        yield from linear_rules(f"{stack}.layer_norm", f"model.{stack}.layer_norm")
    yield from linear_rules("generator", "lm_head", optional_bias=True)
    yield from position_rules(_POSITIONS)


def _prepare(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Return the weights with release 3's name of the output projection.

    Raises:
        ValueError: The model has an option that ours lacks.
    """
    for name, values in _EXPRESSIBLE.items():
        if name in settings and settings[name] not in values:
            raise ValueError(f"the model was trained with OpenNMT-py's {name}: {settings[name]}, {_REFUSAL}")
    if any(key.endswith("feed_forward.w_3.weight") for key in weights):
        raise ValueError(f"the model has gated feed-forward sub-layers (w_3), {_REFUSAL}")
    if not all(key in weights for key in _POSITIONS.values()):
        raise ValueError(f"the model has no sinusoidal positions (make_embedding.pe.pe), {_REFUSAL}")
    return {re.sub(r"^generator\.0\.", "generator.", key): tensor for key, tensor in weights.items()}


def _ids_of_vocabulary(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Return the ids of special tokens in the target vocabulary, if the checkpoint has one."""
    tokens = settings.get("vocab_tgt")
    return ids_of_tokens(tokens, *SPECIAL.values(), settings.get("decoder_start_token", "<s>")) if tokens else {}


def ids_of_tokens(tokens: Sequence[str], *special: str) -> dict[str, int | None]:
    """Return the fields of the tokens for padding, beginning, end and start; None for one that is missing."""
    pad, bos, eos, start = (tokens.index(token) if token in tokens else None for token in special)
    return special_ids(pad, bos, eos, start)


# Options as fields of our configuration.
_SETTING_FIELDS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "heads": lambda heads: dict.fromkeys(HEAD_FIELDS, heads),
    "pos_ffn_activation_fn": lambda name: {"activation_function": name},
    "norm_eps": lambda eps: {"layer_norm_eps": eps},
    "dropout": lambda found: {"dropout": _first(found)},
    "attention_dropout": lambda found: {"attention_dropout": _first(found)},
}


def _first(found: Any) -> Any:
    """Return the first of a schedule of values."""
    return found[0] if isinstance(found, list) and found else found


OPEN_NMT = Layout(
    name="opennmt-py",
    description="transformer of OpenNMT-py 2 and 3, with the vocabularies in its checkpoint",
    signature=(
        _EMBEDDINGS["encoder"],
        _EMBEDDINGS["decoder"],
        "encoder.transformer.{i}.self_attn.linear_keys.weight",
        "decoder.transformer_layers.{i}.context_attn.linear_keys.weight",
    ),
    rules=tuple(_rules()),
    # `<unk>` 0, `<blank>` 1, `<s>` 2, `</s>` 3.
    defaults={
        "norm_position": "pre",
        "layer_norm_eps": 1e-6,
        "activation_function": "relu",
        **special_ids(pad=1, bos=2, eos=3),
    },
    example="model_step_100000.pt",
    setting_fields=_SETTING_FIELDS,
    argument_fields=("activation_function",),
    preprocess=_prepare,
    infer_fields=_ids_of_vocabulary,
    vocabulary_settings=("vocab_src", "vocab_tgt"),
    source_suffix=(),
)

__all__ = ["OPEN_NMT", "PROJECTIONS", "SPECIAL", "ids_of_tokens"]
