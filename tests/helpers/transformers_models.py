"""Models of transformers, fairseq checkpoints, and comparisons with their conversions."""

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import FSMTConfig, FSMTForConditionalGeneration, MarianConfig, MarianMTModel

from tiny import BASELINES_DECODE_CORRECTLY, close

SIZES = {
    "d_model": 16, "encoder_layers": 2, "decoder_layers": 3, "encoder_attention_heads": 4,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 24, "dropout": 0.0,
}  # fmt: skip  # one size a line would fill the screen
WORDS = ["a dog runs", "the cat sleeps now", "a small dog sleeps", "the house is old", "a cat runs to the old house"]


def shaken(model: Any, scale: float = 0.3) -> Any:
    """Perturb all weights, so that biases and norms differ from 0 and 1, and logits from each other."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn_like(parameter) * scale)
    return model.eval()


def marian(**changes: Any) -> Any:
    torch.manual_seed(0)
    options = {"vocab_size": 50, "pad_token_id": 39, "decoder_start_token_id": 39, "scale_embedding": True,
               "activation_function": "swish", **SIZES, **changes}  # fmt: skip  # as above
    model = shaken(MarianMTModel(MarianConfig(**options)))
    model.final_logits_bias.normal_()
    settings = {"num_beams": 4, "bad_words_ids": [[39]], "max_length": 9, "length_penalty": 0.7}
    model.generation_config.update(**settings)
    return model


def fsmt(**changes: Any) -> Any:
    torch.manual_seed(0)
    options = {"src_vocab_size": 50, "tgt_vocab_size": 40, "max_position_embeddings": 64, **SIZES, **changes}
    model = shaken(FSMTForConditionalGeneration(FSMTConfig(**options)))
    model.generation_config.max_length = 9
    return model


def bart(kind: str = "bart", **changes: Any) -> Any:
    """Build a BART, mBART or M2M100."""
    torch.manual_seed(0)
    family = {"bart": "Bart", "mbart": "MBart", "m2m100": "M2M100"}[kind]
    config, model = (getattr(transformers, f"{family}{each}") for each in ("Config", "ForConditionalGeneration"))
    no_layerdrop = {"encoder_layerdrop": 0.0, "decoder_layerdrop": 0.0}
    options = {"vocab_size": 50, "max_position_embeddings": 64, "decoder_start_token_id": 2, **no_layerdrop, **SIZES}
    created = shaken(model(config(**{**options, **changes})))
    if hasattr(created, "final_logits_bias"):
        created.final_logits_bias.normal_()
    with torch.no_grad():
        for name, parameter in created.named_parameters():
            if "embed_positions" in name:
                parameter.normal_()
    created.generation_config.update(num_beams=4, max_length=9, length_penalty=0.7, forced_bos_token_id=7)
    return created


mbart, m2m100 = partial(bart, "mbart"), partial(bart, "m2m100")


def padded_batch(source: int = 38, target: int = 38, padding: int = 1) -> tuple[dict[str, Tensor], Tensor]:
    """Four sources of two to seven tokens, padded on the right, and targets."""
    ids, labels = torch.randint(4, source, (4, 7)), torch.randint(4, target, (4, 5))
    mask = (torch.arange(7)[None] < torch.tensor([[7], [4], [2], [5]])).long()
    return {"input_ids": ids.masked_fill(mask == 0, padding), "attention_mask": mask}, labels


SEARCHES: tuple[dict[str, Any], ...] = (
    {"num_beams": 1},
    {},
    {"num_beams": 3, "num_return_sequences": 2, "early_stopping": True},
)


@torch.no_grad()
def assert_same_function(
    original: Any, converted: Any, padding: int, searches: tuple[dict[str, Any], ...] = SEARCHES
) -> None:
    """Compare the logits of a padded batch and of each sentence alone, and translations."""
    source, target = padded_batch(padding=padding)
    # With a cache, FSMT would not mask future tokens.
    expected = original(**source, decoder_input_ids=target, use_cache=False).logits
    close(converted(**source, decoder_input_ids=target).logits, expected)
    for row, mask in enumerate(source["attention_mask"]):
        alone = source["input_ids"][row : row + 1, : mask.sum()]
        close(converted(alone, decoder_input_ids=target[row : row + 1]).logits[0], expected[row])
    if not BASELINES_DECODE_CORRECTLY and isinstance(original, FSMTForConditionalGeneration):
        searches = ()
    elif not BASELINES_DECODE_CORRECTLY and converted.config.vocab_size != converted.config.decoder_vocab_size:
        searches = tuple(options for options in searches if options.get("num_beams") == 1)
    for options in searches:
        found = converted.generate(**source, **options)
        assert torch.equal(found, original.generate(**source, **options)), options


def as_fairseq(original: Any) -> dict[str, Tensor]:
    """Return the weights of an FSMT or M2M100 under fairseq's keys."""
    weights = {
        name.removeprefix("model."): tensor.clone()
        for name, tensor in original.state_dict().items()
        if "embed_positions" not in name and not name.startswith("model.shared")
    }
    if "lm_head.weight" in weights:
        weights["decoder.output_projection.weight"] = weights.pop("lm_head.weight")
    for side in ("encoder", "decoder"):
        weights[f"{side}.version"] = torch.tensor([3.0])
        weights[f"{side}.embed_positions._float_tensor"] = torch.zeros(1)
    return weights


