"""Flat memory of a process that decodes batches of ever new shapes."""

import ctypes
import sys


def release_memory() -> None:
    """Return freed memory to the system, if the C library is glibc: its heap would otherwise fragment and grow."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)
