import csv
import json
import os
import re

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hf_vanilla_transformer.data import reading
from hf_vanilla_transformer.data.arguments import SPLITS, DataArguments
from hf_vanilla_transformer.data.reading import headerless_tsv_files
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.errors import DataError
from parallel_text import PAIRS, lines, rows, tsv, write
from tables import looped


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_two_files(tmp_path, suffix, streaming):
    source = write(tmp_path / f"a.en{suffix}", lines(source for source, _ in PAIRS))
    target = write(tmp_path / f"a.de{suffix}", lines(target for _, target in PAIRS))
    loaded = load_parallel_text(DataArguments(train_source_file=source, train_target_file=target, streaming=streaming))
    assert isinstance(loaded["train"], datasets.IterableDataset if streaming else datasets.Dataset)
    assert rows(loaded["train"]) == PAIRS


@looped("streaming", [False, True])
@looped(
    ("name", "text", "options"),
    [
        ("x.tsv", tsv(PAIRS), {}),
        ("x.tsv.gz", tsv(PAIRS), {}),
        ("x.tsv", tsv([("source", "target"), *PAIRS]), {}),
        ("x.tsv", tsv([("id", "en", "de"), *(("7", *pair) for pair in PAIRS)]), {"columns": ("en", "de")}),
        ("x.tsv", tsv([("de", "en"), *((t, s) for s, t in PAIRS)]), {"languages": ("en", "de")}),
        ("x.tsv", tsv((target, "note", source) for source, target in PAIRS), {"columns": ("2", "0")}),
        ("x.jsonl", lines(json.dumps({"source": s, "target": t}) for s, t in PAIRS), {}),
        ("x.json.gz", lines(json.dumps({"en": s, "de": t}) for s, t in PAIRS), {"columns": ("en", "de")}),
        (
            "x.json",
            lines(json.dumps({"translation": {"de": t, "en": s}}) for s, t in PAIRS),
            {"languages": ("en", "de")},
        ),
    ],
)
def test_one_file(tmp_path, name, text, options, streaming):
    source_column, target_column = options.get("columns", (None, None))
    source_lang, target_lang = options.get("languages", (None, None))
    arguments = DataArguments(
        train_file=write(tmp_path / name, text),
        source_column=source_column,
        target_column=target_column,
        source_lang=source_lang,
        target_lang=target_lang,
        streaming=streaming,
    )
    assert rows(load_parallel_text(arguments)["train"]) == PAIRS


