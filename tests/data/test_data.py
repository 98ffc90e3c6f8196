import csv
import gzip
import json
import shutil
from pathlib import Path

import datasets
import pytest
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import HfArgumentParser, PreTrainedTokenizerFast, Seq2SeqTrainingArguments

from hf_vanilla_transformer.data import encoding, fingerprint, reading, splits
from hf_vanilla_transformer.data.arguments import SPLITS, DataArguments
from hf_vanilla_transformer.data.encoding import PairCounts, tokenize_pairs
from hf_vanilla_transformer.data.reading import headerless_tsv_files
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.files import read_lines

PAIRS = [("a dog", "ein Hund"), ("two, cats", 'zwei "Katzen"'), ("the\x85end", "das Ende")]


def write(path, text):
    content = text if isinstance(text, bytes) else text.encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return str(path)


def lines(items):
    return "".join(f"{item}\n" for item in items)


def tsv(pairs):
    return lines("\t".join(pair) for pair in pairs)


def rows(split):
    return [(row["source"], row["target"]) for row in split]


def build_tokenizer(texts, vocab_size=200, end=True):
    inner = Tokenizer(models.BPE(unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<pad>", "<s>", "</s>", "<unk>"]
    inner.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=special, show_progress=False)
    )
    if end:
        inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


@pytest.fixture(scope="module")
def words():
    """A tokenizer of one token a word, so that lengths can be counted by eye."""
    inner = Tokenizer(models.WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "<unk>": 3, "w": 4}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    inner.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", bos_token="<s>", eos_token="</s>", unk_token="<unk>"
    )


def word_pairs(*lengths):
    sides = zip(*[(" ".join("w" * source), " ".join("w" * target)) for source, target in lengths], strict=True)
    return datasets.Dataset.from_dict(dict(zip(("source", "target"), map(list, sides), strict=True)))


class TestReadLines:
    @pytest.mark.parametrize("name", ["x.en", "x.en.gz"])
    def test_reads_lines_at_newlines_only(self, tmp_path, name):
        path = write(tmp_path / name, "\ufeffone\x85still one\r\n\ntwo\u2028\x0c\nlast")
        assert list(read_lines(path)) == ["one\x85still one", "", "two\u2028\x0c", "last"]

    def test_knows_gzip_by_its_first_bytes(self, tmp_path):
        assert list(read_lines(write(tmp_path / "x.en", gzip.compress(b"one\ntwo\n")))) == ["one", "two"]

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("x.en", b"good\nb\xe4d\n", r"x\.en, line 2: byte 0xe4 at position 2 is not UTF-8"),
            ("x.en", gzip.compress(b"some text\n" * 50, mtime=0)[:-12], r"x\.en: not a whole gzip file"),
            ("x.gz", None, r"x\.gz: cannot be read \(No such file"),
        ],
    )
    def test_names_the_fault(self, tmp_path, name, content, message):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(DataError, match=message):
            list(read_lines(tmp_path / name))

    def test_refuses_a_gz_name_over_plain_text(self, tmp_path):
        (tmp_path / "x.gz").write_text("plain\n")
        with pytest.raises(DataError, match="not a whole gzip file"):
            list(read_lines(tmp_path / "x.gz"))


