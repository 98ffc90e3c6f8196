import gzip
import io
import json
import sys
from functools import partial
from pathlib import Path

import pytest
import sacrebleu

from hf_vanilla_transformer.cli.main import main

REFERENCES = ["A man sleeps in a green room .", "Two dogs run over the\u0085grass .", "¿ Dónde está el niño ?"]
PREDICTIONS = ["A man sleeps in the green room .", "Two dogs run over the\u0085grass .", "¿ DÓNDE está el niño ?"]


def write(path: Path, lines: list[str]) -> str:
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


@pytest.fixture
def references(tmp_path):
    return write(tmp_path / "references.txt", REFERENCES)


def run(capsys, *arguments: str) -> str:
    main(["evaluate", *arguments])
    return capsys.readouterr().out


@pytest.fixture
def fail(refusal):
    return partial(refusal, "evaluate")


@pytest.mark.parametrize("name", ["predictions.txt", "predictions.txt.gz"])
def test_scores_and_signatures(tmp_path, capsys, references, name):
    predictions = write(tmp_path / name, PREDICTIONS)
    report = tmp_path / "scores.json"
    bleu, chrf, exact_match = run(
        capsys, "--predictions", predictions, "--references", references, "--json", str(report)
    ).split("\n", 2)
    scores = json.loads(report.read_text(encoding="utf-8"))
    assert scores["bleu"] == pytest.approx(sacrebleu.corpus_bleu(PREDICTIONS, [REFERENCES]).score)
    assert scores["chrf"] == pytest.approx(sacrebleu.corpus_chrf(PREDICTIONS, [REFERENCES]).score)
    assert scores["segments"] == 3 and scores["exact_match"] == pytest.approx(100 / 3)
    assert f"{scores['bleu']:.2f}" in bleu and scores["bleu_signature"] in bleu
    assert f"{scores['chrf']:.2f}" in chrf and scores["chrf_signature"] in chrf
    assert exact_match.split() == "exact match 33.33 % of 3 segments".split()


def test_standard_input_several_references_and_lowercase(tmp_path, capsys, references, monkeypatch):
    second = write(tmp_path / "second.txt.gz", PREDICTIONS[:1] + REFERENCES[1:])
    data = "".join(line + "\r\n" for line in PREDICTIONS).encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(data)), encoding="ascii"))
    printed = run(capsys, "--predictions", "-", "--references", references, second, "--lowercase")
    assert printed.count("100.00") == 3
    assert "nrefs:2|case:lc" in printed


def test_tokenize_option(tmp_path, capsys, references, fail):
    predictions = write(tmp_path / "predictions.txt", PREDICTIONS)
    both = ("--predictions", predictions, "--references", references)
    assert "tok:char" in run(capsys, *both, "--tokenize", "char")
    assert "--tokenize spacy is unknown" in fail(*both, "--tokenize", "spacy")


def test_different_line_counts(tmp_path, references, fail):
    predictions = write(tmp_path / "short.txt", PREDICTIONS[:2])
    message = fail("--predictions", predictions, "--references", references)
    assert f"{predictions} has 2 lines but {references} has 3" in message


def test_empty_missing_and_unreadable_files(tmp_path, references, monkeypatch, fail):
    empty, missing = write(tmp_path / "empty.txt", []), str(tmp_path / "missing.txt")
    assert "empty" in fail("--predictions", empty, "--references", empty)
    assert missing in fail("--predictions", references, "--references", missing)
    unwritable = str(tmp_path / "no folder" / "scores.json")
    assert unwritable in fail("--predictions", references, "--references", references, "--json", unwritable)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(io.BytesIO(b"\xff\n"))))
    expected = "standard input, line 1: byte 0xff at position 1 is not UTF-8"
    assert expected in fail("--predictions", "-", "--references", references)


def test_help_shows_the_options_and_an_example(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["evaluate", "--help"])
    printed = capsys.readouterr().out
    assert stop.value.code == 0
    assert "\n    vanilla-transformer evaluate --predictions" in printed
    for option in ("--references", "--lowercase", "--tokenize", "--json"):
        assert option in printed
