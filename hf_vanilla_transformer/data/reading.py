"""Read files and datasets as pairs of strings, `source` and `target`."""

from __future__ import annotations

import csv
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.exceptions import DatasetGenerationError, DatasetsError
from datasets.fingerprint import Hasher
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES
from transformers.models.whisper.tokenization_whisper import TO_LANGUAGE_CODE

from ..errors import DataError, lone_surrogate, one_line
from ..files import open_input, read_json_records, read_lines
from .arguments import EXTENSIONS, SPLITS, DataArguments
from .features import Features
from .fingerprint import CODE_FINGERPRINT
from .tmx import read_tmx

PAIR_FEATURES = datasets.Features({"source": datasets.Value("string"), "target": datasets.Value("string")})

ALIGNMENT_COLUMN = "alignment"
"""Column with the word alignment of a training pair, flattened: source word, target word, source word, ..."""

PART_COLUMN = "part"
"""Column with the index of a pair's `corpora.Part`, if there are several."""

TEXT_COLUMNS = (*PAIR_FEATURES, ALIGNMENT_COLUMN, PART_COLUMN)
"""Input columns of tokenization."""

# Other common names of splits.
_SPLIT_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}

# Words that distinguish a header from a pair: roles, languages and their codes, and locales (pt-br, eng_Latn).
_ROLES = frozenset(
    "column id input lang language output reference sent sentence source src target text tgt translation trg".split()
)
_LANGUAGES = frozenset(chain(*TO_LANGUAGE_CODE.items(), (code.split("_")[0] for code in FAIRSEQ_LANGUAGE_CODES)))
_LOCALE = re.compile(r"[a-z]{2,3}[-_]([a-z]{2}|[a-z]{4})")


@dataclass(frozen=True)
class _PairColumns:
    """Names of the source and target fields of a row, found by the rules of `DataArguments`."""

    source: str
    target: str
    # Whether both are fields of the row's "translation", not of the row.
    in_translation: bool = False
    # Fields of the row that follow the source, separated by tabs.
    features: tuple[str, ...] = ()
    # Part of the cache key of `Dataset.map`, which hashes this object.
    code: str = CODE_FINGERPRINT

    @classmethod
    def find(cls, row: Any, arguments: DataArguments, where: str) -> _PairColumns:
        """Apply the rules to the first row of a file or split."""
        if not isinstance(row, Mapping):
            raise DataError(f"{where}: {type(row).__name__} instead of an object; write one object per line")
        features = tuple(arguments.feature_columns or ())
        if absent := [name for name in features if name not in row]:
            raise DataError(
                f"{where}: no column {absent[0]!r}; the columns are {', '.join(map(repr, row))}; set `feature_columns`"
            )
        languages = (arguments.source_lang, arguments.target_lang)
        candidates: list[tuple[str | None, str | None]]
        if arguments.source_column is not None:
            candidates = [(arguments.source_column, arguments.target_column)]
        elif isinstance(translation := row.get("translation"), Mapping):
            if not all(language in translation for language in languages):
                but_not = "" if None in languages else f", not {languages[0]} and {languages[1]}"
                raise DataError(
                    f"{where}: 'translation' has the languages {', '.join(translation)}{but_not}; set `source_lang` "
                    "and `target_lang`"
                )
            return cls(*cast(tuple[str, str], languages), in_translation=True, features=features)
        else:
            candidates = [languages, ("source", "target"), ("0", "1")]
        for source, target in candidates:
            if source is not None and target is not None and source in row and target in row:
                return cls(source, target, features=features)
        wanted = candidates[0] if arguments.source_column is not None else ("source", "target")
        missing = " or ".join(repr(name) for name in wanted if name not in row)
        raise DataError(
            f"{where}: no column {missing}; the columns are {', '.join(map(repr, row))}; set `source_column` and "
            "`target_column`"
        )

    @property
    def top_level(self) -> list[str]:
        pair = ("translation",) if self.in_translation else (self.source, self.target)
        return list(dict.fromkeys((*pair, *self.features)))

    def pair(self, row: Any, where: str) -> dict[str, str]:
        """Return the pair of a row, or raise a DataError that names the invalid field."""
        cells = row.get("translation") if self.in_translation and isinstance(row, Mapping) else row
        if not isinstance(cells, Mapping):
            raise DataError(f"{where}: {type(cells).__name__} instead of an object; repair or remove the row")
        source, target = (_checked(cells, name, where) for name in (self.source, self.target))
        columns = [source, *(_checked(row, name, where) for name in self.features)]
        if self.features and any(mark in cell for cell in (*columns, target) for mark in "\t\n"):
            raise DataError(f"{where}: a tab or line end inside a field, but tabs separate features; remove it")
        return {"source": "\t".join(columns), "target": target}


