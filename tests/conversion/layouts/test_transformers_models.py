"""Conversion of Marian, FSMT, BART, mBART and M2M100: the logits and translations of transformers' own classes."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, MarianMTModel, T5Config, T5ForConditionalGeneration

import transformers_models
from conversions import convert, refused
from hf_vanilla_transformer.conversion import convert_checkpoint
from hf_vanilla_transformer.conversion.transformers_folder import read_generation_settings
from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.ctranslate2 import CTranslate2Model
from tiny import close
from transformers_models import assert_same_function, padded_batch

POST, PRE = ({"norm_position": norm, "final_layer_norm": norm == "pre"} for norm in ("post", "pre"))
LEARNED = {"position_embedding_type": "learned", "max_position_embeddings": 64}
SINUSOIDS = {"position_embedding_type": "sinusoidal", "sinusoidal_layout": "concatenated"}
SEARCH = {"forced_bos_token_id": 7, "num_beams": 4, "max_length": 9}
# By kind: expected fields and generation settings of the converted model.
KINDS = {
    "marian": ({**POST, **SINUSOIDS, "embedding_layer_norm": False}, {"num_beams": 4}),
    "fsmt": ({**POST, **LEARNED, "embedding_layer_norm": False}, {"num_beams": 5}),
    "bart": ({**POST, **LEARNED, "embedding_layer_norm": True}, SEARCH),
    "mbart": ({**PRE, **LEARNED, "embedding_layer_norm": True}, SEARCH),
    "m2m100": ({**PRE, **LEARNED, "embedding_layer_norm": False}, SEARCH),
}
PADDING = dict.fromkeys(KINDS, 1) | {"marian": 39}
APART = {"share_encoder_decoder_embeddings": False}
SCALED, UNSCALED = {"scale_embedding": True, "activation_function": "relu"}, {"scale_embedding": False}
# Kind, configuration changes, whether embeddings are shared, and whether they are tied to the output projection.
CASES = [
    ("marian", {}, True, True),
    ("marian", {**APART, "decoder_vocab_size": 40}, False, True),
    ("marian", {**APART, "tie_word_embeddings": False}, False, False),
    ("marian", {**UNSCALED, "activation_function": "gelu"}, True, True),
    ("fsmt", {}, False, False),
    ("fsmt", {"tgt_vocab_size": 50, "tie_word_embeddings": True}, True, True),
    *((kind, changes, True, True) for kind in ("bart", "mbart", "m2m100") for changes in ({}, SCALED, UNSCALED)),
    *((kind, {"tie_word_embeddings": False}, False, False) for kind in ("bart", "mbart", "m2m100")),
]


def saved(kind, folder, **changes):
    original = getattr(transformers_models, kind)(**changes)
    original.save_pretrained(folder)
    return original


def change_json(file, **changes):
    """Change entries of a JSON file; None removes an entry."""
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def change_weights(folder, **changes):
    file = folder / "model.safetensors"
    save_file({**load_file(file), **changes}, file, metadata={"format": "pt"})


@pytest.mark.parametrize(("kind", "changes", "shared", "tied"), CASES, ids=str)
def test_same_logits_and_translations(kind, changes, shared, tied, tmp_path):
    original = saved(kind, tmp_path / "original", **changes)
    conversion = convert_checkpoint(tmp_path / "original", tmp_path / "ours")
    assert conversion.layout.name == kind
    converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
    assert_same_function(original, converted, PADDING[kind])
    config, (fields, settings) = converted.config, KINDS[kind]
    assert {name: getattr(config, name) for name in fields} == fields
    assert (config.share_encoder_decoder_embeddings, config.tie_word_embeddings) == (shared, tied)
    assert {name: getattr(converted.generation_config, name) for name in settings} == settings


@pytest.mark.parametrize("kind", ["bart", "mbart", "m2m100"])
class TestBart:
    def test_another_padding_id(self, kind, tmp_path):
        """BART's positions begin in row 2, those of M2M100 after the padding id."""
        original = saved(kind, tmp_path, pad_token_id=3)
        assert_same_function(original, convert(tmp_path).model(), 3, searches=({},))

    def test_a_pickle_of_an_early_release(self, kind, tmp_path):
        original = saved(kind, tmp_path)
        weights = original.state_dict()
        for stack in ("encoder", "decoder"):
            weights[f"model.{stack}.version"] = torch.tensor([3.0])
            if kind == "m2m100":
                weights[f"model.{stack}.embed_positions.weights"] = torch.zeros(66, 16)
        (tmp_path / "model.safetensors").unlink()
        torch.save(weights, tmp_path / "pytorch_model.bin")
        assert_same_function(original, convert(tmp_path).model(), 1, searches=({},))

    def test_a_file_of_the_stacks_alone(self, kind, tmp_path):
        """A file as transformers saves `BartModel`, and as facebook/bart-large is stored."""
        original = saved(kind, tmp_path / "whole")
        original.model.save_pretrained(tmp_path / "stacks")
        names = {*load_file(tmp_path / "stacks" / "model.safetensors")}
        assert "shared.weight" in names and not any(name.startswith("model.") for name in names)
        expected = type(original).from_pretrained(tmp_path / "stacks").eval()
        converted = convert(tmp_path / "stacks").model()
        converted.generation_config = expected.generation_config = original.generation_config
        assert_same_function(expected, converted, 1, searches=({},))

    @torch.no_grad()
    def test_the_encoder_alone(self, kind, tmp_path):
        original = saved(kind, tmp_path)
        source, _ = padded_batch()
        expected = original.model.encoder(**source).last_hidden_state
        found = convert(tmp_path, encoder_only=True).model()(**source).last_hidden_state
        kept = source["attention_mask"].bool()
        close(found[kept], expected[kept])

    def test_exports_to_ctranslate2(self, kind, tmp_path):
        pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")
        # CTranslate2 forces neither a first nor a last token.
        forced = {"forced_eos_token_id": None} if kind != "m2m100" else {}
        original = getattr(transformers_models, kind)(**forced)
        original.generation_config.update(forced_bos_token_id=None, forced_eos_token_id=None, early_stopping=True)
        original.save_pretrained(tmp_path / "original")
        convert_checkpoint(tmp_path / "original", tmp_path / "ours")
        exported = CTranslate2Model(export_model(tmp_path / "ours", "ctranslate2", tmp_path / "exported"))
        source, _ = padded_batch()
        for options in ({}, {"num_beams": 1}):
            expected, found = original.generate(**source, **options), exported.generate(**source, **options)
            assert torch.equal(found, expected[:, : found.shape[1]])


