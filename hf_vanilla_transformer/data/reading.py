"""Parallel text to token ids.

The way of a sentence pair: `load_parallel_text` reads files or a `datasets` name into rows of two strings, `source`
and `target`; `tokenize_pairs` turns them into `input_ids` and `labels`, which `batching` then groups into batches.

What is wrong with the data is a `DataError`: one line that names the file, line or field, and what would help.
"""

from __future__ import annotations

import csv
import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from itertools import chain, islice
from pathlib import Path
from typing import Any, Literal, cast

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from datasets.exceptions import DatasetGenerationError, DatasetsError
from datasets.fingerprint import Hasher
from transformers import PreTrainedTokenizerBase
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE
from transformers.utils import logging

from ..errors import DataError
from ..files import json_rows, opened, read_lines
from .toy_corpus.corpus import load_toy_corpus

logger = logging.get_logger(__name__)

SPLITS = ("train", "validation", "test")
EXTENSIONS = (".tsv", ".csv", ".json", ".jsonl", ".parquet")

# Words by which a header is told from a pair: roles, languages and their codes, and locales such as pt-br or eng_Latn.
_ROLES = frozenset(
    "column id input lang language output reference sent sentence source src target text tgt translation trg".split()
)
_LANGUAGES = frozenset(chain(*TO_LANGUAGE_CODE.items(), (code.split("_")[0] for code in FAIRSEQ_LANGUAGE_CODES)))
_LOCALE = re.compile(r"[a-z]{2,3}[-_]([a-z]{2}|[a-z]{4})")

# Added to what `max_length_ratio` allows, in tokens, so that "Hi" -> "How do you do" is no error of alignment.
RATIO_SLACK = 4

_TEXT = datasets.Features({"source": datasets.Value("string"), "target": datasets.Value("string")})
_IDS = datasets.List(datasets.Value("int32"))

# Names other than ours that data sets give to their splits.
_SPLIT_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}


def _code_in(package: Path) -> str:
    """Hash what turns files into ids; the caches of `datasets`, which do not look into modules, depend on it."""
    modules = ("data/reading.py", "files.py", "model/tokenization_vanilla_transformer.py")
    return Hasher.hash([Path(package, module).read_bytes() for module in modules])


_CODE = _code_in(Path(__file__).parents[1])


def refuse_empty(arguments: Any) -> None:
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
        refuse_empty(self)
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


# Files


def _count_lines(path: str) -> int:
    count, last = 0, b"\n"
    with opened(path) as file:
        while block := file.read(1 << 20):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def _tsv_cells(path: str) -> Iterator[tuple[int, list[str]]]:
    """Read tab-separated cells without quoting: sentences hold quotes of their own."""
    for number, line in enumerate(read_lines(path), start=1):
        yield number, line.split("\t") if line else []


def _csv_cells(path: str) -> Iterator[tuple[int, list[str]]]:
    """Read comma-separated cells with the quoting of spreadsheets."""
    reader = csv.reader((line + "\n" for line in read_lines(path)), strict=True)
    try:
        for cells in reader:
            yield reader.line_num, cells
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: not CSV ({error}); mend the quotes of the field") from None