def _checked(row: Mapping[str, Any], name: str, where: str) -> str:
    """Return a field of a row; raise a DataError if it is not text."""
    if name not in row:
        raise DataError(f"{where}: field {name!r} is missing; repair or remove the row")
    if not isinstance(row[name], str):
        kind = "null" if row[name] is None else type(row[name]).__name__
        raise DataError(f"{where}: field {name!r} is {kind}, not a string; repair or remove the row")
    if surrogate := lone_surrogate(row[name]):
        raise DataError(f"{where}: field {name!r} has {surrogate}; repair or remove the row")
    return cast(str, row[name])


# Rows of a file, each with its location for messages


def _cells(path: str, suffix: str) -> Iterator[tuple[int, list[str]]]:
    """Yield (line number, cells) of each nonempty line; only CSV has quoting."""
    if suffix == ".tsv":
        # Quotes are part of the sentences.
        yield from ((number, line.split("\t")) for number, line in enumerate(read_lines(path), start=1) if line)
        return
    # A quoted field may contain line ends.
    reader = csv.reader(read_lines(path, keep_ends=True), strict=True)
    try:
        yield from ((reader.line_num, cells) for cells in reader if cells)
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: invalid CSV ({error}); fix the field's quotes") from None


def _delimited_rows(path: str, suffix: str, arguments: DataArguments) -> Iterator[tuple[str, dict[str, str]]]:
    """Read the rows of a TSV or CSV file; without a header the columns are "0", "1", ..."""
    header: list[str] | None = None
    for number, cells in _cells(path, suffix):
        if header is None:
            if _is_header(cells, suffix, arguments):
                _check_unique(cells, f"{path}, line {number}")
                header = cells
                continue
            if arguments.source_column is None and _looks_like_header(cells):
                raise DataError(
                    f"{path}, line {number}: {cells[0]!r} and {cells[1]!r} look like column names; give them as "
                    "`source_column` and `target_column`, or 0 and 1 if this line is a pair"
                )
            header = [str(position) for position in range(len(cells))]
        if any(cells[len(header) :]):
            remedy = "remove the tab inside a sentence" if suffix == ".tsv" else "quote the field with a comma"
            raise DataError(
                f"{path}, line {number}: {len(cells)} columns, but the first line has {len(header)}; {remedy}"
            )
        yield f"{path}, line {number}", dict(zip(header, cells, strict=False))


def _check_unique(names: list[str], where: str) -> None:
    """Raise a DataError for duplicate column names: a row keeps one cell per name."""
    twice = [name for name, count in Counter(filter(None, names)).items() if count > 1]
    if twice:
        raise DataError(f"{where}: two columns are called {twice[0]!r}; rename one")


def _is_header(cells: list[str], suffix: str, arguments: DataArguments) -> bool:
    if arguments.source_column is not None and arguments.target_column is not None:
        return not (arguments.source_column.isdecimal() and arguments.target_column.isdecimal())
    named = {"source", "target"} <= set(cells) or {arguments.source_lang, arguments.target_lang} <= set(cells)
    return named or suffix == ".csv"


def _looks_like_header(cells: list[str]) -> bool:
    """Whether the first two cells differ, and each names a language, a locale or a role such as `source text`."""

    def is_name(cell: str) -> bool:
        # As in `sentence1` and `sentence2`.
        words = re.split(r"[\s_-]+", cell.rstrip("12"))
        languages = [word for word in words if word not in _ROLES]
        return bool(_LOCALE.fullmatch(cell)) or not languages or (len(languages) == 1 and languages[0] in _LANGUAGES)

    names = {cell.strip().lower() for cell in cells[:2]}
    return len(names) == 2 and all(map(is_name, names))