def test_mbart_begins_with_the_language_that_generation_is_told(tmp_path):
    original = saved("mbart", tmp_path, decoder_start_token_id=None)
    assert_same_function(original, convert(tmp_path).model(), 1, searches=({}, {"decoder_start_token_id": 11}))


def test_norms_of_another_model(tmp_path):
    """Like a pre-norm BART, which early releases of transformers supported."""
    saved("bart", tmp_path)
    change_weights(tmp_path, **{"model.encoder.layer_norm.weight": torch.ones(16)})
    refused(r"1 unexpected: model\.encoder\.layer_norm\.weight", tmp_path)


@pytest.mark.parametrize("how", ["folder", "state dict"])
def test_t5_is_refused_with_what_cannot_be_expressed(tmp_path, how):
    config = T5Config(vocab_size=50, d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0)
    model = T5ForConditionalGeneration(config)
    model.save_pretrained(tmp_path)
    source = tmp_path if how == "folder" else model.state_dict()
    refused(r"T5 model, with relative position biases and RMS norms .*, which our", source)


def test_positions_of_fsmt_that_are_not_stored_are_computed(tmp_path):
    original = saved("fsmt", tmp_path)
    file = tmp_path / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if "embed_positions" not in k}, file, {"format": "pt"})
    assert_same_function(original, convert(tmp_path).model(), 1, searches=({},))
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "pad_token_id": None}))
    refused("`pad_token_id` is None in config.json; set its id", tmp_path)


def test_a_renamed_model_without_positions_needs_no_padding_id(tmp_path):
    saved("fsmt", tmp_path)
    settings = {**json.loads((tmp_path / "config.json").read_text()), "pad_token_id": None}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    file = tmp_path / "model.safetensors"
    weights = {key: tensor for key, tensor in load_file(file).items() if "embed_positions" not in key}
    weights["words.weight"] = weights.pop("model.encoder.embed_tokens.weight")
    save_file(weights, file, {"format": "pt"})
    stated = {"norm_position": "post", "layer_norm_eps": 1e-5, "unbiased_norms": False}
    rename = ["words.=model.encoder.embed_tokens."]
    config = convert(tmp_path, rename=rename, sinusoidal_layout="concatenated", **stated).config
    assert (config.pad_token_id, config.position_embedding_type) == (None, "sinusoidal")


@pytest.mark.parametrize("kind", ["marian", "bart", "mbart", "m2m100"])
def test_the_config_says_which_model_it_is(kind, tmp_path):
    saved(kind, tmp_path)
    change_json(tmp_path / "config.json", model_type="pegasus")
    refused(f"keys are those of {kind}, but its config.json has model_type 'pegasus'", tmp_path)
    (tmp_path / "config.json").unlink()
    refused(f"keys are those of {kind}, but there is no config.json beside them", tmp_path)
    message = f"weights of {kind.replace('m100', 'm_100')} do not determine .*; pass the folder with their config"
    refused(message, tmp_path, kind)


