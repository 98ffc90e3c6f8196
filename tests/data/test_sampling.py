"""How often each corpus occurs in an epoch, and batches of epochs with different rows."""

from collections import Counter

import numpy as np
import pytest

from hf_vanilla_transformer.data.batching import EpochRows, TokenBudgetBatchSampler
from hf_vanilla_transformer.data.corpora import Part, rows_per_epoch

DIRECTIONS = [Part("en", "de"), Part("de", "en"), Part("en", "es")]


class TestNumbers:
    def test_all_pairs_once(self):
        assert rows_per_epoch([900, 900, 100], DIRECTIONS) == [900, 900, 100]

    def test_temperature(self):
        found = rows_per_epoch([900, 900, 100], DIRECTIONS, 2)
        # The square roots are 30, 30 and 10.
        assert found == [round(1900 * 30 / 70), round(1900 * 30 / 70), round(1900 * 10 / 70)]
        flat = rows_per_epoch([10**6, 10, 1], DIRECTIONS, 1e9)
        assert max(flat) - min(flat) <= 1

    def test_corpora_of_a_direction_divide_its_share(self):
        parts = [Part("en", "de"), Part("en", "es"), Part("en", "es", tag="<t>")]
        assert rows_per_epoch([800, 150, 50], parts, 1e9) == [500, 375, 125]

    def test_weights_multiply(self):
        parts = [Part("en", "de", 3), Part("en", "de", 0.5, "<t>"), Part("de", "es", 0)]
        assert rows_per_epoch([10, 30, 0], parts) == [30, 15, 0]

    def test_a_small_corpus_is_not_lost(self):
        assert rows_per_epoch([10**6, 1], [Part("en", "de"), Part("en", "es", 0.01)]) == [10**6, 1]


class TestRows:
    parts = np.repeat([0, 1, 2], [50, 20, 7])

    def test_every_pair_of_a_part_equally_often(self):
        rows = EpochRows(self.parts, [30, 40, 0], seed=1)
        epochs = [rows(epoch) for epoch in range(5)]
        assert all(len(each) == 70 for each in epochs) and not np.array_equal(epochs[0], epochs[1])
        counts = Counter(np.concatenate(epochs).tolist())
        assert {counts[row] for row in range(50)} == {3} and {counts[row] for row in range(50, 70)} == {10}
        assert all(counts[row] == 0 for row in range(70, 77))

    def test_no_repetition_before_all_have_been(self):
        rows = EpochRows(self.parts, [20, 0, 0], seed=1)
        first = np.concatenate([rows(0), rows(1)])
        assert len(set(first.tolist())) == 40
        assert set(np.concatenate([first, rows(2)[:10]]).tolist()) == set(range(50))

    def test_seed_and_epoch_decide(self):
        one, same, other = (EpochRows(self.parts, [30, 40, 0], seed) for seed in (1, 1, 2))
        assert np.array_equal(one(3), same(3)) and not np.array_equal(one(3), other(3))

    def test_mean_of_an_epoch(self):
        rows = EpochRows(self.parts, [30, 40, 0], seed=1)
        assert rows.mean_sum(np.where(self.parts == 0, 2, 3)) == 30 * 2 + 40 * 3


@pytest.mark.parametrize("replicas", [1, 3])
class TestBatches:
    def sampler(self, replicas, seed=0):
        rng = np.random.default_rng(5)
        lengths = rng.integers(3, 40, (2, 900))
        parts = np.repeat([0, 1], [800, 100])
        rows = EpochRows(parts, [400, 500], seed)
        sampler = TokenBudgetBatchSampler(*lengths, 400, seed=seed, num_replicas=replicas, epoch_rows=rows)
        return sampler, lengths, rows

    def test_epochs_have_as_many_batches_within_the_budget(self, replicas):
        sampler, lengths, rows = self.sampler(replicas)
        for epoch in range(6):
            sampler.set_epoch(epoch)
            batches = list(sampler)
            assert len(batches) == len(sampler) and len(batches) % replicas == 0
            assert all(len(batch) * (lengths[:, batch].max(1).sum()) <= 400 for batch in batches)
            drawn = Counter(row for batch in batches for row in batch)
            wanted = Counter(rows(epoch).tolist())
            # Batches beyond the number in the first epoch are dropped.
            assert not drawn - wanted and (wanted - drawn).total() <= 0.1 * wanted.total()

    def test_the_same_order_again(self, replicas):
        one, same, other = (self.sampler(replicas, seed)[0] for seed in (0, 0, 1))
        for sampler in (one, same, other):
            sampler.set_epoch(2)
        same.set_epoch(1)
        list(same)
        same.set_epoch(2)
        assert list(one) == list(same) != list(other)


def test_fewer_batches_than_at_first_are_split():
    lengths = np.array([20] * 50 + [2] * 50)
    sampler = TokenBudgetBatchSampler(lengths, lengths, 80, epoch_rows=lambda epoch: np.arange(50) + 50 * epoch)
    sampler.set_epoch(1)
    batches = list(sampler)
    assert len(batches) == len(sampler) == 25 and sorted(sum(batches, [])) == [*range(50, 100)]
