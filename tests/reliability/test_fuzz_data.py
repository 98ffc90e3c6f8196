"""Files of parallel text are read pair by pair, unchanged and in order, or one line names the file."""

import csv
import gc
import gzip
import io
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import JSON_VALUES, one_line, texts
from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data import DataArguments, load_parallel_text, tokenize_pairs
from hf_vanilla_transformer.data.arguments import RATIO_SLACK
from hf_vanilla_transformer.errors import DataError
from parallel_text import rows

BOM = b"\xef\xbb\xbf"


def pairs_of(without: str = "", max_size: int = 6) -> st.SearchStrategy[list[tuple[str, str]]]:
    text = texts(without)
    return st.lists(st.tuples(text, text), min_size=1, max_size=max_size)


def load(folder: Path, streaming: bool = True, **options: Any) -> list[tuple[str, str]]:
    arguments = DataArguments(streaming=streaming, cache_dir=str(folder / "cache"), **options)
    return rows(load_parallel_text(arguments)["train"])


def write_file(path: Path, content: bytes) -> str:
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return str(path)


def load_or_error(folder: Path, path: str, **options: Any) -> list[tuple[str, str]] | None:
    """Return the pairs of a file; on an error, check that it names the file in one line and return None."""
    try:
        return load(folder, train_file=path, **options)
    except DataError as error:
        assert Path(path).name in one_line(error)
        return None


def test_two_text_files(tmp_path, fuzz):
    @fuzz("pairs of text files with any characters, ends of line, byte order mark, gzip", 30, 1500)
    @given(pairs_of(), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.sampled_from(["", ".gz"]))
    def check(pairs, end, ends_in_newline, suffix):
        # A carriage return before a line feed belongs to the line end, and an empty last line does not count.
        pairs = [tuple(side.rstrip("\r") for side in pair) for pair in pairs]
        paths = []
        for name, side in zip("st", zip(*pairs, strict=True), strict=True):
            last = end if ends_in_newline or not side[-1] else ""
            content = (end.join(side) + last).encode()
            marked = BOM + content if side[0].startswith("\ufeff") else content
            paths.append(write_file(tmp_path / f"{name}.txt{suffix}", marked))
        assert load(tmp_path, train_source_file=paths[0], train_target_file=paths[1]) == pairs


def test_tsv(tmp_path, fuzz):
    @fuzz("TSV files with a header in any order, blank lines, any characters", 30, 1500)
    @given(pairs_of("\t\r"), st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans(), st.integers(0, 2))
    def check(pairs, end, marked, swapped, blank_lines):
        header, sides = ("source", "target"), slice(None)
        if swapped:
            header, sides = ("target", "note", "source"), slice(None, None, -1)
        lines = ["\t".join((*pair[sides][:1], *(["x"] if swapped else []), *pair[sides][1:])) for pair in pairs]
        text = end.join(["\t".join(header), *[""] * blank_lines, *lines, ""])
        path = write_file(tmp_path / "x.tsv", BOM * marked + text.encode())
        assert load(tmp_path, train_file=path) == pairs


def test_csv(tmp_path, fuzz):
    @fuzz("CSV files with any characters and ends of line inside quotes", 30, 1500)
    @given(pairs_of(), st.sampled_from(["\n", "\r\n"]), st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]), st.data())
    def check(pairs, end, quoting, data):
        # Line ends inside a field belong to the sentence.
        inserted = data.draw(st.sampled_from(["", "\n", "\r\n", "\r"]))
        pairs = [(source + inserted, inserted + target) for source, target in pairs]
        # Python before 3.13 leaves a carriage return unquoted unless it ends lines.
        quoting = csv.QUOTE_ALL if any("\r" in side for pair in pairs for side in pair) else quoting
        file = io.StringIO(newline="")
        csv.writer(file, lineterminator=end, quoting=quoting).writerows([("source", "target"), *pairs])
        assert load(tmp_path, train_file=write_file(tmp_path / "x.csv", file.getvalue().encode())) == pairs


