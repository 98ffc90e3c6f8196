"""Fingerprints of training data, and of the preprocessing code for the caches of `datasets`."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from datasets.fingerprint import Hasher

MODULES = (
    "data/reading.py", "data/encoding.py", "data/features.py", "data/tmx.py", "files.py",
    "model/tokenization_vanilla_transformer.py", "model/multilingual_vanilla_transformer.py", "text/protection.py",
)  # fmt: skip  # a table, not an expression


def code_fingerprint(package: Path) -> str:
    """Hash the modules that read and encode: `datasets` hashes a mapped function, but not the code it calls."""
    return Hasher.hash([Path(package, module).read_bytes() for module in MODULES])


CODE_FINGERPRINT = code_fingerprint(Path(__file__).parents[1])

# Pairs hashed to represent a stream; every resumed run reads them again.
STREAM_SAMPLE = 1000

# Rows to hash at a time.
ROWS = 10_000


def data_fingerprint(rows: Any, columns: Sequence[str]) -> dict[str, Any]:
    """Return the number of pairs and a digest of each column present, independent of files and caches.

    For a stream, the number is None and only the first `STREAM_SAMPLE` pairs are hashed.
    """
    if isinstance(rows, datasets.Dataset):
        columns, number = [name for name in columns if name in rows.column_names], len(rows)
        tables = rows.select_columns(columns).with_format("arrow").iter(ROWS) if columns else ()
        batches: Iterable[Any] = ({name: table[name].to_pylist() for name in columns} for table in tables)
    else:
        head, number = list(islice(rows, STREAM_SAMPLE)), None
        batches = [{name: [row[name] for row in head if name in row] for name in columns}]
    digests = {name: hashlib.blake2b(digest_size=6) for name in columns}
    for batch in batches:
        for name, digest in digests.items():
            for value in batch[name]:
                digest.update(f"{value}\n".encode() if isinstance(value, str) else np.array(value, np.int64).tobytes())
    return {"pairs": number, **{name: digest.hexdigest() for name, digest in digests.items()}}
