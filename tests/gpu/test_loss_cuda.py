"""The accelerator's path of the loss without logits, in every dtype, against the plain loss."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from devices import NEEDS_GPU
from hf_vanilla_transformer.fast import chunked_loss
from hf_vanilla_transformer.fast.modules import summed_loss_without_logits
from hf_vanilla_transformer.model.checks_vanilla_transformer import IGNORE_INDEX

VOCABULARY, WIDTH = 61, 16
# Relative to the largest gradient: some ten roundings in the dtype, at worst all in the same direction.
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 0.04, torch.float16: 0.01}


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def accelerator(request, monkeypatch):
    """A GPU, or a CPU on the GPU's path, which keeps ignored labels, since counting them would sync."""
    monkeypatch.setattr(chunked_loss, "is_plain_cpu", lambda *tensors: False)
    return request.param


def problem(device, dtype, rows=3, length=7, bias=True, scale=1.0):
    torch.manual_seed(0)
    head = nn.Linear(WIDTH, VOCABULARY, bias=bias)
    states, labels = torch.randn(rows, length, WIDTH) * scale, torch.randint(0, VOCABULARY, (rows, length))
    labels[0, 4:] = labels[1, :2] = IGNORE_INDEX
    return states.to(device, dtype).requires_grad_(), head.to(device, dtype), labels.to(device)


def plain(states, head, labels, smoothing):
    """Return loss and gradients in float64, from the same rounded inputs."""
    states = states.detach().double().requires_grad_()
    weight = head.weight.detach().double().requires_grad_()
    bias = None if head.bias is None else head.bias.detach().double().requires_grad_()
    logits = F.linear(states, weight, bias).flatten(0, 1)
    loss = F.cross_entropy(logits, labels.flatten(), reduction="sum", label_smoothing=smoothing)
    inputs = [each for each in (states, weight, bias) if each is not None]
    return loss.detach(), torch.autograd.grad(loss, inputs)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("chunk_rows", [4, 1000])
def test_equals_the_plain_loss(accelerator, monkeypatch, dtype, smoothing, bias, chunk_rows):
    for name in ("ACCELERATOR_CHUNK_ELEMENTS", "FUSED_ELEMENTS"):
        monkeypatch.setattr(chunked_loss, name, chunk_rows * VOCABULARY)
    monkeypatch.setattr(chunked_loss, "MIN_CHUNK_ROWS", 1)
    states, head, labels = problem(accelerator, dtype, bias=bias)
    expected_loss, expected = plain(states, head, labels, smoothing)
    loss = summed_loss_without_logits(states, head, labels, smoothing)
    assert loss.dtype == torch.promote_types(dtype, torch.float32)
    torch.testing.assert_close(loss.double(), expected_loss, rtol=TOLERANCE[dtype], atol=0)
    found = torch.autograd.grad(loss, [states, *head.parameters()])
    for grad, wanted in zip(found, expected, strict=True):
        assert grad.dtype == dtype
        assert (grad.double() - wanted).abs().max() <= TOLERANCE[dtype] * wanted.abs().max()
    assert not found[0][labels == IGNORE_INDEX].any()


@pytest.mark.parametrize("case", ["states of ignored labels", "an impossible token"])
def test_infinite_numbers_that_do_not_count(accelerator, case):
    """Ignored labels are looked up as token 0, which may have probability 0."""
    states, head, labels = problem(accelerator, torch.float32)
    labels[labels == 0] = 1
    with torch.no_grad():
        if case == "an impossible token":
            head.bias[0] = -torch.inf
        else:
            states[labels == IGNORE_INDEX] = torch.nan
    loss = summed_loss_without_logits(states, head, labels, 0.0 if case == "an impossible token" else 0.1)
    grads = torch.autograd.grad(loss, [states, *head.parameters()])
    assert loss.isfinite() and all(grad.isfinite().all() for grad in grads)


def test_no_label_at_all(accelerator):
    states, head, labels = problem(accelerator, torch.float32)
    loss = summed_loss_without_logits(states, head, labels.fill_(IGNORE_INDEX), 0.1)
    grads = torch.autograd.grad(loss, [states, *head.parameters()])
    assert loss == 0 and not any(grad.any() for grad in grads)


def test_float16_sums_that_overflow(accelerator):
    """Summed gradients of many labels exceed 65,504, but fit once divided by the number of labels."""
    states, head, labels = problem(accelerator, torch.float16, rows=128, length=64, scale=40.0)
    labels.fill_(5)
    with torch.no_grad():
        states.abs_()
    expected_loss, expected = plain(states, head, labels, 0.0)
    assert expected[1].abs().max() > torch.finfo(torch.float16).max
    loss = summed_loss_without_logits(states, head, labels, 0.0)
    assert loss.isfinite()
    torch.testing.assert_close(loss.double(), expected_loss, rtol=1e-2, atol=0)
    found = torch.autograd.grad(loss / labels.numel(), [states, *head.parameters()])
    for grad, wanted in zip(found, expected, strict=True):
        assert grad.isfinite().all()
        error = (grad.double() - wanted / labels.numel()).abs().max()
        assert error <= 0.02 * wanted.abs().max() / labels.numel()
