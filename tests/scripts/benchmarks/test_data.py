import pytest

from benchmarking import results, small_arguments
from benchmarks.data import data_benchmark, padding_fraction
from benchmarks.run import run_benchmarks
from benchmarks.text import matching_batch_size, read_text, token_budget_batches
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.batching import token_lengths


def test_data_benchmark(tmp_path):
    run_benchmarks(
        {"data": data_benchmark},
        small_arguments(tmp_path, rounds=1),
        DataArguments(toy_corpus=True, max_train_samples=60),
    )
    measured = {each["name"]: each for each in results(tmp_path)["measurements"]}
    assert set(measured) == {"tokenizing", "tokenizing once more", "choosing batches", "making batches"}
    assert set(measured["tokenizing"]["ratios"]) == {"map, batches", "map, one by one"}
    assert "then from the cache" in measured["tokenizing once more"]["notes"]
    assert "padding" in measured["choosing batches"]["notes"]


def test_batches_of_the_baselines_hold_as_many_tokens_as_ours():
    args = small_arguments(max_tokens=512)
    text = read_text(args, DataArguments(toy_corpus=True, max_train_samples=300))
    ours = token_budget_batches(text, args)
    size = matching_batch_size(text, args)
    tokens_per_pair = sum(side.mean() for side in token_lengths(text.ids))
    assert size * tokens_per_pair == pytest.approx(tokens_per_pair * 300 / len(ours), rel=0.1)
    batches = [list(range(start, min(300, start + size))) for start in range(0, 300, size)]
    assert padding_fraction(text, list(ours)) < padding_fraction(text, batches) < 1


def test_streaming_text_has_no_length():
    with pytest.raises(ValueError, match="`streaming` text has no length"):
        read_text(small_arguments(), DataArguments(train_file="pairs.tsv", streaming=True))
