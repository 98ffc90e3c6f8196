"""ONNX graphs: translations without PyTorch, axes, positions, and refusals."""

import copy
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from hf_vanilla_transformer.export import onnx
from hf_vanilla_transformer.export.onnx import write_onnx
from hf_vanilla_transformer.inference.translation import translate
from paths import ROOT, SCRIPTS
from tables import looped
from tiny import close, perturbed_model, tiny_model
from translators import ENGLISH

onnx_package = pytest.importorskip("onnx", reason="graphs are read by onnx, of the extra `export`")
onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX graphs run in onnxruntime, of the extra `export`")

SENTENCES = [*ENGLISH, "  ", "the cat see a house in two street", "a </s> cat"]


@pytest.fixture(scope="module")
def translator_class(load_script):
    return load_script("onnx_translate").Translator


def translated(model, tokenizer, num_beams=1, **options):
    results = translate(model, tokenizer, SENTENCES, num_beams=num_beams, max_tokens=9999, raw=True, **options)
    return [row[0].text for row in results]


def with_settings(exported, folder, model, **settings):
    """Return a copy of an export with these generation settings."""
    shutil.copytree(exported, folder, dirs_exist_ok=True)
    config = GenerationConfig.from_model_config(model.config)
    config.update(**settings)
    config.save_pretrained(folder)
    return folder


@looped("num_beams", [1, 2, 5])
def test_translations_are_those_of_generate(onnx_export, translator_class, num_beams):
    model, tokenizer, folder = onnx_export
    translator = translator_class(folder, threads=1, num_beams=num_beams)
    assert translator.translate(SENTENCES) == translated(model, tokenizer, num_beams)


def test_added_special_tokens_are_found_and_left_out(onnx_export, translator_class, tmp_path, monkeypatch):
    _, tokenizer, exported = onnx_export
    folder, tokenizer, sources = tmp_path / "exported", copy.deepcopy(tokenizer), []
    shutil.copytree(exported, folder)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<2de>"]})
    tokenizer.save_pretrained(folder)
    target = tokenizer(text_target="<2de> el gato")["input_ids"]
    translator = translator_class(folder, threads=1)
    monkeypatch.setattr(translator, "generate", lambda ids: sources.extend(ids) or [target])
    assert translator.translate(["<2de> a cat"]) == ["el gato"]
    assert sources == tokenizer(["<2de> a cat"])["input_ids"] and sources[0][0] == len(tokenizer) - 1


@looped("early_stopping", [False, True, "never"])
@looped("length_penalty", [-2.0, 0.0, 3.0])
def test_settings_of_beam_search(onnx_export, translator_class, tmp_path, early_stopping, length_penalty):
    model, tokenizer, exported = onnx_export
    settings = {"num_beams": 4, "early_stopping": early_stopping, "length_penalty": length_penalty}
    # With few tokens left, the end token is likely, so that it matters when the search stops.
    settings["bad_words_ids"] = [[token] for token in range(9, model.get_decoder().num_embeddings)]
    folder = with_settings(exported, tmp_path / "exported", model, **settings)
    expected = translated(model, tokenizer, **settings)
    assert translator_class(folder, threads=1).translate(SENTENCES) == expected
    # The caller's settings take precedence.
    overridden = translator_class(folder, threads=1, num_beams=3, length_penalty=1.0)
    settings |= {"num_beams": 3, "length_penalty": 1.0}
    assert overridden.translate(SENTENCES) == translated(model, tokenizer, **settings)


@looped("num_beams", [1, 3])
@looped("size", [1, 2, 3])
def test_blocked_ngrams(onnx_export, translator_class, tmp_path, size, num_beams):
    model, tokenizer, exported = onnx_export
    settings = {"no_repeat_ngram_size": size, "num_beams": num_beams}
    folder = with_settings(exported, tmp_path / "exported", model, **settings)
    expected = translated(model, tokenizer, **settings)
    assert translator_class(folder, threads=1).translate(SENTENCES) == expected
    assert expected != translated(model, tokenizer, num_beams=num_beams)


