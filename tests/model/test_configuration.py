"""The configuration: defaults, the effect of every field, invalid values and combinations, round trips."""

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, GenerationConfig, PreTrainedConfig

from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerEncoderModel,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerForSequenceClassification,
    VanillaTransformerModel,
    train_tokenizer,
)
from tables import looped
from tiny import TINY, one_layer_model, tiny_config

ONE_LAYER = {**TINY, "encoder_layers": 1, "decoder_layers": 1}

# A value of each field other than the one in `ONE_LAYER`.
OTHER_VALUES: dict[str, Any] = {
    "vocab_size": 41, "decoder_vocab_size": 41, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 2, "decoder_attention_heads": 4, "encoder_ffn_dim": 0, "decoder_ffn_dim": 0,
    "head_dim": 6, "value_head_dim": 6, "activation_function": "gelu", "dropout": 0.5, "attention_dropout": 0.5,
    "activation_dropout": 0.5, "norm_position": "none", "final_layer_norm": True, "embedding_layer_norm": True,
    "layer_norm_eps": 0.1, "attention_bias": True, "lm_head_bias": True, "position_embedding_type": "learned",
    "sinusoidal_layout": "concatenated", "max_position_embeddings": 13, "scale_embedding": False,
    "share_encoder_decoder_embeddings": False, "tie_word_embeddings": False, "use_cache": False, "pad_token_id": 5,
    "bos_token_id": 5, "eos_token_id": [2, 5], "decoder_start_token_id": 5, "init_std": 0.5,
}  # fmt: skip  # one field a line would fill the screen


def behaviour(**changes: Any) -> tuple[Any, ...]:
    """Everything a field may affect: shapes, logits in training, the cache, and the ids of generation."""
    torch.manual_seed(0)
    model = VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**{**ONE_LAYER, **changes})).train()
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
    assert (config.norm_position, config.final_layer_norm, config.activation_function) == ("post", False, "relu")
    assert (config.position_embedding_type, config.sinusoidal_layout) == ("sinusoidal", "interleaved")
    assert config.scale_embedding and config.tie_word_embeddings and config.share_encoder_decoder_embeddings
    assert not config.attention_bias and not config.lm_head_bias
    assert [config.pad_token_id, config.bos_token_id, config.eos_token_id] == [0, 1, 2]
    assert config.decoder_start_token_id == 1


def test_every_field_has_another_value_here():
    inherited = {field.name for field in fields(PreTrainedConfig)}
    assert {field.name for field in fields(VanillaTransformerConfig)} - inherited == set(OTHER_VALUES)


@pytest.fixture(scope="module")
def unchanged() -> tuple[Any, ...]:
    return behaviour()


@looped("field", OTHER_VALUES)
def test_every_field_has_an_effect(field, unchanged):
    # A shared vocabulary has one size.
    apart = {"share_encoder_decoder_embeddings": False} if field == "decoder_vocab_size" else {}
    assert behaviour(**{field: OTHER_VALUES[field], **apart}) != unchanged


def test_the_same_configuration_behaves_the_same(unchanged):
    assert behaviour() == unchanged


