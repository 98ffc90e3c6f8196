"""Token-budget batches, sampled and streamed: every pair once, within the budget, the same for the same seed."""

import datasets
import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard, prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader

from hf_vanilla_transformer import train_tokenizer
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.batching import (
    TokenBudgetBatchSampler,
    TokenBudgetStream,
    check_token_ids,
    collate_packed,
    token_lengths,
)
from hf_vanilla_transformer.data.encoding import tokenize_pairs
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.errors import DataError
from tables import looped


def test_lengths_and_ids():
    ids = datasets.Dataset.from_dict({"input_ids": [[5, 2], [2], [7, 7, 2]], "labels": [[2], [9, 2], [2]]})
    for dataset in (ids, ids.select([0, 1, 2]), list(ids)):
        source, target = token_lengths(dataset)
        assert source.dtype == target.dtype == np.int32
        assert source.tolist() == [2, 1, 3] and target.tolist() == [1, 2, 1]
    # With an indices mapping, which the underlying Arrow table ignores.
    assert token_lengths(ids.select([2, 0]))[0].tolist() == [3, 2]
    check_token_ids(ids, 8, 10)
    with pytest.raises(DataError, match=r"row 2: id 7 in 'input_ids' is outside the model's vocabulary of 7"):
        check_token_ids(ids, 7, 10)
    with pytest.raises(DataError, match=r"row 1: id 9 in 'labels' is outside the model's vocabulary of 9"):
        check_token_ids(ids, 9)


def random_lengths(rows=500, seed=0):
    rng = np.random.default_rng(seed)
    source = rng.integers(1, 30, rows)
    return source, np.maximum(1, source + rng.integers(-5, 6, rows))


def cost(batch, source, target):
    return len(batch) * (source[batch].max() + target[batch].max())