@looped("num_beams", [1, 3])
@looped("bound", [{}, {"max_length": 6}, {"max_new_tokens": 3}])
def test_barred_tokens_and_bounds(onnx_export, translator_class, tmp_path, bound, num_beams):
    model, tokenizer, exported = onnx_export
    end = model.config.eos_token_id
    # `generate()` drops the end token from `bad_words_ids`.
    barred = {"bad_words_ids": [[5], [6], [7], [end]], "min_new_tokens": 1, "forced_eos_token_id": end}
    settings = {**barred, **bound, "num_beams": num_beams}
    folder = with_settings(exported, tmp_path / "exported", model, **settings)
    assert translator_class(folder, threads=1).translate(SENTENCES) == translated(model, tokenizer, **settings)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_settings_that_are_null(onnx_export, translator_class, tmp_path, num_beams):
    """Without an end token, no output ends before the limit."""
    model, tokenizer, exported = onnx_export
    folder = shutil.copytree(exported, tmp_path / "exported")
    names = ("decoder_start_token_id", "eos_token_id", "bad_words_ids", "length_penalty", "early_stopping")
    settings = {"num_beams": num_beams, "min_new_tokens": 1, "max_new_tokens": 5}
    (folder / "generation_config.json").write_text(json.dumps(dict.fromkeys(names) | settings))
    endless = copy.deepcopy(model)
    endless.generation_config.eos_token_id = None
    assert translator_class(folder, threads=1).translate(SENTENCES) == translated(endless, tokenizer, **settings)


@looped("early_stopping", [False, "never"])
@looped("num_beams", [1, 4])
def test_each_source_has_a_limit_of_its_own(onnx_export, translator_class, tmp_path, num_beams, early_stopping):
    """Sentences without an end token get the same outputs alone and with longer ones."""
    model, tokenizer, exported = onnx_export
    folder = shutil.copytree(exported, tmp_path / "exported", dirs_exist_ok=True)
    settings = {"num_beams": num_beams, "early_stopping": early_stopping, "length_penalty": 2.0}
    # The graphs allow nothing else after the model's end token.
    settings["bad_words_ids"] = [[model.config.eos_token_id]]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": None, **settings}))
    endless, translator = copy.deepcopy(model), translator_class(folder, threads=1)
    endless.generation_config.eos_token_id = None
    together = translator.translate(SENTENCES)
    assert together == [translator.translate([sentence])[0] for sentence in SENTENCES]
    assert together == translated(endless, tokenizer, **settings)


def run_graphs(folder, ids, mask, target):
    """Return the logits of a whole target, computed by the graphs of a folder."""
    encoder, decoder = (onnxruntime.InferenceSession(graph_file(folder, name)) for name in onnx.GRAPHS)
    (states,) = encoder.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
    inputs = {"input_ids": target.numpy(), "encoder_attention_mask": mask.numpy(), "encoder_hidden_states": states}
    for value in decoder.get_inputs()[3:]:
        inputs[value.name] = np.zeros((len(ids), value.shape[1], 0, value.shape[3]), np.float32)
    return torch.from_numpy(decoder.run(["logits"], inputs)[0])


def graph_file(folder, name):
    (file,) = folder.glob(f"onnx/{name}*.onnx")
    return file


@pytest.mark.slow
@looped("fields", [{"attention_bias": True}, {"norm_position": "pre", "tie_word_embeddings": False}])
def test_int8(tmp_path, fields):
    """Every matrix is stored in 8 bits, and logits change little."""
    pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
    model, folder = perturbed_model(encoder_layers=1, decoder_layers=1, **fields), tmp_path / "-".join(fields)
    folder.mkdir()
    write_onnx(model, folder, quantization="int8")
    for name in onnx.GRAPHS:
        assert graph_file(folder, name).stem == f"{name}_quantized"
        graph = onnx_package.load(graph_file(folder, name)).graph
        types = {
            value.name: value.data_type for value in graph.initializer if len(value.dims) == 2 and min(value.dims) > 1
        }
        assert types and {*types.values()} == {onnx_package.TensorProto.INT8}
    ids, target = torch.randint(4, 40, (8, 12)), torch.randint(4, 40, (8, 10))
    target[target == model.config.eos_token_id] = 5
    with torch.no_grad():
        expected = model(input_ids=ids, decoder_input_ids=target).logits
    difference = (run_graphs(folder, ids, torch.ones_like(ids), target) - expected).abs()
    assert 0 < difference.mean() < 0.02 * expected.std()


