"""Parallel text, from files to batches of token ids."""
