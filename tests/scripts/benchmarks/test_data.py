import pytest

from benchmarking import results, small_arguments, write_pairs
from benchmarks import data, text
from benchmarks.data import data_benchmark, padding_fraction
from benchmarks.measure import Disagreement
from benchmarks.run import run_benchmarks
from benchmarks.text import matching_batch_size, read_text, token_budget_batches
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.batching import token_lengths


def test_data_benchmark(tmp_path, some_pairs):
    run_benchmarks({"data": data_benchmark}, small_arguments(tmp_path, rounds=1), some_pairs)
    measured = {each["name"]: each for each in results(tmp_path)["measurements"]}
    assert set(measured) == {"tokenizing", "tokenizing once more", "choosing batches", "making batches"}
    assert set(measured["tokenizing"]["ratios"]) == {"map, batches", "map, one by one"}
    assert "then from the cache" in measured["tokenizing once more"]["notes"]
    assert "padding" in measured["choosing batches"]["notes"]


def test_batches_of_the_baselines_hold_as_many_tokens_as_ours(tmp_path):
    args = small_arguments(max_tokens=512)
    tokenized = read_text(args, DataArguments(train_file=write_pairs(tmp_path, 300)))
    ours = token_budget_batches(tokenized, args)
    size = matching_batch_size(tokenized, args)
    tokens_per_pair = sum(side.mean() for side in token_lengths(tokenized.ids))
    assert size * tokens_per_pair == pytest.approx(tokens_per_pair * 300 / len(ours), rel=0.1)
    batches = [list(range(start, min(300, start + size))) for start in range(0, 300, size)]
    assert padding_fraction(tokenized, list(ours)) < padding_fraction(tokenized, batches) < 1


def test_streaming_text_has_no_length():
    with pytest.raises(ValueError, match="`streaming` text has no length"):
        read_text(small_arguments(), DataArguments(train_file="pairs.tsv", streaming=True))


def test_other_ids_are_noticed(monkeypatch, some_pairs):
    usual = data.usual_map

    def reversed_labels(pairs, tokenizer, batched):
        return usual(pairs, tokenizer, batched).map(lambda row: {"labels": row["labels"][::-1]})

    monkeypatch.setattr(data, "usual_map", reversed_labels)
    with pytest.raises(Disagreement, match="map, batches and ours make different labels"):
        next(data_benchmark(small_arguments(), some_pairs))


@pytest.mark.parametrize(
    ("data_args", "toy_corpus"), [(DataArguments(), True), (DataArguments(test_file="a.tsv", dataset_name="b"), False)]
)
def test_the_built_in_corpus_is_the_default(monkeypatch, data_args, toy_corpus):
    read = []
    monkeypatch.setattr(text, "load_parallel_text", lambda given: read.append(given) or {})
    with pytest.raises(ValueError, match="there are no pairs for train"):
        read_text(small_arguments(), data_args)
    assert read[0].toy_corpus is toy_corpus
