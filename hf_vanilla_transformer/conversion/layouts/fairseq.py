"""Layout of fairseq's transformer, with or without its training arguments.

Shape legend: d model width [d_model], L positions.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from ...marian_fields import BEHAVIOR_FIELDS
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..rules import COMPUTED_POSITION_KEYS, NORMS, STACKS, Layout, Weights, our_keys, special_ids
from ..settings import Settings, boolean_setting, cannot_express

PADDING_ID = 1
# Longest computed table.
MAX_POSITIONS = 2**17
# fairseq has no bias in the output projection; code with the same keys may.
_KEYS = our_keys("")._replace(output="decoder.output_projection", optional=("lm_head.bias",))
# Releases up to 0.5 numbered the encoder's norms and stacked queries, keys and values.
_EARLY_KEYS = _KEYS._replace(
    norms=(("layer_norms.0", "layer_norms.1"), NORMS["decoder"]),
    projections=("in_proj_", "in_proj_", "in_proj_", "out_proj"),
)
# Options of fairseq's transformer that our model lacks.
_UNSUPPORTED = (
    "cross_self_attention", "no_cross_attention", "character_embeddings", "adaptive_input",
)  # fmt: skip  # a table, not an expression


def fairseq_sinusoids(length: int, d_model: int, padding: int) -> Tensor:
    """Return fairseq's sinusoids (L, d), starting with the first position of a token.

    All sines come before all cosines, there are d / 2 - 1 steps between the wavelengths 2 pi and 10000 * 2 pi instead
    of the paper's d / 2, and positions are counted from `padding` + 1. In float32, as in the original.
    """
    half = d_model // 2
    wavelengths = torch.exp(torch.arange(half).float() * -(math.log(10000.0) / (half - 1)))
    angles = torch.arange(padding + 1, padding + 1 + length).float()[:, None] * wavelengths
    table = torch.cat((angles.sin(), angles.cos()), 1)
    return torch.nn.functional.pad(table, (0, d_model % 2))


def compute_positions(
    weights: Weights, settings: Settings, lengths: Mapping[str, int], prefix: str = ""
) -> dict[str, Tensor]:
    """Return position tables (padding + 1 + L, d), with zeros for padding, for the stacks that store none."""
    padding = settings.get("pad_token_id", PADDING_ID)
    if type(padding) is not int or not 0 <= padding <= MAX_POSITIONS:
        raise ValueError(f"`pad_token_id` is {padding!r} in config.json; set its id: positions are counted from it")
    tables = {}
    for stack, length in lengths.items():
        if type(length) is not int or not 0 < length <= MAX_POSITIONS:
            raise ValueError(
                f"the settings beside the weights give the {stack} {length!r} positions; use 1 to {MAX_POSITIONS:,}"
            )
        key = f"{prefix}{stack}.embed_positions.weight"
        embedding = weights.get(f"{prefix}{stack}.embed_tokens.weight")
        if key in weights or embedding is None or embedding.dim() != 2 or embedding.shape[1] < 4:
            continue
        table = torch.zeros(padding + 1 + length, embedding.shape[1])
        if not settings.get("no_token_positional_embeddings"):
            if settings.get(f"{stack}_learned_pos"):
                raise ValueError(f"the {stack} was trained with learned positions, but there is no {key}; save it too")
            table[padding + 1 :] = fairseq_sinusoids(length, embedding.shape[1], padding)
        tables[COMPUTED_POSITION_KEYS[stack]] = table.to(embedding.dtype)
    return tables


def _name_output_projection(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Add the output projection under its present key, from its early key or from the tied embeddings."""
    named = dict(weights)
    if "decoder.output_projection.weight" not in named:
        output = named.pop("decoder.embed_out", named.get("decoder.embed_tokens.weight"))
        if output is not None:
            named["decoder.output_projection.weight"] = output
    return named


def _fairseq_positions(weights: Weights, settings: Settings) -> dict[str, Tensor]:
    """Return the position tables that fairseq computes; a stored table of another length is a ValueError."""
    names = ("max_source_positions", "max_target_positions")
    lengths = {stack: settings.get(name) for stack, name in zip(STACKS, names, strict=True)}
    for stack, length in lengths.items():
        stored = weights.get(f"{stack}.embed_positions.weight")
        if stored is not None and length and len(stored) != length + PADDING_ID + 1:
            raise ValueError(
                f"{stack}.embed_positions.weight has {len(stored)} rows, but the arguments beside it imply {length}, "
                f"and {PADDING_ID + 1} more for padding; use the arguments that these weights were trained with"
            )
    # A config.json beside the weights may have another padding id.
    settings = {**settings, "pad_token_id": PADDING_ID}
    return compute_positions(weights, settings, {stack: length or 1024 for stack, length in lengths.items()})