@looped(
    ("changes", "parts"),
    [
        ({"d_model": 15, "encoder_attention_heads": 5, "decoder_attention_heads": 5}, ["`d_model` is 15", "learned"]),
        ({"d_model": 18}, ["`d_model` is 18", "encoder_attention_heads`=4", "head_dim", "value_head_dim"]),
        ({"d_model": 18, "head_dim": 4}, ["`d_model` is 18", "value_head_dim"]),
        ({"decoder_vocab_size": 41}, ["share_encoder_decoder_embeddings", "41", "40", "False"]),
        ({"norm_position": "middle"}, ["`norm_position`", "'middle'", "'post'", "'pre'", "'none'"]),
        ({"position_embedding_type": "rotary"}, ["`position_embedding_type`", "'rotary'", "'learned'"]),
        ({"sinusoidal_layout": "mixed"}, ["`sinusoidal_layout`", "'mixed'", "'concatenated'"]),
        ({"activation_function": "rleu"}, ["`activation_function`", "'rleu'", "'relu'"]),
        ({"is_encoder_decoder": False}, ["`is_encoder_decoder`", "False", "True"]),
        ({"encoder_ffn_dim": -1}, ["`encoder_ffn_dim`", "-1", "0"]),
        ({"layer_norm_eps": 0.0}, ["`layer_norm_eps`", "0.0", "above 0"]),
        ({"init_std": 0.0}, ["`init_std`", "0.0", "None"]),
        ({"encoder_layers": True}, ["`encoder_layers`", "True", "int"]),
        ({"dropout": "0.1"}, ["`dropout`", "'0.1'", "float"]),
        ({"head_dim": 2.5}, ["`head_dim`", "2.5", "int or None"]),
        ({"eos_token_id": [2, 40]}, ["`eos_token_id` is 40", "0 to 39"]),
        ({"eos_token_id": ["</s>"]}, ["`eos_token_id`", "'</s>'", "0 to 39"]),
        ({"pad_token_id": -1}, ["`pad_token_id` is -1", "0 to 39"]),
        ({"bos_token_id": 40}, ["`bos_token_id` is 40", "0 to 39"]),
        (
            {"decoder_vocab_size": 9, "share_encoder_decoder_embeddings": False, "decoder_start_token_id": 9},
            ["`decoder_start_token_id` is 9", "0 to 8"],
        ),
        *(
            ({name: 0}, [f"`{name}` is 0", "at least 1"])
            for name in ("vocab_size", "d_model", "decoder_layers", "encoder_attention_heads", "value_head_dim")
        ),
        *(({"dropout": p}, [f"`dropout` is {p}", "at least 0 and below 1"]) for p in (-0.1, 1, float("nan"))),
        *(({name: 1}, [f"`{name}` is 1", "below 1"]) for name in ("attention_dropout", "activation_dropout")),
    ],
)
def test_impossible_values_name_field_value_and_remedy(changes, parts):
    with pytest.raises(ValueError) as error:
        tiny_config(**changes)
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("misspelt", "meant"),
    [
        ("encoder_layer", "encoder_layers"),
        ("vocabsize", "vocab_size"),
        ("encoder_attn_heads", "encoder_attention_heads"),
    ],
)
def test_misspelt_fields_are_named(misspelt, meant, stored):
    for build in (VanillaTransformerConfig, *(partial(load, stored) for load in LOADERS)):
        with pytest.raises(ValueError, match=f"`{misspelt}`.*`{meant}`"):
            build(**{misspelt: 2})


# Changes that were once accepted by a model or saved to a file that could not be loaded, and their errors.
LATE = [
    ({"norm_position": "prenorm"}, "`norm_position` is 'prenorm'; did you mean 'pre'"),
    ({"dropout": -1}, "`dropout` is -1"),
    ({"scale_embedding": "false"}, "`scale_embedding` is 'false'; it must be bool"),
    ({"vocab_size": 2}, "`eos_token_id` is 2"),
    ({"decoder_vocab_size": 400}, "`decoder_vocab_size` is 400"),
    ({"hidden_size": 17}, "`d_model` is 17"),
    ({"num_attention_heads": 0}, "`encoder_attention_heads` is 0"),
]

LOADERS: tuple[Callable[..., Any], ...] = (
    AutoConfig.from_pretrained,
    partial(AutoConfig.from_pretrained, return_unused_kwargs=True),
    VanillaTransformerConfig.from_pretrained,
    AutoModelForSeq2SeqLM.from_pretrained,
    VanillaTransformerForConditionalGeneration.from_pretrained,
)


MODELS = (
    VanillaTransformerModel,
    VanillaTransformerForConditionalGeneration,
    VanillaTransformerEncoderModel,
    VanillaTransformerForSequenceClassification,
)


@pytest.fixture(scope="module")
def stored(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("stored")
    one_layer_model().save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("change", "message"), LATE, ids=lambda value: str(value) if isinstance(value, dict) else "")
class TestLateChanges:
    def test_given_to_from_pretrained(self, change, message, stored):
        for load in LOADERS:
            with pytest.raises(ValueError, match=message):
                load(stored, **change)

    def test_set_before_a_model_is_built(self, change, message):
        config = tiny_config()
        config.update(change)
        for model in MODELS:
            with pytest.raises(ValueError, match=message):
                model(config)

    def test_set_before_the_configuration_is_saved(self, change, message, tmp_path):
        config = tiny_config()
        config.update(change)
        for save in (config.save_pretrained, lambda folder: config.to_json_file(folder / "config.json")):
            with pytest.raises(ValueError, match=message):
                save(tmp_path)
        assert not list(tmp_path.iterdir())
        assert repr(config)

    def test_set_before_the_model_is_saved(self, change, message, tmp_path):
        model = one_layer_model()
        model.config.update(change)
        with pytest.raises(ValueError, match=message):
            model.save_pretrained(tmp_path)
        assert not list(tmp_path.iterdir())


