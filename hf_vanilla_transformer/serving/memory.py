"""Flat memory of a process that decodes batches of ever new shapes."""

import ctypes
import os
import sys

ROUTINES_VARIABLE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
# oneDNN's own 1,024 take some 200 MB until all are there, and are no faster: few shapes come again.
MAX_ROUTINES = "64"


def limit_routines() -> None:
    """Let oneDNN keep fewer routines, one of which belongs to one shape of a product; call it before the first."""
    os.environ.setdefault(ROUTINES_VARIABLE, MAX_ROUTINES)


def release_memory() -> None:
    """Return freed memory to the system, if the C library is glibc: its heap would otherwise fragment and grow."""
    if sys.platform == "linux" and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        library.malloc_trim(0)


__all__ = ["limit_routines", "release_memory"]
