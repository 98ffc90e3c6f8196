"""Files and data sets of the Hub to pairs of strings, `source` and `target`."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterator, Mapping
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

from ..errors import DataError, one_line
from ..files import open_input, read_json_records, read_lines
from .arguments import EXTENSIONS, SPLITS, DataArguments
from .fingerprint import CODE_FINGERPRINT

# Words by which a header is told from a pair: roles, languages and their codes, and locales such as pt-br or eng_Latn.
_ROLES = frozenset(
    "column id input lang language output reference sent sentence source src target text tgt translation trg".split()
)
_LANGUAGES = frozenset(chain(*TO_LANGUAGE_CODE.items(), (code.split("_")[0] for code in FAIRSEQ_LANGUAGE_CODES)))
_LOCALE = re.compile(r"[a-z]{2,3}[-_]([a-z]{2}|[a-z]{4})")

PAIR_FEATURES = datasets.Features({"source": datasets.Value("string"), "target": datasets.Value("string")})

# Names other than ours that data sets give to their splits.
_SPLIT_ALIASES = {"valid": "validation", "val": "validation", "dev": "validation"}


def _count_lines(path: str) -> int:
    count, last = 0, b"\n"
    with open_input(path) as file:
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
        raise DataError(f"{path}: not a readable Parquet file ({one_line(error)}); check the path") from error


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
        rows = read_json_records(files[0], arguments.streaming)
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
    code: str = CODE_FINGERPRINT

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


def headerless_tsv_files(arguments: DataArguments) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the name and the first pair of each TSV file whose first line is taken for a pair, not for a header."""
    for files in filter(None, map(arguments.files, SPLITS)):
        name = Path(files[0]).name
        if name.lower().removesuffix(".gz").endswith(".tsv") and arguments.source_column is None and len(files) == 1:
            first = next(cells for _, cells in _tsv_cells(files[0]) if cells)
            if not _is_header(first, ".tsv", arguments):
                yield name, next(_pairs(files, arguments))


def load_files(files: tuple[str, ...], arguments: DataArguments) -> datasets.Dataset | datasets.IterableDataset:
    _check_files(files)
    options: dict[str, Any] = {"features": PAIR_FEATURES, "gen_kwargs": {"files": files, "arguments": arguments}}
    if arguments.streaming:
        stream = datasets.IterableDataset.from_generator(_pairs, **options)
        next(iter(stream))
        return stream
    # The cache of `datasets` must not outlive a change of the files, of what is read from them, or of the reader; it
    # does not depend on the split, so that a file may serve as another one later.
    stats = [(os.path.abspath(path), os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in files]
    columns = (arguments.source_column, arguments.target_column, arguments.source_lang, arguments.target_lang)
    fingerprint = Hasher.hash((CODE_FINGERPRINT, stats, columns))
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


def load_named(arguments: DataArguments) -> dict[str, Any]:
    """Load the splits of `dataset_name` in canonical columns."""
    name = cast(str, arguments.dataset_name)
    try:
        loaded = datasets.load_dataset(
            name, arguments.dataset_config_name, streaming=arguments.streaming, cache_dir=arguments.cache_dir
        )
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(
            f"{name}: cannot be loaded ({one_line(error)}); check --dataset_name and --dataset_config_name"
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
        return {side: [pair[side] for pair in pairs] for side in PAIR_FEATURES}

    return dataset.map(canonical, batched=True, with_indices=True, remove_columns=list(first), features=PAIR_FEATURES)


__all__ = ["PAIR_FEATURES", "headerless_tsv_files", "load_files", "load_named"]
