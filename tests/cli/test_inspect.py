"""`vanilla-transformer inspect`: problems found, with example lines."""

import json
import unicodedata
from functools import partial

import pytest

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.cli.inspect import truncated
from hf_vanilla_transformer.cli.main import main
from parallel_text import write_lines

PAIRS = [("A dog runs.", "Ein Hund rennt."), ("A cat sleeps.", "Eine Katze schläft."), ("A cow.", "A cow.")]


@pytest.fixture
def fail(refusal):
    return partial(refusal, "inspect")


@pytest.fixture
def files(tmp_path):
    english, german = zip(*PAIRS, strict=True)
    source, target = write_lines(tmp_path / "en.gz", english), write_lines(tmp_path / "de", german)
    return ["--train_source_file", source, "--train_target_file", target]


def run(capsys, *words):
    main(["inspect", *map(str, words)])
    return capsys.readouterr().out


def test_two_files(files, capsys):
    found = "1 of 3 pairs (33.3%) have the same text on both sides"
    assert run(capsys, *files) == f"train: 3 pairs\n\n{found}\n  line 3  A cow.\n          A cow.\n\n"
    assert "line 3" not in run(capsys, *files, "--examples", 0)


def test_text_without_oddities(tmp_path, capsys):
    tsv = write_lines(tmp_path / "x.tsv", map("\t".join, PAIRS[:2]))
    assert run(capsys, "--train_file", tsv) == "train: 2 pairs, none of them odd\n\n"


def test_every_split_and_the_places_in_files_with_a_header(files, tmp_path, capsys):
    rows = [("source", "target"), *PAIRS]
    csv = write_lines(tmp_path / "x.csv", map(",".join, rows))
    more = write_lines(tmp_path / "x.tsv", map("\t".join, rows))
    listed = write_lines(tmp_path / "x.yaml", ["corpora:", f"  - {{file: {more}}}"])
    printed = run(capsys, *files, "--test_file", csv, "--corpora", listed, "--validation_file", csv)
    assert [line for line in printed.splitlines() if line.endswith(" pairs")] == [
        f"{split}: 3 pairs" for split in ("train", f"train, {listed}, line 2", "validation", "test")
    ]
    assert printed.count("  line 4  A cow.\n") == 3


def test_characters_that_training_hardly_has(tmp_path, capsys):
    train = write_lines(tmp_path / "train.tsv", ["it's a dog\tein Hund"] * 9)
    test = write_lines(tmp_path / "test.tsv", [f"it’s a dog{i}\tein Hu\u0301nd\u202e" for i in range(9)])
    printed = run(capsys, "--train_file", train, "--test_file", test, "--examples", 0)
    first, *lines = printed.split("test: characters")[1].splitlines()
    assert lines[0] == "  source U+2019 ’, right single quotation mark: 9, 0 in training"
    # A combining mark does not move onto the text before it.
    assert "  target U+0301, combining acute accent: 9, 0 in training" in lines
    assert "  target U+202E, right-to-left override: 9, 0 in training" in lines
    alone = run(capsys, "--train_file", train, "--test_file", train, "--examples", 0)
    assert "characters" not in alone


def test_characters_are_compared_with_those_of_the_same_language(tmp_path, capsys):
    german = write_lines(tmp_path / "de.tsv", ["a dog runs\tein Hund rennt"] * 200)
    russian = write_lines(tmp_path / "ru.tsv", ["a dog runs\tсобака бежит"] * 9)
    test = write_lines(tmp_path / "test.tsv", ["собака’ бежит\ta dog runs"] * 9)
    rows = [f"  - {{file: {german}, source_lang: en, target_lang: de}}"]
    rows += [f"  - {{file: {russian}, source_lang: en, target_lang: ru, both_directions: true}}"]
    rows += ["test:", f"  - {{file: {test}, source_lang: ru, target_lang: en}}"]
    listed = write_lines(tmp_path / "x.yaml", ["corpora:", *rows])
    printed = run(capsys, "--corpora", listed, "--examples", 0)
    assert [word for word in printed.split() if word.startswith("U+")] == ["U+2019"]


def test_options_of_train_that_hold_pairs_out_do_not_move_lines(files, capsys):
    more = ("--validation_split_size", "1", "--max_train_samples", "1", "--train_weight", "2")
    assert "  line 3  A cow." in run(capsys, *files, *more)


def test_a_data_set(tmp_path, capsys):
    (tmp_path / "set").mkdir()
    rows = [json.dumps({"translation": {"en": source, "de": target}}) for source, target in PAIRS]
    write_lines(tmp_path / "set" / "train.jsonl", rows)
    printed = run(capsys, "--dataset_name", tmp_path / "set", "--source_lang", "en", "--target_lang", "de")
    assert printed.startswith("train: 3 pairs\n") and "  row 3  A cow.\n" in printed


def test_lines_are_cut_to_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    lines = ["漢字" * 40, "long " * 30, "a\x1b[31m\tb"]
    tsv = write_lines(tmp_path / "x.jsonl", ['{"source": "%s", "target": "%s"}' % (2 * (line,)) for line in lines[:2]])
    printed = run(capsys, "--train_file", tsv).splitlines()
    shown = [line for line in printed if "…" in line]
    assert len(shown) == 4 and {line.index(line.strip()) for line in shown[1::2]} == {10}
    for line in shown:
        assert 36 <= sum(2 if unicodedata.east_asian_width(each) == "W" else 1 for each in line) <= 40
    assert truncated(lines[2], 40) == r"a\x1b[31m\tb" and truncated("abcdef", 6) == "abcdef"
    assert truncated("abcdefg", 6) == "abcde…"


def test_unknown_tokens(files, tmp_path, capsys):
    train_tokenizer([source for source, _ in PAIRS], algorithm="word", min_frequency=1).save_pretrained(tmp_path / "t")
    printed = run(capsys, *files, "--tokenizer_name_or_path", tmp_path / "t")
    assert "2 of 3 pairs (66.7%) have a target of mostly unknown tokens\n  line 1  A dog runs.\n" in printed


def test_faults(files, tmp_path, fail):
    assert "no data is named; give --train_source_file" in fail()
    assert "--examples is -1; it must be at least 0" in fail(*files, "--examples", "-1")
    assert "no pairs in it" in fail("--train_file", write_lines(tmp_path / "x.jsonl", []))
    (tmp_path / "mac").write_text("a\rb\r")
    mac = str(tmp_path / "mac")
    assert f"{mac}: lines end in carriage returns" in fail("--train_source_file", mac, "--train_target_file", mac)
    assert "unknown option --preset" in fail("--preset", "tiny")
