"""Layouts of translation models that others trained: Marian, FSMT and fairseq.

They name layers as we do, after fairseq; what differs is stated in the configuration that comes with the weights.
Shape legend: d model width [d_model], L positions, V target vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, FSMTConfig, GenerationConfig, MarianConfig, PreTrainedConfig

from ...errors import one_line
from ...marian_fields import BEHAVIOR_FIELDS
from ...model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..rules import (
    EMBEDDINGS,
    PROJECTIONS,
    SIDES,
    Layout,
    Rule,
    attention,
    linear,
    positions,
    special_ids,
    stacked_inputs,
    sublayers,
    switch,
)

# Where a table of positions goes that the original computes; no key of a checkpoint has this name.
COMPUTED_POSITIONS = {side: f"computed positions of the {side}" for side in SIDES}

# Settings of `generate()` that say where a configuration comes from, not how to decode.
_NOT_OF_DECODING = {"transformers_version", "_from_model_config"}
# Settings without effect where the condition holds, which transformers loads, and refuses to save.
_OF_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff")
_OF_BEAMS = ("early_stopping", "length_penalty")

# What fairseq's transformer may have beside the paper's, and ours has not.
_FAIRSEQ_EXTRAS = (
    "cross_self_attention", "no_cross_attention", "layernorm_embedding", "character_embeddings", "adaptive_input",
)  # fmt: skip  # as above


def one_row(tensor: Tensor, config: VanillaTransformerConfig) -> tuple[Tensor, ...]:
    """Drop the batch axis of a bias (1, V)."""
    return (tensor.squeeze(0),)


def _layers(prefix: str = "") -> Iterator[Rule]:
    """Yield the rules of the layers, which have our names."""
    for side in SIDES:
        theirs, ours = f"{prefix}{side}.layers.{{i}}", f"model.{side}.layers.{{i}}"
        for our_norm, our_attention in sublayers(side):
            yield from linear(f"{theirs}.{our_norm}", f"{ours}.{our_norm}")
            if our_attention:
                yield from attention(f"{theirs}.{our_attention}", f"{ours}.{our_attention}", PROJECTIONS)
        for name in ("fc1", "fc2"):
            yield from linear(f"{theirs}.{name}", f"{ours}.{name}")


def _embeddings(prefix: str = "") -> Iterator[Rule]:
    for side in SIDES:
        yield Rule(f"{prefix}{side}.embed_tokens.weight", (EMBEDDINGS[side],))


def _told_by(kind: type[PreTrainedConfig]) -> Callable[[Mapping[str, Tensor], Mapping[str, Any]], dict[str, Any]]:
    """Return what reads the fields that a configuration of this kind tells under our names, its defaults included."""

    def read(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Any]:
        if config.get("model_type") != kind.model_type:
            raise ValueError(
                f"weights of {kind.model_type} do not tell how they are used: give the folder with their config.json"
            )
        told = kind(**{name: value for name, value in config.items() if name not in ("model_type", "dtype")})
        return {name: getattr(told, name) for name in BEHAVIOR_FIELDS}

    return read


def _take_decoding_along(path: Path, conversion: Any) -> None:
    """Take over the tokenizer and the settings of `generate()` of a folder that transformers wrote.

    Raises:
        ValueError: The tokenizer or the settings cannot be loaded.
    """
    conversion.generation |= _decoding_settings(path, conversion.notes)
    if conversion.tokenizer is None and not conversion.encoder_only and (path / "tokenizer_config.json").is_file():
        try:
            conversion.tokenizer = AutoTokenizer.from_pretrained(path, trust_remote_code=False)
        except ImportError as error:
            raise ValueError(
                f"the tokenizer in {path} needs a library that is not here ({one_line(error)}); install it: "
                'pip install "hf-vanilla-transformer[convert]"'
            ) from None
        # Each of its files has errors of its own kind.
        except Exception as error:
            raise ValueError(
                f"the tokenizer in {path} cannot be loaded ({type(error).__name__}: {error}); fetch its files again"
            ) from error


def _decoding_settings(path: Path, notes: list[str]) -> dict[str, Any]:
    """Return the settings that `generate()` of the original takes by default."""
    # Older folders keep them among the fields of the model.
    names = [name for name in ("generation_config.json", "config.json") if (path / name).is_file()]
    if not names:
        return {}
    name = names[0]
    try:
        found = GenerationConfig.from_pretrained(path, config_file_name=name, _from_model_config=True)
    except (OSError, ValueError, TypeError) as error:
        raise ValueError(f"{path / name} cannot be read ({error}); fetch it again") from error
    settings = {k: v for k, v in found.to_diff_dict().items() if k not in _NOT_OF_DECODING}
    idle = [
        *(() if settings.get("do_sample") else _OF_SAMPLING),
        *(() if (settings.get("num_beams") or 1) > 1 else _OF_BEAMS),
    ]
    if dropped := [name for name in idle if name in settings]:
        notes.append(f"settings of generate() without effect were left out: {', '.join(dropped)}")
    return {name: value for name, value in settings.items() if name not in dropped}


# Marian


def _without_sharing(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return Marian's weights with every embedding under its own name: a file holds shared ones once."""
    weights = dict(weights)
    shared = weights.get("model.shared.weight")
    if shared is not None:
        sides = [weights.setdefault(f"model.{side}.embed_tokens.weight", shared) for side in SIDES]
        if any(torch.equal(side, shared) for side in sides):
            del weights["model.shared.weight"]
    decoder = weights.get("model.decoder.embed_tokens.weight")
    if decoder is not None and config.get("tie_word_embeddings", True):
        # One that is stored beside them is another, as transformers sees it too.
        weights.setdefault("lm_head.weight", decoder)
    return weights


