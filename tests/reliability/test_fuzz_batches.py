"""Token-budget batches: every pair once per epoch, within the budget, equally many batches for each process."""

from collections import Counter

import numpy as np
from accelerate.data_loader import skip_first_batches
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from hf_vanilla_transformer.data import TokenBudgetBatchSampler, TokenBudgetStream
from reliability import cases


@st.composite
def corpora(draw, fewest=1):
    """Draw the lengths of pairs, and a budget that fits the longest pair, exactly or with room to spare."""
    lengths = st.integers(0, draw(st.sampled_from([1, 5, 30])))
    pairs = draw(st.lists(st.tuples(lengths, lengths), min_size=fewest, max_size=40))
    longest = max((source + target for source, target in pairs), default=0)
    return pairs, max(1, longest) + draw(st.sampled_from([0, 0, 3, 60]))


def cost(batch, pairs):
    return len(batch) * sum(max(pairs[i][side] for i in batch) for side in (0, 1))


def check_counts(batches, pairs, replicas):
    """Check that each pair occurs once; only if batches hold single pairs may the longest repeat."""
    counts = Counter(row for batch in batches for row in batch)
    assert set(counts) == set(range(len(pairs)))
    repeated = [row for row, count in counts.items() if count > 1]
    assert sum(counts.values()) - len(pairs) < replicas
    if repeated:
        assert all(len(batch) == 1 for batch in batches)
        others = [pairs[row][0] for row in counts if row not in repeated]
        assert min(pairs[row][0] for row in repeated) >= max(others, default=0)


def test_sampler(fuzz):
    @fuzz("batches by tokens for 1 to 5 processes: every pair once, budget held", 150, 6000)
    @given(corpora(), st.integers(1, 5), st.booleans(), st.integers(0, 3), st.integers(0, 2))
    def check(corpus, replicas, shuffle, seed, epoch):
        pairs, budget = corpus
        options = {"shuffle": shuffle, "seed": seed, "num_replicas": replicas}
        sampler = TokenBudgetBatchSampler(*zip(*pairs, strict=True), budget, **options)
        lengths = {len(sampler)}
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert lengths == {len(sampler), len(batches)} and len(batches) % replicas == 0
        assert all(batch and cost(batch, pairs) <= budget for batch in batches)
        check_counts(batches, pairs, replicas)
        # After resuming, a new sampler gives the same epoch.
        again = TokenBudgetBatchSampler(*zip(*pairs, strict=True), budget, **options)
        again.set_epoch(epoch)
        assert list(again) == batches


def features_of(pairs):
    # All tokens of a pair have its number as id.
    return [
        {"number": number, "input_ids": [number] * source, "labels": [number] * target}
        for number, (source, target) in enumerate(pairs)
    ]


def numbers(batches):
    return [[feature["number"] for feature in batch] for batch in batches]


def test_stream(fuzz):
    @fuzz("streamed batches by tokens for 1 to 4 processes and any buffer", 80, 3000)
    @given(corpora(fewest=0), st.integers(1, 4), st.integers(1, 50), st.booleans(), st.integers(0, 2))
    def check(corpus, replicas, buffer_size, shuffle, epoch):
        pairs, budget = corpus
        options = {"buffer_size": buffer_size, "shuffle": shuffle, "num_replicas": replicas}
        streams = [TokenBudgetStream(features_of(pairs), budget, **options, rank=rank) for rank in range(replicas)]
        for stream in streams:
            stream.set_epoch(epoch)
        ranks = [numbers(stream) for stream in streams]
        assert len({len(batches) for batches in ranks}) == 1
        assert all(cost(batch, pairs) <= budget for batches in ranks for batch in batches)
        counts = Counter(number for batches in ranks for batch in batches for number in batch)
        assert set(counts) == set(range(len(pairs)))
        assert sum(counts.values()) - len(pairs) < replicas * -(-max(1, len(pairs)) // buffer_size)
        assert ranks == [numbers(stream) for stream in streams]


def test_resuming_within_an_epoch(fuzz):
    @fuzz("an epoch resumed after any number of batches", 20, 500)
    @given(corpora(), st.integers(0, 30), st.integers(0, 3))
    def check(corpus, skipped, seed):
        pairs, budget = corpus
        skipped %= len(TokenBudgetBatchSampler(*zip(*pairs, strict=True), budget)) + 1
        sampler = TokenBudgetBatchSampler(*zip(*pairs, strict=True), budget, seed=seed)
        loader = DataLoader(range(len(pairs)), batch_sampler=sampler, collate_fn=list)
        stream = TokenBudgetStream(features_of(pairs), budget, seed=seed)
        for whole, read in ((loader, list), (DataLoader(stream, batch_size=None, collate_fn=list), numbers)):
            assert read(skip_first_batches(whole, skipped)) == read(whole)[skipped:]


def test_workers(tried):
    rng = np.random.default_rng(0)
    for seed in range(cases(1, 12)):
        pairs = [tuple(pair) for pair in rng.integers(0, 20, (int(rng.integers(1, 60)), 2)).tolist()]
        sampler = TokenBudgetBatchSampler(*zip(*pairs, strict=True), 64, seed=seed)
        stream = TokenBudgetStream(features_of(pairs), 64, buffer_size=10, seed=seed)
        orders = []
        for workers in (0, 2):
            loader = DataLoader(range(len(pairs)), batch_sampler=sampler, collate_fn=list, num_workers=workers)
            orders.append(list(loader))
            streamed = numbers(DataLoader(stream, batch_size=None, collate_fn=list, num_workers=workers))
            assert sorted(sum(streamed, [])) == list(range(len(pairs))), (seed, workers)
        assert orders[0] == orders[1] == list(sampler), seed
    tried("batches by 0 and 2 workers", cases(1, 12))
