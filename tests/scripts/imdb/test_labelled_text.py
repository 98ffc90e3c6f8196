"""Labelled reviews: all input formats, cleaning, sampling, duplicates, and invalid data."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hf_vanilla_transformer.errors import DataError
from imdb.labelled_text import LabelledTextArguments, clean, count_overlap, load_labelled_text

ROWS = [{"text": f"film {number}", "label": number % 2} for number in range(10)]


def write_rows(path: Path, rows: list[Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def write_splits(folder: Path, train: list[Any] = ROWS, test: list[Any] = ROWS) -> dict[str, str]:
    return {
        "train_file": write_rows(folder / "train.jsonl", train),
        "test_file": write_rows(folder / "test.jsonl", test),
    }


def write_folders(folder: Path, label_names: tuple[str, ...] = ("neg", "pos")) -> None:
    for split in ("train", "test"):
        for name in label_names:
            (folder / split / name).mkdir(parents=True)
            for number in range(3):
                (folder / split / name / f"{number}.txt").write_text(f"{name}<br />{number}\n", encoding="utf-8")


def load(**options: Any) -> Any:
    return load_labelled_text(LabelledTextArguments(**options))


def test_line_breaks_of_html_and_spaces_become_single_spaces():
    assert clean("  One.<br /><br />Two\n three<BR>four</br>  ") == "One. Two three four"
    assert clean("a < b > c <break>") == "a < b > c <break>"


def test_files(tmp_path: Path):
    splits = load(**write_splits(tmp_path))
    assert splits["train"]["text"][:] == [row["text"] for row in ROWS]
    assert splits["test"]["label"][:] == [row["label"] for row in ROWS]
    assert splits["train"].features["label"].names == ["NEGATIVE", "POSITIVE"]


@pytest.mark.parametrize("name", ["train.jsonl", "train.json", "train.jsonl.gz"])
def test_a_folder_of_json_lines(tmp_path: Path, name: str):
    data = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
    for split in ("train", "test"):
        content = gzip.compress(data) if name.endswith(".gz") else data
        (tmp_path / name.replace("train", split)).write_bytes(content)
    splits = load(dataset_name=str(tmp_path))
    assert len(splits["train"]) == len(splits["test"]) == 10


def test_a_folder_of_text_files(tmp_path: Path):
    write_folders(tmp_path)
    splits = load(dataset_name=str(tmp_path))
    assert splits["train"]["text"][:] == ["neg 0", "neg 1", "neg 2", "pos 0", "pos 1", "pos 2"]
    assert splits["train"]["label"][:] == [0, 0, 0, 1, 1, 1]


def test_a_folder_that_datasets_reads(tmp_path: Path):
    import datasets

    data = datasets.DatasetDict({split: datasets.Dataset.from_list(ROWS) for split in ("train", "test")})
    for split in data:
        data[split].to_parquet(tmp_path / f"{split}.parquet")
    splits = load(dataset_name=str(tmp_path))
    assert splits["test"]["text"][:] == [row["text"] for row in ROWS]


def test_a_subset_keeps_the_labels_in_proportion_and_follows_the_seed(tmp_path: Path):
    rows = [{"text": f"film {number}", "label": int(number % 4 == 0)} for number in range(200)]
    files = write_splits(tmp_path, train=rows)
    chosen = [load(**files, max_train_samples=40, split_seed=seed)["train"] for seed in (0, 0, 1)]
    assert [len(each) for each in chosen] == [40, 40, 40]
    assert all(sum(each["label"][:]) == 10 for each in chosen)
    assert chosen[0]["text"][:] == chosen[1]["text"][:] != chosen[2]["text"][:]


def test_a_limit_above_the_number_of_texts_takes_them_all(tmp_path: Path):
    splits = load(**write_splits(tmp_path), max_train_samples=11, max_test_samples=10)
    assert [len(split) for split in splits.values()] == [10, 10]


def test_duplicates_are_counted_after_cleaning(tmp_path: Path):
    train = [*ROWS, {"text": "film<br />0", "label": 0}, {"text": "film 0", "label": 0}]
    test = [{"text": "film 0", "label": 0}, {"text": "film  0", "label": 0}, {"text": "new", "label": 1}]
    found = count_overlap(load(**write_splits(tmp_path, train, test)))
    assert found == {"train": 2, "test": 1, "both": 1}


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "film", "label": 2}, r"train.jsonl, line 3: the label is 2, not 0 \(NEGATIVE\) or 1 \(POSITIVE\)"),
        ({"text": "film", "label": True}, "line 3: the label is True"),
        ({"text": "film", "label": "pos"}, "line 3: the label is 'pos'"),
        ({"text": " <br /> ", "label": 0}, "line 3: the text is ' <br /> ', not words"),
        ({"text": 5, "label": 0}, "line 3: the text is 5, not words"),
        ({"review": "film", "label": 0}, "line 3 has 'review', 'label'; expected"),
        (["film", 0], "line 3 has list; expected"),
    ],
)
def test_a_bad_row_is_named(tmp_path: Path, row: Any, message: str):
    files = write_splits(tmp_path, train=[*ROWS[:2], row, *ROWS[2:]])
    with pytest.raises(DataError, match=message):
        load(**files)


def test_a_bad_row_of_a_text_folder_is_named_by_its_file(tmp_path: Path):
    write_folders(tmp_path)
    (tmp_path / "test" / "pos" / "1.txt").write_text("\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"test/pos/1\.txt: the text is '', not words"):
        load(dataset_name=str(tmp_path))


@pytest.mark.parametrize("split", ["train", "test"])
def test_one_label_only_is_refused_and_names_the_file(tmp_path: Path, split: str):
    positive = [row for row in ROWS if row["label"]]
    files = write_splits(tmp_path, **{split: positive})
    with pytest.raises(DataError, match=rf"{split}\.jsonl: every label is 1 \(POSITIVE\)"):
        load(**files)


def test_one_label_folder_only_is_refused(tmp_path: Path):
    write_folders(tmp_path, label_names=("neg",))
    with pytest.raises(DataError, match=r"train: every label is 0 \(NEGATIVE\)"):
        load(dataset_name=str(tmp_path))


def test_no_texts_no_json_and_no_data_set_are_refused(tmp_path: Path):
    files = write_splits(tmp_path)
    Path(files["train_file"]).write_text("", encoding="utf-8")
    with pytest.raises(DataError, match=r"train\.jsonl: no texts found"):
        load(**files)
    Path(files["train_file"]).write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match=r"train\.jsonl, line 1: not JSON"):
        load(**files)
    with pytest.raises(DataError, match="nowhere/at-all: cannot be loaded"):
        load(dataset_name="nowhere/at-all")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"train_file": "a"}, "`train_file` and `test_file` belong together"),
        ({"train_file": "a", "test_file": "b", "dataset_name": "c"}, "`dataset_name` and `train_file` are both given"),
        ({"max_train_samples": 1}, "`max_train_samples` is 1; it must be at least 2"),
    ],
)
def test_contradicting_arguments_are_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(DataError, match=message):
        LabelledTextArguments(**arguments)


def test_the_hub_is_the_default():
    assert LabelledTextArguments().dataset_name == "stanfordnlp/imdb"


@pytest.mark.slow
def test_imdb_has_the_duplicates_that_are_known_of_it(shared_data: Path):
    splits = load(dataset_name=str(shared_data / "imdb"))
    assert {split: len(data) for split, data in splits.items()} == {"train": 25_000, "test": 25_000}
    assert not any("<br" in text for text in splits["train"]["text"][:])
    # The raw texts are known to have 96 and 199; two more in each split differ only in line breaks and spaces.
    assert count_overlap(splits) == {"train": 98, "test": 201, "both": 123}