def _table_rows(path: str, suffix: str, arguments: DataArguments) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read a TSV or CSV file by the names of its columns, which are "0", "1", ... without a header."""
    header: list[str] | None = None
    for number, cells in _tsv_cells(path) if suffix == ".tsv" else _csv_cells(path):
        if not cells:
            continue
        if header is None:
            if _is_header(cells, suffix, arguments):
                header = cells
                continue
            if arguments.source_column is None and _reads_like_header(cells):
                raise DataError(
                    f"{path}, line {number}: {cells[0]!r} and {cells[1]!r} read like names of columns; give them as "
                    "--source_column and --target_column, or 0 and 1 if this line is a pair"
                )
            header = [str(position) for position in range(len(cells))]
        yield f"{path}, line {number}", dict(zip(header, cells, strict=False))


def _is_header(cells: list[str], suffix: str, arguments: DataArguments) -> bool:
    if arguments.source_column is not None and arguments.target_column is not None:
        return not (arguments.source_column.isdecimal() and arguments.target_column.isdecimal())
    named = {"source", "target"} <= set(cells) or {arguments.source_lang, arguments.target_lang} <= set(cells)
    return named or suffix == ".csv"


def _reads_like_header(cells: list[str]) -> bool:
    """Whether the first two cells differ and each names a language, a locale or a role such as `source text`."""

    def is_name(cell: str) -> bool:
        # As in `sentence1` and `sentence2`.
        words = re.split(r"[\s_-]+", cell.rstrip("12"))
        languages = [word for word in words if word not in _ROLES]
        return bool(_LOCALE.fullmatch(cell)) or not languages or (len(languages) == 1 and languages[0] in _LANGUAGES)

    sides = {cell.strip().lower() for cell in cells[:2]}
    return len(sides) == 2 and all(map(is_name, sides))


def _parquet_rows(path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        with pq.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
            for number, row in enumerate(rows, start=1):
                yield f"{path}, row {number}", row
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable Parquet file ({_first_line(error)}); check the path") from error


def _pairs(files: tuple[str, ...], arguments: DataArguments) -> Iterator[dict[str, str]]:
    """Yield the pairs of a split's files as `{"source": str, "target": str}`."""
    if len(files) == 2:
        for source, target in zip(*map(read_lines, files), strict=True):
            yield {"source": source, "target": target}
        return
    rows: Iterator[tuple[str, Any]]
    suffix = Path(files[0].removesuffix(".gz")).suffix.lower()
    if suffix in (".tsv", ".csv"):
        rows = _table_rows(files[0], suffix, arguments)
    elif suffix in (".json", ".jsonl"):
        rows = json_rows(files[0], arguments.streaming)
    else:
        rows = _parquet_rows(files[0])
    columns = None
    for where, row in rows:
        columns = columns or _Columns.find(row, arguments, where)
        yield columns.pair(row, where)
    if columns is None:
        raise DataError(f"{files[0]}: no pairs in it; check the path")


@dataclass(frozen=True)
class _Columns:
    """Which fields of a row hold the pair; the rule is in the docstring of `DataArguments`."""

    source: str
    target: str
    translation: bool = False
    # For the cache of `Dataset.map`.
    code: str = _CODE

    @classmethod
    def find(cls, row: Any, arguments: DataArguments, where: str) -> _Columns:
        """Apply the rule to the first row of a file or split."""
        if not isinstance(row, Mapping):
            raise DataError(f"{where}: {type(row).__name__} instead of an object; write one object a line")
        languages = (arguments.source_lang, arguments.target_lang)
        if arguments.source_column is None and isinstance(nested := row.get("translation"), Mapping):
            if not all(language in nested for language in languages):
                raise DataError(
                    f"{where}: 'translation' has the languages {', '.join(nested)}, not {languages[0]} and "
                    f"{languages[1]}; set --source_lang and --target_lang"
                )
            return cls(*cast(tuple[str, str], languages), translation=True)
        choices = [(arguments.source_column, arguments.target_column)]
        if arguments.source_column is None:
            choices = [languages, ("source", "target"), ("0", "1")]
        for source, target in choices:
            if source is not None and target is not None and source in row and target in row:
                return cls(source, target)
        wanted = choices[0] if arguments.source_column is not None else ("source", "target")
        missing = " or ".join(repr(name) for name in wanted if name not in row)
        raise DataError(
            f"{where}: no column {missing}; the columns are {', '.join(map(repr, row))}; set --source_column and "
            "--target_column"
        )

    def pair(self, row: Any, where: str) -> dict[str, str]:
        """Return the pair of a row, or raise a DataError that names the field that is no string."""
        cells = row.get("translation") if self.translation and isinstance(row, Mapping) else row
        if not isinstance(cells, Mapping):
            raise DataError(f"{where}: {type(cells).__name__} instead of an object; repair or remove the row")
        for name in (self.source, self.target):
            if name not in cells:
                raise DataError(f"{where}: field {name!r} is missing; repair or remove the row")
            if not isinstance(cells[name], str):
                kind = "null" if cells[name] is None else type(cells[name]).__name__
                raise DataError(f"{where}: field {name!r} is {kind}, not a string; repair or remove the row")
        return {"source": cells[self.source], "target": cells[self.target]}


