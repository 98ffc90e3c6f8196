"""Reading, splitting, tokenizing and batching of parallel text."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .arguments import DataArguments
    from .batching import TokenBudgetBatchSampler, TokenBudgetStream
    from .encoding import PairCounts, TokenizedStream, tokenize_pairs
    from .splits import load_parallel_text
    from .tokenizer_training import train_tokenizer
    from .toy_corpus import load_toy_corpus

_MODULES = {
    "DataArguments": "arguments",
    "PairCounts": "encoding",
    "TokenBudgetBatchSampler": "batching",
    "TokenBudgetStream": "batching",
    "TokenizedStream": "encoding",
    "load_parallel_text": "splits",
    "load_toy_corpus": "toy_corpus",
    "tokenize_pairs": "encoding",
    "train_tokenizer": "tokenizer_training",
}


def __getattr__(name: str) -> Any:
    # Lazy imports: `train_tokenizer` must work without `datasets`, an optional dependency.
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)


__all__ = [
    "DataArguments",
    "PairCounts",
    "TokenBudgetBatchSampler",
    "TokenBudgetStream",
    "TokenizedStream",
    "load_parallel_text",
    "load_toy_corpus",
    "tokenize_pairs",
    "train_tokenizer",
]
