"""scripts/export_model.py, the folders it writes, and the programs that translate with them."""

import json
import os
import runpy
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, GenerationConfig, MarianMTModel

from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.translation import load, translate
from paths import SCRIPTS
from tiny import tiny_model
from translators import ENGLISH, SHARED, build

main = runpy.run_path(str(SCRIPTS / "export_model.py"))["main"]

SENTENCES = [*ENGLISH, "  ", "the cat see a house in two street", "a </s> cat"]


def save(kind, folder):
    model, tokenizer = build(kind)
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def run(*arguments, text="", **environment):
    environment = {**os.environ, "PYTHONPATH": str(SCRIPTS.parent), "OMP_NUM_THREADS": "1", **environment}
    return subprocess.run(
        [sys.executable, *map(str, arguments)], input=text, capture_output=True, text=True, env=environment
    )


def fail(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    assert stop.value.code == 2 and printed.out == ""
    return printed.err.splitlines()[-1]


class TestCTranslate2:
    @pytest.fixture(autouse=True)
    def _needed(self):
        pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")

    @pytest.mark.parametrize("kind", ["shared", "pair"])
    def test_written_by_the_program_and_served_by_the_other(self, kind, tmp_path, capsys):
        model, tokenizer = save(kind, tmp_path / "model")
        output = tmp_path / "new" / "exported"
        main(["--model", str(tmp_path / "model"), "--to", "ctranslate2", "--output_dir", str(output)])
        assert capsys.readouterr().out.startswith(f"{output}: ") and not list(output.parent.glob("*.partial"))
        expected = [row[0].text for row in translate(model, tokenizer, SENTENCES, num_beams=3)]
        translate_program = SCRIPTS / "translate.py"
        words = ["--backend", "ctranslate2", "--model", output, "--num_beams", "3"]
        result = run(translate_program, *words, text="".join(f"{sentence}\n" for sentence in SENTENCES))
        assert result.returncode == 0 and result.stderr == ""
        assert result.stdout.splitlines() == expected
        result = run(translate_program, *words, "--bf16")
        assert result.returncode == 2 and "--bf16 is for --backend transformers; leave it out" in result.stderr

    def test_what_the_model_would_do_is_the_default(self, tmp_path):
        save("shared", tmp_path / "model")
        settings = GenerationConfig.from_pretrained(tmp_path / "model", num_beams=4, length_penalty=0.5)
        settings.save_pretrained(tmp_path / "model")
        exported = export_model(tmp_path / "model", "ctranslate2", tmp_path / "exported", quantization="int8")
        found = GenerationConfig.from_pretrained(exported)
        assert found.num_beams == 4 and found.length_penalty == 0.5
        GenerationConfig.from_pretrained(tmp_path / "model", no_repeat_ngram_size=3).save_pretrained(
            tmp_path / "model"
        )
        with pytest.raises(ValueError, match="CTranslate2 does not support `no_repeat_ngram_size`=3"):
            export_model(tmp_path / "model", "ctranslate2", tmp_path / "other")
        assert not list(tmp_path.glob("other*"))

    def test_a_model_without_a_tokenizer(self, tmp_path):
        tiny_model().save_pretrained(tmp_path / "model")
        exported = export_model(tmp_path / "model", "ctranslate2", tmp_path / "exported")
        assert len(json.loads((exported / "shared_vocabulary.json").read_text())) == 40


class TestMarian:
    def test_written_by_the_program_and_loaded_by_its_own_class(self, tmp_path, capsys):
        # Ours compute sinusoids without end, Marian's end with their table.
        tiny_model(max_position_embeddings=128).save_pretrained(tmp_path / "plain")
        SHARED.save_pretrained(tmp_path / "plain")
        output = tmp_path / "marian"
        main(["--model", str(tmp_path / "plain"), "--to", "marian", "--output_dir", str(output)])
        assert capsys.readouterr().out.startswith(f"{output}: ")
        ours, tokenizer = load(tmp_path / "plain")
        marian, other = load(output)
        assert isinstance(marian, MarianMTModel) and other.get_vocab() == tokenizer.get_vocab()
        assert translate(marian, other, SENTENCES) == translate(ours, tokenizer, SENTENCES)

    def test_what_it_has_not(self, tmp_path, capsys):
        tiny_model(norm_position="pre").save_pretrained(tmp_path / "pre")
        output = tmp_path / "marian"
        message = fail(capsys, "--model", tmp_path / "pre", "--to", "marian", "--output_dir", output)
        assert "`norm_position` is 'pre', but Marian supports only 'post'" in message
        assert [path.name for path in tmp_path.iterdir()] == ["pre"]


class TestRefused:
    def test_one_line_and_nothing_written(self, tmp_path, capsys):
        pytest.importorskip("ctranslate2", reason="without it, that it is missing is said first")
        model, output = tmp_path / "model", tmp_path / "exported"
        save("shared", model)
        to = ("--to", "ctranslate2", "--output_dir", output)
        assert "format onnx has no --quantization; leave it out" in fail(
            capsys, "--model", model, "--to", "onnx", "--quantization", "int8", "--output_dir", output
        )
        assert "--quantization int4 is unknown" in fail(capsys, "--model", model, *to, "--quantization", "int4")
        assert "--max_positions 0 is too small" in fail(capsys, "--model", model, *to, "--max_positions", 0)
        message = fail(capsys, "--model", model, "--to", "ctranslate2", "--output_dir", model)
        assert f"--output_dir {model} exists and is not an empty folder" in message
        assert f"model {tmp_path / 'none'} cannot be loaded: there is no such folder" in fail(
            capsys, "--model", tmp_path / "none", *to
        )
        tiny_model(norm_position="none").save_pretrained(tmp_path / "plain")
        assert "cannot express `norm_position`='none'" in fail(capsys, "--model", tmp_path / "plain", *to)
        build("bart")[0].save_pretrained(tmp_path / "bart")
        assert "model_type is 'bart', not 'vanilla_transformer'" in fail(capsys, "--model", tmp_path / "bart", *to)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["bart", "model", "plain"]

    def test_weights_that_are_not_there(self, tmp_path, capsys):
        save("shared", tmp_path / "model")
        file = tmp_path / "model" / "model.safetensors"
        weights = load_file(file)
        del weights["model.decoder.layers.0.fc1.weight"]
        save_file(weights, file, metadata={"format": "pt"})
        with pytest.raises(
            ValueError, match="no weights of model.decoder.layers.0.fc1.weight; save or fetch it again"
        ):
            export_model(tmp_path / "model", "ctranslate2", tmp_path / "exported")
        weights["model.decoder.layers.0.fc1.weight"] = torch.zeros(3, 3)
        save_file(weights, file, metadata={"format": "pt"})
        with pytest.raises(ValueError, match="weights of another shape"):
            export_model(tmp_path / "model", "ctranslate2", tmp_path / "new" / "exported")
        assert not (tmp_path / "new").exists()
        file.write_bytes(file.read_bytes()[:-50])
        with pytest.raises(ValueError, match="cannot be loaded: "):
            export_model(tmp_path / "model", "ctranslate2", tmp_path / "exported")
        assert not (tmp_path / "exported").exists()

    def test_an_unknown_format(self, tmp_path):
        with pytest.raises(ValueError, match="format tflite is unknown; set `to` to one of ctranslate2, onnx, marian"):
            export_model(tmp_path, "tflite", tmp_path / "exported")


@pytest.fixture(scope="module", params=["shared", "pair", "learned"])
def graphs(request, tmp_path_factory):
    """A model, its tokenizer and their folder of ONNX graphs."""
    pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
    pytest.importorskip("onnxruntime", reason="ONNX graphs run in onnxruntime, of the extra `export`")
    folder = tmp_path_factory.mktemp(request.param)
    model, tokenizer = save(request.param, folder / "model")
    return model, tokenizer, export_model(folder / "model", "onnx", folder / "exported")


class TestOnnx:
    def test_translations_without_torch_are_those_of_generate(self, graphs):
        model, tokenizer, folder = graphs
        expected = [row[0].text for row in translate(model, tokenizer, SENTENCES, num_beams=1, max_tokens=9999)]
        text = "".join(f"{sentence}\n" for sentence in SENTENCES)
        # Whatever imports PyTorch or transformers fails.
        program = (
            "import runpy, sys\n"
            "sys.modules.update({'torch': None, 'transformers': None, 'hf_vanilla_transformer': None})\n"
            f"sys.argv = ['onnx_translate.py', '--model', {str(folder)!r}, '--threads', '1']\n"
            f"runpy.run_path({str(SCRIPTS / 'onnx_translate.py')!r}, run_name='__main__')\n"
        )
        result = run("-c", program, text=text)
        assert result.returncode == 0 and result.stderr == ""
        assert result.stdout.splitlines() == expected
        (folder.parent / "lines").write_text(text, encoding="utf-8")
        files = ["--input", folder.parent / "lines", "--output", folder.parent / "translations"]
        result = run(SCRIPTS / "onnx_translate.py", "--model", folder, *files)
        assert result.returncode == 0 and result.stdout == ""
        assert (folder.parent / "translations").read_text(encoding="utf-8").splitlines() == expected

    def test_tokens_that_are_barred_and_rules_that_it_has_not(self, graphs, tmp_path):
        model, tokenizer, _ = graphs
        barred = {"bad_words_ids": [[5], [6], [7]], "min_new_tokens": 1}
        model.save_pretrained(tmp_path / "model")
        tokenizer.save_pretrained(tmp_path / "model")
        settings = GenerationConfig.from_model_config(model.config)
        settings.update(**barred)
        settings.save_pretrained(tmp_path / "model")
        folder = export_model(tmp_path / "model", "onnx", tmp_path / "exported")
        result = run(SCRIPTS / "onnx_translate.py", "--model", folder, text="".join(f"{s}\n" for s in SENTENCES))
        options = {"num_beams": 1, "max_tokens": 9999, **barred}
        assert result.stdout.splitlines() == [row[0].text for row in translate(model, tokenizer, SENTENCES, **options)]
        settings.update(max_length=6)
        settings.save_pretrained(tmp_path / "model")
        short = export_model(tmp_path / "model", "onnx", tmp_path / "short")
        result = run(SCRIPTS / "onnx_translate.py", "--model", short, text="".join(f"{s}\n" for s in SENTENCES))
        options["max_length"] = 6
        assert result.stdout.splitlines() == [row[0].text for row in translate(model, tokenizer, SENTENCES, **options)]
        settings.update(no_repeat_ngram_size=2)
        settings.save_pretrained(tmp_path / "model")
        with pytest.raises(ValueError, match=r"onnx_translate\.py does not support `no_repeat_ngram_size`=2"):
            export_model(tmp_path / "model", "onnx", tmp_path / "other")
        assert not (tmp_path / "other").exists()
        for path in folder.glob("*tokenizer.json"):
            path.unlink()
        result = run(SCRIPTS / "onnx_translate.py", "--model", folder)
        assert result.returncode == 2 and result.stderr.count("\n") == 1

    def test_axes_are_named(self, graphs):
        import onnxruntime

        model, _, folder = graphs
        found = {each.name: each.shape for each in onnxruntime.InferenceSession(folder / "decoder.onnx").get_inputs()}
        assert found["past_keys"] == [2, "batch", 2, "past", 8] and found["decoder_input_ids"] == ["batch", "target"]

    def test_a_source_beyond_the_positions_and_a_folder_without_graphs(self, graphs, tmp_path):
        program = SCRIPTS / "onnx_translate.py"
        result = run(program, "--model", graphs[2], text="a cat " * 50)
        assert result.returncode == 2 and "but the graphs hold 64 positions" in result.stderr
        (tmp_path / "before").write_text("kept\n")
        result = run(program, "--model", graphs[2], "--output", tmp_path / "before", text="a cat\n" + "a cat " * 50)
        assert result.returncode == 2 and [file.read_text() for file in tmp_path.iterdir()] == ["kept\n"]
        result = run(program, "--model", tmp_path)
        assert result.returncode == 2 and result.stderr.count("\n") == 1


def test_more_positions_in_the_graphs_and_the_model_as_it_was(tmp_path):
    pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
    onnxruntime = pytest.importorskip("onnxruntime", reason="ONNX graphs run in onnxruntime, of the extra `export`")
    from hf_vanilla_transformer.export.onnx import write_onnx

    model = tiny_model(attention_bias=True, head_dim=3, value_head_dim=5, norm_position="pre")
    assert write_onnx(model, tmp_path, max_positions=50).max_position_embeddings == 50
    assert model.config.max_position_embeddings == 32 and model.model.encoder.embed_positions.num_cached == 32
    ids, target = torch.randint(4, 40, (2, 45)), torch.randint(4, 40, (2, 40))
    mask = torch.ones_like(ids)
    mask[1, 20:] = 0
    encoder, decoder = (onnxruntime.InferenceSession(tmp_path / f"{name}.onnx") for name in ("encoder", "decoder"))
    keys, values = encoder.run(None, {"input_ids": ids.numpy(), "attention_mask": mask.numpy()})
    given = {"decoder_input_ids": target.numpy(), "attention_mask": mask.numpy()}
    past = {"past_keys": keys[..., :0, :], "past_values": values[..., :0, :]}
    logits = decoder.run(["logits"], {**given, **past, "cross_keys": keys, "cross_values": values})[0]
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=mask, decoder_input_ids=target).logits
    torch.testing.assert_close(torch.from_numpy(logits), expected, rtol=1e-4, atol=1e-4)
    learned = tiny_model(position_embedding_type="learned")
    with pytest.raises(
        ValueError, match="`max_positions` is 50, but the model has learned `max_position_embeddings`=32"
    ):
        write_onnx(learned, tmp_path, max_positions=50)


def test_exported_models_are_loaded_as_before(tmp_path):
    """Exporting leaves the folder of the model alone."""
    pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")
    model, _ = save("shared", tmp_path / "model")
    before = {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()}
    export_model(tmp_path / "model", "ctranslate2", tmp_path / "exported", quantization="int8")
    assert {file.name: file.read_bytes() for file in (tmp_path / "model").iterdir()} == before
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "model").num_parameters() == model.num_parameters()