def pairs_by_position(arguments: DataArguments) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and the first pair of each TSV file whose first line is taken for a pair, not for a header."""
    for files in filter(None, map(arguments.files, SPLITS)):
        name = Path(files[0]).name
        if name.lower().removesuffix(".gz").endswith(".tsv") and arguments.source_column is None and len(files) == 1:
            first = next(cells for _, cells in _tsv_cells(files[0]) if cells)
            if not _is_header(first, ".tsv", arguments):
                yield name, next(_pairs(files, arguments))


# Splits


def load_parallel_text(arguments: DataArguments) -> datasets.DatasetDict | datasets.IterableDatasetDict:
    """Load the splits that the arguments name as pairs of strings.

    Pairs with an empty side are still there; `tokenize_pairs` counts and drops them. Splits cut off the training
    pairs are chosen by a seeded hash of the source sentence, so equal sources always fall on the same side, and the
    choice depends on neither the order of the corpus nor the machine. Source sentences of a given validation or
    test split that also occur in the training pairs are counted in a logged warning.

    Args:
        arguments: Files or data set, columns, splits; see `DataArguments`.

    Returns:
        Some of `train`, `validation` and `test`, with the string columns `source` and `target`; with
        `arguments.streaming` the splits are read while they are iterated over, and faults beyond line counts and the
        first row come up only there.

    Raises:
        DataError: The data cannot be read or used; see the message.
    """
    if not (arguments.dataset_name or arguments.toy_corpus or any(map(arguments.files, SPLITS))):
        raise DataError(
            "no data is named; give --train_source_file and --train_target_file, --train_file, --dataset_name or "
            "--toy_corpus"
        )
    splits: dict[str, Any] = dict(load_toy_corpus()) if arguments.toy_corpus else {}
    if arguments.dataset_name:
        splits = _load_named(arguments)
    for split in SPLITS:
        if files := arguments.files(split):
            splits[split] = _load_files(files, arguments)
    if not arguments.streaming:
        _report_overlap(splits)
    _hold_out(splits, arguments)
    limit = arguments.max_train_samples
    if limit is not None and "train" in splits:
        train = splits["train"]
        if arguments.streaming:
            splits["train"] = train.take(limit)
        elif limit < len(train):
            chosen = np.random.default_rng(arguments.split_seed).choice(len(train), limit, replace=False)
            splits["train"] = train.select(np.sort(chosen))
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    return datasets.IterableDatasetDict(ordered) if arguments.streaming else datasets.DatasetDict(ordered)


def _load_files(files: tuple[str, ...], arguments: DataArguments) -> datasets.Dataset | datasets.IterableDataset:
    _check_files(files)
    options: dict[str, Any] = {"features": _TEXT, "gen_kwargs": {"files": files, "arguments": arguments}}
    if arguments.streaming:
        stream = datasets.IterableDataset.from_generator(_pairs, **options)
        next(iter(stream))
        return stream
    # The cache of `datasets` must not outlive a change of the files, of what is read from them, or of the reader; it
    # does not depend on the split, so that a file may serve as another one later.
    stats = [(os.path.abspath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in files]
    columns = (arguments.source_column, arguments.target_column, arguments.source_lang, arguments.target_lang)
    fingerprint = Hasher.hash((_CODE, stats, columns))
    try:
        return datasets.Dataset.from_generator(
            _pairs, **options, cache_dir=arguments.cache_dir, fingerprint=fingerprint
        )
    except DatasetGenerationError as error:
        raise (error.__cause__ if isinstance(error.__cause__, DataError) else error) from None


def _check_files(files: tuple[str, ...]) -> None:
    """Raise what can be known of a split's files before their text is read."""
    if len(files) == 1:
        suffix = Path(files[0].removesuffix(".gz")).suffix.lower()
        if suffix not in EXTENSIONS or (suffix == ".parquet" and files[0].endswith(".gz")):
            raise DataError(
                f"{files[0]}: unknown extension; name the file {', '.join(EXTENSIONS)} (all but the last may be .gz), "
                "or give plain text as two files"
            )
        if not os.path.isfile(files[0]):
            raise DataError(f"{files[0]}: no such file; check the path")
        return
    counts = [_count_lines(path) for path in files]
    if 0 in counts:
        raise DataError(f"{files[counts.index(0)]}: no lines in it; check the path")
    if counts[0] != counts[1]:
        raise DataError(
            f"{files[0]} has {counts[0]} lines but {files[1]} has {counts[1]}; line n of both must be one pair"
        )