def test_json(tmp_path, fuzz):
    @fuzz("JSON lines and arrays, flat and nested, with any characters", 30, 1500)
    @given(pairs_of(), st.booleans(), st.booleans(), st.sampled_from([None, 1]), JSON_VALUES)
    def check(pairs, as_array, nested, indent, extra):
        names = ("en", "de") if nested else ("source", "target")
        objects: list[Any] = [dict(zip(names, pair, strict=True)) for pair in pairs]
        objects = [{"translation": row} if nested else {"note": extra, **row} for row in objects]
        if as_array:
            text = json.dumps(objects, ensure_ascii=False, indent=indent)
        else:
            text = "".join(f"{json.dumps(row, ensure_ascii=bool(indent))}\n" for row in objects)
        path = write_file(tmp_path / "x.json", text.encode())
        languages = {"source_lang": "en", "target_lang": "de"} if nested else {}
        # Arrays cannot be streamed.
        assert load(tmp_path, streaming=not as_array, train_file=path, **languages) == pairs


PARQUET_TYPES = [
    pa.string(), pa.large_string(), pa.binary(), pa.int64(), pa.float32(), pa.bool_(), pa.list_(pa.string()),
    pa.struct([("a", pa.string())]), pa.timestamp("us"), pa.dictionary(pa.int32(), pa.string()), pa.null(),
]  # fmt: skip  # a type a line would fill the screen


def parquet_column(data: st.DataObject, size: int) -> pa.Array:
    kind = data.draw(st.sampled_from(PARQUET_TYPES))
    if kind == pa.string() and data.draw(st.booleans()):
        # Arrow does not check that a string is UTF-8.
        return pa.array([data.draw(st.binary(max_size=4)) for _ in range(size)]).view(pa.string())
    if kind == pa.timestamp("us"):
        return pa.array([data.draw(st.integers(-(2**63), 2**63 - 1)) for _ in range(size)]).view(kind)
    if pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind):
        return pa.array(range(size)).cast(kind)
    if pa.types.is_nested(kind):
        return pa.array([["x"] if pa.types.is_list(kind) else {"a": "x"}] * size, kind)
    if pa.types.is_dictionary(kind):
        return pa.array(["x"] * size).dictionary_encode()
    return pa.array([None if data.draw(st.booleans()) or pa.types.is_null(kind) else "x"] * size, kind)


def test_parquet(tmp_path, fuzz):
    @fuzz("Parquet files with a column of any type, or of strings that are not UTF-8", 30, 1500)
    @given(pairs_of(), st.integers(1, 3), st.sampled_from(["good", "source", "target", "note"]), st.data())
    def check(pairs, row_group_size, faulty, data):
        columns: dict[str, Any] = {
            name: pa.array(side) for name, side in zip(("source", "target"), zip(*pairs, strict=True), strict=True)
        }
        if faulty != "good":
            columns[faulty] = parquet_column(data, len(pairs))
        path = str(tmp_path / "x.parquet")
        pq.write_table(pa.table(columns), path, row_group_size=row_group_size)
        loaded = load_or_error(tmp_path, path)
        if faulty in ("good", "note"):
            assert loaded == pairs
        elif loaded is not None:
            assert len(loaded) == len(pairs)
            intact = 1 if faulty == "source" else 0
            assert [pair[intact] for pair in loaded] == [pair[intact] for pair in pairs]


DAMAGED = {
    "x.tsv": "source\ttarget\na b\tc d\nü\t漢\n".encode(),
    "y.tsv": b"one cat\tein Hund\ntwo\tzwei\n",
    "x.csv": b'source,target\n"a\nb",c\n"x ""y""",z\n',
    "x.jsonl": b'{"source": "a", "target": "\\u00fc"}\n{"source": "c", "target": "d"}\n',
    "x.json": b'[{"source": "a", "target": "b"}, {"source": "c", "target": "d"}]',
}
INSERTED = [*(bytes([each]) for each in b'\0\xff"\t,\n\r{[\xc3'), b"\xed\xa0\x80", b"\\ud800", BOM, b"1e999"]


def damage(content: bytes, data: st.DataObject) -> bytes:
    """Remove, overwrite, repeat or insert bytes."""
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(content)))
        end = min(len(content), start + data.draw(st.integers(0, 8)))
        middle = data.draw(
            st.one_of(st.sampled_from(INSERTED), st.just(content[start:end] * 2), st.binary(max_size=3))
        )
        content = content[:start] + middle + content[end:]
    return content


