"""Presets: parameter counts of Table 3, and unknown names."""

import pytest
import torch

from hf_vanilla_transformer import PRESETS, VanillaTransformerForConditionalGeneration, preset_config
from hf_vanilla_transformer.presets import get_preset
from tables import looped

# Parameters in millions as printed in Table 3; rows that leave the column blank have the base model's 65.
TABLE_3 = {
    "table3-b-dk16": 58,
    "table3-b-dk32": 60,
    "table3-c-n2": 36,
    "table3-c-n4": 50,
    "table3-c-n8": 80,
    "table3-c-d256": 28,
    "table3-c-d1024": 168,
    "table3-c-ff1024": 53,
    "table3-c-ff4096": 90,
    "big": 213,
}
NOT_IN_THE_PAPER = {"deep-encoder", "small", "student", "student-12-1", "tiny"}


def parameters_in_millions(name: str) -> float:
    with torch.device("meta"):
        model = VanillaTransformerForConditionalGeneration(preset_config(name))
    return model.num_parameters() / 1e6


def test_rows_of_table_3_are_presets():
    assert PRESETS.keys() >= TABLE_3.keys() | {"base"}


@looped("name", sorted(PRESETS.keys() - NOT_IN_THE_PAPER))
def test_parameters_match_table_3(name):
    assert parameters_in_millions(name) == pytest.approx(TABLE_3.get(name, 65), rel=0.07)


def test_small_presets_are_small():
    assert parameters_in_millions("tiny") < parameters_in_millions("small") < 20
    assert parameters_in_millions("deep-encoder") < parameters_in_millions("small")


@pytest.mark.parametrize(
    ("name", "layers", "ffn_dim"),
    [("student", (6, 2), 1024), ("student-12-1", (12, 1), 1024), ("deep-encoder", (6, 2), 512)],
)
def test_deep_encoders_have_the_width_of_small_and_few_decoder_layers(name, layers, ffn_dim):
    config = preset_config(name)
    assert (config.encoder_layers, config.decoder_layers) == layers
    assert config.d_model == preset_config("small").d_model
    assert config.encoder_ffn_dim == config.decoder_ffn_dim == ffn_dim
    assert config.norm_position == "pre"


def test_rows_differ_from_the_base_model_as_in_the_paper():
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


@pytest.mark.parametrize(("name", "nearest"), [("smal", "small"), ("table3-c-n9", "table3-c-n")])
def test_unknown_preset_offers_the_nearest(name, nearest):
    for find in (get_preset, preset_config):
        with pytest.raises(ValueError, match=f"unknown preset '{name}'; did you mean {nearest}"):
            find(name)


def test_a_name_like_no_preset_lists_them_all():
    with pytest.raises(ValueError) as error:
        get_preset("?")
    assert all(name in str(error.value) for name in PRESETS)


def test_long_values_are_cut_in_messages():
    for find in (get_preset, lambda text: preset_config("tiny", activation_function=text)):
        with pytest.raises(ValueError, match=r"x \[...\] ") as error:
            find("x" * 100_000)
        assert len(str(error.value)) < 1100
