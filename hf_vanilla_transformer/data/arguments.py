"""Arguments that say where the parallel text is and which of its pairs are used."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from ..errors import DataError

SPLITS = ("train", "validation", "test")
EXTENSIONS = (".tsv", ".csv", ".json", ".jsonl", ".parquet")

# Added to what `max_length_ratio` allows, in tokens, so that "Hi" -> "How do you do" is no error of alignment.
RATIO_SLACK = 4


def refuse_empty_strings(arguments: Any) -> None:
    """Raise a DataError for an argument that is "", as an unset variable of a shell gives, and not ignore it."""
    for each in fields(arguments):
        if getattr(arguments, each.name) == "":
            raise DataError(f"--{each.name} is empty; give a value or leave it out")


@dataclass
class DataArguments:
    """Where the parallel text is and which pairs of it are used; for `transformers.HfArgumentParser`.

    Each split comes from two aligned text files (`train_source_file`, `train_target_file`), from one file with both
    sides (`train_file`), or all splits come from `dataset_name`; validation and test files may stand beside a
    `dataset_name` and then replace its splits. The pair in a row is found by the first of these that applies:

    1. the columns named by `source_column` and `target_column`; in a TSV or CSV file whole numbers mean positions,
       and then the file has no header line;
    2. the languages `source_lang` and `target_lang` inside a `translation` column;
    3. columns named like `source_lang` and `target_lang`;
    4. columns named `source` and `target`;
    5. in a TSV file whose first line holds neither 3 nor 4: columns 0 and 1, and that line is a pair already; it is
       refused if it reads like other names of columns, such as `English` and `Spanish`.

    Raises:
        DataError: The arguments contradict each other, or one is empty.
    """

    train_source_file: str | None = field(
        default=None, metadata={"help": "Training text of the source side, one sentence a line, UTF-8, may be gzip."}
    )
    train_target_file: str | None = field(
        default=None, metadata={"help": "Training text of the target side; line n translates line n of the source."}
    )
    validation_source_file: str | None = field(default=None, metadata={"help": "Validation text of the source side."})
    validation_target_file: str | None = field(default=None, metadata={"help": "Validation text of the target side."})
    test_source_file: str | None = field(default=None, metadata={"help": "Test text of the source side."})
    test_target_file: str | None = field(default=None, metadata={"help": "Test text of the target side."})
    train_file: str | None = field(
        default=None, metadata={"help": f"Training pairs in one file: {', '.join(EXTENSIONS)}; text may end in .gz."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "Validation pairs in one file."})
    test_file: str | None = field(default=None, metadata={"help": "Test pairs in one file."})
    source_column: str | None = field(
        default=None, metadata={"help": "Column of the source side: a name, or a position (0, 1, ...) if no header."}
    )
    target_column: str | None = field(default=None, metadata={"help": "Column of the target side, likewise."})
    source_lang: str | None = field(
        default=None, metadata={"help": "Language of the source side, the key inside a 'translation' column."}
    )
    target_lang: str | None = field(default=None, metadata={"help": "Language of the target side, likewise."})
    dataset_name: str | None = field(
        default=None, metadata={"help": "A data set on the Hub, or a local folder that datasets.load_dataset reads."}
    )
    toy_corpus: bool = field(
        default=False, metadata={"help": "Use the built-in English-Spanish corpus, generated from a small grammar."}
    )
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of --dataset_name."})
    validation_split_size: float | None = field(
        default=None,
        metadata={
            "help": "Where no validation split exists, cut it off the training pairs: a fraction below 1 or a number "
            "of pairs. Pairs with the same source sentence stay together."
        },
    )
    test_split_size: float | None = field(default=None, metadata={"help": "The same for the test split."})
    split_seed: int = field(
        default=0, metadata={"help": "Seed of the split and of the choice made by --max_train_samples."}
    )
    streaming: bool = field(
        default=False, metadata={"help": "Read pairs while training and never hold the corpus in memory or on disk."}
    )
    max_train_samples: int | None = field(
        default=None,
        metadata={"help": "Use this many training pairs, chosen at random (the first ones with --streaming)."},
    )
    max_source_length: int | None = field(
        default=256, metadata={"help": "Longest source side in tokens, </s> included."}
    )
    max_target_length: int | None = field(
        default=256, metadata={"help": "Longest target side in tokens, </s> included."}
    )
    on_long: Literal["drop", "truncate"] = field(
        default="drop",
        metadata={"help": "Longer training pairs are dropped or cut; those for evaluation are kept whole or cut."},
    )
    max_length_ratio: float | None = field(
        default=9.0,
        metadata={"help": f"Drop training pairs with one side this many times (and {RATIO_SLACK} tokens) longer."},
    )
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Processes that tokenize."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where datasets keeps the pairs it has read."})

    def __post_init__(self) -> None:
        """Refuse arguments that contradict each other before any file is opened."""
        refuse_empty_strings(self)
        for one, other in (("source_column", "target_column"), ("source_lang", "target_lang")):
            self._need_both(one, other)
        for split in SPLITS:
            self._need_both(f"{split}_source_file", f"{split}_target_file")
            if getattr(self, f"{split}_file") and getattr(self, f"{split}_source_file"):
                raise DataError(f"--{split}_file and --{split}_source_file are both given; keep one of them")
        given = [name for name in ("dataset_name", "toy_corpus") if getattr(self, name)]
        given += ["a training file"] if self.files("train") else []
        if len(given) > 1:
            given = [name if " " in name else f"--{name}" for name in given]
            raise DataError(f"{' and '.join(given)} are both given; keep one of them")
        if self.toy_corpus and self.streaming:
            raise DataError("--toy_corpus is generated in memory, so --streaming has nothing to read; leave it out")
        for split in SPLITS[1:]:
            size = getattr(self, f"{split}_split_size")
            if size is not None and self.files(split):
                raise DataError(f"--{split}_split_size and a {split} file are both given; keep one of them")
            if size is not None and not (0 < size < 1 or (size >= 1 and size == int(size))):
                raise DataError(f"--{split}_split_size {size:g} is neither a fraction below 1 nor a number of pairs")
        if self.max_train_samples is not None and self.max_train_samples < 1:
            raise DataError(f"--max_train_samples {self.max_train_samples} leaves no pairs; set at least 1")

    def files(self, split: str) -> tuple[str, ...]:
        """Return the files of a split: source and target, one file with both, or none."""
        names = (f"{split}_source_file", f"{split}_target_file", f"{split}_file")
        return tuple(path for path in (getattr(self, name) for name in names) if path)

    @property
    def description(self) -> str:
        """Where the training pairs come from, for people: no folder names."""
        if self.toy_corpus:
            return "the built-in English-Spanish corpus"
        return self.dataset_name or ", ".join(Path(file).name for file in self.files("train"))

    def _need_both(self, one: str, other: str) -> None:
        given = [name for name in (one, other) if getattr(self, name) is not None]
        if len(given) == 1:
            raise DataError(f"--{given[0]} is given without --{other if given[0] == one else one}; give both or none")


__all__ = ["EXTENSIONS", "RATIO_SLACK", "SPLITS", "DataArguments", "refuse_empty_strings"]