class TestFiles:
    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize("suffix", ["", ".gz"])
    def test_two_files(self, tmp_path, suffix, streaming):
        source = write(tmp_path / f"a.en{suffix}", lines(source for source, _ in PAIRS))
        target = write(tmp_path / f"a.de{suffix}", lines(target for _, target in PAIRS))
        loaded = load_parallel_text(
            DataArguments(train_source_file=source, train_target_file=target, streaming=streaming)
        )
        assert isinstance(loaded["train"], datasets.IterableDataset if streaming else datasets.Dataset)
        assert rows(loaded["train"]) == PAIRS

    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize(
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
    def test_one_file(self, tmp_path, name, text, options, streaming):
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

    def test_csv_with_quotes_and_line_ends_in_a_field(self, tmp_path):
        pairs = [*PAIRS, ("two\nlines", "x")]
        with open(tmp_path / "x.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("source", "target"), *pairs])
        assert rows(load_parallel_text(DataArguments(train_file=str(tmp_path / "x.csv")))["train"]) == pairs

    def test_json_array(self, tmp_path):
        path = write(tmp_path / "x.json", json.dumps([{"source": s, "target": t} for s, t in PAIRS], indent=1))
        assert rows(load_parallel_text(DataArguments(train_file=path))["train"]) == PAIRS
        with pytest.raises(DataError, match="cannot be streamed; write one object a line"):
            load_parallel_text(DataArguments(train_file=path, streaming=True))

    def test_parquet(self, tmp_path):
        translations = [{"translation": {"en": source, "de": target}} for source, target in PAIRS]
        datasets.Dataset.from_list(translations).to_parquet(tmp_path / "x.parquet")
        arguments = DataArguments(train_file=str(tmp_path / "x.parquet"), source_lang="en", target_lang="de")
        assert rows(load_parallel_text(arguments)["train"]) == PAIRS

    def test_a_changed_file_is_read_again(self, tmp_path):
        path = write(tmp_path / "x.tsv", tsv(PAIRS))
        assert rows(load_parallel_text(DataArguments(train_file=path))["train"]) == PAIRS
        write(tmp_path / "x.tsv", tsv(PAIRS[1:]))
        assert rows(load_parallel_text(DataArguments(train_file=path))["train"]) == PAIRS[1:]

    def test_a_file_may_serve_as_another_split(self, tmp_path):
        path = write(tmp_path / "x.tsv", tsv(PAIRS))
        assert rows(load_parallel_text(DataArguments(validation_file=path))["validation"]) == PAIRS
        loaded = load_parallel_text(DataArguments(train_file=path, validation_file=path, test_file=path))
        assert [rows(loaded[split]) for split in SPLITS] == [PAIRS] * 3

    def test_text_that_other_code_has_read_is_read_again(self, tmp_path, monkeypatch, words):
        arguments = DataArguments(train_file=write(tmp_path / "x.tsv", tsv(PAIRS)))
        assert rows(load_parallel_text(arguments)["train"]) == PAIRS
        monkeypatch.setattr(reading._Columns, "pair", lambda self, row, where: {"source": "new", "target": "reader"})
        assert rows(load_parallel_text(arguments)["train"]) == PAIRS
        monkeypatch.setattr(reading, "CODE_FINGERPRINT", "another")
        assert rows(load_parallel_text(arguments)["train"]) == [("new", "reader")] * 3

    @pytest.mark.parametrize("module", [module.removesuffix(".py") for module in fingerprint.MODULES])
    def test_caches_depend_on_the_code_that_reads(self, tmp_path, module, words):
        shutil.copytree(Path(reading.__file__).parents[1], tmp_path / "package")
        assert fingerprint.code_fingerprint(tmp_path / "package") == fingerprint.CODE_FINGERPRINT
        with open(tmp_path / "package" / f"{module}.py", "a") as file:
            file.write("# changed")
        changed = fingerprint.code_fingerprint(tmp_path / "package")
        assert changed != fingerprint.CODE_FINGERPRINT
        # What `Dataset.map` is given.
        for one, other in (
            (encoding._Encoder(words, 9, 9, 2.0, False), encoding._Encoder(words, 9, 9, 2.0, False, changed)),
            (reading._Columns("a", "b"), reading._Columns("a", "b", code=changed)),
        ):
            assert Hasher.hash(one) != Hasher.hash(other)

    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize(
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
    def test_a_likely_header_is_no_pair(self, tmp_path, first, streaming):
        path = write(tmp_path / "x.tsv", tsv(["", first, *PAIRS]))
        with pytest.raises(DataError, match=rf"x.tsv, line 2: '{first[0]}' and '{first[1]}' read like names of col"):
            load_parallel_text(DataArguments(train_file=path, streaming=streaming))
        # Either remedy of the message reads the file.
        for columns, more in ((first[:2], []), (("0", "1"), [first[:2]])):
            arguments = DataArguments(
                train_file=path, source_column=columns[0], target_column=columns[1], streaming=streaming
            )
            if len(first) == 2:
                assert rows(load_parallel_text(arguments)["train"]) == [*more, *PAIRS]

    @pytest.mark.parametrize(
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
    def test_a_pair_is_no_header(self, tmp_path, first):
        path = write(tmp_path / "x.tsv", tsv([first, *PAIRS]))
        arguments = DataArguments(train_file=path)
        assert rows(load_parallel_text(arguments)["train"]) == [first, *PAIRS]
        assert list(headerless_tsv_files(arguments)) == [
            ("x.tsv", dict(zip(("source", "target"), first, strict=True)))
        ]

    def test_columns_known_by_name_are_not_by_position(self, tmp_path):
        named = write(tmp_path / "x.tsv.gz", tsv([("source", "target"), *PAIRS]))
        bare = write(tmp_path / "y.tsv", tsv(PAIRS))
        assert list(headerless_tsv_files(DataArguments(train_file=named, test_file=bare))) == [
            ("y.tsv", {"source": PAIRS[0][0], "target": PAIRS[0][1]})
        ]
        assert not list(headerless_tsv_files(DataArguments(train_file=bare, source_column="1", target_column="0")))
        assert not list(headerless_tsv_files(DataArguments(toy_corpus=True)))

    @pytest.mark.parametrize("streaming", [False, True])
    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("x.txt", "a\n", r"x\.txt: unknown extension; name the file \.tsv"),
            ("x.tsv", "", r"x\.tsv: no pairs in it"),
            ("x.tsv", "only one\n", r"x\.tsv, line 1: no column 'source' or 'target'; the columns are '0'"),
            ("x.csv", "en,de\na,b\n", r"line 2: no column 'source' or 'target'; the columns are 'en', 'de'"),
            ("x.csv", 'source,target\n"a,b\n', r"x\.csv, line 2: not CSV \(unexpected end of data\)"),
            ("x.jsonl", '{"source": "a"}\n', r"x\.jsonl, line 1: no column 'target'; the columns are 'source'"),
            ("x.jsonl", '\n{"source": "a", "target": 3}\n', r"line 2: field 'target' is int, not a string"),
            ("x.jsonl", '["a", "b"]\n', r"row 1: str instead of an object|cannot be streamed"),
            ("x.jsonl", "3\n", r"line 1: int instead of an object"),
            ("x.json", '{"source"\n', r"x\.json, line 1: not JSON"),
            ("x.json", '{"translation": {"en": "a", "fr": "b"}}\n', r"the languages en, fr, not en and de"),
            ("x.parquet", "PAR", r"x\.parquet: not a readable Parquet file"),
            ("x.tsv.gz", b"source\ttarget\n\xff\t\n", r"line 2: byte 0xff at position 1 is not UTF-8"),
        ],
    )
    def test_a_fault_is_one_line(self, tmp_path, name, text, message, streaming):
        arguments = DataArguments(
            train_file=write(tmp_path / name, text), source_lang="en", target_lang="de", streaming=streaming
        )
        if name == "x.csv" and text.startswith("en"):
            arguments.source_lang = arguments.target_lang = None
        with pytest.raises(DataError, match=message) as caught:
            load_parallel_text(arguments)
        assert "\n" not in str(caught.value)

    def test_faults_of_later_rows_name_the_row(self, tmp_path):
        for name, text, message in [
            ("x.tsv", "a\tb\nc\n", r"line 2: field '1' is missing"),
            ("x.jsonl", '{"source": "a", "target": "b"}\n{"source": "a", "target": null}\n', "line 2: .* is null"),
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
    def test_line_counts_must_agree(self, tmp_path, source, target, message, streaming):
        arguments = DataArguments(
            train_source_file=write(tmp_path / "a.en", source),
            train_target_file=write(tmp_path / "a.de", target),
            streaming=streaming,
        )
        with pytest.raises(DataError, match=message):
            load_parallel_text(arguments)

    def test_a_missing_file(self, tmp_path):
        with pytest.raises(DataError, match=r"no\.tsv: no such file"):
            load_parallel_text(DataArguments(train_file=str(tmp_path / "no.tsv")))

    def test_headerless_corpus(self, shared_data):
        path = str(shared_data / "tatoeba_en_es" / "spa.tsv.gz")
        stream = load_parallel_text(DataArguments(train_file=path, streaming=True))["train"]
        assert rows(stream.take(2)) == [("Go.", "Ve."), ("Go.", "Vete.")]


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"train_source_file": "a"}, "--train_source_file is given without --train_target_file"),
            ({"test_target_file": "a"}, "--test_target_file is given without --test_source_file"),
            ({"source_lang": "en"}, "--source_lang is given without --target_lang"),
            ({"train_file": "a", "train_source_file": "a", "train_target_file": "b"}, "are both given"),
            ({"train_file": "a.tsv", "dataset_name": "b"}, "--dataset_name and a training file are both given"),
            ({"train_file": "a.tsv", "toy_corpus": True}, "--toy_corpus and a training file are both given"),
            ({"dataset_name": "a", "toy_corpus": True}, "--dataset_name and --toy_corpus are both given"),
            ({"streaming": True, "toy_corpus": True}, "nothing to read"),
            ({"validation_file": "a.tsv", "validation_split_size": 0.1}, "and a validation file are both given"),
            ({"train_file": "a.tsv", "test_split_size": 1.5}, "1.5 is neither a fraction below 1 nor a number"),
            ({"train_file": "a.tsv", "max_train_samples": 0}, "leaves no pairs"),
        ],
    )
    def test_contradictions(self, options, message):
        with pytest.raises(DataError, match=message):
            DataArguments(**options)

    def test_toy_corpus(self):
        splits = load_parallel_text(DataArguments(toy_corpus=True, max_train_samples=50))
        assert {split: len(pairs) for split, pairs in splits.items()} == {
            "train": 50,
            "validation": 1000,
            "test": 1000,
        }
        assert splits["train"].column_names == ["source", "target"]

    @pytest.mark.parametrize(
        ("options", "description"),
        [
            ({"toy_corpus": True}, "the built-in English-Spanish corpus"),
            ({"dataset_name": "Helsinki-NLP/opus_books"}, "Helsinki-NLP/opus_books"),
            ({"train_source_file": "some/a.en", "train_target_file": "some/a.de"}, "a.en, a.de"),
        ],
    )
    def test_description(self, options, description):
        assert DataArguments(**options).description == description

    def test_no_data(self):
        with pytest.raises(DataError, match="no data is named"):
            load_parallel_text(DataArguments())

    def test_parse_beside_training_arguments(self, tmp_path):
        parser = HfArgumentParser((DataArguments, Seq2SeqTrainingArguments))
        command = ["--train_file", "x.tsv", "--on_long", "truncate", "--test_split_size", "0.1", "--streaming"]
        arguments, _ = parser.parse_args_into_dataclasses([*command, "--output_dir", str(tmp_path)])
        assert arguments == DataArguments(train_file="x.tsv", on_long="truncate", test_split_size=0.1, streaming=True)
        # argparse formats the help texts, so a stray "%" in one would raise.
        assert "--max_length_ratio" in parser.format_help()
        assert all(name.metadata["help"] for name in DataArguments.__dataclass_fields__.values())


