import json
import math

import pytest

from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.inference.scoring import score
from hf_vanilla_transformer.pretrained.loading import load_model, load_tokenizer
from translators import ENGLISH, SPANISH, build


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    for part in build("pair"):
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def expected(folder):
    return score(load_model(folder), load_tokenizer(folder), ENGLISH, SPANISH)


def totals(expected):
    log_prob = sum(each.log_prob for each in expected)
    tokens = sum(len(each.token_ids) for each in expected)
    perplexity = math.exp(-log_prob / tokens)
    return f"5 pairs, {tokens} tokens: log-probability {log_prob:.4f}, perplexity {perplexity:.4f}\n"


@pytest.mark.parametrize("options", [(), ("--chunk_size", "2", "--max_tokens", "20")])
def test_a_line_a_pair_and_the_totals(folder, files, expected, options, capsysbinary):
    capsysbinary.readouterr()
    main(["score", "--model", str(folder), *files, "--device", "cpu", *options])
    printed = capsysbinary.readouterr()
    rows = [tuple(map(float, line.split("\t"))) for line in printed.out.decode().splitlines()]
    assert rows == [pytest.approx((each.log_prob, each.perplexity), abs=2e-4) for each in expected]
    assert printed.err.decode() == totals(expected)


def test_json_lines_in_a_file(folder, files, expected, tmp_path, capsys):
    main(["score", "--model", str(folder), *files, "--format", "json", "--output", str(tmp_path / "scores")])
    rows = [json.loads(line) for line in (tmp_path / "scores").read_text(encoding="utf-8").splitlines()]
    assert capsys.readouterr().out == ""
    assert [(row["source"], row["target"]) for row in rows] == list(zip(ENGLISH, SPANISH, strict=True))
    for row, each in zip(rows, expected, strict=True):
        assert row["tokens"] == each.tokens and row["token_log_probs"] == pytest.approx(each.token_log_probs, abs=1e-4)
        assert row["log_prob"] == pytest.approx(each.log_prob) and row["perplexity"] == pytest.approx(each.perplexity)


def test_bfloat16_computes_something_else(folder, files, expected, capsys):
    main(["score", "--model", str(folder), *files, "--bf16"])
    assert capsys.readouterr().err != totals(expected)


class TestRefused:
    def test_before_anything_is_read(self, files, tmp_path, refusal):
        model = ("--model", "nope")
        assert "both standard input" in refusal("score", *model, "--source", "-", "--target", "-")
        assert "--chunk_size is 0" in refusal("score", *model, *files, "--chunk_size", "0")
        source = files[1]
        assert f"--output {source} is the input" in refusal("score", *model, *files, "--output", source)
        assert "model nope cannot be loaded" in refusal("score", *model, *files)

    @pytest.mark.parametrize("short", ["source", "target"])
    def test_files_of_different_length(self, short, folder, files, tmp_path, refusal):
        (tmp_path / short).write_text("a cat\n")
        message = refusal("score", "--model", folder, *files, "--output", tmp_path / "scores")
        assert f"{tmp_path / short} has 1 lines but {tmp_path}" in message and "has more; line n of one" in message
        assert not (tmp_path / "scores").exists()

    def test_no_text(self, folder, files, tmp_path, refusal):
        for name in ("source", "target"):
            (tmp_path / name).write_text("")
        assert "are empty" in refusal("score", "--model", folder, *files)

    def test_a_pair_that_cannot_be_scored(self, tmp_path, files, refusal):
        for part in build("learned"):
            part.save_pretrained(tmp_path / "model")
        (tmp_path / "source").write_text("a cat\n" * 4 + "a cat " * 70 + "\n")
        command = ("score", "--model", tmp_path / "model", *files, "--output", tmp_path / "scores")
        assert "error: source 5 has " in refusal(*command)
        assert "error: after line 4: source 1 has " in refusal(*command, "--chunk_size", "2")
