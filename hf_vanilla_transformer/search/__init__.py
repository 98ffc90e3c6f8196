"""Searching for the best sequence: beams, and limits for each sentence."""