MARIAN = Layout(
    name="marian",
    description="MarianMTModel of transformers, such as Helsinki-NLP/opus-mt-en-de: a folder or a name on the Hub",
    signature=("final_logits_bias", "model.encoder.layers.{i}.self_attn.q_proj.weight"),
    rules=(
        *_embeddings("model."),
        *_layers("model."),
        *positions(**{side: f"model.{side}.embed_positions.weight" for side in SIDES}),
        Rule("lm_head.weight", ("lm_head.weight",)),
        Rule("final_logits_bias", ("lm_head.bias",), one_row),
    ),
    defaults={
        "norm_position": "post",
        "layer_norm_eps": 1e-5,
        "position_embedding_type": "sinusoidal",
        "sinusoidal_layout": "concatenated",
    },
    example="Helsinki-NLP/opus-mt-en-de",
    model_types=("marian",),
    complete=_without_sharing,
    read_fields=_told_by(MarianConfig),
    finish=_take_decoding_along,
)

# fairseq, and FSMT, which is its model within transformers


def fairseq_sinusoids(length: int, d_model: int, padding: int) -> Tensor:
    """Return the position encodings (L, d) of fairseq, from the first that a token can have.

    All sines come before all cosines, with d / 2 - 1 steps between the wavelengths 2 pi and 10000 * 2 pi where the
    paper has d / 2, and positions are counted from `padding` + 1. In float32, as there.
    """
    half = d_model // 2
    wavelengths = torch.exp(torch.arange(half).float() * -(math.log(10000.0) / (half - 1)))
    angles = torch.arange(padding + 1, padding + 1 + length).float()[:, None] * wavelengths
    table = torch.cat((angles.sin(), angles.cos()), 1)
    return torch.nn.functional.pad(table, (0, d_model % 2))


def _computed_positions(
    weights: Mapping[str, Tensor], config: Mapping[str, Any], lengths: Mapping[str, int], prefix: str = ""
) -> dict[str, Tensor]:
    """Return tables of positions (L, d), with those of padding before them, for the sides that store none.

    Raises:
        ValueError: The model has learned ones, or no id of padding.
    """
    padding = config.get("pad_token_id", FAIRSEQ_PADDING)
    if not isinstance(padding, int):
        raise ValueError(f"`pad_token_id` is {padding!r} in config.json; set its id, for positions begin after it")
    tables = {}
    for side, length in lengths.items():
        key, embedding = f"{prefix}{side}.embed_positions.weight", weights.get(f"{prefix}{side}.embed_tokens.weight")
        if key in weights or embedding is None or embedding.dim() != 2 or embedding.shape[1] < 4:
            continue
        table = torch.zeros(padding + 1 + length, embedding.shape[1])
        if not config.get("no_token_positional_embeddings"):
            if config.get(f"{side}_learned_pos"):
                raise ValueError(f"the {side} was trained with learned positions, but there is no {key}; save it too")
            table[padding + 1 :] = fairseq_sinusoids(length, embedding.shape[1], padding)
        tables[COMPUTED_POSITIONS[side]] = table.to(embedding.dtype)
    return tables