def test_csv_with_quotes_and_line_ends_in_a_field(tmp_path):
    pairs = [*PAIRS, ("two\nlines", "x"), ("two\r\nlines", "\r\n")]
    with open(tmp_path / "x.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("source", "target"), *pairs])
    assert rows(load_parallel_text(DataArguments(train_file=str(tmp_path / "x.csv")))["train"]) == pairs


def test_json_array(tmp_path):
    path = write(tmp_path / "x.json", json.dumps([{"source": s, "target": t} for s, t in PAIRS], indent=1))
    assert rows(load_parallel_text(DataArguments(train_file=path))["train"]) == PAIRS
    with pytest.raises(DataError, match="cannot be streamed; write one object per line"):
        load_parallel_text(DataArguments(train_file=path, streaming=True))


def test_parquet(tmp_path):
    translations = [{"translation": {"en": source, "de": target}} for source, target in PAIRS]
    datasets.Dataset.from_list(translations).to_parquet(tmp_path / "x.parquet")
    arguments = DataArguments(train_file=str(tmp_path / "x.parquet"), source_lang="en", target_lang="de")
    assert rows(load_parallel_text(arguments)["train"]) == PAIRS


NOT_UTF8 = pa.Array.from_buffers(
    pa.string(), 2, [None, *map(pa.py_buffer, (b"\0\0\0\0\1\0\0\0\3\0\0\0", b"a\xff\xfe"))]
)


@pytest.mark.parametrize("streaming", [False, True])
def test_a_parquet_string_that_is_not_utf8(tmp_path, streaming):
    path = str(tmp_path / "x.parquet")
    arguments = DataArguments(train_file=path, streaming=streaming)
    pq.write_table(pa.table({"source": NOT_UTF8, "target": ["x", "y"]}), path)
    with pytest.raises(DataError, match=r"x\.parquet, row 2: .* can't decode byte 0xff .*; repair or remove the row"):
        rows(load_parallel_text(arguments)["train"])
    # In other columns, neither this nor a time that Python cannot represent matters.
    times = pa.array([2**62, 0], pa.timestamp("us"))
    pq.write_table(pa.table({"source": ["a", "b"], "target": ["x", "y"], "note": NOT_UTF8, "time": times}), path)
    assert rows(load_parallel_text(arguments)["train"]) == [("a", "x"), ("b", "y")]


def test_parquet_columns_of_one_name(tmp_path):
    columns = [pa.array([text]) for text in "abc"]
    pq.write_table(pa.Table.from_arrays(columns, ["source", "target", "source"]), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="two columns are called 'source'; rename one"):
        load_parallel_text(DataArguments(train_file=str(tmp_path / "x.parquet")))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_pipe_cannot_be_read_twice(tmp_path, streaming):
    os.mkfifo(tmp_path / "pipe")
    for path in (str(tmp_path / "pipe"), "-"):
        arguments = DataArguments(
            train_source_file=write(tmp_path / "a.en", "a\n"), train_target_file=path, streaming=streaming
        )
        with pytest.raises(DataError, match=f"{path} is a pipe, but .* write it to a file first"):
            load_parallel_text(arguments)


def test_a_changed_file_is_read_again(tmp_path):
    path = write(tmp_path / "x.tsv", tsv(PAIRS))
    assert rows(load_parallel_text(DataArguments(train_file=path))["train"]) == PAIRS
    write(tmp_path / "x.tsv", tsv(PAIRS[1:]))
    assert rows(load_parallel_text(DataArguments(train_file=path))["train"]) == PAIRS[1:]


def test_a_file_may_serve_as_another_split(tmp_path):
    path = write(tmp_path / "x.tsv", tsv(PAIRS))
    assert rows(load_parallel_text(DataArguments(validation_file=path))["validation"]) == PAIRS
    loaded = load_parallel_text(DataArguments(train_file=path, validation_file=path, test_file=path))
    assert [rows(loaded[split]) for split in SPLITS] == [PAIRS] * 3


@looped("streaming", [False, True])
@looped(
    "first",
    [
        ("english", "spanish"),
        ("en", "es"),
        ("EN", "DE", "id"),
        ("pt-BR", "en_US"),
        ("eng_Latn", "spa_Latn"),
        ("Source", "Target"),
        ("src", "tgt"),
        ("text", "translation"),
        ("id", "en", "de"),
        ("English sentence", "German translation"),
        ("source_text", "target_text"),
        ("sentence1", "sentence2"),
        ("eng", "spa"),
        ("sent_en", "sent_de"),
    ],
)
def test_a_likely_header_is_no_pair(tmp_path, first, streaming):
    path = write(tmp_path / "x.tsv", tsv(["", first, *PAIRS]))
    with pytest.raises(DataError, match=rf"x.tsv, line 2: '{first[0]}' and '{first[1]}' look like column nam"):
        load_parallel_text(DataArguments(train_file=path, streaming=streaming))
    # Either remedy of the message reads the file.
    for columns, more in ((first[:2], []), (("0", "1"), [first[:2]])):
        arguments = DataArguments(
            train_file=path, source_column=columns[0], target_column=columns[1], streaming=streaming
        )
        if len(first) == 2:
            assert rows(load_parallel_text(arguments)["train"]) == [*more, *PAIRS]


@looped(
    "first",
    [
        ("Go.", "Ve."),
        ("no", "no"),
        ("he is", "el es"),
        ("English is hard", "spanish"),
        ("CC", "CO"),
        ("", "es"),
        ("1", "2"),
    ],
)
def test_a_pair_is_no_header(tmp_path, first):
    path = write(tmp_path / "x.tsv", tsv([first, *PAIRS]))
    arguments = DataArguments(train_file=path)
    assert rows(load_parallel_text(arguments)["train"]) == [first, *PAIRS]
    assert list(headerless_tsv_files([arguments])) == [("x.tsv", dict(zip(("source", "target"), first, strict=True)))]


def test_columns_known_by_name_are_not_by_position(tmp_path):
    named = write(tmp_path / "x.tsv.gz", tsv([("source", "target"), *PAIRS]))
    bare = write(tmp_path / "y.tsv", tsv(PAIRS))
    assert list(headerless_tsv_files([DataArguments(train_file=named), DataArguments(train_file=bare)])) == [
        ("y.tsv", {"source": PAIRS[0][0], "target": PAIRS[0][1]})
    ]
    assert not list(headerless_tsv_files([DataArguments(train_file=bare, source_column="1", target_column="0")]))
    assert not list(headerless_tsv_files([DataArguments(toy_corpus=True)]))


@looped("streaming", [False, True])
@looped(
    ("name", "text", "message"),
    [
        ("x.txt", "a\n", r"x\.txt: unknown extension; name the file \.tsv"),
        ("x.tsv", "", r"x\.tsv: no pairs in it"),
        ("x.tsv", "only one\n", r"x\.tsv, line 1: no column 'source' or 'target'; the columns are '0'"),
        ("x.csv", "en,de\na,b\n", r"line 2: no column 'source' or 'target'; the columns are 'en', 'de'"),
        ("x.csv", 'source,target\n"a,b\n', r"x\.csv, line 2: invalid CSV \(unexpected end of data\)"),
        ("x.jsonl", '{"source": "a"}\n', r"x\.jsonl, line 1: no column 'target'; the columns are 'source'"),
        ("x.jsonl", '\n{"source": "a", "target": 3}\n', r"line 2: field 'target' is int, not a string"),
        ("x.jsonl", '["a", "b"]\n', r"row 1: str instead of an object|cannot be streamed"),
        ("x.jsonl", "3\n", r"line 1: int instead of an object"),
        ("x.json", '{"source"\n', r"x\.json, line 1: not JSON"),
        ("x.json", '{"translation": {"en": "a", "fr": "b"}}\n', r"the languages en, fr, not en and de"),
        ("x.json", '{"translation": {"en": "a", "fr": "b"}}\n', r"the languages en, fr; set `source_lang`"),
        ("x.parquet", "PAR", r"x\.parquet: not a readable Parquet file"),
        ("x.tsv", "a\tb\rc\td\r", r"x\.tsv: lines end in carriage returns alone"),
        ("x.tsv.gz", b"source\ttarget\n\xff\t\n", r"line 2: byte 0xff at position 1 is not UTF-8"),
        ("x.tsv", "source\tsource\ttarget\n", r"x\.tsv, line 1: two columns are called 'source'; rename one"),
        ("x.jsonl", '{"source": "a", "source": "b", "target": "c"}', r"the key 'source' occurs twice"),
        ("x.jsonl", r'{"source": "a", "target": "b\udc00"}', r"'target' has a lone surrogate, U\+DC00, at position 1"),
    ],
)
def test_a_fault_is_one_line(tmp_path, name, text, message, streaming):
    arguments = DataArguments(
        train_file=write(tmp_path / name, text), source_lang="en", target_lang="de", streaming=streaming
    )
    if (name == "x.csv" and text.startswith("en")) or "fr; set" in message:
        arguments.source_lang = arguments.target_lang = None
    with pytest.raises(DataError, match=message) as caught:
        load_parallel_text(arguments)
    assert "\n" not in str(caught.value)


def test_faults_of_later_rows_name_the_row(tmp_path):
    for name, text, message in [
        ("x.tsv", "a\tb\nc\n", r"line 2: field '1' is missing"),
        ("x.tsv", "a\tb\t\nc\td\t\t\ne\tf\t\tg\n", r"line 3: 4 columns, but the first line has 3; remove the tab"),
        ("x.csv", "source,target\na,b\nc,d,e\n", r"line 3: 3 columns, but the first line has 2; quote the field"),
        ("x.jsonl", '{"source": "a", "target": "b"}\n{"source": "a", "target": null}\n', "line 2: .* is null"),
        ("x.jsonl", '{"source": "a", "target": "b"}\n3\n', "line 2: int instead of an object"),
    ]:
        with pytest.raises(DataError, match=message):
            load_parallel_text(DataArguments(train_file=write(tmp_path / name, text)))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a\nb\nc", "a\nb\n", r"a\.en has 3 lines but .*a\.de has 2; line n of both"),
        ("a\n", "", r"a\.de: no lines in it"),
        ("", "", r"a\.en: no lines in it"),
    ],
)
def test_line_counts_must_agree(tmp_path, source, target, message, streaming):
    arguments = DataArguments(
        train_source_file=write(tmp_path / "a.en", source),
        train_target_file=write(tmp_path / "a.de", target),
        streaming=streaming,
    )
    with pytest.raises(DataError, match=message):
        load_parallel_text(arguments)


