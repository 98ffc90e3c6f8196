"""Real text for the benchmarks: tokenized pairs, and our batches of them."""

from dataclasses import dataclass, replace
from typing import Any, cast

import datasets
from transformers import PreTrainedTokenizerBase

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.batching import TokenBudgetBatchSampler, token_lengths
from hf_vanilla_transformer.data.encoding import tokenize_pairs
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.errors import DataError

from .arguments import BenchmarkArguments


@dataclass(frozen=True)
class TokenizedText:
    """Sentence pairs with their origin, a tokenizer trained on both sides, and its ids (`input_ids`, `labels`)."""

    description: str
    pairs: datasets.Dataset
    tokenizer: PreTrainedTokenizerBase
    ids: datasets.Dataset


def with_text(data_args: DataArguments) -> DataArguments:
    """Return the arguments, with the built-in corpus if they name no training text."""
    named = data_args.dataset_name or data_args.files("train")
    return data_args if named else replace(data_args, toy_corpus=True)


def read_pairs(data_args: DataArguments, split: str = "train") -> Any:
    """Read the pairs of a split, with string columns `source` and `target`."""
    if data_args.streaming:
        raise DataError("`streaming` text has no length, which benchmarks need; leave it out")
    splits = load_parallel_text(data_args)
    if split not in splits:
        raise DataError(f"there are no pairs for {split}; give a {split} file or a data set with a {split} split")
    return splits[split]


def read_text(args: BenchmarkArguments, data_args: DataArguments) -> TokenizedText:
    """Read the training pairs, by default of the built-in corpus, and train a tokenizer on them."""
    data_args = with_text(data_args)
    pairs = read_pairs(data_args)
    sentences = (text for side in ("source", "target") for text in pairs[side])
    tokenizer = train_tokenizer(sentences, algorithm="bpe", vocab_size=args.text_vocab_size)
    ids, _ = tokenize_pairs(
        pairs,
        tokenizer,
        max_source_length=data_args.max_source_length,
        max_target_length=data_args.max_target_length,
        on_long=data_args.on_long,
        max_length_ratio=data_args.max_length_ratio,
    )
    return TokenizedText(data_args.description, pairs, tokenizer, cast(datasets.Dataset, ids))


def token_budget_batches(text: TokenizedText, args: BenchmarkArguments) -> TokenBudgetBatchSampler:
    """Our batches: indices of pairs of similar length, up to `max_tokens` including padding."""
    return TokenBudgetBatchSampler(*token_lengths(text.ids), args.max_tokens, seed=args.seed)


def matching_batch_size(text: TokenizedText, args: BenchmarkArguments) -> int:
    """Number of pairs that hold as many tokens, excluding padding, as our average batch."""
    return max(1, round(len(text.ids) / len(token_budget_batches(text, args))))