class TestTokenBudgetBatchSampler:
    source, target = random_lengths()

    def sampler(self, **options):
        return TokenBudgetBatchSampler(self.source, self.target, 256, **options)

    @looped("shuffle", [True, False])
    @looped("num_replicas", [1, 2, 7])
    def test_every_pair_once_within_the_budget(self, shuffle, num_replicas):
        sampler = self.sampler(shuffle=shuffle, num_replicas=num_replicas)
        for epoch in range(3):
            sampler.set_epoch(epoch)
            batches = list(sampler)
            assert len(batches) == len(sampler) and len(batches) % num_replicas == 0
            assert sorted(sum(batches, [])) == list(range(500))
            assert max(cost(batch, self.source, self.target) for batch in batches) <= 256

    def test_batches_are_full(self):
        # Greedy: no batch can take the first pair of the next.
        batches = list(self.sampler(shuffle=False))
        for batch, following in zip(batches, batches[1:], strict=False):
            assert cost([*batch, following[0]], self.source, self.target) > 256

    def test_epochs_differ_in_order_and_ties_only(self):
        sampler = self.sampler()
        first = list(sampler)
        assert list(sampler) == first
        sampler.set_epoch(1)
        second = list(sampler)

        def shapes(batches):
            return sorted(sorted(zip(self.source[b], self.target[b], strict=True)) for b in batches)

        assert shapes(first) == shapes(second)
        assert {frozenset(b) for b in first} != {frozenset(b) for b in second}

    def test_depends_on_seed_and_epoch_only(self):
        first = list(self.sampler(seed=3))
        np.random.default_rng().random()
        torch.manual_seed(99)
        assert list(self.sampler(seed=3)) == first != list(self.sampler(seed=4))

    def test_unshuffled_goes_from_short_to_long(self):
        sampler = self.sampler(shuffle=False)
        batches = list(sampler)
        sampler.set_epoch(5)
        assert list(sampler) == batches
        lengths = [self.source[row] for batch in batches for row in batch]
        assert lengths == sorted(lengths)

    def test_target_lengths_rise_and_fall_in_turn(self):
        # So that neighbors stay similar where the source length changes.
        (batch,) = TokenBudgetBatchSampler([3, 3, 4, 4, 5, 5], [1, 9, 1, 9, 1, 9], 1000, shuffle=False)
        assert batch == [0, 1, 3, 2, 4, 5]

    def test_batches_of_a_step_are_alike(self):
        batches = list(self.sampler(num_replicas=4))
        for start in range(0, len(batches), 4):
            longest = [self.source[batch].max() for batch in batches[start : start + 4]]
            assert max(longest) - min(longest) <= 6
        # The steps themselves come in random order.
        firsts = [self.source[batch].max() for batch in batches[::4]]
        assert firsts != sorted(firsts)

    def test_faults(self):
        with pytest.raises(
            DataError, match="row 1: its 300 tokens .* exceed `max_tokens` 256; raise it, or lower `max_so"
        ):
            TokenBudgetBatchSampler([5, 100, 9], [5, 200, 9], 256)
        for name in ("max_tokens", "num_replicas"):
            with pytest.raises(DataError, match=f"`{name}` is 0; it must be positive"):
                TokenBudgetBatchSampler([5, 6], [5, 6], **{"max_tokens": 256, name: 0})
        for lengths in (([], []), ([1, 2], [1])):
            with pytest.raises(DataError, match="cannot be cut into batches"):
                TokenBudgetBatchSampler(*lengths, 256)

    @looped("shuffle", [True, False])
    @looped("pairs", [3, 7, 10_001])
    def test_batches_of_one_pair_that_cannot_be_split(self, pairs, shuffle):
        lengths = np.arange(pairs) % 3 + 8
        sampler = TokenBudgetBatchSampler(lengths, lengths, 20, shuffle=shuffle, num_replicas=4)
        batches = list(sampler)
        assert len(batches) == len(sampler) == -(-pairs // 4) * 4
        assert {len(batch) for batch in batches} == {1}
        # The longest pairs are repeated.
        counts = np.bincount(np.concatenate(batches))
        assert counts.min() == 1 and set(lengths[counts == 2]) <= {lengths.max()}

    def test_a_budget_beyond_memory(self):
        assert list(TokenBudgetBatchSampler([5, 6], [5, 6], 2**60, shuffle=False)) == [[0, 1]]

    def test_shares_of_accelerate(self):
        sampler = self.sampler(num_replicas=2)
        shares = [BatchSamplerShard(sampler, 2, rank, even_batches=False) for rank in range(2)]
        batches = [list(share) for share in shares]
        assert len(batches[0]) == len(batches[1]) == len(shares[0]) == len(shares[1]) == len(sampler) // 2
        assert batches[0] == list(sampler)[::2] and batches[1] == list(sampler)[1::2]

    def test_skipping_batches_with_accelerate(self):
        loader = DataLoader(torch.arange(500), batch_sampler=self.sampler())
        skipped = skip_first_batches(loader, 3)
        assert len(skipped) == len(loader) - 3
        assert [batch.tolist() for batch in skipped] == [batch.tolist() for batch in loader][3:]

    @pytest.mark.parametrize("processes", [1, 2])
    def test_epoch_reaches_the_sampler_through_accelerate(self, processes):
        sampler = self.sampler(num_replicas=processes)
        loader = prepare_data_loader(
            DataLoader(torch.arange(500), batch_sampler=sampler),
            num_processes=processes,
            process_index=0,
            even_batches=False,
        )
        loader.set_epoch(3)
        assert sampler.epoch == 3
        assert [batch.tolist() for batch in loader] == list(sampler)[::processes]

    @pytest.mark.slow
    def test_little_padding_on_real_text(self, shared_data):
        sides = {
            f"train_{side}_file": str(shared_data / "multi30k" / f"train.{language}.gz")
            for side, language in (("source", "en"), ("target", "de"))
        }
        train = load_parallel_text(DataArguments(**sides))["train"]
        tokenizer = train_tokenizer((text for row in train for text in row.values()), vocab_size=8000)
        ids, counts = tokenize_pairs(train, tokenizer)
        assert (counts.read, counts.kept) == (29_000, 29_000)
        source, target = token_lengths(ids)
        padded = sum(cost(batch, source, target) for batch in TokenBudgetBatchSampler(source, target, 4096))
        assert (source.sum() + target.sum()) / padded > 0.9


class TestTokenBudgetStream:
    source, target = random_lengths(rows=300, seed=1)

    @pytest.fixture
    def features(self):
        pairs = enumerate(zip(self.source, self.target, strict=True))
        # The first id identifies the pair.
        return [{"input_ids": [row, *[4] * (s - 1)], "labels": [4] * t} for row, (s, t) in pairs]

    @staticmethod
    def numbers(batches):
        return [[feature["input_ids"][0] for feature in batch] for batch in batches]

    def test_every_pair_once_within_the_budget(self, features):
        batches = self.numbers(TokenBudgetStream(features, 256, buffer_size=128))
        assert sorted(sum(batches, [])) == list(range(300))
        assert max(cost(batch, self.source, self.target) for batch in batches) <= 256

    def test_epochs_and_seeds(self, features):
        stream = TokenBudgetStream(features, 256, buffer_size=128)
        first = self.numbers(stream)
        assert self.numbers(stream) == first
        stream.set_epoch(1)
        assert self.numbers(stream) != first
        assert self.numbers(TokenBudgetStream(features, 256, buffer_size=128, seed=5)) != first

    @pytest.mark.parametrize("buffer_size", [64, 299])
    def test_ranks_share_the_batches_evenly(self, features, buffer_size):
        ranks = [
            self.numbers(TokenBudgetStream(features, 256, buffer_size=buffer_size, num_replicas=3, rank=rank))
            for rank in range(3)
        ]
        assert len(ranks[0]) == len(ranks[1]) == len(ranks[2])
        seen = sorted(sum(sum(ranks, []), []))
        # 299 leaves a buffer of one pair, which each of the three ranks gets.
        assert seen == sorted([*range(300), *([299] * 2 if buffer_size == 299 else [])])

    def test_reads_one_buffer_at_a_time(self, features):
        taken = []
        stream = TokenBudgetStream((taken.append(0) or feature for feature in features), 256, buffer_size=50)
        next(iter(stream))
        assert len(taken) == 50

    @pytest.mark.parametrize("workers", [0, 2])
    def test_in_a_data_loader(self, features, workers):
        stream = TokenBudgetStream(features, 256, buffer_size=100)
        loader = DataLoader(stream, batch_size=None, collate_fn=lambda batch: batch, num_workers=workers)
        batches = self.numbers(loader)
        assert sorted(sum(batches, [])) == list(range(300))

    def test_workers_that_live_on_see_the_epoch(self, features):
        stream = TokenBudgetStream(features, 256, buffer_size=100)
        loader = DataLoader(
            stream, batch_size=None, collate_fn=lambda batch: batch, num_workers=1, persistent_workers=True
        )
        first = self.numbers(loader)
        stream.set_epoch(1)
        assert self.numbers(loader) != first

    def test_workers_share_a_tokenized_stream(self):
        texts = {"source": [" ".join("w" * (i % 7 + 1)) for i in range(60)], "target": ["w"] * 60}
        pairs = datasets.Dataset.from_dict(texts).to_iterable_dataset(num_shards=2)
        tokenized, _ = tokenize_pairs(pairs, train_tokenizer(["w"], algorithm="whitespace"))
        assert tokenized.num_shards == 2
        stream = TokenBudgetStream(tokenized, 64, buffer_size=20)
        stream.set_epoch(3)
        assert pairs.epoch == 3
        loader = DataLoader(stream, batch_size=None, collate_fn=lambda batch: batch, num_workers=2)
        lengths = [len(feature["input_ids"]) for batch in loader for feature in batch]
        assert sorted(lengths) == sorted(i % 7 + 2 for i in range(60))

    def test_faults(self, features):
        features[205] = {"input_ids": [4] * 300, "labels": [4]}
        with pytest.raises(DataError, match="row 205: its 301 tokens"):
            list(TokenBudgetStream(features, 256, buffer_size=100))
        with pytest.raises(DataError, match="`rank` is 2; it must be from 0 to 1"):
            TokenBudgetStream(features, 256, num_replicas=2, rank=2)
        with pytest.raises(DataError, match="`buffer_size` is 0; it must be positive"):
            TokenBudgetStream(features, 256, buffer_size=0)


def test_packed_pairs():
    features = [
        {"input_ids": [5, 6, 2], "labels": [7, 2]},
        {"input_ids": torch.tensor([8]), "labels": np.array([9, 2])},
    ]
    batch = collate_packed(features)
    assert batch["input_ids"].tolist() == [[5, 6, 2, 8]] and batch["labels"].tolist() == [[7, 2, 9, 2]]
    assert batch["input_ids"].dtype == batch["labels"].dtype == torch.int64
    source_edges, target_edges = (batch["packing"][f"{side}cu_seq_lens"] for side in ("", "decoder_"))
    assert source_edges.tolist() == [0, 3, 4] and target_edges.tolist() == [0, 2, 4]
    assert source_edges.dtype == target_edges.dtype == torch.int32
    assert (batch["packing"]["max_length"], batch["packing"]["decoder_max_length"]) == (3, 2)
    for side in ("input_ids", "labels"):
        with pytest.raises(DataError, match=f"a pair has no token in '{side}'; packing needs one on each side"):
            collate_packed([*features, {"input_ids": [5], "labels": [5], side: []}])
        for wrong in ([[5, 6]], [5.5], 5):
            with pytest.raises(DataError, match=f"'{side}' of a pair has shape .*; use a list of integers"):
                collate_packed([{"input_ids": [5], "labels": [5], side: wrong}])


def test_packed_pairs_have_no_padding():
    padded = {"input_ids": [0, 5, 6, 0], "attention_mask": [0, 1, 1, 0], "labels": [-100, -100, 7, 2, -100]}
    batch = collate_packed([padded, {"input_ids": [8], "labels": [9]}])
    edges = [batch["packing"][f"{side}cu_seq_lens"].tolist() for side in ("", "decoder_")]
    assert batch["input_ids"].tolist() == [[5, 6, 8]] and batch["labels"].tolist() == [[7, 2, -100, 9]]
    assert edges == [[0, 2, 3], [0, 3, 4]]
