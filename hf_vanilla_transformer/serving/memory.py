"""Flat memory of a process that decodes batches of ever new shapes."""

import ctypes
import os
import sys

# How many routines oneDNN keeps, and PyTorch beside it, each for one shape of a product. Their own 1,024 take hundreds
# of megabytes until all are there, and are no faster: few shapes come again.
ROUTINES_VARIABLES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
MAX_ROUTINES = "64"


def limit_routines() -> None:
    """Let PyTorch and oneDNN keep fewer routines, unless variables say how many; call it before the first product."""
    for variable in ROUTINES_VARIABLES:
        os.environ.setdefault(variable, MAX_ROUTINES)


def release_memory() -> None:
    """Return freed memory to the system, if the C library is glibc: its heap would otherwise fragment and grow."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


__all__ = ["limit_routines", "release_memory"]
