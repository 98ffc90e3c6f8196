import shutil
from pathlib import Path

import pytest
from datasets.fingerprint import Hasher

from hf_vanilla_transformer.data import encoding, fingerprint, reading

LIMITS = encoding.LengthLimits(9, 9, 2.0)


@pytest.mark.parametrize("module", [module.removesuffix(".py") for module in fingerprint.MODULES])
def test_caches_depend_on_the_code_that_reads(tmp_path, module, words):
    shutil.copytree(Path(reading.__file__).parents[1], tmp_path / "package")
    assert fingerprint.code_fingerprint(tmp_path / "package") == fingerprint.CODE_FINGERPRINT
    with open(tmp_path / "package" / f"{module}.py", "a") as file:
        file.write("# changed")
    changed = fingerprint.code_fingerprint(tmp_path / "package")
    assert changed != fingerprint.CODE_FINGERPRINT
    # The arguments of `Dataset.map`.
    for one, other in (
        (encoding._Encoder(words, LIMITS, False), encoding._Encoder(words, LIMITS, False, changed)),
        (reading._PairColumns("a", "b"), reading._PairColumns("a", "b", code=changed)),
    ):
        assert Hasher.hash(one) != Hasher.hash(other)
