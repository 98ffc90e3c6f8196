"""Fingerprint of the code that turns files into token ids, for the caches of `datasets`."""

from pathlib import Path

from datasets.fingerprint import Hasher

MODULES = ("data/reading.py", "data/encoding.py", "files.py", "model/tokenization_vanilla_transformer.py")


def code_fingerprint(package: Path) -> str:
    """Hash the modules that read and encode; `datasets` itself hashes a mapped function, but no code it calls."""
    return Hasher.hash([Path(package, module).read_bytes() for module in MODULES])


CODE_FINGERPRINT = code_fingerprint(Path(__file__).parents[1])

__all__ = ["CODE_FINGERPRINT", "MODULES", "code_fingerprint"]
