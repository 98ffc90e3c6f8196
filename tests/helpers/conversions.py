"""Source models with the arguments that their conversion needs, and comparisons of converted and original models."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import source_models as models
from hf_vanilla_transformer.conversion import Conversion, convert_checkpoint

TOLERANCE = 1e-5
HEADS = {"encoder_attention_heads": 2}
ENDS = {"decoder_start_token_id": 1, "eos_token_id": 2}

RELU, GELU = {"activation_function": "relu"}, {"activation_function": "gelu"}
# By case: the layout, a function that creates the original, and the arguments of its conversion.
CASES = {
    "annotated": ("annotated-transformer", models.annotated, HEADS),
    "gamma-beta": ("simple-transformers", models.gamma_beta, HEADS),
    "torch-post": ("torch-nn-transformer", models.TorchNN, HEADS),
    "torch-pre-batch-first": (
        "torch-nn-transformer",
        partial(models.TorchNN, norm_first=True, batch_first=True),
        {**HEADS, "norm_position": "pre"},
    ),
    "torch-gelu-no-bias": (
        "torch-nn-transformer",
        partial(models.TorchNN, bias=False, activation="gelu", batch_first=True, layer_norm_eps=1e-3),
        {**HEADS, **GELU, "layer_norm_eps": 1e-3},
    ),
    "scalar-norm": ("scalar-norm", models.scalar_norms, HEADS),
    "torch-words": ("aladdinpersson", models.TorchNNWords, HEADS),
    "hkproj": ("hkproj", models.hkproj, HEADS),
    "hkproj-scalar": ("hkproj", models.hkproj_scalar, HEADS),
    "hkproj-scalar-biased": ("hkproj", partial(models.hkproj_scalar, attention_bias=True), HEADS),
    "hyunwoongko": ("hyunwoongko", models.hyunwoongko, {**HEADS, "patched": True}),
    "bentrevett": ("bentrevett", models.bentrevett, HEADS),
    "bentrevett-shared-norms": ("bentrevett", models.bentrevett_shared_norms, HEADS),
    "samlynnevans": ("samlynnevans", models.samlynnevans, HEADS),
    "gordicaleksa": ("gordicaleksa", models.gordicaleksa, HEADS),
    "statquest": ("statquest", models.statquest, {}),
    "phrases": ("lightning-phrases", models.phrases, {"patched": True}),
    "embedding-norms": (
        "attention-is-all-you-need-pytorch",
        models.normed_embeddings,
        {**HEADS, "norm_position": "post", "first_position": 0},
    ),
    "shared-heads": ("shared-heads", models.shared_heads, {"patched": True}),
    "from-scratch": ("aladdinpersson-from-scratch", models.from_scratch, {}),
    "opennmt-2": ("opennmt-py", models.opennmt, {**HEADS, **RELU}),
    "opennmt-3": (
        "opennmt-py",
        partial(models.opennmt, attention_bias=False, activation=torch.nn.functional.gelu),
        {**HEADS, **GELU},
    ),
    "eole": ("eole", partial(models.eole, attention_bias=False, ff_bias=False), {**HEADS, **RELU}),
    "eole-learned": ("eole", models.eole_learned, {**HEADS, **RELU}),
    "joeynmt-pre": ("joeynmt", models.joeynmt, {**HEADS, **RELU, "scale_embedding": True}),
    "joeynmt-post": (
        "joeynmt",
        partial(models.joeynmt, pre=False),
        {**HEADS, **RELU, "norm_position": "post", "scale_embedding": True},
    ),
    "x-transformers": ("x-transformers", models.x_transformer, {**HEADS, **ENDS}),
    "x-transformers-post-1.27": (
        "x-transformers",
        partial(models.x_transformer, pre=False, offset=False, beta="beta", widths=(6, 6)),
        {**HEADS, **ENDS},
    ),
}
# Defaults for what renamed weights do not determine.
STATED = {
    "norm_position": "post", "activation_function": "relu", "scale_embedding": True, "layer_norm_eps": 1e-5,
    "first_position": 0, "unbiased_norms": False, "pad_token_id": 1, "bos_token_id": 2, "eos_token_id": 3,
    "decoder_start_token_id": 2,
}  # fmt: skip  # one option a line would fill the screen


def build(name: str) -> tuple[str, Any, dict[str, Any]]:
    layout, make, options = CASES[name]
    return layout, make().eval(), options


def convert(source: Any, layout: str | None = None, **options: Any) -> Conversion:
    return convert_checkpoint(source, None, layout, dry_run=True, **options)


def refused(message: str, source: Any, layout: str | None = None, **options: Any) -> str:
    """Check that a source is refused with one line, and return it."""
    with pytest.raises(ValueError, match=message) as caught:
        convert(source, layout, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def batch(model: nn.Module, rows: int = 3, length: int = 6) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Random sources and targets and their masks; the last two rows of each are padded on the right."""
    words = {name: module for name, module in model.named_modules() if "pos" not in name.rpartition(".")[2]}
    sizes = [module.num_embeddings for module in words.values() if isinstance(module, nn.Embedding)]
    source, target = torch.randint(0, sizes[0], (rows, length)), torch.randint(0, sizes[1], (rows, length - 1))
    masks = [torch.ones(ids.shape, dtype=torch.bool) for ids in (source, target)]
    masks[0][1, 3:], masks[0][2, 5:], masks[1][1, 4:], masks[1][2, 2:] = False, False, False, False
    return source, target, *masks


def normalized(logits: Tensor) -> Tensor:
    """Log-probabilities, since some originals return these and others logits."""
    return logits.log_softmax(-1)


@torch.no_grad()
def converted_logits(
    model: Any, source: Tensor, target: Tensor, source_mask: Tensor | None = None, target_mask: Tensor | None = None
) -> Tensor:
    masks = [None if mask is None else mask.long() for mask in (source_mask, target_mask)]
    return model(
        input_ids=source, attention_mask=masks[0], decoder_input_ids=target, decoder_attention_mask=masks[1]
    ).logits


def assert_same_logits(model: Any, converted: Any, length: int = 6) -> None:
    """Compare log-probabilities of a padded batch."""
    source, target, source_mask, target_mask = batch(model, length=length)
    with torch.no_grad():
        expected = normalized(model(source, target, source_mask, target_mask))
    found = normalized(converted_logits(converted, source, target, source_mask, target_mask))
    torch.testing.assert_close(found[target_mask], expected[target_mask], atol=TOLERANCE, rtol=0)


@torch.no_grad()
def greedy(model: Any, source: Tensor, start: int, end: int | None, steps: int) -> list[int]:
    """Decode one sentence like the originals, recomputing everything at each step."""
    ids = torch.tensor([[start]])
    for _ in range(steps):
        ids = torch.cat([ids, model(source, ids)[:, -1].argmax(-1, keepdim=True)], 1)
        if ids[0, -1] == end:
            break
    return ids[0].tolist()