def _parquet_rows(path: str, arguments: DataArguments) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read only the columns of the pair from a Parquet file; others may be large, or not representable in Python."""
    try:
        with pq.ParquetFile(path) as file:
            _check_unique(file.schema_arrow.names, path)
            names = _PairColumns.find(_empty_row(file.schema_arrow), arguments, path).top_level
            batches = file.iter_batches(columns=names)
            rows = (cells for batch in batches for cells in zip(*map(batch.column, names), strict=True))
            for number, cells in enumerate(rows, start=1):
                where = f"{path}, row {number}"
                try:
                    values = [cell.as_py() for cell in cells]
                # A string that is not UTF-8, or a time that Python cannot represent.
                except (ValueError, OverflowError) as error:
                    raise DataError(f"{where}: {one_line(error)}; repair or remove the row") from None
                yield where, dict(zip(names, values, strict=True))
    except (OSError, pa.ArrowException) as error:
        raise DataError(f"{path}: not a readable Parquet file ({one_line(error)}); check the path") from error


def _empty_row(schema: pa.Schema) -> dict[str, Any]:
    """Return a row of nulls with the columns of a schema and the fields of its structs."""
    return {
        field.name: dict.fromkeys(child.name for child in field.type) if pa.types.is_struct(field.type) else None
        for field in schema
    }


def _suffix(path: str) -> str:
    return Path(path.removesuffix(".gz")).suffix.lower()


def _rows(path: str, arguments: DataArguments) -> Iterator[tuple[str, Any]]:
    suffix = _suffix(path)
    if suffix in (".tsv", ".csv"):
        return _delimited_rows(path, suffix, arguments)
    if suffix in (".json", ".jsonl"):
        return read_json_records(path, arguments.streaming)
    if suffix == ".tmx":
        units = read_tmx(path, arguments.source_lang, arguments.target_lang)
        return ((f"{path}, line {number}", pair) for number, pair in units)
    return _parquet_rows(path, arguments)


# Pairs


def located_pairs(files: tuple[str, ...], arguments: DataArguments) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (location, `{"source": str, "target": str}`) from the files of a split; locations are like "line 7"."""
    if len(files) == 2:
        features = Features.named_by(arguments)
        for number, (source, target) in enumerate(zip(*map(read_lines, files), strict=True), start=1):
            if features:
                features.check(source, f"{files[0]}, line {number}")
            yield f"line {number}", {"source": source, "target": target}
        return
    columns = None
    for where, row in _rows(files[0], arguments):
        columns = columns or _PairColumns.find(row, arguments, where)
        yield where.removeprefix(f"{files[0]}, "), columns.pair(row, where)
    if columns is None:
        raise DataError(f"{files[0]}: no pairs in it; check the path")


def read_sources(path: str, source_column: str, feature_columns: list[str] | None) -> Iterator[str]:
    """Yield the source of each row of a file with columns, followed by its features."""
    arguments = DataArguments(
        train_file=path, source_column=source_column, target_column=source_column, feature_columns=feature_columns
    )
    check_files((path,))
    return (pair["source"] for pair in _pairs((path,), arguments))


def _pairs(files: tuple[str, ...], arguments: DataArguments) -> Iterator[dict[str, str]]:
    return (pair for _, pair in located_pairs(files, arguments))


def iterate_pairs(dataset: Any) -> Iterator[dict[str, str]]:
    """Yield the pairs of a dataset or stream, read in batches, which is many times faster than by row."""
    for batch in dataset.iter(1000):
        for source, target in zip(batch["source"], batch["target"], strict=True):
            yield {"source": source, "target": target}