def test_a_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"no\.tsv: no such file"):
        load_parallel_text(DataArguments(train_file=str(tmp_path / "no.tsv")))


def test_headerless_corpus(shared_data):
    path = str(shared_data / "tatoeba_en_es" / "spa.tsv.gz")
    stream = load_parallel_text(DataArguments(train_file=path, streaming=True))["train"]
    assert rows(stream.take(2)) == [("Go.", "Ve."), ("Go.", "Vete.")]


def test_text_that_other_code_has_read_is_read_again(tmp_path, monkeypatch):
    arguments = DataArguments(train_file=write(tmp_path / "x.tsv", tsv(PAIRS)))
    assert rows(load_parallel_text(arguments)["train"]) == PAIRS
    monkeypatch.setattr(reading._PairColumns, "pair", lambda self, row, where: {"source": "new", "target": "reader"})
    assert rows(load_parallel_text(arguments)["train"]) == PAIRS
    monkeypatch.setattr(reading, "CODE_FINGERPRINT", "another")
    assert rows(load_parallel_text(arguments)["train"]) == [("new", "reader")] * 3


# Named datasets


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "set").mkdir()
    for split in ("train", "dev"):
        translations = ({"id": 1, "translation": {"en": source, "de": target}} for source, target in PAIRS)
        write(tmp_path / "set" / f"{split}.jsonl", lines(map(json.dumps, translations)))
    return str(tmp_path / "set")