def _load_named(arguments: DataArguments) -> dict[str, Any]:
    """Load the splits of `dataset_name` in canonical columns."""
    name = cast(str, arguments.dataset_name)
    try:
        loaded = datasets.load_dataset(
            name, arguments.dataset_config_name, streaming=arguments.streaming, cache_dir=arguments.cache_dir
        )
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(
            f"{name}: cannot be loaded ({_first_line(error)}); check --dataset_name and --dataset_config_name"
        ) from error
    splits = {_SPLIT_ALIASES.get(str(split), str(split)): loaded[split] for split in loaded} | dict(loaded)
    known = [split for split in SPLITS if split in splits]
    if not known:
        raise DataError(f"{name}: has the splits {', '.join(splits)}, none of {', '.join(SPLITS)}; rename one")
    return {split: _canonical(splits[split], arguments, f"{name}, {split}") for split in known}


def _canonical(dataset: Any, arguments: DataArguments, where: str) -> Any:
    first = next(iter(dataset), None)
    if first is None:
        raise DataError(f"{where}: no pairs in it; choose another data set or split")
    columns = _Columns.find(first, arguments, f"{where}, row 1")

    def canonical(batch: dict[str, list[Any]], indices: list[int]) -> dict[str, list[str]]:
        rows = (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
        pairs = [columns.pair(row, f"{where}, row {i + 1}") for i, row in zip(indices, rows, strict=True)]
        return {side: [pair[side] for pair in pairs] for side in _TEXT}

    return dataset.map(canonical, batched=True, with_indices=True, remove_columns=list(first), features=_TEXT)


def _report_overlap(splits: dict[str, datasets.Dataset]) -> None:
    for split in [split for split in SPLITS[1:] if split in splits and "train" in splits]:
        held_out = pa.array(splits[split]["source"][:], pa.string())
        seen: set[str] = set()
        for table in splits["train"].with_format("arrow").iter(100_000):
            seen.update(table["source"].filter(pc.is_in(table["source"], value_set=held_out)).to_pylist())
        shared = sum(source in seen for source in held_out.to_pylist())
        if shared:
            logger.warning(
                f"{shared} of {len(held_out)} {split} pairs have a source that is also in the training pairs"
            )


def _hold_out(splits: dict[str, Any], arguments: DataArguments) -> None:
    """Cut the splits that are asked for and missing off the training pairs, by hash of the source sentence."""
    sizes = {split: getattr(arguments, f"{split}_split_size") for split in SPLITS[1:] if split not in splits}
    sizes = {split: size for split, size in sizes.items() if size is not None}
    if not sizes:
        return
    if "train" not in splits:
        raise DataError(f"--{next(iter(sizes))}_split_size needs training pairs to cut from; name a training file")
    train, seed, keys, low = splits["train"], arguments.split_seed, None, 0.0
    if not arguments.streaming:
        sources = (source for batch in train.iter(10_000) for source in batch["source"])
        keys = np.fromiter((_split_key(source, seed) for source in sources), np.float64, len(train))
    for split, size in sizes.items():
        high = low + size if keys is None else _upper_edge(np.sort(keys), low, size)
        if high >= 1.0:
            remedy = "streamed pairs need a fraction" if arguments.streaming else f"there are {len(train)} pairs"
            raise DataError(f"--{split}_split_size {size:g} leaves nothing to train on; {remedy}")
        splits[split] = _with_keys(train, keys, low, high, seed)
        low = high
    splits["train"] = _with_keys(train, keys, low, 1.0, seed)


def _split_key(source: str, seed: int) -> float:
    """Map a sentence to a number in [0, 1) that is the same on every machine."""
    digest = hashlib.blake2b(source.strip().encode(), digest_size=8, salt=str(seed).encode()[:16]).digest()
    return (int.from_bytes(digest, "big") >> 11) / (1 << 53)


def _upper_edge(ordered: np.ndarray, low: float, size: float) -> float:
    """Return the end of the range of keys from `low` on that holds at least `size` pairs, 1.0 if there are too few."""
    start = int(np.searchsorted(ordered, low))
    last = start + max(1, round(size * len(ordered)) if size < 1 else int(size)) - 1
    after = int(np.searchsorted(ordered, ordered[last], side="right")) if last < len(ordered) else len(ordered)
    return float(ordered[after]) if after < len(ordered) else 1.0


def _with_keys(dataset: Any, keys: np.ndarray | None, low: float, high: float, seed: int) -> Any:
    if keys is not None:
        return dataset.select(np.flatnonzero((keys >= low) & (keys < high)))
    return dataset.filter(lambda row: low <= _split_key(row["source"], seed) < high)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]


# Tokens

_KEPT, _EMPTY, _LONG, _RATIO, _TRUNCATED = range(5)