def _stored_positions(prefix: str = "") -> Iterator[Rule]:
    """Yield the rules of the tables of both kinds: learned ones, and those that the original computes."""
    yield from positions(**{side: f"{prefix}{side}.embed_positions.weight" for side in SIDES})
    yield from positions(**COMPUTED_POSITIONS)


def _complete_fsmt(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    weights = dict(weights)
    decoder = weights.get("model.decoder.embed_tokens.weight")
    if decoder is not None:
        # A file holds tied weights once.
        weights.setdefault("model.decoder.output_projection.weight", decoder)
        if config.get("tie_word_embeddings"):
            weights.setdefault("model.encoder.embed_tokens.weight", decoder)
    return weights


def _fsmt_positions(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    return _computed_positions(
        weights, config, dict.fromkeys(SIDES, config.get("max_position_embeddings", 1024)), "model."
    )


FAIRSEQ_PADDING = 1
FAIRSEQ_IDS = special_ids(pad=FAIRSEQ_PADDING, bos=0, eos=2, start=2)
FSMT = Layout(
    name="fsmt",
    description="FSMTForConditionalGeneration of transformers, such as facebook/wmt19-en-de: a folder or a name",
    signature=("model.encoder.layers.{i}.self_attn.q_proj.weight", "model.decoder.embed_tokens.weight"),
    rules=(
        *_embeddings("model."),
        *_layers("model."),
        *_stored_positions("model."),
        Rule("model.decoder.output_projection.weight", ("lm_head.weight",)),
    ),
    defaults={"norm_position": "post", "layer_norm_eps": 1e-5},
    example="facebook/wmt19-en-de",
    model_types=("fsmt",),
    complete=_complete_fsmt,
    read_fields=_told_by(FSMTConfig),
    compute_positions=_fsmt_positions,
    after_padding=True,
    finish=_take_decoding_along,
)


def _complete_fairseq(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return fairseq's weights with the output projection, which may be the embeddings, or named as it once was."""
    weights = dict(weights)
    if "decoder.output_projection.weight" not in weights:
        output = weights.pop("decoder.embed_out", weights.get("decoder.embed_tokens.weight"))
        if output is not None:
            weights["decoder.output_projection.weight"] = output
    return weights


def _fairseq_positions(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return what fairseq computes.

    Raises:
        ValueError: A stored table is not as long as the arguments say.
    """
    names = ("max_source_positions", "max_target_positions")
    lengths = {side: config.get(name) for side, name in zip(SIDES, names, strict=True)}
    for side, length in lengths.items():
        stored = weights.get(f"{side}.embed_positions.weight")
        if stored is not None and length and len(stored) != length + FAIRSEQ_PADDING + 1:
            raise ValueError(
                f"{side}.embed_positions.weight has {len(stored)} rows, but the arguments beside it say {length} "
                f"tokens, after {FAIRSEQ_PADDING + 1} rows of padding; use the arguments of the same training"
            )
    return _computed_positions(weights, config, {side: length or 1024 for side, length in lengths.items()})


def _fairseq_fields(weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that the arguments of fairseq's training tell, and where its norms stand.

    Without arguments, norms before the sub-layers are known by those that then end the stacks; without these, they may
    stand before or after them.

    Raises:
        ValueError: The model has what ours has not, or its two sides normalize at different places.
    """
    if extras := [name for name in _FAIRSEQ_EXTRAS if config.get(name)]:
        raise ValueError(f"the model was trained with --{extras[0].replace('_', '-')}, which cannot be expressed")
    ends = [f"{side}.layer_norm.weight" in weights for side in SIDES]
    names = [f"{side}_normalize_before" for side in SIDES]
    first = [switch(name, config.get(name, end)) for name, end in zip(names, ends, strict=True)]
    if first[0] != first[1] or ends[0] != ends[1]:
        raise ValueError(
            "the two sides of the model normalize at different places (encoder and decoder: norms before the "
            f"sub-layers {first}, a norm at the end {ends}), which cannot be expressed"
        )
    told: dict[str, Any] = {
        name: config[name] for name in BEHAVIOR_FIELDS if name in config and "token_id" not in name
    }
    # All releases have this argument; the first had not the others, but what these now do by default.
    complete = "encoder_normalize_before" in config
    if first[0] or complete:
        told |= {"norm_position": "pre" if first[0] else "post", "final_layer_norm": ends[0]}
    if complete or "activation_fn" in config:
        told["activation_function"] = config.get("activation_fn", "relu")
    if complete or "no_scale_embedding" in config:
        told["scale_embedding"] = not switch("no_scale_embedding", config.get("no_scale_embedding", False))
    return told


def _fairseq_rules() -> Iterator[Rule]:
    yield from _embeddings()
    yield from _layers()
    yield from _stored_positions()
    # fairseq itself has no bias there; code that names its weights alike may.
    yield from linear("decoder.output_projection", "lm_head", optional_bias=True)
    for side in SIDES:
        theirs, ours = f"{side}.layers.{{i}}", f"model.{side}.layers.{{i}}"
        yield from linear(f"{side}.layer_norm", f"model.{side}.layer_norm")
        for number, (our_norm, our_attention) in enumerate(sublayers(side)):
            # Releases up to 0.5 counted an encoder's norms and stacked queries, keys and values.
            if side == "encoder":
                yield from linear(f"{theirs}.layer_norms.{number}", f"{ours}.{our_norm}")
            if our_attention:
                yield from stacked_inputs(f"{theirs}.{our_attention}", f"{ours}.{our_attention}")


def _fairseq_decoding(config: VanillaTransformerConfig) -> dict[str, Any]:
    """Return the settings by which `generate()` searches as fairseq's own generator does by default.

    A search ends when as many hypotheses have ended as there are beams, whatever those that go on could become; no
    hypothesis is empty, none holds padding, and what reaches 200 tokens ends there.
    """
    return {
        "num_beams": 5,
        "early_stopping": True,
        "length_penalty": 1.0,
        # The token that decoding starts with, 200 others and the end.
        "max_length": 202,
        "forced_eos_token_id": config.eos_token_id,
        "min_new_tokens": 1,
        "bad_words_ids": [[config.pad_token_id]],
    }


def _not_weights() -> Iterator[str]:
    """Yield the keys of what is no weight in fairseq: release numbers, buffers, and copies for a fast path.

    Release 0.12 copies the weights anew whenever it loads a model; what a file holds of the copies, often zeros, it
    never reads.
    """
    for side in SIDES:
        yield from (f"{side}.version", f"{side}.embed_positions._float_tensor")
    for name in ("in_proj", "out_proj", "fc1", "fc2"):
        yield from (f"encoder.layers.{{i}}.{name}_{part}" for part in ("weight", "bias"))


FAIRSEQ = Layout(
    name="fairseq",
    description="transformer of fairseq: transformer_iwslt_de_en, transformer_wmt_en_de, big and their like",
    signature=(
        "encoder.embed_tokens.weight",
        "encoder.layers.{i}.fc1.weight",
        "decoder.embed_tokens.weight",
        "decoder.layers.{i}.encoder_attn.out_proj.weight",
    ),
    rules=tuple(_fairseq_rules()),
    defaults={"norm_position": "post", "layer_norm_eps": 1e-5, "activation_function": "relu", **FAIRSEQ_IDS},
    example="checkpoint_best.pt --source_vocabulary dict.de.txt --target_vocabulary dict.en.txt",
    ignored=tuple(_not_weights()),
    complete=_complete_fairseq,
    read_fields=_fairseq_fields,
    compute_positions=_fairseq_positions,
    after_padding=True,
    options=("norm_position", "activation_function", "scale_embedding"),
    decoding=_fairseq_decoding,
)

TRANSLATION_LAYOUTS = (MARIAN, FSMT, FAIRSEQ)

__all__ = ["TRANSLATION_LAYOUTS", "fairseq_sinusoids"]
