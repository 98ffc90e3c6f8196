"""Read, clean, check and count labelled texts, such as reviews that are NEGATIVE (0) or POSITIVE (1).

Invalid data raises a one-line `DataError` with the file, the row, and the remedy.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import datasets
from datasets.exceptions import DatasetsError

from hf_vanilla_transformer.errors import DataError, one_line
from hf_vanilla_transformer.files import read_json_records, read_lines
from hf_vanilla_transformer.options import Range, check_ranges, option

LABELS = ("NEGATIVE", "POSITIVE")

# Folders of IMDb's original archive (aclImdb/train/neg, ...) by label.
LABEL_FOLDERS = ("neg", "pos")

SPLITS = ("train", "test")

# At least one text of each label.
Samples = Annotated[int, Range(ge=len(LABELS))]

_FEATURES = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=list(LABELS))})
_LINE_BREAK = re.compile(r"<\s*/?\s*br\s*/?\s*>", re.IGNORECASE)


@dataclass
class LabelledTextArguments:
    """Where the texts are and how many to use; for `transformers.HfArgumentParser`.

    Raises:
        DataError: The arguments contradict each other, or a number is too small.
    """

    dataset_name: str | None = option(
        None,
        "Data set on the Hub (default: stanfordnlp/imdb), or a folder with train.jsonl and test.jsonl, with text "
        "files train/neg/*.txt, train/pos/*.txt, test/..., or with anything that datasets.load_dataset reads.",
    )
    train_file: str | None = option(
        None, 'Training texts as JSON lines {"text": "...", "label": 0 or 1}, plain or gzip.'
    )
    test_file: str | None = option(None, "Test texts in the same format.")
    max_train_samples: Samples | None = option(None, "Maximum training texts, sampled in proportion to the labels.")
    max_test_samples: Samples | None = option(None, "Maximum test texts, sampled likewise.")
    split_seed: int = option(0, "Seed of the sampling.")

    def __post_init__(self) -> None:
        check_ranges(self, DataError)
        if bool(self.train_file) != bool(self.test_file):
            raise DataError("`train_file` and `test_file` belong together; give both or neither")
        if self.dataset_name and self.train_file:
            raise DataError("`dataset_name` and `train_file` are both given; keep one of them")
        if not self.train_file:
            self.dataset_name = self.dataset_name or "stanfordnlp/imdb"


def load_labelled_text(arguments: LabelledTextArguments) -> datasets.DatasetDict:
    """Load `train` and `test` with the columns `text` (cleaned) and `label` (0 NEGATIVE, 1 POSITIVE)."""
    splits = {}
    for split in SPLITS:
        rows, place = _rows(arguments, split)
        columns: dict[str, list[Any]] = {"text": [], "label": []}
        for location, row in rows:
            _check(row, location)
            columns["text"].append(clean(row["text"]))
            columns["label"].append(row["label"])
        if not columns["label"]:
            raise DataError(f"{place}: no texts found; check the path")
        if len(labels := set(columns["label"])) < len(LABELS):
            (label,) = labels
            raise DataError(f"{place}: every label is {label} ({LABELS[label]}); texts of both labels are needed")
        dataset = datasets.Dataset.from_dict(columns, features=_FEATURES)
        splits[split] = _subset(dataset, getattr(arguments, f"max_{split}_samples"), arguments.split_seed)
    return datasets.DatasetDict(splits)


def clean(text: str) -> str:
    """Replace HTML line breaks and runs of white space with single spaces."""
    return " ".join(_LINE_BREAK.sub(" ", text).split())


def count_overlap(splits: datasets.DatasetDict) -> dict[str, int]:
    """Count the repeated texts in each split, and, as "both", the distinct texts that occur in both splits."""
    counts = {split: Counter(splits[split]["text"][:]) for split in SPLITS}
    repeated = {split: texts.total() - len(texts) for split, texts in counts.items()}
    return {**repeated, "both": len(counts["train"].keys() & counts["test"].keys())}


def _rows(arguments: LabelledTextArguments, split: str) -> tuple[Iterator[tuple[str, Any]], str]:
    """Return the rows of a split, each with its location for messages, and the split's own location."""
    folder = Path(str(arguments.dataset_name))
    files = [folder / f"{split}.{suffix}" for suffix in ("jsonl", "json", "jsonl.gz", "json.gz")]
    named = getattr(arguments, f"{split}_file")
    for file in [named] if named else filter(Path.is_file, files):
        return read_json_records(file), str(file)
    if any((folder / split / name).is_dir() for name in LABEL_FOLDERS):
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


def _check(row: Any, location: str) -> None:
    if not isinstance(row, dict) or not {"text", "label"} <= row.keys():
        shown = ", ".join(map(repr, row)) if isinstance(row, dict) else type(row).__name__
        raise DataError(f'{location} has {shown}; expected {{"text": "...", "label": 0 or 1}}')
    if not isinstance(row["text"], str) or not clean(row["text"]):
        raise DataError(f"{location}: the text is {row['text']!r:.100}, not words; correct or remove the row")
    # True and 1.0 equal 1, but would mean another format.
    if type(row["label"]) is not int or not 0 <= row["label"] < len(LABELS):
        meaning = " or ".join(f"{number} ({name})" for number, name in enumerate(LABELS))
        raise DataError(f"{location}: the label is {row['label']!r}, not {meaning}; correct or remove the row")


def _subset(dataset: datasets.Dataset, limit: int | None, seed: int) -> datasets.Dataset:
    """Sample `limit` texts in proportion to the labels, reproducibly for a seed."""
    if limit is None or limit >= len(dataset):
        return dataset
    try:
        return dataset.train_test_split(train_size=limit, seed=seed, stratify_by_column="label")["train"]
    except ValueError as error:
        raise DataError(f"cannot sample {limit} of {len(dataset)} texts in proportion to labels ({error})") from error