def _fairseq_fields(weights: Weights, settings: Settings) -> dict[str, Any]:
    """Infer fields from training arguments, and the norm position also from weights.

    Without arguments, a norm at the end of each stack means pre-norm; without such norms, either is possible.
    """
    if unsupported := [name for name in _UNSUPPORTED if settings.get(name)]:
        raise cannot_express(f"the model was trained with fairseq's --{unsupported[0].replace('_', '-')}")
    final = [f"{stack}.layer_norm.weight" in weights for stack in STACKS]
    names = [f"{stack}_normalize_before" for stack in STACKS]
    before = [boolean_setting(name, settings.get(name, end)) for name, end in zip(names, final, strict=True)]
    if before[0] != before[1] or final[0] != final[1]:
        raise cannot_express(
            "encoder and decoder have norms at different places (before the sub-layers: "
            f"{before}; at the end: {final})"
        )
    pre_norm, final_norm = before[0], final[0]
    fields = {name: settings[name] for name in BEHAVIOR_FIELDS if name in settings and not name.endswith("_token_id")}
    # Every release stores this argument. The first release lacks the others and does what are now their defaults.
    has_arguments = "encoder_normalize_before" in settings
    if pre_norm or has_arguments:
        fields |= {"norm_position": "pre" if pre_norm else "post", "final_layer_norm": final_norm}
    if boolean_setting("layernorm_embedding", settings.get("layernorm_embedding", False)):
        # If the weights lack these norms, they are reported as missing.
        fields["embedding_layer_norm"] = True
    if has_arguments or "activation_fn" in settings:
        fields["activation_function"] = settings.get("activation_fn", "relu")
    if has_arguments or "no_scale_embedding" in settings:
        unscaled = boolean_setting("no_scale_embedding", settings.get("no_scale_embedding", False))
        fields["scale_embedding"] = not unscaled
    return fields


def _search_settings(config: VanillaTransformerConfig) -> dict[str, Any]:
    """Return settings that make `generate()` search like fairseq's generator with its defaults.

    The search stops with as many finished hypotheses as beams, even if others could become better. No hypothesis is
    empty or contains padding, and none has more than 200 tokens.
    """
    return {
        "num_beams": 5,
        "early_stopping": True,
        "length_penalty": 1.0,
        # The start token, 200 others and the end.
        "max_length": 202,
        "forced_eos_token_id": config.eos_token_id,
        "min_new_tokens": 1,
        "bad_words_ids": [[config.pad_token_id]],
    }


def _ignored_keys() -> Iterator[str]:
    """Yield the keys of release numbers, buffers, and copies of weights for a fast path.

    Release 0.12 renews these copies whenever it loads a model and never reads the stored ones, which are often zeros.
    """
    for stack in STACKS:
        yield from (f"{stack}.version", f"{stack}.embed_positions._float_tensor")
    for name in ("in_proj", "out_proj", "fc1", "fc2"):
        yield from (f"encoder.layers.{{i}}.{name}_{part}" for part in ("weight", "bias"))


FAIRSEQ = Layout(
    name="fairseq",
    description="transformer of fairseq: transformer_iwslt_de_en, transformer_wmt_en_de and similar architectures",
    keys=(_KEYS, _EARLY_KEYS),
    own_signature=(
        "encoder.embed_tokens.weight",
        "encoder.layers.{i}.fc1.weight",
        "decoder.embed_tokens.weight",
        "decoder.layers.{i}.encoder_attn.out_proj.weight",
    ),
    defaults={
        "norm_position": "post",
        "layer_norm_eps": 1e-5,
        "activation_function": "relu",
        **special_ids(pad=PADDING_ID, bos=0, eos=2, start=2),
    },
    example="checkpoint_best.pt --source_vocabulary dict.de.txt --target_vocabulary dict.en.txt",
    ignored_keys=tuple(_ignored_keys()),
    preprocess=_name_output_projection,
    infer_fields=_fairseq_fields,
    compute_positions=_fairseq_positions,
    first_position=None,
    argument_fields=("norm_position", "activation_function", "scale_embedding"),
    generation_settings=_search_settings,
)
