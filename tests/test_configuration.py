"""The configuration: the paper's defaults, every field's effect, every impossible combination, round trips."""

from dataclasses import fields
from typing import Any

import pytest
import torch
from transformers import AutoConfig, GenerationConfig, PreTrainedConfig

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration

TINY = {
    "vocab_size": 30,
    "d_model": 16,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 12,
    "dropout": 0.0,
}

# For each field a change from TINY, with what else must change to make it possible.
CHANGES: dict[str, dict[str, Any]] = {
    "vocab_size": {"vocab_size": 31},
    "decoder_vocab_size": {"decoder_vocab_size": 31, "share_encoder_decoder_embeddings": False},
    "d_model": {"d_model": 32},
    "encoder_layers": {"encoder_layers": 2},
    "decoder_layers": {"decoder_layers": 2},
    "encoder_attention_heads": {"encoder_attention_heads": 2},
    "decoder_attention_heads": {"decoder_attention_heads": 2},
    "encoder_ffn_dim": {"encoder_ffn_dim": 0},
    "decoder_ffn_dim": {"decoder_ffn_dim": 0},
    "head_dim": {"head_dim": 6},
    "value_head_dim": {"value_head_dim": 6},
    "activation_function": {"activation_function": "gelu"},
    "dropout": {"dropout": 0.5},
    "attention_dropout": {"attention_dropout": 0.5},
    "activation_dropout": {"activation_dropout": 0.5},
    "norm_position": {"norm_position": "none"},
    "final_layer_norm": {"final_layer_norm": True},
    "layer_norm_eps": {"layer_norm_eps": 0.1},
    "attention_bias": {"attention_bias": True},
    "lm_head_bias": {"lm_head_bias": True},
    "position_embedding_type": {"position_embedding_type": "learned"},
    "sinusoidal_layout": {"sinusoidal_layout": "concatenated"},
    "max_position_embeddings": {"max_position_embeddings": 13},
    "scale_embedding": {"scale_embedding": False},
    "share_encoder_decoder_embeddings": {"share_encoder_decoder_embeddings": False},
    "tie_word_embeddings": {"tie_word_embeddings": False},
    "use_cache": {"use_cache": False},
    "pad_token_id": {"pad_token_id": 5},
    "bos_token_id": {"bos_token_id": 5},
    "eos_token_id": {"eos_token_id": [2, 5]},
    "decoder_start_token_id": {"decoder_start_token_id": 5},
    "init_std": {"init_std": 0.5},
}


def behaviour(**changes: Any) -> tuple[Any, ...]:
    """What a field may change: shapes, logits while training, the cache, and the ids of generation."""
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**{**TINY, **changes})).train()
    tokens = torch.arange(3, 9)[None]
    outputs = model(input_ids=tokens, decoder_input_ids=tokens)
    generation = model.generation_config
    return (
        {name: tuple(tensor.shape) for name, tensor in [*model.named_parameters(), *model.named_buffers()]},
        outputs.logits.flatten().tolist(),
        outputs.past_key_values is None,
        model.get_input_embeddings().padding_idx,
        (generation.bos_token_id, generation.eos_token_id),
        model.prepare_decoder_input_ids_from_labels(tokens).tolist(),
    )


def test_defaults_are_the_base_model_of_the_paper():
    config = VanillaTransformerConfig()
    assert (config.d_model, config.encoder_layers, config.decoder_layers) == (512, 6, 6)
    assert (config.encoder_attention_heads, config.decoder_attention_heads) == (8, 8)
    assert (config.encoder_ffn_dim, config.decoder_ffn_dim) == (2048, 2048)
    assert config.attention_dims(8) == (64, 64)
    assert (config.dropout, config.attention_dropout, config.activation_dropout) == (0.1, 0.0, 0.0)
    assert (config.vocab_size, config.decoder_vocab_size) == (37000, 37000)
    assert (config.norm_position, config.has_final_layer_norm, config.activation_function) == ("post", False, "relu")
    assert (config.position_embedding_type, config.sinusoidal_layout) == ("sinusoidal", "interleaved")
    assert config.scale_embedding and config.tie_word_embeddings and config.share_encoder_decoder_embeddings
    assert not config.attention_bias and not config.lm_head_bias
    assert [config.pad_token_id, config.bos_token_id, config.eos_token_id] == [0, 1, 2]
    assert config.decoder_start_token_id == 1


