import json
import sys

import pytest

from benchmarking import results, small_arguments
from benchmarks import words
from benchmarks.run import run_benchmarks
from hf_vanilla_transformer.data.arguments import DataArguments


@pytest.fixture(autouse=True)
def few_words(monkeypatch):
    monkeypatch.setattr(words, "WORDS", 90)
    monkeypatch.setattr(words, "BATCH_WORDS", 20)


def stand_in(tmp_path, lines):
    """Write a program that takes the place of the Python with yoyodyne."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport json, pathlib, sys\n{lines}\n")
    program.chmod(0o755)
    return str(program)


def test_training_and_decoding_are_measured_in_words(tmp_path):
    seen = tmp_path / "seen"
    python = stand_in(
        tmp_path, f"pathlib.Path({str(seen)!r}).write_text(json.dumps(sys.argv[1:]))\nprint('[2.0, 40]')"
    )
    args = small_arguments(tmp_path / "runs", rounds=1, yoyodyne_python=python)
    run_benchmarks({"words": words.words_benchmark}, args, DataArguments())
    training, greedy, beams = results(tmp_path / "runs")["measurements"]
    assert training["name"] == "training, tiny, 20 words, float32" and training["rates"]["yoyodyne"] == 20
    assert set(training["ratios"]) == {"marian, Seq2SeqTrainer", "yoyodyne"}
    # Two steps of about 20 words each: words, not tokens.
    assert 20 < training["costs"]["ours"][0] * training["rates"]["ours"] < 80
    assert all(case["unit"] == "words" and "100.0% of marian" in case["notes"] for case in (greedy, beams))
    isolated, _, _, _, dtype, batch_size, steps, *_ = json.loads(seen.read_text())
    assert (isolated, dtype, batch_size, steps) == ("-I", "float32", "20", "2")


def test_what_stopped_yoyodyne_is_told(tmp_path):
    args = small_arguments(
        yoyodyne_python=stand_in(tmp_path, "sys.exit('first\\nno module yoyodyne')"), preset=["tiny"]
    )
    case = words.training_case(words.random_words(0), "tiny", "float32", args, tmp_path)
    with pytest.raises(ValueError, match="yoyodyne failed: no module yoyodyne"):
        case.implementations["yoyodyne"]()


def test_words_have_about_seven_symbols_of_two_vocabularies():
    ids = words.random_words(0).ids
    sources, targets = ids["input_ids"][:], ids["labels"][:]
    assert {len(word) - 1 for word in sources + targets} <= set(words.LENGTHS)
    assert 4 <= min(map(min, (word[:-1] for word in sources))) and max(map(max, sources)) < 44
    assert 44 < max(map(max, targets)) < 64