class TestNamedDataset:
    @pytest.fixture
    def folder(self, tmp_path):
        for split in ("train", "dev"):
            translations = ({"id": 1, "translation": {"en": source, "de": target}} for source, target in PAIRS)
            write(tmp_path / "set" / f"{split}.jsonl", lines(map(json.dumps, translations)))
        return str(tmp_path / "set")

    @pytest.fixture(autouse=True)
    def _make_folder(self, tmp_path):
        (tmp_path / "set").mkdir()

    @pytest.mark.parametrize("streaming", [False, True])
    def test_local_folder(self, folder, streaming):
        arguments = DataArguments(dataset_name=folder, source_lang="en", target_lang="de", streaming=streaming)
        loaded = load_parallel_text(arguments)
        assert list(loaded) == ["train", "validation"]
        assert rows(loaded["train"]) == rows(loaded["validation"]) == PAIRS

    def test_a_named_file_replaces_a_split(self, folder, tmp_path):
        path = write(tmp_path / "v.tsv", tsv(PAIRS[:1]))
        arguments = DataArguments(dataset_name=folder, source_lang="en", target_lang="de", validation_file=path)
        assert rows(load_parallel_text(arguments)["validation"]) == PAIRS[:1]

    def test_faults(self, folder, tmp_path):
        with pytest.raises(DataError, match="the languages en, de, not en and fr"):
            load_parallel_text(DataArguments(dataset_name=folder, source_lang="en", target_lang="fr"))
        with pytest.raises(DataError, match="train, row 1: no column 'source' or 'target'; the columns are 'text'"):
            (tmp_path / "plain").mkdir()
            write(tmp_path / "plain" / "train.jsonl", '{"text": "a"}\n')
            load_parallel_text(DataArguments(dataset_name=str(tmp_path / "plain")))
        with pytest.raises(DataError, match="cannot be loaded .*; check --dataset_name"):
            load_parallel_text(DataArguments(dataset_name=str(tmp_path / "nothing")))

    def test_a_null_names_its_row(self, tmp_path):
        write(tmp_path / "set" / "train.jsonl", '{"source": "a", "target": "b"}\n{"source": null, "target": "b"}\n')
        with pytest.raises(DataError, match="train, row 2: field 'source' is null"):
            load_parallel_text(DataArguments(dataset_name=str(tmp_path / "set")))