def test_damaged_files(tmp_path, fuzz):
    buffer = io.BytesIO()
    pq.write_table(pa.table({"source": ["a", "c"], "target": ["b", "d"]}), buffer)
    originals = {**DAMAGED, "x.parquet": buffer.getvalue()}

    @fuzz("files of parallel text with damaged bytes", 60, 4000)
    @given(st.sampled_from(sorted(originals)), st.booleans(), st.data())
    def check(name, zipped, data):
        content = damage(originals[name], data)
        if zipped and name != "x.parquet":
            name, content = f"{name}.gz", content
        path = write_file(tmp_path / name, content)
        loaded = load_or_error(tmp_path, path, streaming=not name.startswith("x.json."))
        if loaded is not None:
            assert loaded and all(
                isinstance(side, str) and side.encode() is not None for pair in loaded for side in pair
            )
            text = content.decode("utf-8-sig", "replace")
            # Each sentence of a TSV file is one of its cells, in the same order.
            if ".tsv" in name:
                cells = iter([cell for line in text.split("\n") for cell in line.removesuffix("\r").split("\t")])
                assert all(
                    any(side == cell for cell in cells) for pair in loaded for side in sorted(pair, key=pair.index)
                )


def test_damaged_gzip(tmp_path, fuzz):
    lines = [f"{i} a cat\t{i} eine Katze\n" for i in range(20)]
    content = gzip.compress("".join(["source\ttarget\n", *lines]).encode(), mtime=0)
    pairs = [tuple(line.rstrip("\n").split("\t")) for line in lines]

    @fuzz("gzip files truncated or changed at any byte", 30, 1000)
    @given(st.integers(0, len(content) - 1), st.integers(0, 255), st.booleans())
    def check(position, byte, truncated):
        damaged = content[:position] + (b"" if truncated else bytes([byte]) + content[position + 1 :])
        (tmp_path / "x.tsv.gz").write_bytes(damaged)
        assert load_or_error(tmp_path, str(tmp_path / "x.tsv.gz")) in (None, pairs)


def file_content(suffix: str, pairs: list[tuple[str, str]]) -> bytes:
    objects = [{"source": source, "target": target} for source, target in pairs]
    if suffix == ".parquet":
        buffer = io.BytesIO()
        pq.write_table(pa.Table.from_pylist(objects), buffer)
        return buffer.getvalue()
    if suffix == ".json":
        return json.dumps(objects).encode()
    if suffix == ".jsonl":
        return "".join(f"{json.dumps(row)}\n" for row in objects).encode()
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter="," if suffix == ".csv" else "\t", quoting=csv.QUOTE_ALL)
    writer.writerows([("source", "target"), *pairs])
    return file.getvalue().encode()


# The datasets library does not close a table that it fails to read.
@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.filterwarnings("ignore:.*unclosed file|.*_io.FileIO:pytest.PytestUnraisableExceptionWarning")
def test_dataset_folders(tmp_path, fuzz):
    side = st.one_of(texts(), st.sampled_from(["NA", "null", "None", "true", "1", "1e5", "2020-01-01", " a ", "a\nb"]))

    @fuzz("folders of the datasets library, whole and damaged", 15, 200)
    @given(
        st.lists(st.tuples(side, side), min_size=1, max_size=5),
        st.sampled_from([".csv", ".tsv", ".json", ".jsonl", ".parquet"]),
        st.sampled_from([True, True, False]),
        st.booleans(),
        st.data(),
    )
    def check(pairs, suffix, streaming, damaged, data):
        content = file_content(suffix, pairs)
        with TemporaryDirectory(dir=tmp_path) as name:
            folder = Path(name)
            (folder / f"train{suffix}").write_bytes(damage(content, data) if damaged else content)
            try:
                loaded = load(folder, streaming, dataset_name=str(folder))
            except DataError as error:
                assert folder.name in one_line(error)
                # The datasets library parses some texts in tables as numbers, dates or missing values.
                assert damaged or suffix in (".csv", ".tsv")
                return
        assert all(isinstance(side, str) for pair in loaded for side in pair) if damaged else loaded == pairs

    gc.collect()


