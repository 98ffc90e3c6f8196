"""Texts with a label each: reviews that are NEGATIVE (0) or POSITIVE (1), read, cleaned, checked and counted.

What is wrong with the data is a `DataError`: one line that names the file and the row, and what would help.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
from datasets.exceptions import DatasetsError

from hf_vanilla_transformer.errors import DataError, one_line
from hf_vanilla_transformer.files import read_json_records, read_lines

LABELS = ("NEGATIVE", "POSITIVE")

# Folders of the original archive of IMDb, aclImdb/train/neg and so on, by label.
LABEL_FOLDERS = ("neg", "pos")

SPLITS = ("train", "test")

_FEATURES = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(LABELS))})
_LINE_BREAK = re.compile(r"<\s*/?\s*br\s*/?\s*>", re.IGNORECASE)


@dataclass
class LabelledTextArguments:
    """Where the texts are and how many are used; for `transformers.HfArgumentParser`.

    Raises:
        DataError: The arguments contradict each other, or a number is too small.
    """

    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": "A data set on the Hub (stanfordnlp/imdb, the default), or a folder with train.jsonl and "
            "test.jsonl, or with the text files train/neg/*.txt, train/pos/*.txt, test/..., or one that "
            "datasets.load_dataset reads."
        },
    )
    train_file: str | None = field(
        default=None,
        metadata={"help": 'Training texts as JSON lines {"text": "...", "label": 0 or 1}; may be gzip.'},
    )
    test_file: str | None = field(default=None, metadata={"help": "Test texts, likewise."})
    max_train_samples: int | None = field(
        default=None,
        metadata={"help": "Use this many training texts, chosen by a seed, labels in proportion."},
    )
    max_test_samples: int | None = field(default=None, metadata={"help": "The same for the test texts."})
    split_seed: int = field(default=0, metadata={"help": "Seed of these choices."})

    def __post_init__(self) -> None:
        """Refuse arguments that contradict each other before any file is opened."""
        if bool(self.train_file) != bool(self.test_file):
            raise DataError("--train_file and --test_file belong together; give both or none")
        if self.dataset_name and self.train_file:
            raise DataError("--dataset_name and --train_file are both given; keep one of them")
        if not self.train_file:
            self.dataset_name = self.dataset_name or "stanfordnlp/imdb"
        for split in SPLITS:
            limit = getattr(self, f"max_{split}_samples")
            if limit is not None and limit < len(LABELS):
                raise DataError(f"--max_{split}_samples {limit} leaves a label out; set at least {len(LABELS)}")


@dataclass(frozen=True)
class Overlap:
    """How many texts of a data set occur more than once.

    Attributes:
        train: Training texts that repeat an earlier one of theirs.
        test: Test texts that repeat an earlier one of theirs.
        both: Different texts that occur in both.
    """

    train: int
    test: int
    both: int

    def __str__(self) -> str:
        """Return a line for people."""
        return f"{self.train} repeated in train, {self.test} repeated in test, {self.both} texts in both"


def load_labelled_text(arguments: LabelledTextArguments) -> datasets.DatasetDict:
    """Return `train` and `test` with the columns `text` (cleaned) and `label` (0 NEGATIVE, 1 POSITIVE).

    Raises:
        DataError: A file cannot be read, a text is empty, a label is neither 0 nor 1, or a split has one label only;
            names the file and the row.
    """
    splits = {}
    for split in SPLITS:
        rows, place = _rows(arguments, split)
        texts, labels = [], []
        for where, row in rows:
            texts.append(_text(row, where))
            labels.append(_label(row, where))
        _check_labels(labels, place)
        dataset = datasets.Dataset.from_dict({"text": texts, "label": labels}, features=_FEATURES)
        splits[split] = _subset(dataset, getattr(arguments, f"max_{split}_samples"), arguments.split_seed)
    return datasets.DatasetDict(splits)


def clean(text: str) -> str:
    """Return a text without the line breaks of HTML, and with single spaces."""
    return " ".join(_LINE_BREAK.sub(" ", text).split())


def count_overlap(splits: datasets.DatasetDict) -> Overlap:
    """Count the texts that occur more than once."""
    counts = {split: Counter(splits[split]["text"][:]) for split in SPLITS}
    repeated = {split: counts[split].total() - len(counts[split]) for split in SPLITS}
    return Overlap(repeated["train"], repeated["test"], len(counts["train"].keys() & counts["test"].keys()))


def _rows(arguments: LabelledTextArguments, split: str) -> tuple[Iterator[tuple[str, Any]], str]:
    """Return the rows of a split, each with where it stands, and the place of them all."""
    if file := getattr(arguments, f"{split}_file"):
        return read_json_records(file), file
    folder = Path(str(arguments.dataset_name))
    for suffix in ("jsonl", "json", "jsonl.gz", "json.gz"):
        file = folder / f"{split}.{suffix}"
        if file.is_file():
            return read_json_records(file), str(file)
    if (folder / split).is_dir() and any((folder / split / name).is_dir() for name in LABEL_FOLDERS):
        return _folder_rows(folder / split), str(folder / split)
    return _named_rows(str(arguments.dataset_name), split), f"{arguments.dataset_name}, {split}"


def _folder_rows(folder: Path) -> Iterator[tuple[str, Any]]:
    """Read the text files of a split, label by label, in the order of their names."""
    for label, name in enumerate(LABEL_FOLDERS):
        for file in sorted((folder / name).glob("*.txt")):
            yield str(file), {"text": "\n".join(read_lines(file)), "label": label}


def _named_rows(name: str, split: str) -> Iterator[tuple[str, Any]]:
    try:
        dataset = datasets.load_dataset(name, split=split)
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(f"{name}: cannot be loaded ({one_line(error)}); check --dataset_name") from error
    for number, row in enumerate(dataset, start=1):
        yield f"{name}, {split}, row {number}", row


def _text(row: Any, where: str) -> str:
    """Return the cleaned text of a row, or raise a DataError."""
    text = _field(row, "text", where)
    if not isinstance(text, str):
        raise DataError(f"{where}: the text is {type(text).__name__}, not a string; repair or remove the row")
    cleaned = clean(text)
    if not cleaned:
        raise DataError(f"{where}: the text is empty; repair or remove the row")
    return cleaned


def _label(row: Any, where: str) -> int:
    label = _field(row, "label", where)
    # True and 1.0 equal 1, but a file that holds them is not what it seems.
    if type(label) is not int or not 0 <= label < len(LABELS):
        meaning = " or ".join(f"{number} ({name})" for number, name in enumerate(LABELS))
        raise DataError(f"{where}: the label is {label!r}, not {meaning}; repair or remove the row")
    return label


def _field(row: Any, name: str, where: str) -> Any:
    if not isinstance(row, dict) or name not in row:
        found = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
        raise DataError(f'{where}: no field {name!r}, but {found}; write {{"text": "...", "label": 0 or 1}}')
    return row[name]


def _check_labels(labels: list[int], place: str) -> None:
    if not labels:
        raise DataError(f"{place}: no texts in it; check the path")
    if len(present := set(labels)) < len(LABELS):
        (label,) = present
        raise DataError(f"{place}: every label is {label} ({LABELS[label]}); texts of both labels are needed")


def _subset(dataset: datasets.Dataset, limit: int | None, seed: int) -> datasets.Dataset:
    """Return `limit` texts with the labels in proportion, the same ones for the same seed."""
    if limit is None or limit >= len(dataset):
        return dataset
    try:
        return dataset.train_test_split(train_size=limit, seed=seed, stratify_by_column="label")["train"]
    except ValueError as error:
        raise DataError(f"{limit} of {len(dataset)} texts cannot keep the labels in proportion ({error})") from error


__all__ = ["LABELS", "LabelledTextArguments", "Overlap", "clean", "count_overlap", "load_labelled_text"]