@dataclass
class PairCounts:
    """How many pairs were read and kept, and why the others were not; `str()` is a line for the log.

    Attributes:
        read: Pairs before the filters.
        kept: Pairs after them.
        empty: Pairs with a side of white space only, or with no token but `</s>`.
        too_long: Pairs over `max_source_length` or `max_target_length` that were not cut.
        ratio: Pairs whose lengths differ too much.
        truncated: Pairs cut to the lengths.
        limits: `max_source_length`, `max_target_length` and `max_length_ratio`, for the text.
    """

    read: int = 0
    kept: int = 0
    empty: int = 0
    too_long: int = 0
    ratio: int = 0
    truncated: int = 0
    limits: tuple[int | None, int | None, float | None] = (None, None, None)

    def clear(self) -> None:
        """Set the counts to zero and keep the limits."""
        for counter in fields(self)[:-1]:
            setattr(self, counter.name, 0)

    def add(self, verdicts: np.ndarray, kept: int) -> None:
        """Count pairs by their verdicts, an int array of any length, of which `kept` pairs stay."""
        tally = np.bincount(verdicts, minlength=_TRUNCATED + 1)
        self.read, self.kept = self.read + len(verdicts), self.kept + kept
        self.empty += int(tally[_EMPTY])
        self.too_long += int(tally[_LONG])
        self.ratio += int(tally[_RATIO])
        self.truncated += int(tally[_TRUNCATED])

    def __str__(self) -> str:
        """Return e.g. `read 29000, kept 28963: 12 empty, 25 longer than 256`, without the reasons that count zero."""
        source, target, ratio = self.limits
        longest = f"{source}" if source == target else f"{source} (source) or {target} (target)"
        reasons = [
            (self.empty, "empty"),
            (self.too_long, f"longer than {longest}"),
            (self.ratio, f"with length ratio above {ratio or 0:g}"),
            (self.truncated, "truncated"),
        ]
        text = ", ".join(f"{count} {reason}" for count, reason in reasons if count)
        return f"read {self.read}, kept {self.kept}" + (f": {text}" if text else "")


def tokenize_pairs(
    dataset: datasets.Dataset | datasets.IterableDataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_source_length: int | None = 256,
    max_target_length: int | None = 256,
    on_long: Literal["drop", "truncate"] = "drop",
    max_length_ratio: float | None = 9.0,
    evaluation: bool = False,
    num_proc: int | None = None,
) -> tuple[datasets.Dataset | TokenizedStream, PairCounts]:
    """Turn pairs of strings into ids.

    Args:
        dataset: Rows with the strings `source` and `target`.
        tokenizer: Ends both sides with its `eos_token`; `text_target=` selects the target side.
        max_source_length: Longest source in tokens, the end token included; None for no limit.
        max_target_length: The same for the target.
        on_long: Drop a longer pair, or cut it and keep the end token.
        max_length_ratio: Drop a pair if one side exceeds this many times the other plus `RATIO_SLACK` tokens; None
            for no limit.
        evaluation: Drop nothing, since every sentence is scored; pairs are cut if `on_long` says so, and counted.
        num_proc: Processes to use; a fast tokenizer uses several threads without it. Streams ignore it.

    Returns:
        The rows with int32 lists `input_ids` and `labels`, and the counts. For a stream the rows are made lazily, and
        the counts are those of the current pass, logged at its end.

    Raises:
        DataError: No pair is left, or the tokenizer does not end its sequences.
    """
    limits = (max_source_length, max_target_length, max_length_ratio)
    for name, limit in zip(("max_source_length", "max_target_length"), limits, strict=False):
        if limit is not None and limit < 2:
            raise DataError(f"--{name} {limit} leaves room for nothing but the end token; set at least 2")
    if max_length_ratio is not None and max_length_ratio < 1:
        raise DataError(f"--max_length_ratio {max_length_ratio:g} would drop pairs of equal lengths; set at least 1")
    counts = PairCounts(limits=limits)
    encode = _Encoder(tokenizer, *limits, truncate=on_long == "truncate")
    if isinstance(dataset, datasets.IterableDataset):
        return TokenizedStream(dataset, encode, counts, evaluation), counts
    rows = dataset.map(
        encode,
        batched=True,
        remove_columns=dataset.column_names,
        features=datasets.Features({"input_ids": _IDS, "labels": _IDS, "verdict": datasets.Value("int8")}),
        num_proc=num_proc,
        desc="Tokenizing",
    )
    verdicts = np.asarray(rows.with_format("numpy")["verdict"][:], dtype=np.int8)
    keep = _stays(verdicts, evaluation)
    counts.add(verdicts, int(keep.sum()))
    if not counts.kept:
        raise DataError(f"no pair is left ({counts}); check the data and the length options")
    rows = rows.remove_columns("verdict")
    return rows if keep.all() else rows.select(np.flatnonzero(keep)), counts