class TestSplits:
    # Every source comes three times, as in corpora with several translations.
    corpus = [(f"source {i // 3}", f"target {i}") for i in range(300)]

    def load(self, tmp_path, corpus=corpus, **options):
        return load_parallel_text(DataArguments(train_file=write(tmp_path / "x.tsv", tsv(corpus)), **options))

    def test_sources_stay_together(self, tmp_path):
        loaded = self.load(tmp_path, validation_split_size=0.1, test_split_size=20)
        assert list(loaded) == ["train", "validation", "test"]
        # At least what was asked for, and not more than the rest of one source.
        assert 30 <= len(loaded["validation"]) <= 32 and 20 <= len(loaded["test"]) <= 22
        sources = [set(split["source"]) for split in loaded.values()]
        assert not (sources[0] & sources[1] or sources[0] & sources[2] or sources[1] & sources[2])
        assert sorted(pair for split in loaded.values() for pair in rows(split)) == sorted(self.corpus)

    def test_seed_decides_and_order_does_not(self, tmp_path):
        test = [
            set(rows(self.load(tmp_path, corpus, test_split_size=60, split_seed=seed)["test"]))
            for corpus, seed in [(self.corpus, 0), (self.corpus[::-1], 0), (self.corpus, 1)]
        ]
        assert test[0] == test[1] != test[2]

    def test_streaming(self, tmp_path):
        loaded = self.load(tmp_path, validation_split_size=0.2, test_split_size=0.2, streaming=True)
        parts = {split: rows(loaded[split]) for split in loaded}
        assert sorted(sum(parts.values(), [])) == sorted(self.corpus)
        assert all(len(part) > 20 for part in parts.values())
        assert not {source for source, _ in parts["train"]} & {source for source, _ in parts["test"]}
        with pytest.raises(DataError, match="streamed pairs need a fraction"):
            self.load(tmp_path, test_split_size=20, streaming=True)

    def test_too_large(self, tmp_path):
        with pytest.raises(DataError, match="--test_split_size 300 leaves nothing to train on; there are 300 pairs"):
            self.load(tmp_path, test_split_size=300)
        with pytest.raises(DataError, match="--test_split_size needs training pairs"):
            path = write(tmp_path / "v.tsv", tsv(PAIRS))
            load_parallel_text(DataArguments(validation_file=path, test_split_size=2))

    def test_max_train_samples(self, tmp_path):
        one, same, other = (
            rows(self.load(tmp_path, max_train_samples=50, split_seed=seed)["train"]) for seed in (0, 0, 1)
        )
        assert len(one) == 50 and one == same != other and one != self.corpus[:50]
        assert len(self.load(tmp_path, max_train_samples=500)["train"]) == 300
        streamed = self.load(tmp_path, max_train_samples=5, streaming=True)["train"]
        assert rows(streamed) == self.corpus[:5]

    def test_overlap_is_reported(self, tmp_path, monkeypatch):
        messages = []
        monkeypatch.setattr(splits.logger, "warning", messages.append)
        path = write(tmp_path / "v.tsv", tsv([("source 1", "x"), ("new", "x"), ("source 99", "y")]))
        self.load(tmp_path, validation_file=path)
        assert messages == ["2 of 3 validation pairs have a source that is also in the training pairs"]


