import json

import pytest

from hf_vanilla_transformer.data import splits
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.errors import DataError
from parallel_text import PAIRS, lines, rows, tsv, write

# Every source occurs three times, as in corpora with several translations.
CORPUS = [(f"source {i // 3}", f"target {i}") for i in range(300)]


def load(tmp_path, corpus=CORPUS, **options):
    return load_parallel_text(DataArguments(train_file=write(tmp_path / "x.tsv", tsv(corpus)), **options))


def test_sources_stay_together(tmp_path):
    loaded = load(tmp_path, validation_split_size=0.1, test_split_size=20)
    assert list(loaded) == ["train", "validation", "test"]
    # At least the requested size, plus at most the remaining pairs of one source.
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
    assert messages == ["2 of 3 validation pairs have a source that also occurs in the training pairs"]


def test_overlap_with_the_other_direction_is_reported(tmp_path, monkeypatch):
    messages = []
    monkeypatch.setattr(splits.logger, "warning", messages.append)
    path = write(tmp_path / "v.tsv", tsv([("target 1", "source 0"), ("target 2", "source 3"), ("new", "source 4")]))
    load(tmp_path, validation_file=path)
    (message,) = messages
    assert message.startswith("1 of 3 validation pairs") and "in the opposite direction" in message


class TestSynthetic:
    """Listed pairs that are exempt from held-out splits."""

    @pytest.fixture
    def more(self, tmp_path):
        """An entry of five more pairs."""
        files = {"source": [f"more {i}" for i in range(5)], "target": [f"mehr {i}" for i in range(5)]}
        return {f"{side}_file": write(tmp_path / side, lines(texts)) for side, texts in files.items()}

    def listed(self, tmp_path, **entry):
        return write(tmp_path / "corpora.json", json.dumps({"corpora": [entry]}))

    @pytest.mark.parametrize("mark", [{"tag": "back-translated"}, {"hold_out": "false"}])
    @pytest.mark.parametrize("weight", [0, 1, 2])
    def test_pairs_are_added_to_what_is_left_for_training(self, tmp_path, more, weight, mark):
        alone = load(tmp_path, validation_split_size=30)
        corpora = self.listed(tmp_path, **more, **mark)
        loaded = load(tmp_path, validation_split_size=30, train_weight=weight, corpora=corpora)
        expected = [(f"more {i}", f"mehr {i}") for i in range(5)]
        assert rows(loaded["train"]) == rows(alone["train"]) * bool(weight) + expected
        assert rows(loaded["validation"]) == rows(alone["validation"])

    def test_they_are_not_sampled(self, tmp_path):
        corpora = self.listed(tmp_path, file=write(tmp_path / "more.tsv", tsv(PAIRS)), hold_out="false")
        assert rows(load(tmp_path, corpora=corpora, max_train_samples=3)["train"])[3:] == PAIRS

    @pytest.mark.parametrize(
        ("given", "message"),
        [
            ({"train_weight": -1}, "`train_weight` is -1"),
            ({"monolingual_target": ["x"]}, "`monolingual_target` is given without `reverse_model`"),
            (
                {"monolingual_target": ["x"], "reverse_model": "y", "streaming": True},
                "`monolingual_target` is translated in memory; leave it or `streaming` out",
            ),
            (
                {"monolingual_target": ["x"], "reverse_model": "y", "guided_alignment": "x.links"},
                "`guided_alignment` x.links has no links for other corpora; set",
            ),
        ],
    )
    def test_faults(self, tmp_path, given, message):
        with pytest.raises(DataError, match=message):
            load(tmp_path, **given)
