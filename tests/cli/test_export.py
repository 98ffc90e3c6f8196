"""`vanilla-transformer export`, and the commands that use its output."""

import pytest

from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.inference.translation import translate
from tiny import tiny_model
from translators import ENGLISH, SHARED, save_translator

SENTENCES = [*ENGLISH, "  ", "the cat see a house in two street", "a </s> cat"]


def save_marian_like(folder):
    model = tiny_model(max_position_embeddings=128)
    for part in (model, SHARED):
        part.save_pretrained(folder)
    return model, SHARED


@pytest.mark.parametrize("to", ["ctranslate2", "marian"])
def test_what_it_writes_translates(to, refusal, tmp_path, capsys):
    if to == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="exported models run in CTranslate2, of the extra `export`")
    folder, output = tmp_path / "model", tmp_path / "new" / "exported"
    model, tokenizer = save_translator("shared", folder) if to == "ctranslate2" else save_marian_like(folder)
    capsys.readouterr()
    main(["export", "--model", str(folder), "--to", to, "--output_dir", str(output)])
    assert capsys.readouterr().out.startswith(f"{output}: ") and not list(output.parent.glob("*.partial"))
    lines, translations = tmp_path / "lines", tmp_path / "translations"
    lines.write_text("".join(f"{sentence}\n" for sentence in SENTENCES))
    backend = "ctranslate2" if to == "ctranslate2" else "transformers"
    words = ["--backend", backend, "--model", str(output), "--num_beams", "3", "--input", str(lines)]
    outputs = []
    for bound in ({}, {"max_new_tokens": 3}):
        options = [word for name, value in bound.items() for word in (f"--{name}", str(value))]
        main(["translate", *words, *options, "--output", str(translations)])
        expected = [row[0].text for row in translate(model, tokenizer, SENTENCES, num_beams=3, **bound)]
        outputs.append(translations.read_text(encoding="utf-8").splitlines())
        assert outputs[-1] == expected
    assert outputs[0] != outputs[1]
    if backend == "ctranslate2":
        capsys.readouterr()
        assert "--bf16 needs --backend transformers; leave it out" in refusal("translate", *words, "--bf16")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "marian", "--quantization", "int8"), "format marian has no --quantization; leave it out"),
        (("--to", "ctranslate2", "--quantization", "int4"), "--quantization int4 is unknown"),
        (("--to", "ctranslate2", "--max_positions", 0), "--max_positions is 0"),
        (("--to", "marian", "--output_dir", "."), "--output_dir . exists and is not an empty folder"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(words, message, refusal, tmp_path, monkeypatch, capsys):
    if "ctranslate2" in words:
        pytest.importorskip("ctranslate2", reason="without it, that it is missing is said first")
    monkeypatch.chdir(tmp_path)
    save_translator("shared", tmp_path / "model")
    capsys.readouterr()
    assert message in refusal("export", "--model", "model", "--output_dir", "exported", *words)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
