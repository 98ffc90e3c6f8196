"""Presets: the sizes of the paper's Table 3, and what happens on an unknown name."""

import pytest
import torch

from hf_vanilla_transformer import PRESETS, VanillaTransformerForConditionalGeneration, preset_config
from hf_vanilla_transformer.presets import get_preset

# Table 3 of the paper, in millions; a blank of the table is the base model's 65.
PAPER_MILLIONS = {
    "base": 65,
    "table3-a-h1": 65,
    "table3-a-h4": 65,
    "table3-a-h16": 65,
    "table3-a-h32": 65,
    "table3-b-dk16": 58,
    "table3-b-dk32": 60,
    "table3-c-n2": 36,
    "table3-c-n4": 50,
    "table3-c-n8": 80,
    "table3-c-d256": 28,
    "table3-c-d1024": 168,
    "table3-c-ff1024": 53,
    "table3-c-ff4096": 90,
    "table3-d-dropout0.0": 65,
    "table3-d-dropout0.2": 65,
    "table3-d-smoothing0.0": 65,
    "table3-d-smoothing0.2": 65,
    "table3-e-learned": 65,
    "big": 213,
}


def parameters_in_millions(name: str) -> float:
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(preset_config(name))
    return model.num_parameters() / 1e6


@pytest.mark.parametrize("name", PAPER_MILLIONS)
def test_parameters_are_those_of_table_3(name):
    assert PRESETS[name].paper_parameters == PAPER_MILLIONS[name]
    assert parameters_in_millions(name) == pytest.approx(PAPER_MILLIONS[name], rel=0.07)


def test_every_preset_of_the_paper_is_compared():
    assert {name for name, preset in PRESETS.items() if preset.paper_parameters is not None} == set(PAPER_MILLIONS)


def test_small_presets_are_small():
    assert parameters_in_millions("tiny") < parameters_in_millions("small") < 20


def test_rows_differ_from_the_base_model_as_the_paper_says():
    base, big = preset_config("base"), preset_config("big")
    assert (big.d_model, big.encoder_ffn_dim, big.decoder_ffn_dim, big.dropout) == (1024, 4096, 4096, 0.3)
    assert big.attention_dims(big.encoder_attention_heads) == base.attention_dims(8) == (64, 64)
    for heads, width in ((1, 512), (4, 128), (16, 32), (32, 16)):
        row = preset_config(f"table3-a-h{heads}")
        assert row.encoder_attention_heads == row.decoder_attention_heads == heads
        assert row.attention_dims(heads) == (width, width)
    assert preset_config("table3-b-dk16").attention_dims(8) == (16, 64)
    assert preset_config("table3-c-d256").attention_dims(8) == (32, 32)
    assert preset_config("table3-c-d1024").attention_dims(8) == (128, 128)
    assert preset_config("table3-e-learned").position_embedding_type == "learned"
    assert [preset_config(f"table3-d-dropout{p}").dropout for p in ("0.0", "0.2")] == [0.0, 0.2]
    smoothing = {name: preset.label_smoothing for name, preset in PRESETS.items()}
    assert (smoothing["table3-d-smoothing0.0"], smoothing["table3-d-smoothing0.2"], smoothing["base"]) == (0, 0.2, 0.1)


def test_overrides_win():
    config = preset_config("small", d_model=128, vocab_size=99)
    assert (config.d_model, config.vocab_size, config.encoder_layers) == (128, 99, 3)


def test_unknown_preset_names_the_nearest():
    with pytest.raises(ValueError, match="'smal'; use one of .*small"):
        get_preset("smal")
    with pytest.raises(ValueError, match="table3-c-n8"):
        preset_config("table3-c-n9")


def test_a_name_like_no_preset_lists_them_all():
    with pytest.raises(ValueError) as error:
        get_preset("?")
    assert all(name in str(error.value) for name in PRESETS)