def test_axes_are_named(onnx_export):
    _, _, folder = onnx_export
    session = onnxruntime.InferenceSession(graph_file(folder, "decoder_model_merged"))
    shapes = {value.name: value.shape for value in session.get_inputs()}
    assert shapes["past_key_values.0.decoder.key"] == ["batch_size", 4, "past", 8]
    assert shapes["input_ids"] == ["batch_size", "target"]


def test_a_source_beyond_the_positions(onnx_export, translator_class):
    with pytest.raises(ValueError, match="but the graphs hold 64 positions"):
        translator_class(onnx_export[2], threads=1).translate(["a cat " * 50])


@pytest.mark.slow
def test_more_positions_in_the_graphs_than_in_the_model(tmp_path):
    pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
    shape = {"encoder_layers": 1, "decoder_layers": 1, "head_dim": 3, "value_head_dim": 5}
    model = perturbed_model(attention_bias=True, norm_position="pre", embedding_layer_norm=True, **shape)
    assert write_onnx(model, tmp_path, max_positions=50).max_position_embeddings == 50
    assert model.config.max_position_embeddings == 32 and model.model.encoder.embed_positions.num_cached == 32
    ids, target = torch.randint(4, 40, (2, 45)), torch.randint(4, 40, (2, 40))
    mask = torch.ones_like(ids)
    mask[1, 20:] = 0
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits
    close(run_graphs(tmp_path, ids, mask, target), expected, 1e-4)


def test_learned_positions_cannot_be_added(tmp_path):
    pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
    with pytest.raises(ValueError, match="`max_positions=50`, but the model has learned 32 positions"):
        write_onnx(tiny_model(position_embedding_type="learned"), tmp_path, max_positions=50)


def test_missing_packages_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx, "find_spec", lambda name: None if name == "onnxscript" else name)
    with pytest.raises(ValueError, match="needs onnxscript; run `pip install onnxscript`"):
        write_onnx(tiny_model(), tmp_path)


@pytest.mark.parametrize("onnx_export", ["pair"], indirect=True)
class TestProgram:
    """scripts/onnx_translate.py, for machines without PyTorch."""

    def assert_one_line(self, result, fault=""):
        assert result.returncode == 2 and fault in result.stderr and result.stderr.count("\n") == 1

    def run(self, folder, *words, text="", without=()):
        # Importing any of `without` fails.
        program = (
            "import runpy, sys\n"
            f"sys.modules.update(dict.fromkeys({without!r}))\n"
            f"sys.argv = {['onnx_translate.py', '--model', str(folder), '--threads', '1', *map(str, words)]!r}\n"
            f"runpy.run_path({str(SCRIPTS / 'onnx_translate.py')!r}, run_name='__main__')\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, input=text, capture_output=True, text=True, env=environment)

    def test_it_needs_no_torch(self, onnx_export, tmp_path):
        model, tokenizer, folder = onnx_export
        text = "".join(f"{sentence}\n" for sentence in SENTENCES)
        result = self.run(folder, text=text, without=("torch", "transformers", "hf_vanilla_transformer"))
        assert result.returncode == 0 and result.stderr == ""
        assert result.stdout.splitlines() == translated(model, tokenizer)
        (tmp_path / "lines").write_text(text, encoding="utf-8")
        result = self.run(folder, "--input", tmp_path / "lines", "--output", tmp_path / "translations")
        assert result.returncode == 0 and result.stdout == ""
        assert (tmp_path / "translations").read_text(encoding="utf-8").splitlines() == translated(model, tokenizer)

    def test_mistakes(self, onnx_export, tmp_path):
        folder = shutil.copytree(onnx_export[2], tmp_path / "exported")
        (tmp_path / "before").write_text("kept\n")
        result = self.run(folder, "--output", tmp_path / "before", text="a cat\n" + "a cat " * 50)
        assert result.returncode == 2 and "but the graphs hold 64 positions" in result.stderr
        assert (tmp_path / "before").read_text() == "kept\n" and len(list(tmp_path.iterdir())) == 2
        self.assert_one_line(self.run(folder, "--num_beams=0"), "is 0; it must be positive")
        self.assert_one_line(self.run(folder, "--length_penalty=nan"), "is nan; it must be")
        self.assert_one_line(self.run(tmp_path))
        for path in folder.glob("*tokenizer.json"):
            path.unlink()
        self.assert_one_line(self.run(folder))
