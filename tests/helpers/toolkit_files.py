"""Files of OpenNMT-py, Eole, Joey NMT and Sockeye: weights, configurations and vocabularies."""

import copy
import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import save_file
from torch import nn

from source_models import eole, joeynmt, opennmt, sockeye, sockeye_file

WORDS = ["a", "cat", "dog", "sleeps", "runs", "the", "small", "big", "and"]
# Special tokens of OpenNMT-py and Eole, of Joey NMT, and of Sockeye.
BLANK, PAD, PAD_FIRST = (
    ["<unk>", "<blank>", "<s>", "</s>"], ["<unk>", "<pad>", "<s>", "</s>"], ["<pad>", "<unk>", "<s>", "</s>"],
)  # fmt: skip  # a table


def source_words(special: list[str]) -> list[str]:
    return [*special, *WORDS]


def target_words(special: list[str]) -> list[str]:
    return [*special, *(word.upper() for word in WORDS), "!", "?", ",", "."]


OPENNMT_OPTIONS = {
    "heads": 2, "pos_ffn_activation_fn": "relu", "dropout": [0.2], "attention_dropout": [0.1], "layers": 2,
    "position_encoding": True, "max_relative_positions": 0, "copy_attn": False, "encoder_type": "transformer",
}  # fmt: skip  # one option a line would fill the screen


def opennmt_content(model: nn.Module | None = None, release=3, options_as: Any = Namespace, **options) -> dict:
    weights = (model or opennmt()).state_dict()
    output = {name: weights.pop(name) for name in list(weights) if name.startswith("generator")}
    prefix, replacement = ("generator.", "") if release == 3 else ("generator", "0")
    return {
        "model": weights,
        "generator": {name.replace(prefix, replacement): tensor for name, tensor in output.items()},
        "opt": options_as(**{**OPENNMT_OPTIONS, **options}),
        "optim": {"training_step": 7, "decay_step": 7},
        "vocab": {"src": source_words(BLANK), "tgt": target_words(BLANK), "decoder_start_token": "<s>"},
    }


def write_opennmt(folder: Path, model: nn.Module | None = None, **options) -> Path:
    torch.save(opennmt_content(model, **options), folder / "model_step_7.pt")
    return folder / "model_step_7.pt"


EOLE_VOCABULARY = {
    "src": source_words(BLANK), "tgt": target_words(BLANK), "decoder_start_token": "<s>",
    "specials": {"bos_token": "<s>", "pad_token": "<blank>", "eos_token": "</s>", "unk_token": "<unk>"},
}  # fmt: skip  # one table
_SIZES = {"layers": 2, "hidden_size": 8, "transformer_ff": 16, "heads": 2}
EOLE_MODEL = {
    "architecture": "transformer", **_SIZES, "embeddings": {"position_encoding_type": "SinusoidalInterleaved"},
    "encoder": {"encoder_type": "transformer", **_SIZES}, "decoder": {"decoder_type": "transformer", **_SIZES},
}  # fmt: skip  # one table


def write_eole(folder: Path, weights=None, vocabulary=EOLE_VOCABULARY, **parts) -> Path:
    """Write a model folder; `parts` override parts of the model's settings."""
    model = {**EOLE_MODEL, **{part: {**EOLE_MODEL.get(part, {}), **found} if isinstance(found, dict) else found
                              for part, found in parts.items()}}  # fmt: skip  # one dict
    (folder / "config.json").write_text(json.dumps({"seed": 1, "training": {"heads": 9}, "model": model}))
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    weights = weights.state_dict() if isinstance(weights, nn.Module) else weights
    save_file(weights or eole().state_dict(), folder / "model.00.safetensors")
    torch.save({}, folder / "optimizer.pt")
    return folder


_JOEY_STACK = {
    "type": "transformer", "num_layers": 2, "num_heads": 2, "hidden_size": 8, "ff_size": 16, "dropout": 0.3,
    "embeddings": {"embedding_dim": 8, "scale": True, "dropout": 0.0}, "layer_norm": "pre", "activation": "relu",
}  # fmt: skip  # one setting a line would fill the screen
JOEY_CONFIG = {
    "name": "words", "data": {"src": {"lang": "de"}, "trg": {"lang": "en"}}, "training": {"batch_size": 4},
    "model": {"tied_softmax": False, "encoder": _JOEY_STACK, "decoder": {**_JOEY_STACK}},
}  # fmt: skip  # as above


def joey_config(side="both", **settings) -> dict:
    """Return the configuration with settings changed in the encoder, the decoder or both."""
    config = copy.deepcopy(JOEY_CONFIG)
    for stack in ("encoder", "decoder") if side == "both" else (side,):
        config["model"][stack] |= settings
    return config


def write_joey(folder: Path, model: nn.Module | None = None, config: dict | None = JOEY_CONFIG) -> Path:
    if config is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
    for side, tokens in (("src", source_words(PAD)), ("trg", target_words(PAD))):
        (folder / f"{side}_vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    file = folder / "7.ckpt"
    torch.save({"model_state": (model or joeynmt()).state_dict(), "optimizer_state": {}, "scaler_state": None}, file)
    return file


SOCKEYE_STACK = {
    "model_size": 8, "attention_heads": 2, "feed_forward_num_hidden": 16, "act_type": "relu", "num_layers": 2,
    "dropout_attention": 0.2, "dropout_act": 0.0, "dropout_prepost": 0.3, "positional_embedding_type": "fixed",
    "preprocess_sequence": "n", "postprocess_sequence": "dr", "max_seq_len_source": 40, "max_seq_len_target": 40,
    "depth_key_value": 8, "use_lhuc": False, "use_glu": False, "decoder_type": "transformer",
}  # fmt: skip  # one setting a line would fill the screen
SOCKEYE_POST = {"preprocess_sequence": "", "postprocess_sequence": "drn"}


def write_sockeye(folder: Path, model: nn.Module | None = None, side="both", **settings) -> Path:
    """Write a model folder, and return its parameter file; `settings` override those of a stack or both."""
    # Sockeye writes objects with local tags.
    lines = ["!ModelConfig", "config_data: !DataConfig", "  max_lengths: !!python/tuple [40, 40]"]
    for stack in ("encoder", "decoder"):
        text = yaml.safe_dump({**SOCKEYE_STACK, **(settings if side in ("both", stack) else {})})
        lines += [f"config_{stack}: !TransformerConfig", *(f"  {line}" for line in text.splitlines())]
    (folder / "config").write_text("\n".join(lines))
    for name, tokens in (("src", source_words(PAD_FIRST)), ("trg", target_words(PAD_FIRST))):
        (folder / f"vocab.{name}.0.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    torch.save(sockeye_file(model or sockeye()), folder / "params.best")
    return folder / "params.best"
