"""Labelled texts, such as reviews that are NEGATIVE (0) or POSITIVE (1): read, cleaned, checked and counted.

Faulty data raises a `DataError` of one line with the file, the row, and what to do.
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

# Folders of IMDb's original archive (aclImdb/train/neg, ...) by label.
LABEL_FOLDERS = ("neg", "pos")

SPLITS = ("train", "test")

_FEATURES = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(LABELS))})
_LINE_BREAK = re.compile(r"<\s*/?\s*br\s*/?\s*>", re.IGNORECASE)


@dataclass
class LabelledTextArguments:
    """Where the texts are and how many to use; for `transformers.HfArgumentParser`.

    Raises:
        DataError: The arguments contradict each other, or a number is too small.
    """

    dataset_name: str | None = field(
        default=None,
        metadata={
            "help": "Data set on the Hub (stanfordnlp/imdb by default), or a folder with train.jsonl and test.jsonl, "
            "with text files train/neg/*.txt, train/pos/*.txt, test/..., or one that datasets.load_dataset reads."
        },
    )
    train_file: str | None = field(
        default=None,
        metadata={"help": 'Training texts as JSON lines {"text": "...", "label": 0 or 1}, plain or gzip.'},
    )
    test_file: str | None = field(default=None, metadata={"help": "Test texts in the same format."})
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Maximum training texts, sampled with the labels in proportion."}
    )
    max_test_samples: int | None = field(
        default=None, metadata={"help": "Maximum test texts, sampled with the labels in proportion."}
    )
    split_seed: int = field(default=0, metadata={"help": "Seed of the sampling."})

    def __post_init__(self) -> None:
        if bool(self.train_file) != bool(self.test_file):
            raise DataError("`train_file` and `test_file` belong together; give both or neither")
        if self.dataset_name and self.train_file:
            raise DataError("`dataset_name` and `train_file` are both given; keep one of them")
        if not self.train_file:
            self.dataset_name = self.dataset_name or "stanfordnlp/imdb"
        for split in SPLITS:
            limit = getattr(self, f"max_{split}_samples")
            if limit is not None and limit < len(LABELS):
                raise DataError(f"`max_{split}_samples` {limit} leaves a label out; set at least {len(LABELS)}")


@dataclass(frozen=True)
class Overlap:
    """Numbers of repeated texts in a data set.

    Attributes:
        train: Training texts equal to an earlier training text.
        test: Test texts equal to an earlier test text.
        both: Distinct texts that occur in both splits.
    """

    train: int
    test: int
    both: int

    def __str__(self) -> str:
        return f"{self.train} repeated in train, {self.test} repeated in test, {self.both} texts in both"


def load_labelled_text(arguments: LabelledTextArguments) -> datasets.DatasetDict:
    """Load `train` and `test` with the columns `text` (cleaned) and `label` (0 NEGATIVE, 1 POSITIVE).

    Raises:
        DataError: A file cannot be read, a text is empty, a label is neither 0 nor 1, or a split has only one label;
            names the file and the row.
    """
    splits = {}
    for split in SPLITS:
        rows, split_location = _rows(arguments, split)
        texts, labels = [], []
        for location, row in rows:
            texts.append(_text(row, location))
            labels.append(_label(row, location))
        _check_labels(labels, split_location)
        dataset = datasets.Dataset.from_dict({"text": texts, "label": labels}, features=_FEATURES)
        splits[split] = _subset(dataset, getattr(arguments, f"max_{split}_samples"), arguments.split_seed)
    return datasets.DatasetDict(splits)


def clean(text: str) -> str:
    """Replace HTML line breaks and runs of white space by single spaces."""
    return " ".join(_LINE_BREAK.sub(" ", text).split())


def count_overlap(splits: datasets.DatasetDict) -> Overlap:
    """Count repeated texts within and across the splits."""
    counts = {split: Counter(splits[split]["text"][:]) for split in SPLITS}
    repeated = {split: counts[split].total() - len(counts[split]) for split in SPLITS}
    return Overlap(repeated["train"], repeated["test"], len(counts["train"].keys() & counts["test"].keys()))


def _rows(arguments: LabelledTextArguments, split: str) -> tuple[Iterator[tuple[str, Any]], str]:
    """Return the rows of a split, each with its location for messages, and the location of the split."""
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
    """Read the text files of a split, sorted by label and name."""
    for label, name in enumerate(LABEL_FOLDERS):
        for file in sorted((folder / name).glob("*.txt")):
            yield str(file), {"text": "\n".join(read_lines(file)), "label": label}


def _named_rows(name: str, split: str) -> Iterator[tuple[str, Any]]:
    try:
        dataset = datasets.load_dataset(name, split=split)
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(f"{name}: cannot be loaded ({one_line(error)}); check `dataset_name`") from error
    for number, row in enumerate(dataset, start=1):
        yield f"{name}, {split}, row {number}", row


def _text(row: Any, location: str) -> str:
    text = _field(row, "text", location)
    if not isinstance(text, str):
        raise DataError(f"{location}: the text is {type(text).__name__}, not a string; correct or remove the row")
    cleaned = clean(text)
    if not cleaned:
        raise DataError(f"{location}: the text is empty; correct or remove the row")
    return cleaned


def _label(row: Any, location: str) -> int:
    label = _field(row, "label", location)
    # True and 1.0 equal 1, but a file with them has another format.
    if type(label) is not int or not 0 <= label < len(LABELS):
        meaning = " or ".join(f"{number} ({name})" for number, name in enumerate(LABELS))
        raise DataError(f"{location}: the label is {label!r}, not {meaning}; correct or remove the row")
    return label


def _field(row: Any, name: str, location: str) -> Any:
    if not isinstance(row, dict) or name not in row:
        found = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
        raise DataError(f'{location}: no field {name!r}, but {found}; write {{"text": "...", "label": 0 or 1}}')
    return row[name]


def _check_labels(labels: list[int], location: str) -> None:
    if not labels:
        raise DataError(f"{location}: no texts in it; check the path")
    if len(present := set(labels)) < len(LABELS):
        (label,) = present
        raise DataError(f"{location}: every label is {label} ({LABELS[label]}); texts of both labels are needed")


def _subset(dataset: datasets.Dataset, limit: int | None, seed: int) -> datasets.Dataset:
    """Sample `limit` texts with the labels in proportion, the same ones for the same seed."""
    if limit is None or limit >= len(dataset):
        return dataset
    try:
        return dataset.train_test_split(train_size=limit, seed=seed, stratify_by_column="label")["train"]
    except ValueError as error:
        raise DataError(f"{limit} of {len(dataset)} texts cannot keep the labels in proportion ({error})") from error


__all__ = ["LABELS", "LabelledTextArguments", "Overlap", "clean", "count_overlap", "load_labelled_text"]
