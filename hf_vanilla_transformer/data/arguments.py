"""Arguments that select the parallel text: files or datasets, columns, splits and length limits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

from ..errors import DataError
from ..options import Length, NotNegative, Positive, Range, check_ranges, option

SPLITS = ("train", "validation", "test")

EXTENSIONS = (".tsv", ".csv", ".json", ".jsonl", ".tmx", ".parquet")

# Values of `guided_alignment` that are not file names.
AUTO, NONE = "auto", "none"

# Copies of a pair in an epoch; each copy is listed, so their number is bounded.
WEIGHTS = Range(ge=0, le=1000)

# Tokens allowed beyond `max_length_ratio`, so that short pairs such as "Hi" -> "How do you do" pass.
RATIO_SLACK = 4


def refuse_empty_strings(arguments: Any) -> None:
    """Raise a DataError for a dataclass field set to "", as from an unset shell variable."""
    for field in fields(arguments):
        if getattr(arguments, field.name) == "":
            raise DataError(f"`{field.name}` is empty; give a value or leave it out")


@dataclass
class DataArguments:
    """Where parallel text comes from, and which pairs to use; for `transformers.HfArgumentParser`.

    Each split comes from two aligned text files (`train_source_file`, `train_target_file`) or one file with both
    sides (`train_file`). Alternatively, all splits come from `dataset_name`; validation and test files then override
    its splits. `corpora` is a file that lists several corpora, in one or more directions; see `corpora.Corpus`. A TMX
    file yields its pairs in `source_lang` and `target_lang`, where en also matches en-US. In a row of any other file,
    the first rule that applies finds the pair:

    1. the columns `source_column` and `target_column`; in a TSV or CSV file, integers are positions, and the file
       has no header;
    2. the languages `source_lang` and `target_lang` inside a `translation` column;
    3. columns named after `source_lang` and `target_lang`;
    4. columns named `source` and `target`;
    5. in a TSV file whose first line matches neither 3 nor 4: columns 0 and 1, without a header. A first line that
       looks like other column names, such as `English` and `Spanish`, is an error.

    Raises:
        DataError: Arguments contradict each other, or one is empty.
    """

    corpora: str | None = option(
        None,
        "YAML or JSON list of corpora, in one or more directions; added to any corpus of the other options.",
    )
    train_source_file: str | None = option(
        None, "Source side of the training text: one sentence per line, UTF-8, plain or gzip."
    )
    train_target_file: str | None = option(
        None, "Target side of the training text; line n translates line n of the source."
    )
    validation_source_file: str | None = option(None, "Source side of the validation text.")
    validation_target_file: str | None = option(None, "Target side of the validation text.")
    test_source_file: str | None = option(None, "Source side of the test text.")
    test_target_file: str | None = option(None, "Target side of the test text.")
    train_file: str | None = option(
        None, f"Training pairs in one file: {', '.join(EXTENSIONS)}; all but the last may be .gz."
    )
    validation_file: str | None = option(None, "Validation pairs in one file.")
    test_file: str | None = option(None, "Test pairs in one file.")
    monolingual_target: list[str] | None = option(
        None,
        "Back-translation: files of target-side text, which --reverse_model translates into sources marked with a "
        "token.",
    )
    reverse_model: str | None = option(None, "Target-to-source model: a folder or a name on the Hub.")
    synthetic_dir: str | None = option(
        None, "Folder for pairs translated by a model, to share between runs (default: output_dir)."
    )
    train_weight: Annotated[float, WEIGHTS] = option(
        1.0, "How often each training pair of these options occurs in an epoch; 0: use only those of --corpora."
    )
    guided_alignment: str | None = option(
        None,
        "Train one attention head on word alignments: a file with the links of each training pair (Pharaoh: "
        "0-0 1-2), auto to compute them from the training pairs, or none, which also overrides --preset auto "
        "(default: none).",
    )
    source_column: str | None = option(
        None, "Source column: a name, or a position (0, 1, ...) in a file without a header."
    )
    target_column: str | None = option(None, "Target column, likewise.")
    feature_columns: list[str] | None = option(
        None,
        "Columns of tags beside the source, such as the grammar of a form, likewise; each tag is a token of the "
        "source. In two text files, they follow the source text, separated by tabs.",
    )
    feature_separator: str | None = option(
        None, "What separates the tags of such a column, as in V;PST;SG (default: a cell is one tag)."
    )
    source_lang: str | None = option(None, "Source language: in TMX, a key of the column 'translation', or a column.")
    target_lang: str | None = option(None, "Target language, likewise.")
    dataset_name: str | None = option(None, "Dataset on the Hub, or a local folder that datasets.load_dataset reads.")
    toy_corpus: bool = option(False, "Use the built-in English-Spanish corpus.")
    dataset_config_name: str | None = option(None, "Configuration of --dataset_name.")
    validation_split_size: float | None = option(
        None,
        "Without a validation split, hold out this many training pairs or, if below 1, this fraction of "
        "them. Pairs with the same source sentence stay together.",
    )
    test_split_size: float | None = option(None, "Likewise for the test split.")
    test_dataset_name: str | None = option(
        None,
        "Dataset on the Hub that the test pairs come from, to name it with the results on the model's page (default: "
        "--dataset_name).",
    )
    split_seed: int = option(0, "Seed for held-out splits and --max_train_samples.")
    streaming: bool = option(False, "Read pairs while training, without a copy of the corpus in memory or on disk.")
    max_train_samples: Positive | None = option(
        None, "Use a random sample of this many training pairs (with --streaming, the first)."
    )
    max_source_length: Length | None = option(256, "Maximum length of a source in tokens, including </s>.")
    max_target_length: Length | None = option(256, "Maximum length of a target in tokens, including </s>.")
    on_long: Literal["drop", "truncate"] = option(
        "drop", "Drop or truncate longer training pairs; longer evaluation pairs are always truncated."
    )
    max_length_ratio: Annotated[float, Range(ge=1)] | None = option(
        9.0, f"Drop training pairs with one side longer than this many times the other plus {RATIO_SLACK} tokens."
    )
    drop_repeated: bool | None = option(
        None,
        "Train on each pair of a corpus once, however often it occurs (default: no, unless --preset auto chooses).",
    )
    preprocessing_num_workers: NotNegative | None = option(None, "Number of processes for tokenization.")
    cache_dir: str | None = option(None, "Cache folder of the datasets library.")

    def __post_init__(self) -> None:
        refuse_empty_strings(self)
        check_ranges(self, DataError)
        self._check_both_given("source_column", "target_column")
        self._check_both_given("source_lang", "target_lang")
        self._check_features()
        for split in SPLITS:
            self._check_both_given(f"{split}_source_file", f"{split}_target_file")
            _check_at_most_one(self._given(f"{split}_file", f"{split}_source_file"))
        training_files = ["a training file"] if self.files("train") else []
        _check_at_most_one([*self._given("dataset_name", "toy_corpus"), *training_files])
        if self.toy_corpus and self.streaming:
            raise DataError("`toy_corpus` cannot be streamed; leave `streaming` out")
        if self.drop_repeated and self.streaming:
            raise DataError("`drop_repeated` needs all pairs in memory; leave it or `streaming` out")
        if self.links and self.streaming:
            raise DataError("`guided_alignment` needs all pairs in memory; leave it or `streaming` out")
        for split in SPLITS[1:]:
            self._check_split_size(split)
        self._check_corpora()

    def files(self, split: str) -> tuple[str, ...]:
        """Return the files of a split: source and target, one file with both sides, or none."""
        names = (f"{split}_source_file", f"{split}_target_file", f"{split}_file")
        return tuple(path for path in (getattr(self, name) for name in names) if path)

    @property
    def names_data(self) -> bool:
        """Whether any text is selected."""
        return bool(self.corpora or self.dataset_name or self.toy_corpus or any(map(self.files, SPLITS)))

    @property
    def links(self) -> str | None:
        """File of word alignments, or `auto`; None if no head is guided."""
        return None if self.guided_alignment == NONE else self.guided_alignment

    @property
    def description(self) -> str:
        """Short human-readable name of the training data, without folders."""
        if self.toy_corpus:
            return "the built-in English-Spanish corpus"
        files = self.files("train") or filter(None, [self.corpora])
        return self.dataset_name or ", ".join(Path(file).name for file in files)

    @property
    def test_dataset(self) -> str | None:
        """Hub name of the dataset that the test pairs come from; None if there is none or it is unknown."""
        if self.test_dataset_name or self.test_split_size or self.files("test"):
            return self.test_dataset_name
        return self.dataset_name if self.dataset_name and not Path(self.dataset_name).exists() else None

    def _given(self, *names: str) -> list[str]:
        return [f"`{name}`" for name in names if getattr(self, name)]

    def _check_both_given(self, one: str, other: str) -> None:
        for name, missing in ((one, other), (other, one)):
            if getattr(self, name) is not None and getattr(self, missing) is None:
                raise DataError(f"`{name}` is given without `{missing}`; give both or neither")

    def _check_features(self) -> None:
        if isinstance(self.feature_columns, str):
            self.feature_columns = self.feature_columns.split()
        if not self.feature_columns and self.feature_separator is not None:
            raise DataError("`feature_separator` is given without `feature_columns`; give both or neither")
        if self.feature_separator is not None and not self.feature_separator.strip(" "):
            raise DataError(f"`feature_separator` is {self.feature_separator!r}; tags are stripped, so set a mark")
        for name in ("toy_corpus", "monolingual_target") if self.feature_columns else ():
            if getattr(self, name):
                raise DataError(f"`{name}` has no `feature_columns`; leave one of them out")

    def _check_corpora(self) -> None:
        self._check_both_given("monolingual_target", "reverse_model")
        if self.monolingual_target and self.streaming:
            raise DataError("`monolingual_target` is translated in memory; leave it or `streaming` out")
        if (self.corpora or self.monolingual_target) and self.links not in (None, AUTO):
            raise DataError(f"`guided_alignment` {self.guided_alignment} has no links for other corpora; set `auto`")

    def _check_split_size(self, split: str) -> None:
        name = f"{split}_split_size"
        size = getattr(self, name)
        if size is None:
            return
        if self.files(split):
            raise DataError(f"`{name}` and a {split} file are both given; keep one of them")
        if not (0 < size < 1 or (size >= 1 and float(size).is_integer())):
            raise DataError(f"`{name}` {size:g} is neither a fraction below 1 nor a number of pairs")


def _check_at_most_one(names: Iterable[str]) -> None:
    names = list(names)
    if len(names) > 1:
        raise DataError(f"{' and '.join(names)} are both given; keep one of them")