def test_misspelt_fields_set_later_are_named(tmp_path):
    config = tiny_config()
    config.norm_positon = "pre"
    for use in (VanillaTransformerForConditionalGeneration, lambda config: config.save_pretrained(tmp_path)):
        with pytest.raises(ValueError, match="`norm_positon`.*`norm_position`"):
            use(config)


@pytest.mark.parametrize("source", ["set", "from_pretrained", "file of an earlier release"])
def test_a_changed_size_of_a_shared_vocabulary_holds_for_both_sides(source, stored, tmp_path):
    if source == "set":
        config = tiny_config()
        config.vocab_size = 400
    else:
        folder = stored
        if "earlier" in source:
            folder = tmp_path
            settings = json.loads((stored / "config.json").read_text()) | {"decoder_vocab_size": TINY["vocab_size"]}
            (folder / "config.json").write_text(json.dumps(settings))
            assert AutoConfig.from_pretrained(folder).decoder_vocab_size == TINY["vocab_size"]
        config = AutoConfig.from_pretrained(folder, vocab_size=400)
    assert (config.decoder_vocab_size, config.to_dict()["decoder_vocab_size"]) == (400, None)
    model = VanillaTransformerForConditionalGeneration(config)
    labels = torch.tensor([[399, 2]])
    model(input_ids=labels, labels=labels).loss.backward()
    model.save_pretrained(tmp_path / "model")
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight) and len(loaded.lm_head.weight) == 400


def test_two_vocabularies_keep_two_sizes(tmp_path):
    tiny_config(decoder_vocab_size=40, share_encoder_decoder_embeddings=False).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, vocab_size=400)
    assert (config.vocab_size, config.decoder_vocab_size) == (400, 40)


def test_special_tokens_of_tokenizers_pass(tmp_path):
    tokenizer = train_tokenizer(["a b"], algorithm="word")
    tokenizer.save_pretrained(tmp_path)
    tiny_config().save_pretrained(tmp_path)
    given = {name: getattr(tokenizer, name) for name in ("pad_token", "bos_token", "eos_token")}
    assert AutoConfig.from_pretrained(tmp_path, return_unused_kwargs=True, **given)[1] == given
    assert AutoTokenizer.from_pretrained(tmp_path, **given).pad_token == tokenizer.pad_token


class TestDerivedFields:
    """Derived fields store None, read as the value in use, and follow the fields that they depend on."""

    READ = {"decoder_vocab_size": 40, "head_dim": 4, "value_head_dim": 4, "final_layer_norm": False, "init_std": 0.25}
    CHANGED = {"vocab_size": 400, "d_model": 64, "num_attention_heads": 2, "norm_position": "pre"}
    FOLLOWED = {
        "decoder_vocab_size": 400, "head_dim": 32, "value_head_dim": 32, "final_layer_norm": True, "init_std": 0.125,
    }  # fmt: skip  # a table
    GIVEN = {"decoder_vocab_size": 9, "head_dim": 3, "value_head_dim": 5, "final_layer_norm": True, "init_std": 0.5}

    def read(self, config: VanillaTransformerConfig) -> dict[str, Any]:
        return {name: getattr(config, name) for name in self.READ}

    @looped(
        "through",
        [
            lambda config: config,
            copy.copy,
            copy.deepcopy,
            lambda config: pickle.loads(pickle.dumps(config)),
            lambda config: VanillaTransformerConfig.from_dict(config.to_dict()),
            lambda config: VanillaTransformerConfig(**json.loads(config.to_json_string())),
            lambda config: AutoConfig.for_model(**config.to_dict()),
        ],
    )
    def test_follow_after_copying_and_saving(self, through):
        config = through(tiny_config())
        assert self.read(config) == self.READ
        assert {config.to_dict()[name] for name in self.READ} == {None}
        config.update(self.CHANGED)
        assert self.read(config) == self.FOLLOWED

    def test_explicit_values_stay(self, tmp_path):
        config = tiny_config(**self.GIVEN, share_encoder_decoder_embeddings=False)
        config.save_pretrained(tmp_path)
        for same in (config, AutoConfig.from_pretrained(tmp_path), replace(config, dropout=0.5)):
            same.update({"vocab_size": 400, "d_model": 64, "norm_position": "pre"})
            assert self.read(same) == {name: same.to_dict()[name] for name in self.GIVEN} == self.GIVEN
        config.update(dict.fromkeys(self.GIVEN))
        assert self.read(config) == {**self.FOLLOWED, "head_dim": 16, "value_head_dim": 16}

    def test_the_class_shows_the_default(self):
        defaults = {field.name: field.default for field in fields(VanillaTransformerConfig)}
        assert {defaults[name] for name in self.READ} == {None}
        assert VanillaTransformerConfig.head_dim is None