@pytest.mark.parametrize("streaming", [False, True])
def test_local_folder(folder, streaming):
    arguments = DataArguments(dataset_name=folder, source_lang="en", target_lang="de", streaming=streaming)
    loaded = load_parallel_text(arguments)
    assert list(loaded) == ["train", "validation"]
    assert rows(loaded["train"]) == rows(loaded["validation"]) == PAIRS


def test_a_named_file_replaces_a_split(folder, tmp_path):
    path = write(tmp_path / "v.tsv", tsv(PAIRS[:1]))
    arguments = DataArguments(dataset_name=folder, source_lang="en", target_lang="de", validation_file=path)
    assert rows(load_parallel_text(arguments)["validation"]) == PAIRS[:1]


def test_faults(folder, tmp_path):
    with pytest.raises(DataError, match="the languages en, de, not en and fr"):
        load_parallel_text(DataArguments(dataset_name=folder, source_lang="en", target_lang="fr"))
    with pytest.raises(DataError, match="train, row 1: no column 'source' or 'target'; the columns are 'text'"):
        (tmp_path / "plain").mkdir()
        write(tmp_path / "plain" / "train.jsonl", '{"text": "a"}\n')
        load_parallel_text(DataArguments(dataset_name=str(tmp_path / "plain")))
    with pytest.raises(DataError, match="cannot be loaded .*; check `dataset_name`"):
        load_parallel_text(DataArguments(dataset_name=str(tmp_path / "nothing")))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize(("content", "reason"), [(b'{"source": }', "Invalid value"), (b'{"source": "\xff"}', "utf-8")])
def test_damaged_files_of_a_dataset(tmp_path, streaming, content, reason):
    (tmp_path / "train.jsonl").write_bytes(content)
    with pytest.raises(DataError, match=rf"{tmp_path.name}.* cannot be loaded \(.*{reason}"):
        load_parallel_text(
            DataArguments(dataset_name=str(tmp_path), streaming=streaming, cache_dir=str(tmp_path / "cache"))
        )


def test_an_empty_file_of_a_streamed_dataset(tmp_path):
    (tmp_path / "train.json").touch()
    with pytest.raises(DataError, match=rf"{tmp_path.name}: cannot be loaded \(StopIteration\)"):
        load_parallel_text(DataArguments(dataset_name=str(tmp_path), streaming=True))


def test_a_null_names_its_row(tmp_path):
    (tmp_path / "set").mkdir()
    write(tmp_path / "set" / "train.jsonl", '{"source": "a", "target": "b"}\n{"source": null, "target": "b"}\n')
    with pytest.raises(DataError, match="train, row 2: field 'source' is null"):
        load_parallel_text(DataArguments(dataset_name=str(tmp_path / "set")))


def test_an_empty_split():
    with pytest.raises(DataError, match="somewhere, test: no pairs in it; choose another dataset or split"):
        reading._select_pairs(datasets.Dataset.from_dict({"source": []}), DataArguments(), "somewhere, test")


