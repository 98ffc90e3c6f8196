"""Conversion of foreign checkpoints: the same logits, masks and translations as the original classes; what is refused.

The reference models are those of `foreign_models`; where ../shared/seeds lies beside the checkout, the notebooks'
own classes are executed too.
"""

import runpy
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import nn
from transformers import AutoModelForSeq2SeqLM

import foreign_models
from hf_vanilla_transformer.conversion import convert_checkpoint

SCRIPT = Path(__file__).parents[1] / "scripts" / "convert_checkpoint.py"
main = runpy.run_path(str(SCRIPT))["main"]
TOLERANCE = 1e-5
HEADS = {"encoder_attention_heads": 2}

# nn.Transformer announces, when it is built or masked, which of its own fast paths it takes.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:enable_nested_tensor is True:UserWarning"),
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
]

# What a case is called: the layout, how to build the original, and what the user has to say.
CASES = {
    "annotated": ("annotated-transformer", foreign_models.Annotated, HEADS),
    "gamma-beta": (
        "simple-transformers",
        partial(foreign_models.Annotated, embedding="embedding", norm_names=("gamma", "beta")),
        HEADS,
    ),
    "torch-post": ("torch-nn-transformer", foreign_models.TorchNN, HEADS),
    "torch-pre-batch-first": (
        "torch-nn-transformer",
        partial(foreign_models.TorchNN, norm_first=True, batch_first=True),
        {**HEADS, "norm_position": "pre"},
    ),
    "torch-gelu-no-bias": (
        "torch-nn-transformer",
        partial(foreign_models.TorchNN, bias=False, activation="gelu", batch_first=True, layer_norm_eps=1e-3),
        {**HEADS, "activation_function": "gelu", "layer_norm_eps": 1e-3},
    ),
    "scalar-norm": ("scalar-norm", foreign_models.ScalarNorms, HEADS),
    "statquest": ("statquest", foreign_models.StatQuest, {}),
    "phrases": ("lightning-phrases", foreign_models.Phrases, {"repaired": True}),
    "shared-heads": ("shared-heads", foreign_models.SharedHeads, {"repaired": True}),
}


def build(name):
    layout, make, options = CASES[name]
    return layout, make().eval(), options


def sizes(model):
    """Return the number of source and of target tokens by the first and second embedding."""
    embeddings = [module.num_embeddings for module in model.modules() if isinstance(module, nn.Embedding)]
    return embeddings[0], embeddings[1]


def batch(model, rows=3, length=6):
    """Return random sources and targets and their masks, the last two rows of each side padded on the right."""
    source_size, target_size = sizes(model)
    source, target = torch.randint(0, source_size, (rows, length)), torch.randint(0, target_size, (rows, length - 1))
    masks = [torch.ones(ids.shape, dtype=torch.bool) for ids in (source, target)]
    masks[0][1, 3:], masks[0][2, 5:], masks[1][1, 4:], masks[1][2, 2:] = False, False, False, False
    return source, target, *masks


def normalized(logits):
    """Return log probabilities: some originals end in them, others in logits."""
    return logits.log_softmax(-1)


@torch.no_grad()
def ours(model, source, target, source_mask=None, target_mask=None):
    masks = [None if mask is None else mask.long() for mask in (source_mask, target_mask)]
    return model(
        input_ids=source, attention_mask=masks[0], decoder_input_ids=target, decoder_attention_mask=masks[1]
    ).logits


@torch.no_grad()
def greedy(model, source, start, end, steps):
    """Decode one sentence as the originals do: all over again at every step."""
    ids = torch.tensor([[start]])
    for _ in range(steps):
        ids = torch.cat([ids, model(source, ids)[:, -1].argmax(-1, keepdim=True)], 1)
        if ids[0, -1] == end:
            break
    return ids[0].tolist()


def convert(state, layout=None, **options):
    return convert_checkpoint(state, None, layout, dry_run=True, **options)


@pytest.mark.parametrize("name", CASES)
class TestSameFunction:
    def test_logits(self, name):
        layout, model, options = build(name)
        conversion = convert(model.state_dict(), **options)
        assert conversion.layout.name == layout
        source, target, source_mask, target_mask = batch(model)
        converted = conversion.model()
        with torch.no_grad():
            expected = model(source, target)
        torch.testing.assert_close(
            normalized(ours(converted, source, target)), normalized(expected), atol=TOLERANCE, rtol=0
        )
        assert expected.std() > 0.05, "logits that hardly differ would prove nothing"

    def test_logits_of_padded_batches(self, name):
        _, model, options = build(name)
        converted = convert(model.state_dict(), **options).model()
        source, target, source_mask, target_mask = batch(model)
        got = normalized(ours(converted, source, target, source_mask, target_mask))
        with torch.no_grad():
            expected = normalized(model(source, target, source_mask, target_mask))
            torch.testing.assert_close(got[target_mask], expected[target_mask], atol=TOLERANCE, rtol=0)
            # Each sentence alone, with no padding at all, is what the padded batch must amount to.
            for row, (length, target_length) in enumerate(zip(source_mask.sum(1), target_mask.sum(1), strict=True)):
                alone = normalized(model(source[row : row + 1, :length], target[row : row + 1, :target_length]))
                torch.testing.assert_close(got[row, :target_length], alone[0], atol=TOLERANCE, rtol=0)

    def test_algebra_in_float64(self, name):
        """Beyond rounding nothing differs but the epsilon of norms by the unbiased deviation."""
        _, model, options = build(name)
        source, target, *_ = batch(model)
        model = model.double()
        converted = convert(model.state_dict(), **options).model()
        assert converted.dtype == torch.float64
        with torch.no_grad():
            expected = normalized(model(source, target))
        # Tables of positions are float32 on both sides, and the originals' angles too.
        got = normalized(ours(converted, source, target))
        torch.testing.assert_close(got, expected, atol=5e-6, rtol=0)

    def test_greedy_translations(self, name, tmp_path):
        _, model, options = build(name)
        convert_checkpoint(model.state_dict(), tmp_path / "out", **options)
        converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "out").eval()
        config = converted.config
        source = batch(model)[0]
        lengths = set()
        for row in range(len(source)):
            expected = greedy(model, source[row : row + 1], config.decoder_start_token_id, config.eos_token_id, 9)
            got = converted.generate(source[row : row + 1], do_sample=False, num_beams=1, max_new_tokens=9)
            assert got[0].tolist() == expected
            lengths.add(len(expected))
        assert max(lengths) > 2