def test_one_side_has_its_sizes_under_every_name():
    config = tiny_config(decoder_vocab_size=50, share_encoder_decoder_embeddings=False, decoder_start_token_id=2)
    sizes = {"encoder": (40, 2, 4, 32, 4), "decoder": (50, 3, 2, 24, 8)}
    for side, expected in sizes.items():
        one = config.get_text_config(**{side: True})
        names = ["vocab_size", "num_hidden_layers", "num_attention_heads", "head_dim"]
        assert [getattr(one, name) for name in names] == [*expected[:3], expected[4]]
        for name in sizes:
            names = [f"{name}_layers", f"{name}_attention_heads", f"{name}_ffn_dim", "value_head_dim"]
            assert [one.decoder_vocab_size, *(getattr(one, field) for field in names)] == list(expected)
        assert one.decoder_start_token_id == 2
    assert (config.num_attention_heads, config.head_dim, config.decoder_vocab_size) == (4, 4, 50)
    # Without a side, the vocabulary of the logits.
    assert config.get_text_config().vocab_size == 50
    assert (shared := tiny_config()).get_text_config() is shared


@looped("name", ["num_labels", "id2label", "foo", "encoder_layerdrop", "tie_encoder_decoder", "_x"])
def test_unrelated_keywords_pass(name):
    value = {0: "a", 1: "b", 2: "c"} if name == "id2label" else 3
    assert getattr(VanillaTransformerConfig(**{name: value}), name) == value


@looped("name", sorted(GenerationConfig().to_dict()))
def test_generation_keywords_are_not_taken_for_misspelt_fields(name):
    VanillaTransformerConfig(**{name: getattr(VanillaTransformerConfig(), name, None)})


def test_round_trip_through_dict_and_file(tmp_path):
    sizes = {"decoder_vocab_size": 50, "share_encoder_decoder_embeddings": False, "head_dim": 6}
    config = tiny_config(**sizes, norm_position="pre", eos_token_id=[2, 3], sinusoidal_layout="concatenated")
    assert VanillaTransformerConfig.from_dict(config.to_dict()).to_dict() == config.to_dict()
    config.save_pretrained(tmp_path)
    for loaded in (VanillaTransformerConfig.from_pretrained(tmp_path), AutoConfig.from_pretrained(tmp_path)):
        assert type(loaded) is VanillaTransformerConfig
        assert {**loaded.to_dict(), "_name_or_path": ""} == config.to_dict()
        assert (loaded.decoder_vocab_size, loaded.head_dim, loaded.final_layer_norm) == (50, 6, True)


def test_names_of_other_models_are_aliases():
    sizes = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
    config = VanillaTransformerConfig(**sizes, layer_norm_epsilon=1e-6)
    assert config.layer_norm_eps == config.layer_norm_epsilon == 1e-6
    assert (config.d_model, config.encoder_layers, config.encoder_attention_heads) == (64, 3, 4)
    assert {name: getattr(config, name) for name in sizes} == sizes


@looped(
    ("norm_position", "final_layer_norm", "expected"),
    [("post", None, False), ("pre", None, True), ("none", None, False), ("post", True, True), ("pre", False, False)],
)
def test_final_layer_norm_follows_the_norm_position_unless_set(norm_position, final_layer_norm, expected):
    config = VanillaTransformerConfig(norm_position=norm_position, final_layer_norm=final_layer_norm)
    assert config.final_layer_norm is expected
