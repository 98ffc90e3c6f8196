"""A finished run, shared by tests."""

import pytest
import torch

from experiments import train, write_splits


@pytest.fixture
def files(tmp_path):
    """Arguments for training, validation and test files."""
    return write_splits(tmp_path)


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Folder of a run of three epochs with all splits, read-only for tests; its text lies beside it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("finished")
    options = {"num_train_epochs": 3, "average_last_checkpoints": 2, "source_lang": "en", "target_lang": "xx"}
    train(folder / "model", **write_splits(folder), **options)
    torch.set_num_threads(threads)
    return folder / "model"
