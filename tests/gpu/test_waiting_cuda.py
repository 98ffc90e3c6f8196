"""How often the host syncs with a GPU: on a CPU by counting ops that would sync, on a GPU by CUDA's sync checks."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version

from devices import on
from hf_vanilla_transformer.fast import chunked_loss
from packed import packed, token_pairs
from synchronization import Waits
from tiny import labelled_batch, padded_source, tiny_model


@contextmanager
def sync_debug_mode(mode: str) -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def never_waits(device: str, work: Callable[[], Any]) -> None:
    """Check that `work` does not sync with a device after a first call, which loads CUDA's libraries and does."""
    work()
    with Waits() if device == "cpu" else sync_debug_mode("error") as waits:
        work()
    assert not (waits and waits.found)


def count(device: str, work: Callable[[], Any]) -> int:
    """Return how often `work` syncs."""
    if device == "cpu":
        with Waits() as waits:
            work()
        return len(waits.found)
    with sync_debug_mode("warn"), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        work()
    return sum("synchronizing CUDA operation" in str(each.message) for each in caught)


@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1}, {"smoothing": 0.1, "skip_logits": True}])
@pytest.mark.parametrize("items", ["default", "number", "tensor"])
def test_a_training_step_never_waits(device, options, items):
    model, batch = tiny_model(dropout=0.1).train().to(device), labelled_batch()
    batch["attention_mask"][-1, 4:] = 0
    batch = on(device, batch)
    number = {"default": None, "number": 20, "tensor": torch.tensor(20, device=device)}[items]
    never_waits(device, lambda: model(**batch, **options, num_items_in_batch=number).loss.backward())


def test_a_packed_training_step_never_waits(device):
    model, batch = tiny_model(dropout=0.1).train().to(device), packed(token_pairs(), device)
    never_waits(device, lambda: model(**batch, smoothing=0.1, skip_logits=True).loss.backward())


def test_the_loss_without_logits_never_waits(device, monkeypatch):
    """`Waits`, like every dispatch mode, does not see inside the custom op, so call its implementation."""
    monkeypatch.setattr(chunked_loss, "is_plain_cpu", lambda *tensors: False)
    states, weight, labels = torch.randn(6, 8), torch.randn(13, 8), torch.tensor([1, 2, -100, 3, -100, 4])
    inputs = [each.to(device) for each in (states, weight, torch.randn(13), labels)]
    never_waits(device, lambda: chunked_loss.chunked_cross_entropy._init_fn(*inputs, 0.1, True))


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_encoder_and_a_decoder_never_wait(device, attention):
    if (device, attention) == ("cuda", "eager") and Version(transformers.__version__) < Version("5.23"):
        pytest.skip("transformers before 5.23 creates eager attention's mask from a host number")
    model, source = tiny_model().to(device), on(device, padded_source())
    model.set_attn_implementation(attention)
    target = torch.ones(3, 2, dtype=torch.long, device=device)
    inputs = {**source, "decoder_input_ids": target, "decoder_attention_mask": torch.ones_like(target)}
    with torch.no_grad():
        never_waits(device, lambda: model(**inputs))


@pytest.mark.parametrize("num_beams", [1, 4], ids=["greedy", "beams"])
def test_a_decoding_step_waits_once(device, num_beams):
    """The one sync checks whether the search has ended."""
    model, source = tiny_model().to(device), on(device, padded_source())

    def generate(steps):
        options = {"num_beams": num_beams, "max_new_tokens": steps, "eos_token_id": None, "do_sample": False}
        return lambda: model.generate(**source, **options)

    generate(4)()
    assert count(device, generate(12)) - count(device, generate(4)) <= 8


def test_what_waits_is_found():
    """Otherwise the tests above would be vacuous."""
    x, condition = torch.arange(4), torch.tensor([True, False, True, True])
    for work in (lambda: x.sum().item(), lambda: x[condition], lambda: condition.nonzero(), lambda: bool(x.any())):
        assert count("cpu", work) == 1
    assert count("cpu", lambda: x[torch.tensor([1, 2])] + 1) == 0
