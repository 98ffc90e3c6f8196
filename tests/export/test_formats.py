"""`export_model`: the folders it writes, and models it refuses without writing anything."""

import json

import pytest
import torch
from huggingface_hub import ModelCard
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, MarianMTModel

from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.translation import load, translate
from tables import looped
from tiny import tiny_model
from translators import ENGLISH, SHARED, build, save_translator


class TestCTranslate2:
    @pytest.fixture(autouse=True)
    def _needed(self):
        pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")

    def test_generation_settings_come_along(self, tmp_path):
        save_translator("shared", tmp_path / "model", num_beams=4, length_penalty=0.5)
        exported = export_model(tmp_path / "model", "ctranslate2", tmp_path / "new" / "exported", quantization="int8")
        found = GenerationConfig.from_pretrained(exported)
        assert found.num_beams == 4 and found.length_penalty == 0.5
        assert not list(exported.parent.glob("*.partial"))

    def test_a_model_without_a_tokenizer(self, tmp_path):
        tiny_model().save_pretrained(tmp_path / "model")
        exported = export_model(tmp_path / "model", "ctranslate2", tmp_path / "exported")
        assert len(json.loads((exported / "shared_vocabulary.json").read_text())) == 40

    def test_the_model_is_left_alone(self, saved_model, tmp_path):
        before = {file.name: file.read_bytes() for file in saved_model.iterdir()}
        export_model(saved_model, "ctranslate2", tmp_path / "exported", quantization="int8")
        assert {file.name: file.read_bytes() for file in saved_model.iterdir()} == before
        loaded = AutoModelForSeq2SeqLM.from_pretrained(saved_model)
        assert loaded.num_parameters() == build("shared")[0].num_parameters()


class TestCards:
    """Of exported models: the program that runs them, and the model they were made from."""

    @looped(
        ("to", "library", "command"),
        [
            ("ctranslate2", "ctranslate2", "vanilla-transformer translate --backend ctranslate2 --model exported "),
            ("onnx", "hf_vanilla_transformer", "python scripts/onnx_translate.py --model exported "),
            ("transformers.js", "transformers.js", 'pipeline("translation", "./exported")'),
        ],
    )
    def test_of_a_quantized_model(self, tmp_path, to, library, command):
        pytest.importorskip("onnx" if to == "transformers.js" else to, reason="the format needs it")
        save_translator("shared", tmp_path / to)
        (tmp_path / to / "README.md").write_text("---\nbase_model: me/old\nlicense: mit\n---\n", encoding="utf-8")
        export_model(tmp_path / to, to, tmp_path / "of" / to / "exported", quantization="int8")
        card = ModelCard.load(tmp_path / "of" / to / "exported" / "README.md")
        data = card.data.to_dict()
        assert data["library_name"] == library and command in card.text and data["license"] == "mit"
        assert data["base_model"] == "me/old" and "base_model_relation" not in data

    def test_of_several_directions(self, tmp_path):
        pytest.importorskip("ctranslate2", reason="the format needs it")
        save_translator("multilingual", tmp_path / "model")
        export_model(tmp_path / "model", "ctranslate2", tmp_path / "my $model")
        text = (tmp_path / "my $model" / "README.md").read_text(encoding="utf-8")
        assert "--model 'my $model'" in text and "--source_lang en --target_lang es" in text


class TestMarian:
    def test_its_own_class_translates_alike(self, tmp_path):
        # This package computes sinusoids for any length; Marian's table is finite.
        tiny_model(max_position_embeddings=128).save_pretrained(tmp_path / "model")
        SHARED.save_pretrained(tmp_path / "model")
        output = export_model(tmp_path / "model", "marian", tmp_path / "marian")
        ours, tokenizer = load(tmp_path / "model")
        marian, other = load(output)
        assert isinstance(marian, MarianMTModel) and other.get_vocab() == tokenizer.get_vocab()
        sentences = [*ENGLISH, "  ", "the cat see a house in two street", "a </s> cat"]
        bound = {"max_new_tokens": 20}
        assert translate(marian, other, sentences, **bound) == translate(ours, tokenizer, sentences, **bound)


@pytest.mark.parametrize(("to", "program"), [("ctranslate2", "CTranslate2"), ("onnx", r"onnx_translate\.py")])
def test_settings_that_a_program_does_not_support(tmp_path, to, program):
    pytest.importorskip(to, reason="without the package, that error comes first")
    save_translator("shared", tmp_path / "model", encoder_no_repeat_ngram_size=2)
    with pytest.raises(ValueError, match=f"{program} does not support `encoder_no_repeat_ngram_size`=2"):
        export_model(tmp_path / "model", to, tmp_path / "other")
    assert not (tmp_path / "other").exists()


class TestRefused:
    @pytest.mark.parametrize(
        ("to", "options", "message"),
        [
            ("tflite", {}, "`to` tflite is unknown; use one of ctranslate2, onnx, transformers.js, page"),
            ("marian", {"quantization": "int8"}, "format marian has no `quantization`; leave it out"),
            ("onnx", {"quantization": "float16"}, "`quantization` float16 is unknown; use one of float32, int8"),
            ("ctranslate2", {"quantization": "int4"}, "unknown; use one of float32, float16, int8, int8_float16"),
            ("ctranslate2", {"max_positions": 0}, "`max_positions` is 0; it must be positive"),
        ],
    )
    def test_options(self, saved_model, tmp_path, to, options, message):
        if to in ("ctranslate2", "onnx"):
            pytest.importorskip(to, reason="without the package, that error comes first")
        with pytest.raises(ValueError, match=message):
            export_model(saved_model, to, tmp_path / "exported", **options)
        assert not list(tmp_path.iterdir())

    def test_a_folder_that_is_not_empty(self, saved_model):
        with pytest.raises(ValueError, match=f"{saved_model} exists and is not an empty folder"):
            export_model(saved_model, "marian", saved_model)

    def test_no_model(self, tmp_path):
        with pytest.raises(ValueError, match=f"model {tmp_path / 'none'} cannot be loaded: there is no such folder"):
            export_model(tmp_path / "none", "marian", tmp_path / "exported")

    def test_a_model_of_another_family(self, tmp_path):
        build("bart")[0].save_pretrained(tmp_path / "bart")
        with pytest.raises(ValueError, match="model_type is 'bart', not 'vanilla_transformer'"):
            export_model(tmp_path / "bart", "marian", tmp_path / "exported")

    def test_a_property_that_it_cannot_express(self, tmp_path):
        tiny_model(norm_position="none").save_pretrained(tmp_path / "plain")
        with pytest.raises(ValueError, match="cannot express `norm_position='none'`"):
            export_model(tmp_path / "plain", "marian", tmp_path / "exported")
        assert [path.name for path in tmp_path.iterdir()] == ["plain"]

    def test_damaged_weights(self, tmp_path):
        save_translator("shared", tmp_path / "model")
        file = tmp_path / "model" / "model.safetensors"

        def refused(message):
            with pytest.raises(ValueError, match=message):
                export_model(tmp_path / "model", "ctranslate2", tmp_path / "new" / "exported")
            assert not (tmp_path / "new").exists()

        weights = load_file(file)
        name = "model.decoder.layers.0.fc1.weight"
        del weights[name]
        save_file(weights, file, metadata={"format": "pt"})
        refused(f"missing weights: {name}; save or fetch it again")
        save_file({**weights, name: torch.zeros(3, 3)}, file, metadata={"format": "pt"})
        refused("weights of the wrong shape")
        file.write_bytes(file.read_bytes()[:-50])
        refused("cannot be loaded: ")
