"""The built-in English-Spanish corpus, generated from a small grammar."""

from .corpus import load_toy_corpus

__all__ = ["load_toy_corpus"]