def test_every_field_is_tried():
    inherited = {field.name for field in fields(PreTrainedConfig)}
    assert {field.name for field in fields(VanillaTransformerConfig)} - inherited == set(CHANGES)


@pytest.fixture(scope="module")
def unchanged() -> tuple[Any, ...]:
    return behaviour()


@pytest.mark.parametrize("field", CHANGES)
def test_every_field_has_an_effect(field, unchanged):
    assert behaviour(**CHANGES[field]) != unchanged


def test_the_same_configuration_behaves_the_same(unchanged):
    assert behaviour() == unchanged


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"d_model": 15, "encoder_attention_heads": 5, "decoder_attention_heads": 5}, ["`d_model` is 15", "learned"]),
        ({"d_model": 18}, ["`d_model` is 18", "encoder_attention_heads`=4", "head_dim", "value_head_dim"]),
        ({"decoder_attention_heads": 3}, ["`d_model` is 16", "decoder_attention_heads`=3"]),
        ({"d_model": 18, "head_dim": 4}, ["`d_model` is 18", "value_head_dim"]),
        ({"decoder_vocab_size": 31}, ["share_encoder_decoder_embeddings", "31", "30", "False"]),
        ({"norm_position": "middle"}, ["`norm_position`", "'middle'", "'post'", "'pre'", "'none'"]),
        ({"norm_position": None}, ["`norm_position`", "None", "'post'"]),
        ({"position_embedding_type": "rotary"}, ["`position_embedding_type`", "'rotary'", "'learned'"]),
        ({"sinusoidal_layout": "mixed"}, ["`sinusoidal_layout`", "'mixed'", "'concatenated'"]),
        ({"activation_function": "rleu"}, ["`activation_function`", "'rleu'", "'relu'"]),
        ({"is_encoder_decoder": False}, ["`is_encoder_decoder`", "False", "True"]),
        ({"encoder_ffn_dim": -1}, ["`encoder_ffn_dim`", "-1", "0"]),
        ({"decoder_ffn_dim": -1}, ["`decoder_ffn_dim`", "-1", "0"]),
        ({"layer_norm_eps": 0.0}, ["`layer_norm_eps`", "0.0", "above 0"]),
        ({"layer_norm_eps": float("nan")}, ["`layer_norm_eps`", "nan", "above 0"]),
        ({"init_std": 0.0}, ["`init_std`", "0.0", "None"]),
        ({"d_model": "16"}, ["`d_model`", "'16'", "int"]),
        ({"d_model": 16.0}, ["`d_model`", "16.0", "int"]),
        ({"encoder_layers": True}, ["`encoder_layers`", "True", "int"]),
        ({"attention_bias": "false"}, ["`attention_bias`", "'false'", "bool"]),
        ({"dropout": "0.1"}, ["`dropout`", "'0.1'", "float"]),
        ({"head_dim": 2.5}, ["`head_dim`", "2.5", "int or None"]),
        ({"eos_token_id": [2, 30]}, ["`eos_token_id` is 30", "0 to 29"]),
        ({"eos_token_id": ["</s>"]}, ["`eos_token_id`", "'</s>'", "0 to 29"]),
        ({"pad_token_id": -1}, ["`pad_token_id` is -1", "0 to 29"]),
        ({"bos_token_id": 30}, ["`bos_token_id` is 30", "0 to 29"]),
        (
            {"decoder_vocab_size": 9, "share_encoder_decoder_embeddings": False, "decoder_start_token_id": 9},
            ["`decoder_start_token_id` is 9", "0 to 8"],
        ),
        *(
            ({name: 0}, [f"`{name}` is 0", "at least 1"])
            for name in (
                "vocab_size",
                "decoder_vocab_size",
                "d_model",
                "encoder_layers",
                "decoder_layers",
                "encoder_attention_heads",
                "decoder_attention_heads",
                "head_dim",
                "value_head_dim",
                "max_position_embeddings",
            )
        ),
        *(
            ({name: value}, [f"`{name}` is {value}", "at least 0 and below 1"])
            for name in ("dropout", "attention_dropout", "activation_dropout")
            for value in (-0.1, 1, float("nan"))
        ),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else "",
)
def test_impossible_values_name_field_value_and_remedy(changes, parts):
    with pytest.raises(ValueError) as error:
        VanillaTransformerConfig(**{**TINY, **changes})
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


