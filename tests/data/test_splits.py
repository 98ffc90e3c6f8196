import pytest

from hf_vanilla_transformer.data import splits
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.errors import DataError
from parallel_text import PAIRS, lines, rows, tsv, write

# Every source comes three times, as in corpora with several translations.
CORPUS = [(f"source {i // 3}", f"target {i}") for i in range(300)]


def load(tmp_path, corpus=CORPUS, **options):
    return load_parallel_text(DataArguments(train_file=write(tmp_path / "x.tsv", tsv(corpus)), **options))


def test_sources_stay_together(tmp_path):
    loaded = load(tmp_path, validation_split_size=0.1, test_split_size=20)
    assert list(loaded) == ["train", "validation", "test"]
    # At least what was asked for, and not more than the rest of one source.
    assert 30 <= len(loaded["validation"]) <= 32 and 20 <= len(loaded["test"]) <= 22
    sources = [set(split["source"]) for split in loaded.values()]
    assert not (sources[0] & sources[1] or sources[0] & sources[2] or sources[1] & sources[2])
    assert sorted(pair for split in loaded.values() for pair in rows(split)) == sorted(CORPUS)


def test_seed_decides_and_order_does_not(tmp_path):
    test = [
        set(rows(load(tmp_path, corpus, test_split_size=60, split_seed=seed)["test"]))
        for corpus, seed in [(CORPUS, 0), (CORPUS[::-1], 0), (CORPUS, 1)]
    ]
    assert test[0] == test[1] != test[2]


def test_streaming(tmp_path):
    loaded = load(tmp_path, validation_split_size=0.2, test_split_size=0.2, streaming=True)
    parts = {split: rows(loaded[split]) for split in loaded}
    assert sorted(sum(parts.values(), [])) == sorted(CORPUS)
    assert all(len(part) > 20 for part in parts.values())
    assert not {source for source, _ in parts["train"]} & {source for source, _ in parts["test"]}
    with pytest.raises(DataError, match="streamed pairs need a fraction"):
        load(tmp_path, test_split_size=20, streaming=True)


def test_too_large(tmp_path):
    with pytest.raises(DataError, match="`test_split_size` 300 leaves nothing to train on; there are 300 pairs"):
        load(tmp_path, test_split_size=300)
    with pytest.raises(DataError, match="`test_split_size` needs training pairs"):
        path = write(tmp_path / "v.tsv", tsv(PAIRS))
        load_parallel_text(DataArguments(validation_file=path, test_split_size=2))


def test_max_train_samples(tmp_path):
    one, same, other = (rows(load(tmp_path, max_train_samples=50, split_seed=seed)["train"]) for seed in (0, 0, 1))
    assert len(one) == 50 and one == same != other and one != CORPUS[:50]
    assert len(load(tmp_path, max_train_samples=500)["train"]) == 300
    streamed = load(tmp_path, max_train_samples=5, streaming=True)["train"]
    assert rows(streamed) == CORPUS[:5]


def test_overlap_is_reported(tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr(splits.logger, "warning", messages.append)
    path = write(tmp_path / "v.tsv", tsv([("source 1", "x"), ("new", "x"), ("source 99", "y")]))
    load(tmp_path, validation_file=path)
    assert messages == ["2 of 3 validation pairs have a source that is also in the training pairs"]


class TestSynthetic:
    @pytest.fixture
    def more(self, tmp_path):
        """Files of five more pairs."""
        files = {"source": [f"more {i}" for i in range(5)], "target": [f"mehr {i}" for i in range(5)]}
        return {f"synthetic_{side}_file": write(tmp_path / side, lines(texts)) for side, texts in files.items()}

    @pytest.mark.parametrize("copies", [0, 1, 2])
    def test_pairs_are_added_to_what_is_left_for_training(self, tmp_path, more, copies):
        alone = load(tmp_path, validation_split_size=30)
        loaded = load(tmp_path, validation_split_size=30, train_copies=copies, **more)
        expected = [(f"more {i}", f"mehr {i}") for i in range(5)]
        assert rows(loaded["train"]) == rows(alone["train"]) * copies + expected
        assert rows(loaded["validation"]) == rows(alone["validation"])

    def test_one_file(self, tmp_path):
        path = write(tmp_path / "more.tsv", tsv(PAIRS))
        assert rows(load(tmp_path, synthetic_file=path, max_train_samples=3)["train"])[3:] == PAIRS

    def test_a_tag_marks_sources_that_are_not_blank(self, tmp_path, more):
        write(tmp_path / "source", lines(["a", " ", "", "b c", "d"]))
        loaded = load(tmp_path, train_copies=0, synthetic_tag="<BT>", **more)
        assert loaded["train"]["source"][:] == ["<BT>a", " ", "", "<BT>b c", "<BT>d"]
        assert loaded["train"]["target"][0] == "mehr 0"

    def test_a_tag_needs_synthetic_pairs(self, tmp_path):
        with pytest.raises(DataError, match="`synthetic_tag` is for synthetic pairs; name their files, or leave"):
            load(tmp_path, synthetic_tag="<BT>")

    def test_nothing_left(self, tmp_path):
        with pytest.raises(DataError, match="`train_copies` 0 leaves nothing to train on; set at least 1, or give"):
            load(tmp_path, train_copies=0)

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"streaming": True}, "mixed with the others in memory; leave them or `streaming` out"),
            ({"guided_alignment": "x.links"}, "`guided_alignment` x.links has no links of synthetic pairs; set"),
            ({"synthetic_file": "x.tsv"}, "`synthetic_file` and `synthetic_source_file` are both given"),
            ({"synthetic_target_file": None}, "`synthetic_source_file` is given without `synthetic_target_file`"),
            ({"train_copies": -1}, "`train_copies` is -1"),
            ({"synthetic_tag": "B T"}, "`synthetic_tag` 'B T' has a blank"),
            ({"monolingual_target": ["x"]}, "`monolingual_target` is given without `reverse_model`"),
            (
                {"monolingual_target": ["x"], "reverse_model": "y"},
                "`synthetic_source_file` are both given",
            ),
        ],
    )
    def test_faults(self, tmp_path, more, given, message):
        with pytest.raises(DataError, match=message):
            load(tmp_path, **{**more, **given})