class TestTokenizePairs:
    lengths = [(3, 3), (0, 2), (9, 3), (3, 9), (7, 7), (1, 3), (1, 8)]
    limits = {"max_source_length": 9, "max_target_length": 9, "max_length_ratio": 2.0}

    def test_drop(self, words):
        # Lengths with </s>: 9 > 8 is cut off by the limits; (2, 9) exceeds 2 * 2 + 4.
        ids, counts = tokenize_pairs(word_pairs(*self.lengths), words, **self.limits)
        assert [(len(row["input_ids"]), len(row["labels"])) for row in ids] == [(4, 4), (8, 8), (2, 4)]
        assert ids[0] == {"input_ids": [4, 4, 4, 2], "labels": [4, 4, 4, 2]}
        assert ids.features["labels"].feature.dtype == "int32"
        assert counts == PairCounts(7, 3, empty=1, too_long=2, ratio=1, limits=(9, 9, 2.0))
        assert str(counts) == "read 7, kept 3: 1 empty, 2 longer than 9, 1 with length ratio above 2"

    def test_truncate_keeps_the_end(self, words):
        ids, counts = tokenize_pairs(word_pairs((9, 3), (2, 2)), words, max_source_length=5, on_long="truncate")
        assert ids["input_ids"][:] == [[4, 4, 4, 4, 2], [4, 4, 2]]
        assert str(counts) == "read 2, kept 2: 1 truncated"

    @pytest.mark.parametrize(("on_long", "longest"), [("drop", 10), ("truncate", 9)])
    def test_evaluation_keeps_every_pair(self, words, on_long, longest):
        ids, counts = tokenize_pairs(word_pairs(*self.lengths), words, **self.limits, on_long=on_long, evaluation=True)
        assert len(ids) == counts.kept == 7
        assert max(map(len, ids["input_ids"])) == longest
        assert (counts.too_long, counts.truncated) == ((2, 0) if on_long == "drop" else (0, 2))

    def test_several_processes_agree(self, words):
        pairs = word_pairs(*self.lengths * 3)
        one, two = (tokenize_pairs(pairs, words, **self.limits, num_proc=n) for n in (None, 2))
        assert one[0].to_list() == two[0].to_list() and one[1] == two[1]

    def test_stream_agrees(self, words, monkeypatch):
        pairs = word_pairs(*self.lengths)
        expected, counts = tokenize_pairs(pairs, words, **self.limits)
        messages = []
        monkeypatch.setattr(encoding.logger, "info", messages.append)
        stream, streamed = tokenize_pairs(pairs.to_iterable_dataset(), words, **self.limits)
        assert streamed.read == 0
        for _ in range(2):
            assert list(stream) == expected.to_list()
            assert streamed == counts
        assert messages == [f"end of a pass over the stream: {counts}"] * 2

    def test_faults(self, words):
        with pytest.raises(DataError, match=r"no pair is left \(read 1, kept 0: 1 empty\)"):
            tokenize_pairs(word_pairs((0, 1)), words)
        with pytest.raises(DataError, match="does not end its sequences with eos_token '</s>'"):
            tokenize_pairs(word_pairs((1, 1)), build_tokenizer(["w w"], end=False))
        with pytest.raises(DataError, match="--max_target_length 1 leaves room for nothing"):
            tokenize_pairs(word_pairs((1, 1)), words, max_target_length=1)
        with pytest.raises(DataError, match="--max_length_ratio 0.5"):
            tokenize_pairs(word_pairs((1, 1)), words, max_length_ratio=0.5)
