"""Peculiarities of the layouts of tutorial repositories; `test_layouts` compares all of them.

Each was compared once with the classes of its repository, padding included, with differences below 3e-6:
hkproj/pytorch-transformer of 2023 in three versions, hyunwoongko/transformer, bentrevett/pytorch-seq2seq of 2020 in
four versions, SamLynnEvans/Transformer, gordicaleksa/pytorch-original-transformer, aladdinpersson's
transformer_from_scratch and, without padding, seq2seq_transformer.
"""

import pytest
import torch

import source_models
from conversions import HEADS, STATED, TOLERANCE, assert_same_logits, build, convert, converted_logits, refused
from tables import looped

SOURCE = ["<unk>", "<pad>", "<sos>", "<eos>", *(f"s{n}" for n in range(9))]
TARGET = ["<unk>", "<pad>", "<sos>", "<eos>", *(f"t{n}" for n in range(13))]


@looped(
    ("name", "expected"),
    [
        ("hkproj", [2, 5, 6, 3]),
        ("hyunwoongko", [2, 5, 6, 3]),
        ("bentrevett", [2, 5, 6, 3]),
        ("torch-words", [2, 5, 6, 3]),
        ("samlynnevans", [5, 6]),
        ("gordicaleksa", [5, 6]),
    ],
)
def test_special_tokens_of_a_source(name, expected):
    _, model, options = build(name)
    tokenizer = convert(model.state_dict(), source_vocabulary=SOURCE, target_vocabulary=TARGET, **options).tokenizer
    assert tokenizer("s1 s2")["input_ids"] == expected
    assert tokenizer(text_target="t1 t2")["input_ids"] == [5, 6, 3]


@pytest.mark.parametrize("size", [1, 8], ids=["scalar norms", "vector norms"])
def test_norms_of_hkproj(size):
    """Both versions are pre-norm, unlike the notebook with the same keys."""
    state = (source_models.hkproj_scalar if size == 1 else source_models.hkproj)().state_dict()
    conversion = convert(state, **HEADS)
    assert conversion.layout.name == "hkproj" and conversion.config.norm_position == "pre"
    assert f"encoder.norm.alpha {size} -> model.encoder.layer_norm.weight 8" in conversion.describe()
    state["encoder.norm.alpha"] = torch.ones(3)
    refused("1 mismatched: encoder.norm.alpha 3 does not fit d_model=8", state, **HEADS)


def test_projections_of_the_whole_width_from_scratch():
    """They determine neither the number of heads nor, therefore, the scale of the scores."""
    state = source_models.from_scratch(heads=(1, 1)).state_dict()
    refused("code: `encoder_attention_heads=8` `decoder_attention_heads=8`", state)
    refused("6 mismatched: encoder.*queries.weight 8x8 does not fit d_model=8", state, **HEADS)


class TestSharedNorms:
    """In an early version of bentrevett's notebook, the sub-layers of a layer share one norm."""

    @pytest.fixture
    def state(self):
        return source_models.bentrevett_shared_norms().state_dict()

    def test_becomes_one_for_each_sublayer(self, state):
        weights = convert(state, **HEADS).weights
        layer = "model.decoder.layers.1"
        norms = [weights[f"{layer}.{name}_layer_norm.weight"] for name in ("self_attn", "encoder_attn", "final")]
        assert all(torch.equal(norm, state["decoder.layers.1.layer_norm.weight"]) for norm in norms)

    def test_beside_separate_norms(self, state):
        state |= source_models.bentrevett().state_dict()
        refused("20 mismatched: encoder.layers.0.layer_norm.weight and another", state, **HEADS)


class TestWordsAndPositions:
    """`torch.nn.Transformer` with a position table for each side."""

    @pytest.fixture
    def model(self):
        return source_models.TorchNNWords().eval()

    def test_padding_of_sources(self, model):
        """The original decoder attends to padding; without padding, the logits are equal."""
        conversion = convert(model.state_dict(), **HEADS)
        assert any("attends to the padding of sources" in note for note in conversion.notes)
        memory = model.transformer.forward
        model.transformer.forward = lambda *args, **masks: memory(*args, **{**masks, "memory_key_padding_mask": None})
        source, target = torch.randint(0, 13, (3, 6)), torch.randint(0, 17, (3, 5))
        with torch.no_grad():
            expected = model(source, target)
        torch.testing.assert_close(
            converted_logits(conversion.model(), source, target), expected, atol=TOLERANCE, rtol=0
        )

    def test_one_table_for_both_sides(self, model):
        model.trg_position_embedding = model.src_position_embedding
        state = {key: tensor for key, tensor in model.state_dict().items() if "position" not in key}
        state["places"] = model.src_position_embedding.weight.detach()
        pairs = [f"places={side}_position_embedding.weight" for side in ("src", "trg")]
        conversion = convert(state, rename=pairs, **{**STATED, "scale_embedding": False}, **HEADS)
        assert conversion.layout.name == "aladdinpersson" and "padding" not in " ".join(conversion.notes)
        assert_same_logits(model, conversion.model())
