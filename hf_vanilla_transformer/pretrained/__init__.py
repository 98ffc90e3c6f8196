"""Pretrained models and their tokenizers: loading, languages, length limits, and the facts of their training text."""
