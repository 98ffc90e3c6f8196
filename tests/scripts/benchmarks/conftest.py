"""Small roofline probes, without waiting times."""

from collections.abc import Iterator

import pytest

from benchmarking import write_pairs
from benchmarks import measure, roofline
from hf_vanilla_transformer.data.arguments import DataArguments


@pytest.fixture(scope="package", autouse=True)
def _small_probes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(roofline, "CPU_SHAPES", ((64, 64, 64),))
        patch.setattr(roofline, "CPU_BYTES", 2**20)
        patch.setattr(measure, "PEAK_SECONDS", 0.0)
        patch.setattr(measure, "SETTLE_SECONDS", 0.0)
        yield


@pytest.fixture(scope="package")
def some_pairs(tmp_path_factory: pytest.TempPathFactory) -> DataArguments:
    return DataArguments(train_file=write_pairs(tmp_path_factory.mktemp("pairs"), 60))
