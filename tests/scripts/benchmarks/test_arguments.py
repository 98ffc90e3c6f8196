import pytest
import torch

from benchmarking import small_arguments


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "`rounds` is 0; it must be positive"),
        ({"batch_size": [8, -1]}, "`batch_size` is -1"),
        ({"preset": ["huge"]}, "unknown preset 'huge'"),
    ],
)
def test_bad_values_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        small_arguments(**changes)


def test_cuda_needs_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="`device` is cuda, but torch finds no GPU; use cpu"):
        small_arguments(device="cuda")
