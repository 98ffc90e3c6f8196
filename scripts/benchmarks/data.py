"""Data preparation: tokenizing, caching and batching, compared with the Hugging Face examples."""

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerBase

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.batching import token_lengths
from hf_vanilla_transformer.data.encoding import tokenize_pairs

from .arguments import BenchmarkArguments
from .measure import OURS, Case, Disagreement
from .text import TokenizedText, matching_batch_size, read_text, token_budget_batches

NO_LIMITS: dict[str, Any] = {"max_source_length": None, "max_target_length": None, "max_length_ratio": None}


def data_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    text = read_text(args, data_args)
    workers = data_args.preprocessing_num_workers
    yield tokenizing_case(text, workers)
    with tempfile.TemporaryDirectory() as folder:
        yield cached_case(text, workers, Path(folder))
    yield choosing_case(text, args)
    yield loading_case(text, args)


def tokenizing_case(text: TokenizedText, workers: int | None) -> Case:
    """Compare tokenizing pairs in memory, which are never cached."""
    pairs = datasets.Dataset.from_dict({side: text.pairs[side][:] for side in ("source", "target")})
    implementations = {
        OURS: lambda: tokenize_pairs(pairs, text.tokenizer, num_proc=workers, **NO_LIMITS)[0],
        "map, batches": lambda: usual_map(pairs, text.tokenizer, batched=True),
        "map, one by one": lambda: usual_map(pairs, text.tokenizer, batched=False),
    }
    ids = {name: work() for name, work in implementations.items()}
    for name, rows in ids.items():
        for column in ("input_ids", "labels"):
            if rows[column][:] != ids[OURS][column][:]:
                raise Disagreement(f"{name} and ours make different {column}, so their timings are not comparable")
    processes = f"{workers} processes" if workers else "one process"
    notes = f"{text.description}, ours with {processes}"
    return Case("data", "tokenizing", implementations, len(pairs), "pairs", notes=notes)


def usual_map(pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, batched: bool) -> datasets.Dataset:
    """Tokenize as the transformers examples do: the target in a second call, its ids as labels."""

    def encode(row: dict[str, Any]) -> Any:
        encoded = tokenizer(row["source"])
        encoded["labels"] = tokenizer(text_target=row["target"])["input_ids"]
        return encoded

    return pairs.map(encode, batched=batched, remove_columns=["source", "target"])


def cached_case(text: TokenizedText, workers: int | None, folder: Path) -> Case:
    """Compare tokenizing pairs on disk again, from the cache."""
    path = str(folder / "pairs")
    text.pairs.save_to_disk(path)

    def pairs() -> Any:
        return datasets.load_from_disk(path)

    def tokenize() -> datasets.Dataset:
        return tokenize_pairs(pairs(), text.tokenizer, num_proc=workers, **NO_LIMITS)[0]

    start = time.perf_counter()
    tokenize()
    first = len(text.pairs) / (time.perf_counter() - start)
    files = set(folder.rglob("cache-*.arrow"))
    tokenize()
    cached = set(folder.rglob("cache-*.arrow")) == files
    notes = f"ours the first time {first:,.0f} pairs/s, then {'from the cache' if cached else 'again, no cache'}"
    implementations = {OURS: tokenize, "map, batches": lambda: usual_map(pairs(), text.tokenizer, batched=True)}
    return Case("data", "tokenizing once more", implementations, len(text.pairs), "pairs", notes=notes)


def choosing_case(text: TokenizedText, args: BenchmarkArguments) -> Case:
    """Time planning our batches for an epoch; random batches serve only to compare padding."""
    size = matching_batch_size(text, args)
    batches: dict[str, Sequence[list[int]]] = {
        OURS: list(token_budget_batches(text, args)),
        "random batches": list(BatchSampler(RandomSampler(text.ids), size, drop_last=False)),
    }
    notes = ", ".join(
        f"{name}: {len(plan)} per epoch, {padding_fraction(text, plan):.1%} padding" for name, plan in batches.items()
    )
    implementations = {OURS: lambda: list(token_budget_batches(text, args))}
    return Case("data", "choosing batches", implementations, len(text.ids), "pairs", notes=notes)


def padding_fraction(text: TokenizedText, batches: Sequence[list[int]]) -> float:
    """Fraction 0..1 of padding in batches of row indices, over both sides."""
    lengths = token_lengths(text.ids)
    real = sum(int(side.sum()) for side in lengths)
    padded = sum(int(side[batch].max()) * len(batch) for batch in batches for side in lengths)
    return 1 - real / padded


def loading_case(text: TokenizedText, args: BenchmarkArguments) -> Case:
    """Compare making the batches of an epoch: planning, reading and padding."""
    rows: Any = text.ids
    collator = DataCollatorForSeq2Seq(text.tokenizer)
    size = matching_batch_size(text, args)

    def by_tokens() -> int:
        return sum(1 for _ in DataLoader(rows, batch_sampler=token_budget_batches(text, args), collate_fn=collator))

    def by_pairs() -> int:
        return sum(1 for _ in DataLoader(rows, size, shuffle=True, collate_fn=collator))

    return Case(
        "data",
        "making batches",
        {OURS: by_tokens, "random batches": by_pairs},
        len(text.ids),
        "pairs",
        notes=f"{args.max_tokens} tokens, or {size} pairs",
    )
