import gzip
import logging
from dataclasses import fields
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hf_vanilla_transformer import VanillaTransformerTokenizer, train_tokenizer
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.model.tokenization_vanilla_transformer import VanillaTransformerSharedTokenizer
from hf_vanilla_transformer.training.arguments import ModelArguments
from parallel_text import ENGLISH, SPANISH
from tables import looped


def run(*words: object) -> None:
    main(["tokenizer", *map(str, words)])


@pytest.fixture
def corpus(tmp_path: Path) -> tuple[str, str]:
    (tmp_path / "train.en").write_text("\n".join(ENGLISH) + "\n", encoding="utf-8")
    with gzip.open(tmp_path / "train.es.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(SPANISH) + "\n")
    return str(tmp_path / "train.en"), str(tmp_path / "train.es.gz")


def test_one_vocabulary_is_trained(corpus, tmp_path: Path, capsys) -> None:
    output = tmp_path / "new" / "tokenizer"
    run("--source_files", corpus[0], "--target_files", corpus[1], "--output_dir", output, "--vocab_size", 300)
    found, expected = AutoTokenizer.from_pretrained(output), train_tokenizer(ENGLISH + SPANISH, vocab_size=300)
    assert found.backend_tokenizer.to_str() == expected.backend_tokenizer.to_str()
    assert "300 tokens" in capsys.readouterr().out


def test_the_example_may_be_longer_than_the_limit(corpus, tmp_path: Path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    run("--source_files", corpus[0], "--output_dir", tmp_path / "tokenizer", "--max_length", 2)
    assert not caplog.records


def test_two_vocabularies_are_trained_and_replaced_only_if_told(corpus, tmp_path: Path, refusal, capsys) -> None:
    output = tmp_path / "tokenizer"
    one = ["--source_files", corpus[0], "--output_dir", str(output), "--lowercase", "--max_length", "7"]
    two = [*one, "--target_files", corpus[1], "--source_tokenizer_algorithm", "character"]
    run(*two, "--target_algorithm", "word", "--normalization", "NFKC")
    loaded = VanillaTransformerTokenizer.from_pretrained(output)
    assert loaded.tokenize("Cat") == list("cat")
    assert loaded.model_max_length == 7
    assert loaded.decode(loaded(text_target="La Alfombra")["input_ids"], skip_special_tokens=True) == "la alfombra"
    capsys.readouterr()
    assert "already holds tokenizer.json" in refusal("tokenizer", *one)
    run(*one, "--overwrite")
    assert type(AutoTokenizer.from_pretrained(output)) is VanillaTransformerSharedTokenizer
    assert not list(output.glob("*_tokenizer.json"))


@pytest.mark.parametrize("option", ["--tokenizer_algorithm", "--tokenizer-algorithm", "--algorithm"])
def test_the_algorithm_has_the_name_that_training_gives_it(corpus, tmp_path: Path, option: str) -> None:
    assert any(field.name == "tokenizer_algorithm" for field in fields(ModelArguments))
    run("--source_files", corpus[0], "--output_dir", tmp_path / "new", option, "character")
    assert AutoTokenizer.from_pretrained(tmp_path / "new").tokenize("cat") == ["c", "a", "t"]


@looped(
    ("arguments", "message"),
    [
        (["--source_files", "absent.txt"], "absent.txt"),
        (["--source_files", "bad.txt"], "bad.txt, line 2"),
        (["--source_files", "empty.txt"], "corpus is empty"),
        (["--source_files", "train.en", "--separate_vocabularies"], "needs --target_files"),
        (["--source_files", "train.en", "--target_algorithm", "word"], "needs --target_files"),
        (["--source_files", "train.en", "--vocab_size", "9"], "--vocab_size is 9; it must be at least 260 for bpe"),
        (["--source_files", "train.en", "--algorithm", "bpee"], "invalid choice: 'bpee'"),
        (["--source_files", "train.en", "--output_dir", "bad.txt"], "bad.txt is a file"),
    ],
)
def test_errors_are_one_line(corpus, tmp_path: Path, monkeypatch, refusal, arguments, message) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.txt").write_bytes(b"good\n\xff\n")
    (tmp_path / "empty.txt").write_bytes(b"\n")
    assert message in refusal("tokenizer", "--output_dir", "out", *arguments)
    assert not (tmp_path / "out").exists()
