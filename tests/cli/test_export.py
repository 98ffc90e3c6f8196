"""vanilla-transformer export, and the commands that use what it writes."""

import os
import subprocess
import sys

import pytest

from hf_vanilla_transformer.export import export_model
from hf_vanilla_transformer.inference.translation import translate
from paths import ROOT, SCRIPTS
from saved import save_translator
from tiny import tiny_model
from translators import ENGLISH

SENTENCES = [*ENGLISH, "  ", "the cat see a house in two street", "a </s> cat"]


@pytest.fixture(scope="module")
def main(load_script):
    return load_script("export_model").main


def fail(main, capsys, *words):
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    printed = capsys.readouterr()
    assert stop.value.code == 2 and printed.out == ""
    return printed.err.splitlines()[-1]


@pytest.mark.parametrize("to", ["ctranslate2", "marian"])
def test_what_it_writes_translates(to, main, load_script, tmp_path, capsys):
    if to == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")
    model, tokenizer = (
        save_translator("shared", tmp_path / "model") if to == "ctranslate2" else save_marian_like(tmp_path / "model")
    )
    output, lines, translations = tmp_path / "new" / "exported", tmp_path / "lines", tmp_path / "translations"
    capsys.readouterr()
    main(["--model", str(tmp_path / "model"), "--to", to, "--output_dir", str(output)])
    assert capsys.readouterr().out.startswith(f"{output}: ") and not list(output.parent.glob("*.partial"))
    lines.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    backend = ["--backend", "ctranslate2"] if to == "ctranslate2" else []
    words = [*backend, "--model", str(output), "--num_beams", "3", "--input", str(lines)]
    load_script("translate").main([*words, "--output", str(translations)])
    expected = [row[0].text for row in translate(model, tokenizer, SENTENCES, num_beams=3)]
    assert translations.read_text(encoding="utf-8").splitlines() == expected
    if backend:
        message = fail(load_script("translate").main, capsys, *words, "--bf16")
        assert "--bf16 is for --backend transformers; leave it out" in message


def save_marian_like(folder):
    from translators import SHARED

    model = tiny_model(max_position_embeddings=128)
    for part in (model, SHARED):
        part.save_pretrained(folder)
    return model, SHARED


def test_a_mistake_is_one_line_and_nothing_is_written(main, tmp_path, capsys):
    pytest.importorskip("ctranslate2", reason="without it, that it is missing is said first")
    model, output = tmp_path / "model", tmp_path / "exported"
    save_translator("shared", model)
    to = ("--model", model, "--output_dir", output, "--to")
    for words, message in (
        (("onnx", "--quantization", "int8"), "format onnx has no --quantization; leave it out"),
        (("ctranslate2", "--quantization", "int4"), "--quantization int4 is unknown"),
        (("ctranslate2", "--max_positions", 0), "--max_positions 0 is too small"),
        (("ctranslate2", "--output_dir", model), f"--output_dir {model} exists and is not an empty folder"),
    ):
        assert message in fail(main, capsys, *to, *words)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


class TestOnnxTranslate:
    """The program for machines without PyTorch."""

    @pytest.fixture(scope="class")
    def exported(self, tmp_path_factory):
        pytest.importorskip("transformers.exporters", reason="this release of transformers has no exporters")
        pytest.importorskip("onnxruntime", reason="ONNX graphs run in onnxruntime, of the extra `export`")
        folder = tmp_path_factory.mktemp("onnx")
        model, tokenizer = save_translator("pair", folder / "model")
        return model, tokenizer, export_model(folder / "model", "onnx", folder / "exported")

    def run(self, folder, *words, text="", without=()):
        # Whatever imports one of `without` fails.
        program = (
            "import runpy, sys\n"
            f"sys.modules.update(dict.fromkeys({without!r}))\n"
            f"sys.argv = {['onnx_translate.py', '--model', str(folder), '--threads', '1', *map(str, words)]!r}\n"
            f"runpy.run_path({str(SCRIPTS / 'onnx_translate.py')!r}, run_name='__main__')\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", program]
        return subprocess.run(command, input=text, capture_output=True, text=True, env=environment)

    def test_it_needs_no_torch(self, exported, tmp_path):
        model, tokenizer, folder = exported
        expected = [row[0].text for row in translate(model, tokenizer, SENTENCES, num_beams=1, max_tokens=9999)]
        text = "".join(f"{sentence}\n" for sentence in SENTENCES)
        result = self.run(folder, text=text, without=("torch", "transformers", "hf_vanilla_transformer"))
        assert result.returncode == 0 and result.stderr == ""
        assert result.stdout.splitlines() == expected
        (tmp_path / "lines").write_text(text, encoding="utf-8")
        result = self.run(folder, "--input", tmp_path / "lines", "--output", tmp_path / "translations")
        assert result.returncode == 0 and result.stdout == ""
        assert (tmp_path / "translations").read_text(encoding="utf-8").splitlines() == expected

    def test_mistakes(self, exported, tmp_path):
        folder = exported[2]
        (tmp_path / "before").write_text("kept\n")
        result = self.run(folder, "--output", tmp_path / "before", text="a cat\n" + "a cat " * 50)
        assert result.returncode == 2 and "but the graphs hold 64 positions" in result.stderr
        assert [file.read_text() for file in tmp_path.iterdir()] == ["kept\n"]
        result = self.run(tmp_path)
        assert result.returncode == 2 and result.stderr.count("\n") == 1
        for path in folder.glob("*tokenizer.json"):
            path.unlink()
        result = self.run(folder)
        assert result.returncode == 2 and result.stderr.count("\n") == 1