@pytest.mark.parametrize("streaming", [False, True])
def test_held_out_splits(tmp_path, fuzz, streaming):
    @fuzz("splits held out: every pair in one, no source sentence in two", 8, 100)
    @given(
        st.lists(st.tuples(texts("\t\r", 2), st.sampled_from("xyz")), min_size=4, max_size=40),
        st.sampled_from([0.1, 0.3, 0.5, 1, 2]),
        st.sampled_from([None, 0.2, 3]),
        st.integers(-3, 3),
    )
    def check(pairs, validation, test, seed):
        path = write_file(
            tmp_path / "x.tsv", "".join(f"{s}\t{t}\n" for s, t in [("source", "target"), *pairs]).encode()
        )
        arguments = DataArguments(
            train_file=path, validation_split_size=validation, test_split_size=test, split_seed=seed,
            streaming=streaming, cache_dir=str(tmp_path / "cache"),
        )  # fmt: skip  # an argument a line would hide the others
        try:
            splits = {name: rows(split) for name, split in load_parallel_text(arguments).items()}
        except DataError as error:
            assert "leaves nothing to train on" in one_line(error)
            return
        # Every pair is in one split, in the order of the file, and no source sentence is in two.
        assert sorted(sum(splits.values(), [])) == sorted(pairs)
        for split in splits.values():
            remaining = iter(pairs)
            assert all(pair in remaining for pair in split)
        sources = [{source.strip() for source, _ in split} for split in splits.values()]
        assert sum(map(len, sources)) == len(set.union(*sources))


def test_length_filters(tmp_path, fuzz):
    words = train_tokenizer(["w"], algorithm="whitespace")
    side = st.one_of(
        st.integers(0, 12).map(lambda length: " ".join("w" * length)), st.sampled_from([" ", "\t", "\u2028"])
    )

    def kept(pair: tuple[str, str], limit: int | None, ratio: float | None, truncate: bool) -> tuple[int, int] | None:
        lengths = [len(text.split()) + 1 for text in pair]
        if min(lengths) < 2:
            return None
        if limit is not None and max(lengths) > limit and not truncate:
            return None
        if ratio is not None and max(lengths) > ratio * min(lengths) + RATIO_SLACK:
            return None
        return tuple(min(length, limit or length) for length in lengths)

    @fuzz("length filters, of streams too", 10, 100)
    @given(
        st.lists(st.tuples(side, side), min_size=1, max_size=20),
        st.sampled_from([None, 2, 5]),
        st.sampled_from([None, 1.0, 1.5]),
        st.booleans(),
    )
    def check(pairs, limit, ratio, truncate):
        columns = {name: list(side) for name, side in zip(("source", "target"), zip(*pairs, strict=True), strict=True)}
        expected = [lengths for pair in pairs if (lengths := kept(pair, limit, ratio, truncate))]
        dataset = datasets.Dataset.from_dict(columns)
        for data in (dataset, dataset.to_iterable_dataset()):
            try:
                encoded, counts = tokenize_pairs(
                    data, words, max_source_length=limit, max_target_length=limit, max_length_ratio=ratio,
                    on_long="truncate" if truncate else "drop",
                )  # fmt: skip  # an argument a line would hide the others
                lengths = [(len(row["input_ids"]), len(row["labels"])) for row in encoded]
            except DataError as error:
                assert "no pair is left" in one_line(error) and not expected
                continue
            assert lengths == expected and (counts.read, counts.kept) == (len(pairs), len(expected))


def test_long_lines_and_many_columns_take_no_more_than_linear_time(tmp_path, tried):
    # Each case takes milliseconds; with a quadratic reader it would take minutes.
    long = "word " * 400_000
    for name, text in {
        "x.tsv": f"source\ttarget\n{long}\t{long}\n",
        "x.jsonl": json.dumps({"source": long, "target": long}) + "\n",
    }.items():
        assert load(tmp_path, train_file=write_file(tmp_path / name, text.encode())) == [(long, long)]
    names = [f"column{i}" for i in range(100_000)]
    wide = "\t".join([*names, "source", "target"]) + "\n" + "\t".join([*names, "a", "b"]) + "\n"
    assert load(tmp_path, train_file=write_file(tmp_path / "wide.tsv", wide.encode())) == [("a", "b")]
    wide = json.dumps({**dict.fromkeys(names), "source": "a", "target": "b"}) + "\n"
    assert load(tmp_path, train_file=write_file(tmp_path / "wide.jsonl", wide.encode())) == [("a", "b")]
    tried("sentences of 2 million characters, files with 100,000 columns", 4)
