"""Lists of corpora: the meaning of entries, the pairs they yield, and the location of errors."""

import json
from collections import Counter
from pathlib import Path

import datasets
import pytest

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.corpora import Corpora, Part, corpora_of, with_entry
from hf_vanilla_transformer.data.splits import load_parallel_text, located_splits
from hf_vanilla_transformer.errors import DataError
from parallel_text import lines, tsv, write
from tables import looped

GERMAN = [(f"a {i}", f"ein {i}") for i in range(40)]
SPANISH = [(f"a {i}", f"un {i}") for i in range(10)]


@pytest.fixture(autouse=True)
def corpora(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for side, language in enumerate(("en", "de")):
        write(tmp_path / f"x.{language}", lines([pair[side] for pair in GERMAN]))
    write(tmp_path / "es.tsv", tsv(SPANISH))
    write(tmp_path / "val.tsv", tsv([("one", "eins")]))


def arguments(text, **options):
    with open("list.yaml", "w") as file:
        file.write(text)
    return DataArguments(corpora="list.yaml", **options)


BOTH = "  - {source_lang: en, target_lang: de, source_file: x.en, target_file: x.de, both_directions: true}\n"
SPANISH_ENTRY = "  - {source_lang: en, target_lang: es, file: es.tsv, weight: 2.5}\n"


def parts_of(rows):
    return Counter(rows["part"])


class TestPairs:
    def test_directions_and_parts(self):
        given = arguments(f"corpora:\n{BOTH}{SPANISH_ENTRY}sampling_temperature: 5")
        found = corpora_of(given)
        assert found.temperature == 5
        assert found.parts == (Part("en", "de"), Part("de", "en", is_reversed=True), Part("en", "es", 2.5))
        train = load_parallel_text(given)["train"]
        assert parts_of(train) == {0: 40, 1: 40, 2: 10}
        pairs = {(row["source"], row["target"], row["part"]) for row in train}
        assert ("a 3", "ein 3", 0) in pairs and ("ein 3", "a 3", 1) in pairs and ("a 3", "un 3", 2) in pairs

    def test_one_corpus_in_one_direction_has_no_parts(self):
        given = arguments("corpora: [{source_lang: en, target_lang: es, file: es.tsv}]")
        train = load_parallel_text(given)["train"]
        assert train.column_names == ["source", "target"] and len(corpora_of(given).parts) == 1

    def test_it_is_added_to_the_corpus_of_options(self):
        given = arguments("corpora: [{file: es.tsv, tag: made}]", train_file="val.tsv", train_weight=0.5)
        assert corpora_of(given).parts == (Part(weight=0.5), Part(tag="<made>"))
        assert parts_of(load_parallel_text(given)["train"]) == {0: 1, 1: 10}

    def test_json_languages_of_options_and_a_country_that_is_no_switch(self):
        text = json.dumps({"corpora": [{"file": "es.tsv"}, {"file": "es.tsv", "source_lang": "no"}]})
        parts = corpora_of(arguments(text, source_lang="en", target_lang="es")).parts
        assert [part.direction for part in parts] == [("en", "es"), ("no", "es")]

    def test_null_is_as_if_not_given(self):
        text = json.dumps({"corpora": [{"file": "es.tsv", "tag": None, "weight": None, "source_lang": None}]})
        given = arguments(text)
        assert corpora_of(given).parts == (Part(),)
        assert corpora_of(with_entry(given, "more.json", file="es.tsv")).parts == (Part(), Part())

    def test_a_dataset_and_columns(self, tmp_path):
        (tmp_path / "folder").mkdir()
        for split in ("train", "test"):
            write(tmp_path / "folder" / f"{split}.tsv", tsv([("x", "y"), *SPANISH]))
        entry = "{dataset_name: folder, source_lang: y, target_lang: x}"
        loaded = load_parallel_text(arguments(f"corpora: [{entry}]\ntest: [{entry}]"))
        assert set(loaded) == {"train", "test"} and loaded["train"][0] == {"source": "un 0", "target": "a 0"}
        with pytest.raises(DataError, match="list.yaml, line 2: folder has no split validation, only train, test"):
            load_parallel_text(arguments(f"corpora: [{entry}]\nvalidation: [{entry}]"))

    def test_a_dataset_of_options_without_training_pairs(self, tmp_path):
        (tmp_path / "folder").mkdir()
        write(tmp_path / "folder" / "test.tsv", tsv([("source", "target"), *SPANISH]))
        options = {"dataset_name": "folder", "source_lang": "en", "target_lang": "es"}
        with pytest.raises(DataError, match="folder has no split train, only test"):
            load_parallel_text(arguments(f"corpora:\n{BOTH}", **options))

    def test_several_languages_of_a_dataset(self, tmp_path):
        (tmp_path / "folder").mkdir()
        row = json.dumps({"translation": {"en": "a", "de": "ein", "es": "un"}})
        write(tmp_path / "folder" / "train.jsonl", f"{row}\n")
        entries = (f"  - {{dataset_name: folder, source_lang: en, target_lang: {code}}}\n" for code in ("de", "es"))
        train = load_parallel_text(arguments(f"corpora:\n{''.join(entries)}"))["train"]
        assert train[:] == {"source": ["a", "a"], "target": ["ein", "un"], "part": [0, 1]}

    def test_filters_and_what_they_leave_out(self):
        write(Path("es.tsv"), tsv([*SPANISH, SPANISH[0], ("no", "no")]))
        given = arguments(
            "corpora: [{source_lang: en, target_lang: es, file: es.tsv, filters: [repeated, equal], "
            "left_out_file: out.tsv}]"
        )
        for _ in range(2):
            assert len(load_parallel_text(given)["train"]) == 10
            assert Path("out.tsv").read_text() == "repeated\ta 0\tun 0\nequal\tno\tno\n"

    @pytest.mark.parametrize("file", ["es.tsv", "x.de", "./val.tsv", "list.yaml", "folder/train.tsv", "options.tsv"])
    def test_what_they_leave_out_replaces_no_input(self, file):
        Path("folder").mkdir()
        write(Path("folder/train.tsv"), tsv([("source", "target"), *SPANISH]))
        write(Path("options.tsv"), tsv(SPANISH))
        given = arguments(
            "corpora:\n  - {source_lang: en, target_lang: es, file: es.tsv, filters: [equal], left_out_file: "
            f"{file}}}\n{BOTH}  - {{source_lang: en, target_lang: es, dataset_name: folder}}\n"
            "validation:\n  - {source_lang: en, target_lang: de, file: val.tsv}\n",
            train_file="options.tsv",
            source_lang="en",
            target_lang="es",
        )
        before = Path(file).read_text()
        with pytest.raises(DataError, match="list.yaml, line 2: `left_out_file` .* is the input .* and would replace"):
            load_parallel_text(given)
        assert Path(file).read_text() == before


class TestEvaluation:
    def test_directions_of_the_training_pairs_and_others(self):
        validation = "  - {source_lang: %s, target_lang: %s, file: val.tsv, both_directions: true}\n"
        given = arguments(f"corpora:\n{BOTH}{SPANISH_ENTRY}validation:\n{validation % ('de', 'es')}")
        parts = corpora_of(given).parts
        assert parts[3:] == (Part("de", "es", 0), Part("es", "de", 0))
        assert load_parallel_text(given)["validation"][:] == {
            "source": ["one", "eins"],
            "target": ["eins", "one"],
            "part": [3, 4],
        }
        given = arguments(f"corpora:\n{BOTH}{SPANISH_ENTRY}test:\n{validation % ('de', 'en')}")
        assert load_parallel_text(given)["test"]["part"] == [1, 0] and len(corpora_of(given).parts) == 3

    def test_held_out_pairs_are_in_no_direction_of_the_training_pairs(self):
        tagged = "  - {source_lang: de, target_lang: en, file: es.tsv, tag: t}\n"
        kept = "  - {source_lang: en, target_lang: es, file: es.tsv, hold_out: false}\n"
        given = arguments(f"corpora:\n{BOTH}{tagged}{kept}", validation_split_size=5, max_train_samples=20)
        loaded = load_parallel_text(given)
        assert parts_of(loaded["validation"]) == {0: 5, 1: 5}
        assert parts_of(loaded["train"]) == {0: 20, 1: 20, 2: 10, 3: 10}
        held_out = {frozenset((row["source"], row["target"])) for row in loaded["validation"]}
        trained = {frozenset((row["source"], row["target"])) for row in loaded["train"] if row["part"] < 2}
        assert len(held_out) == 5 and not held_out & trained

    @pytest.mark.parametrize(
        "text",
        [
            "corpora: [{file: es.tsv, tag: t}]\nvalidation: [{file: val.tsv}]",
            "corpora: [{file: es.tsv, tag: t, both_directions: true, source_lang: en, target_lang: es}]\n"
            "validation: [{file: val.tsv, source_lang: es, target_lang: en}]",
            "corpora: [{file: es.tsv, tag: t}, {file: es.tsv}]\nvalidation: [{file: val.tsv}]",
            "corpora: [{file: es.tsv, tag: t, hold_out: true}]",
        ],
    )
    def test_their_sources_have_no_tag(self, text):
        given = arguments(text, **({} if "validation" in text else {"validation_split_size": 1}))
        parts, loaded = corpora_of(given).parts, load_parallel_text(given)
        (number,) = set(loaded["validation"]["part"])
        assert parts[number].tag is None and parts[loaded["train"][0]["part"]].tag == "<t>"

    def test_pairs_are_listed_or_held_out(self):
        entry = "  - {source_lang: en, target_lang: es, file: %s}\n"
        given = arguments(f"corpora:\n{entry % 'es.tsv'}test:\n{entry % 'val.tsv'}", test_split_size=2)
        with pytest.raises(DataError, match="list.yaml, line 4: test pairs are listed; leave `test_split_size` out"):
            load_parallel_text(given)

    def test_nothing_to_train_on(self):
        given = arguments("validation: [{file: val.tsv}]", train_file="es.tsv", train_weight=0)
        with pytest.raises(DataError, match="`train_weight` 0 leaves nothing to train on"):
            load_parallel_text(given)
        given = arguments("corpora:\n- {file: es.tsv, weight: 0}\nvalidation: [{file: val.tsv}]")
        with pytest.raises(DataError, match="list.yaml, line 2: `weight` 0 leaves nothing to train on"):
            load_parallel_text(given)


def test_streams_are_drawn_by_weight():
    given = arguments(f"corpora:\n{BOTH}{SPANISH_ENTRY}", streaming=True)
    train = load_parallel_text(given)["train"]
    assert isinstance(train, datasets.IterableDataset)
    rows = list(train.take(40))
    counts = Counter(row["part"] for row in rows)
    assert counts[2] > counts[0] > 0 and counts[1] > 0 and rows == list(train.take(40))
    assert all(row["source"].startswith("ein" if row["part"] == 1 else "a") for row in rows)


def test_inspect_reads_each_corpus():
    given = arguments(
        f"corpora:\n{BOTH}{SPANISH_ENTRY}validation: [{{file: val.tsv, source_lang: en, target_lang: de}}]"
    )
    located = located_splits(given)
    assert list(located) == ["train, list.yaml, line 2", "train, list.yaml, line 3", "validation, list.yaml, line 4"]
    assert list(located["train, list.yaml, line 3"].read())[9] == ("line 10", {"source": "a 9", "target": "un 9"})


def test_inspect_reads_corpora_on_one_line():
    given = arguments(json.dumps({"corpora": [{"file": "es.tsv"}, {"file": "val.tsv"}]}))
    assert [len([*corpus.read()]) for corpus in located_splits(given).values()] == [10, 1]


def test_a_further_entry(tmp_path):
    given = arguments(f"corpora:\n{SPANISH_ENTRY}sampling_temperature: 2")
    more = with_entry(given, tmp_path / "more.json", file="es.tsv", source_lang="es", target_lang="en", tag="t")
    found = corpora_of(more)
    assert found.parts == (Part("en", "es", 2.5), Part("es", "en", tag="<t>")) and found.temperature == 2
    # Adding it again changes nothing.
    before = (tmp_path / "more.json").stat().st_ino
    with_entry(more, tmp_path / "more.json", file="es.tsv", source_lang="es", target_lang="en", tag="t")
    assert (tmp_path / "more.json").stat().st_ino == before


class TestFaults:
    @looped(
        ("text", "message"),
        [
            ("corpora: [", "list.yaml cannot be read: line 1: "),
            ("", "list.yaml is empty"),
            ("- x", "list.yaml, line 1: not a mapping"),
            ("corpus: []", "line 1: unknown key corpus; did you mean corpora"),
            ("corpora: x", "line 1: `corpora` must be a list"),
            ("? [x]\n: y", "line 1: key is not a name"),
            ("corpora:\n  - {file: es.tsv, ? {x: y} : z}", "line 2: key is not a name"),
            ("corpora:\n  - x", "line 2: not a mapping"),
            ("corpora: []\ncorpora: []", "line 2: corpora is given twice"),
            (
                "corpora:\n  - {file: es.tsv,\n     sourcelang: en}",
                "line 3: unknown key sourcelang; did you mean source_",
            ),
            ("corpora:\n  - {file: es.tsv, weight: much}", "line 2: `weight` is 'much', not a number"),
            (
                "corpora:\n  - {file: es.tsv, weight: 1e9}",
                "line 2: `weight` is 1e+09; it must be at least 0 and at most 1,000",
            ),
            ("corpora:\n  - {file: es.tsv, weight: [1]}", "line 2: `weight` must be a single value"),
            (
                "corpora:\n  - {file: es.tsv, both_directions: 2}",
                "line 2: `both_directions` is '2'; write true or false",
            ),
            ("corpora:\n  - {file: es.tsv, both_directions: true}", "line 2: `both_directions` needs languages"),
            ("corpora:\n  - {file: es.tsv, left_out_file: o}", "line 2: `left_out_file` needs `filters`"),
            ("corpora:\n  - {file: es.tsv, tag: a b}", "line 2: `tag` is 'a b'; write one word"),
            ("corpora:\n  - {file: es.tsv, tag: pad}", "line 2: `tag` is <pad>, a special token"),
            ("corpora: [{file: es.tsv}, {file: es.tsv, tag: a b}]", "line 1, entry 2: `tag` is 'a b'"),
            ("corpora: [{file: es.tsv}, {file: none.tsv}]", "line 1, entry 2: none.tsv: no such file"),
            ("corpora:\n  - {file: es.tsv, filters: equal}", "line 2: `filters` must be a list"),
            (
                "corpora:\n  - {file: es.tsv, filters: [equl]}",
                "line 2: `filters`: unknown filter 'equl'; did you mean eq",
            ),
            ("corpora:\n  - {source_lang: en, target_lang: de}", "line 2: no text; give"),
            ("corpora:\n  - {source_file: x.en}", "line 2: `source_file` is given without `target_file`"),
            ("corpora:\n  - {file: es.tsv, source_lang: en}", "line 2: `source_lang` is given without `target_lang`"),
            ("corpora:\n  - {file: ''}", "line 2: no text; give"),
            ("corpora:\n  - {file: none.tsv}", "line 2: none.tsv: no such file"),
            ("corpora:\n  - {file: bad.tsv}", "line 2: bad.tsv, line 2: 3 columns"),
            ("corpora:\n  - {file: same.tsv, filters: [equal]}", "line 2: the filters left out all 1 pairs"),
            ("validation:\n  - {file: es.tsv, weight: 1}", "line 2: unknown key weight"),
            ("sampling_temperature: 0.5\ncorpora: []", "line 1: `sampling_temperature` is 0.5; it must be at least 1"),
            (f"corpora:\n{BOTH}  - {{file: es.tsv}}", "line 3: several directions need languages for each corpus"),
            (
                f"corpora:\n{BOTH}validation:\n  - {{source_lang: en, target_lang: fr, file: val.tsv}}",
                "line 4: no training pairs have the language fr as target, only de, en",
            ),
            (
                f"corpora:\n{BOTH}{SPANISH_ENTRY}validation:\n  - {{source_lang: fr, target_lang: es, file: val.tsv}}",
                "line 5: no training pairs have the language fr, only de, en, es",
            ),
            (
                f"corpora:\n{BOTH}  - {{source_lang: en, target_lang: es, file: es.tsv, weight: 0}}",
                "line 3: no training pairs have the language es as target, only de, en",
            ),
            (
                f"corpora:\n{BOTH}  - {{source_lang: en, target_lang: 'e s', file: es.tsv}}",
                "line 3: 'e s' is not a language code",
            ),
            (
                "corpora:\n  - {file: es.tsv, filters: [equal], left_out_file: o}\n"
                "  - {file: es.tsv, filters: [equal], left_out_file: ./o}",
                "line 3: `left_out_file` ./o is taken by an earlier entry",
            ),
        ],
    )
    def test_they_name_the_place(self, text, message):
        write(Path("bad.tsv"), "a\tb\nc\td\te\n")
        write(Path("same.tsv"), "a\ta\n")
        with pytest.raises(DataError) as error:
            load_parallel_text(arguments(text))
        assert message in str(error.value)

    def test_links_of_a_file(self):
        with pytest.raises(DataError, match="has no links for other corpora"):
            arguments("corpora: [{file: es.tsv}]", guided_alignment="x.links")

    def test_no_list(self):
        with pytest.raises(DataError, match="none.yaml cannot be read: .*No such file"):
            load_parallel_text(DataArguments(corpora="none.yaml"))


def test_an_empty_run_has_no_part():
    assert Corpora({}).parts == ()