def test_head_widths_replace_the_division_by_heads():
    config = VanillaTransformerConfig(**{**TINY, "d_model": 18, "head_dim": 3, "value_head_dim": 5})
    assert config.attention_dims(4) == (3, 5)


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("encoder_layer", "encoder_layers"),
        ("d_modle", "d_model"),
        ("vocabsize", "vocab_size"),
        ("norm_postion", "norm_position"),
        ("max_position_embedding", "max_position_embeddings"),
        ("encoder_attn_heads", "encoder_attention_heads"),
    ],
)
def test_misspelt_field_is_named(misspelt, meant):
    with pytest.raises(ValueError, match=f"`{misspelt}`.*`{meant}`"):
        VanillaTransformerConfig(**{misspelt: 2})


@pytest.mark.parametrize("name", ["num_labels", "id2label", "foo", "encoder_layerdrop", "tie_encoder_decoder", "_x"])
def test_unrelated_keywords_pass(name):
    value = {0: "a", 1: "b", 2: "c"} if name == "id2label" else 3
    assert getattr(VanillaTransformerConfig(**{name: value}), name) == value


@pytest.mark.parametrize("name", sorted(GenerationConfig().to_dict()))
def test_generation_keywords_are_not_taken_for_misspelt_fields(name):
    VanillaTransformerConfig(**{name: getattr(VanillaTransformerConfig(), name, None)})


def test_round_trip_through_dict_and_file(tmp_path):
    config = VanillaTransformerConfig(
        **{**TINY, "decoder_vocab_size": 40, "share_encoder_decoder_embeddings": False, "head_dim": 6},
        norm_position="pre",
        eos_token_id=[2, 3],
        sinusoidal_layout="concatenated",
    )
    assert VanillaTransformerConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    config.save_pretrained(tmp_path)
    for loaded in (VanillaTransformerConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is VanillaTransformerConfig
        assert {**loaded.to_dict(), "_name_or_path": ""} == config.to_dict()
        assert (loaded.decoder_vocab_size, loaded.head_dim, loaded.has_final_layer_norm) == (40, 6, True)


def test_generation_lays_scores_out_by_the_target_vocabulary():
    config = VanillaTransformerConfig(**TINY, decoder_vocab_size=40, share_encoder_decoder_embeddings=False)
    assert config.get_text_config().vocab_size == 40
    assert config.get_text_config(encoder=True).vocab_size == config.vocab_size == TINY["vocab_size"]
    shared = VanillaTransformerConfig(**TINY)
    assert shared.get_text_config() is shared


def test_names_of_other_models_are_aliases():
    config = VanillaTransformerConfig(
        hidden_size=64, num_hidden_layers=3, num_attention_heads=4, layer_norm_epsilon=1e-6
    )
    assert config.layer_norm_eps == config.layer_norm_epsilon == 1e-6
    assert (config.d_model, config.encoder_layers, config.encoder_attention_heads) == (64, 3, 4)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (64, 3, 4)


@pytest.mark.parametrize(
    ("norm_position", "final_layer_norm", "expected"),
    [("post", None, False), ("pre", None, True), ("none", None, False), ("post", True, True), ("pre", False, False)],
)
def test_final_layer_norm_follows_the_norm_position_unless_set(norm_position, final_layer_norm, expected):
    config = VanillaTransformerConfig(norm_position=norm_position, final_layer_norm=final_layer_norm)
    assert config.has_final_layer_norm is expected