def spread(pairs: datasets.Dataset, number: int) -> datasets.Dataset:
    """Return at most `number` pairs, spread evenly, since corpora are often sorted."""
    if len(pairs) <= number:
        return pairs
    return pairs.select([index * len(pairs) // number for index in range(number)])


def headerless_tsv_files(texts: Iterable[DataArguments]) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield (name, first pair) of each TSV file whose first line was read as a pair, not as a header."""
    for text in texts:
        files = text.files("train")
        if len(files) == 1 and _suffix(files[0]) == ".tsv" and text.source_column is None:
            _, first = next(_cells(files[0], ".tsv"))
            if not _is_header(first, ".tsv", text):
                yield Path(files[0]).name, next(_pairs(files, text))


def load_files(files: tuple[str, ...], arguments: DataArguments) -> datasets.Dataset | datasets.IterableDataset:
    """Load the pairs of a split from its files: source and target text, or one file with both sides."""
    check_files(files)
    options: dict[str, Any] = {"features": PAIR_FEATURES, "gen_kwargs": {"files": files, "arguments": arguments}}
    if arguments.streaming:
        stream = datasets.IterableDataset.from_generator(_pairs, **options)
        next(iter(stream))
        return stream
    # The cache key covers the files, the columns and this code, but not the split: a file may serve several.
    stats = [(os.path.abspath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in files]
    columns = (arguments.source_column, arguments.target_column, arguments.source_lang, arguments.target_lang)
    fingerprint = Hasher.hash((CODE_FINGERPRINT, stats, columns, arguments.feature_columns))
    try:
        return datasets.Dataset.from_generator(
            _pairs, **options, cache_dir=arguments.cache_dir, fingerprint=fingerprint
        )
    except DatasetGenerationError as error:
        raise (error.__cause__ if isinstance(error.__cause__, DataError) else error) from None


def check_files(files: tuple[str, ...]) -> None:
    """Check without parsing: extension and existence of one file, or line counts of two, which may not be pipes."""
    if len(files) == 1:
        suffix = _suffix(files[0])
        if suffix not in EXTENSIONS or (suffix == ".parquet" and files[0].endswith(".gz")):
            raise DataError(
                f"{files[0]}: unknown extension; name the file {', '.join(EXTENSIONS)} (all but the last may be .gz), "
                "or give plain text as two files"
            )
        if not os.path.isfile(files[0]):
            raise DataError(f"{files[0]}: no such file; check the path")
        return
    for path in files:
        if path == "-" or Path(path).is_fifo():
            raise DataError(f"{path} is a pipe, but training text is read twice; write it to a file first")
    counts = [_count_lines(path) for path in files]
    if 0 in counts:
        raise DataError(f"{files[counts.index(0)]}: no lines in it; check the path")
    if counts[0] != counts[1]:
        # If the encoding or the line ends are wrong, reading raises a better error than unequal counts.
        for _ in chain.from_iterable(map(read_lines, files)):
            pass
        raise DataError(
            f"{files[0]} has {counts[0]} lines but {files[1]} has {counts[1]}; line n of both must be one pair"
        )


def _count_lines(path: str) -> int:
    count, last = 0, b"\n"
    with open_input(path) as file:
        while block := file.read(1 << 20):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def load_named(arguments: DataArguments) -> dict[str, Any]:
    """Load the splits of `dataset_name` as datasets or streams, keyed by "train", "validation" and "test"."""
    name = cast(str, arguments.dataset_name)
    with _loading(name):
        loaded = datasets.load_dataset(
            name, arguments.dataset_config_name, streaming=arguments.streaming, cache_dir=arguments.cache_dir
        )
    splits = {_SPLIT_ALIASES.get(str(split), str(split)): loaded[split] for split in loaded} | dict(loaded)
    known = [split for split in SPLITS if split in splits]
    if not known:
        raise DataError(f"{name}: has the splits {', '.join(splits)}, none of {', '.join(SPLITS)}; rename one")
    return {split: _select_pairs(splits[split], arguments, f"{name}, {split}") for split in known}


@contextmanager
def _loading(name: str) -> Iterator[None]:
    """Turn errors of the datasets library into a DataError that names the dataset."""
    try:
        yield
    except DataError:
        raise
    # A RuntimeError refuses a dataset with a loading script; StopIteration comes from an empty JSON file.
    except (OSError, ValueError, RuntimeError, StopIteration, DatasetsError) as error:
        reason = error.__cause__ if isinstance(error, DatasetGenerationError) and error.__cause__ else error
        raise DataError(
            f"{name}: cannot be loaded ({one_line(reason)}); check `dataset_name`, `dataset_config_name` and the files"
        ) from error


def _select_pairs(dataset: Any, arguments: DataArguments, where: str) -> Any:
    with _loading(where):
        first = next(iter(dataset), None)
    if first is None:
        raise DataError(f"{where}: no pairs in it; choose another dataset or split")
    columns = _PairColumns.find(first, arguments, f"{where}, row 1")

    def select(batch: dict[str, list[Any]], indices: list[int]) -> dict[str, list[str]]:
        rows = (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
        pairs = [columns.pair(row, f"{where}, row {i + 1}") for i, row in zip(indices, rows, strict=True)]
        return {side: [pair[side] for pair in pairs] for side in PAIR_FEATURES}

    with _loading(where):
        return dataset.map(select, batched=True, with_indices=True, remove_columns=list(first), features=PAIR_FEATURES)