class TestMarian:
    @pytest.fixture
    def original(self):
        return transformers_models.marian()

    @pytest.fixture
    def folder(self, original, tmp_path):
        """The original, saved by transformers."""
        original.save_pretrained(tmp_path / "marian")
        return tmp_path / "marian"

    def test_a_pickle_with_copies_of_shared_weights(self, original, folder):
        (folder / "model.safetensors").unlink()
        torch.save(original.state_dict(), folder / "pytorch_model.bin")
        conversion = convert(folder)
        assert_same_function(original, conversion.model(), 39, searches=({},))
        assert conversion.config.position_embedding_type == "sinusoidal"

    def test_generation_settings_in_the_config_of_an_older_folder(self, folder, tmp_path):
        settings = json.loads((folder / "generation_config.json").read_text())
        (folder / "generation_config.json").unlink()
        change_json(folder / "config.json", **settings)
        original = MarianMTModel.from_pretrained(folder)
        assert (original.generation_config.num_beams, original.generation_config.bad_words_ids) == (4, [[39]])
        convert_checkpoint(folder, tmp_path / "ours")
        converted = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "ours")
        assert_same_function(original, converted, 39, searches=({},))

    def test_a_config_without_some_fields_has_the_defaults_of_marian(self, tmp_path):
        original = saved("marian", tmp_path, scale_embedding=False, activation_function="gelu")
        change_json(tmp_path / "config.json", scale_embedding=None, activation_function=None)
        conversion = convert(tmp_path)
        assert_same_function(original, conversion.model(), 39, searches=({},))
        assert not any("pad_token_id" in note for note in conversion.notes)

    @pytest.mark.parametrize("linked", [False, True], ids=["file", "link"])
    def test_a_file_comes_with_the_configuration_beside_it(self, original, folder, tmp_path, linked):
        expected = convert(folder)
        file = folder / "model.safetensors"
        if linked:
            (tmp_path / "link.safetensors").symlink_to(file)
            file = tmp_path / "link.safetensors"
        conversion = convert(file)
        assert conversion.generation == expected.generation and conversion.generation["num_beams"] == 4
        assert_same_function(original, conversion.model(), 39, searches=({},))

    def test_shared_embeddings_that_no_stack_has(self, folder):
        shared = load_file(folder / "model.safetensors")["model.shared.weight"]
        names = [f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")]
        change_weights(folder, **{names[0]: shared + 1, names[1]: shared * 2})
        refused(r"1 unexpected: model\.shared\.weight", folder)

    def test_a_stored_projection_is_not_replaced_by_the_embeddings(self, folder):
        projection = torch.randn(50, 16)
        change_weights(folder, **{"lm_head.weight": projection})
        original = MarianMTModel.from_pretrained(folder).eval()
        assert torch.equal(original.lm_head.weight, projection)
        assert_same_function(original, convert(folder).model(), 39, searches=({},))

    def test_stated_fields_come_first(self, folder):
        stated = {"eos_token_id": 7, "decoder_start_token_id": 5, "pad_token_id": 3}
        settings = convert(folder, **stated).model().generation_config
        assert {name: getattr(settings, name) for name in stated} == stated

    def test_settings_that_transformers_loads_and_does_not_save(self, folder, tmp_path):
        change_json(folder / "generation_config.json", num_beams=1, early_stopping=True, temperature=0.7)
        conversion = convert_checkpoint(folder, tmp_path / "ours")
        assert any("temperature, early_stopping, length_penalty" in note for note in conversion.notes)
        assert (tmp_path / "ours" / "generation_config.json").is_file()

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("{", "generation_config.json cannot be read"),
            ('{"num_beams": 4, "early_stopping": 0.5, "cache_implementation": "none"}', "has an unusable setting"),
        ],
    )
    def test_damaged_generation_settings(self, folder, text, message):
        (folder / "generation_config.json").write_text(text)
        refused(message, folder)

    def test_a_folder_without_generation_settings(self, folder):
        assert read_generation_settings(folder.parent) == ({}, [])

    def test_missing_learned_positions_are_not_filled_with_zeros(self, folder):
        refused("2 missing: .*embed_positions.weight", folder, position_embedding_type="learned")

    def test_a_tokenizer_whose_library_is_missing(self, folder, monkeypatch):
        def fail(*args, **kwargs):
            raise ImportError("needs\nsentencepiece")

        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
        monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", fail)
        refused(r"not installed \(needs sentencepiece\); install it: pip install", folder)

    @pytest.mark.parametrize("name", ["tokenizer_config.json", "source.spm"])
    def test_a_damaged_tokenizer(self, folder, tmp_path, name):
        pytest.importorskip("sentencepiece", reason="Marian's tokenizer needs sentencepiece")
        (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "MarianTokenizer"}')
        (folder / name).write_text("[]")
        with pytest.raises(ValueError, match="the tokenizer in .* cannot be loaded"):
            convert_checkpoint(folder, tmp_path / "ours")
        assert not (tmp_path / "ours").exists()