def test_a_dataset_without_known_splits(monkeypatch):
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: {"other": None, "more": None})
    with pytest.raises(DataError, match="me/x: has the splits other, more, none of train, validation, test; rename"):
        load_parallel_text(DataArguments(dataset_name="me/x"))


class TestFeatures:
    ARGUMENTS = {"feature_columns": ["tags"], "feature_separator": ";"}

    def pairs(self, path, **options):
        return rows(load_parallel_text(DataArguments(train_file=path, **self.ARGUMENTS | options))["train"])

    @pytest.mark.parametrize("streaming", [False, True])
    def test_follow_the_source(self, tmp_path, streaming):
        expected = [("go\tV;PST", "went"), ("go\t", "go")]
        columns = {"source_column": "0", "target_column": "2", "feature_columns": ["1"], "streaming": streaming}
        assert self.pairs(write(tmp_path / "a.tsv", "go\tV;PST\twent\ngo\t\tgo\n"), **columns) == expected
        content = 'tags,source,target\nV;PST,go,went\n"",go,go\n'
        assert self.pairs(write(tmp_path / "a.csv", content), streaming=streaming) == expected
        table = {"tags": ["V;PST", ""], "target": ["went", "go"], "source": ["go", "go"]}
        records = [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]
        path = write(tmp_path / "a.jsonl", "".join(f"{json.dumps(record)}\n" for record in records))
        assert self.pairs(path, streaming=streaming) == expected
        pq.write_table(pa.table(table), tmp_path / "a.parquet")
        assert self.pairs(str(tmp_path / "a.parquet"), streaming=streaming) == expected
        named = DataArguments(dataset_name=str(tmp_path / "only"), streaming=streaming, **self.ARGUMENTS)
        (tmp_path / "only").mkdir()
        write(tmp_path / "only" / "train.jsonl", (tmp_path / "a.jsonl").read_bytes())
        assert rows(load_parallel_text(named)["train"]) == expected

    def test_other_columns_are_read_anew(self, tmp_path):
        path = write(tmp_path / "a.tsv", "go\twent\tV\tPST\n")
        columns = {"source_column": "0", "target_column": "1"}
        assert self.pairs(path, feature_columns=["2"], **columns) == [("go\tV", "went")]
        assert self.pairs(path, feature_columns=["3", "2"], **columns) == [("go\tPST\tV", "went")]

    @pytest.mark.parametrize(
        ("name", "content", "error"),
        [
            ("a.tsv", "go\twent\tV\nbe\twas\n", "a.tsv, line 2: field '2' is missing"),
            ("a.tsv", "go\twent\n", "a.tsv, line 1: no column '2'; the columns are '0', '1'; set `feature_columns`"),
            ("a.jsonl", '{"0": "a\\tb", "1": "c", "2": "V"}', "line 1: a tab or line end inside a field"),
            ("a.jsonl", '{"0": "a", "1": "c", "2": ["V"]}', "line 1: field '2' is list, not a string"),
        ],
    )
    def test_unusable_rows(self, tmp_path, name, content, error):
        columns = {"source_column": "0", "target_column": "1", "feature_columns": ["2"]}
        with pytest.raises(DataError, match=re.escape(error)):
            self.pairs(write(tmp_path / name, content), **columns)

    def test_two_text_files_have_them_in_the_source(self, tmp_path):
        source, target = write(tmp_path / "s", "go\tV\nbe\tV\n"), write(tmp_path / "t", "went\nwas\n")
        options = {"train_source_file": source, "train_target_file": target}
        arguments = DataArguments(**options, **self.ARGUMENTS)
        assert rows(load_parallel_text(arguments)["train"]) == [("go\tV", "went"), ("be\tV", "was")]
        write(tmp_path / "s", "go\tV\nbe\n")
        with pytest.raises(DataError, match="s, line 2 has 1 of 2 columns: 'be'"):
            load_parallel_text(arguments)

    @pytest.mark.parametrize(
        ("options", "error"),
        [
            ({"feature_separator": ";"}, "without `feature_columns`"),
            ({"feature_columns": ["2"], "feature_separator": " "}, "set a mark"),
            ({"feature_columns": ["2"], "toy_corpus": True}, "`toy_corpus` has no `feature_columns`"),
        ],
    )
    def test_unusable_options(self, options, error):
        with pytest.raises(DataError, match=error):
            DataArguments(**options)