ARGUMENTS = {
    "arch": "transformer", "encoder_attention_heads": 4, "decoder_attention_heads": 2, "activation_fn": "relu",
    "max_source_positions": 64, "max_target_positions": 64, "dropout": 0.3, "no_scale_embedding": False,
    "share_all_embeddings": False, "encoder_normalize_before": False, "decoder_normalize_before": False,
}  # fmt: skip  # as above


def nested(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return arguments in the form of fairseq's dataclasses, with those of each stack under its name."""
    flat = {name: value for name, value in arguments.items() if not name.startswith(("encoder_", "decoder_"))}
    for side in ("encoder", "decoder"):
        flat[side] = {k.removeprefix(f"{side}_"): v for k, v in arguments.items() if k.startswith(f"{side}_")}
    return flat


def fairseq_content(weights: dict[str, Tensor], how: str = "args", **changes: Any) -> dict[str, Any]:
    """Return a fairseq checkpoint, with its arguments where some release puts them, or without."""
    arguments = {**ARGUMENTS, **changes}
    others = {"_name": None, "common": {"seed": 1}, "task": Namespace(eval_bleu=True)}
    stored = {
        "args": {"args": Namespace(**arguments)},
        "cfg": {"args": None, "cfg": {**others, "model": Namespace(**arguments)}},
        "nested": {"args": None, "cfg": {**others, "model": nested(arguments)}},
        "none": {"args": None},
    }[how]
    extra = {
        "epoch": 3, "train_iterator": {"epoch": 3, "shuffle": True}, "val_loss": np.float64(2.5),
        "best": np.float32(27.5), "metrics": [(0, "_bleu_counts", "SumMeter", {"sum": np.array([9, 4, 2, 1])})],
    }  # fmt: skip  # as above
    return {**stored, "model": weights, "optimizer_history": [{"num_updates": 7}], "extra_state": extra}


def save_fairseq(file: Path, weights: dict[str, Tensor], how: str = "args", **changes: Any) -> Path:
    torch.save(fairseq_content(weights, how, **changes), file)
    return file


# Options that replace lost arguments.
LOST = {
    "encoder_attention_heads": 4, "decoder_attention_heads": 2, "norm_position": "post", "activation_function": "relu",
    "scale_embedding": True,
}  # fmt: skip  # as above


def with_likely_ends(original: Any) -> dict[str, Tensor]:
    """Return fairseq weights with which the end token is likely, even as the first token."""
    weights = as_fairseq(original)
    states = weights["decoder.layers.2.final_layer_norm.bias"]
    weights["decoder.output_projection.weight"][2] += 3 * states / (states @ states)
    return weights