def _stays(verdicts: np.ndarray, evaluation: bool) -> np.ndarray:
    return np.full(len(verdicts), True) if evaluation else np.isin(verdicts, (_KEPT, _TRUNCATED))


@dataclass
class _Encoder:
    """Tokenizes a batch of pairs and judges each of them."""

    tokenizer: PreTrainedTokenizerBase
    max_source_length: int | None
    max_target_length: int | None
    max_length_ratio: float | None
    truncate: bool
    # For the cache of `Dataset.map`.
    code: str = _CODE

    def __call__(self, batch: Mapping[str, list[str]]) -> dict[str, list[Any]]:
        encoded = self.tokenizer(
            batch["source"], text_target=batch["target"], return_attention_mask=False, verbose=False
        )
        sources, targets = encoded["input_ids"], encoded["labels"]
        self._check_ends(chain(sources, targets))
        verdicts = [
            _EMPTY if not (source.strip() and target.strip()) else self._verdict(len(source_ids), len(target_ids))
            for source, target, source_ids, target_ids in zip(
                batch["source"], batch["target"], sources, targets, strict=True
            )
        ]
        if self.truncate:
            sources = [_cut(ids, self.max_source_length) for ids in sources]
            targets = [_cut(ids, self.max_target_length) for ids in targets]
        return {"input_ids": sources, "labels": targets, "verdict": verdicts}

    def _verdict(self, source_length: int, target_length: int) -> int:
        shorter, longer = sorted((source_length, target_length))
        if shorter < 2:
            return _EMPTY
        long = source_length > (self.max_source_length or source_length) or (
            target_length > (self.max_target_length or target_length)
        )
        if long and not self.truncate:
            return _LONG
        if self.max_length_ratio is not None and longer > self.max_length_ratio * shorter + RATIO_SLACK:
            return _RATIO
        return _TRUNCATED if long else _KEPT

    def _check_ends(self, sequences: Iterable[list[int]]) -> None:
        eos = self.tokenizer.eos_token_id
        if eos is None or any(ids[-1:] != [eos] for ids in sequences):
            raise DataError(
                f"the tokenizer does not end its sequences with eos_token {self.tokenizer.eos_token!r} (id {eos}); "
                "use one whose post-processor appends it"
            )


def _cut(ids: list[int], length: int | None) -> list[int]:
    return ids if length is None or len(ids) <= length else ids[: length - 1] + ids[-1:]


class TokenizedStream(torch.utils.data.IterableDataset):
    """Pairs that are tokenized as they are read; made by `tokenize_pairs`.

    Each pass yields `{"input_ids": list[int], "labels": list[int]}` and ends with a log line of its counts. Workers
    of a DataLoader share the shards of the underlying stream.

    Attributes:
        counts: What the current (or last) pass read and kept, in this process.
    """

    def __init__(
        self, pairs: datasets.IterableDataset, encode: _Encoder, counts: PairCounts, evaluation: bool
    ) -> None:
        """Wrap a stream of string pairs."""
        self.pairs, self.encode, self.counts, self.evaluation = pairs, encode, counts, evaluation

    @property
    def num_shards(self) -> int:
        """How many workers of a DataLoader can share the stream."""
        return self.pairs.num_shards

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch on to the underlying stream, which may shuffle by it."""
        self.pairs.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, list[int]]]:
        """Yield the pairs that the filters keep."""
        self.counts.clear()
        for rows in chunks(self.pairs, 1000):
            encoded = self.encode({side: [row[side] for row in rows] for side in _TEXT})
            verdicts = np.array(encoded["verdict"], dtype=np.int8)
            keep = _stays(verdicts, self.evaluation)
            self.counts.add(verdicts, int(keep.sum()))
            for i in np.flatnonzero(keep):
                yield {"input_ids": encoded["input_ids"][i], "labels": encoded["labels"][i]}
        logger.info(f"end of a pass over the stream: {self.counts}")


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


__all__ = [
    "DataArguments",
    "DataError",
    "PairCounts",
    "TokenizedStream",
    "load_parallel_text",
    "pairs_by_position",
    "read_lines",
    "tokenize_pairs",
]
