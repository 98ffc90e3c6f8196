"""R-Drop's divergence without logits against that of all logits."""

import pytest
import torch

from hf_vanilla_transformer.fast import divergence
from hf_vanilla_transformer.fast.divergence import summed_divergence_without_logits
from hf_vanilla_transformer.training.rdrop import mean_divergence
from synchronization import Waits


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_without_logits_divergence_and_gradients_are_the_plain_ones(bias, dtype, monkeypatch):
    monkeypatch.setattr(divergence, "MIN_CHUNK_ROWS", 4)
    monkeypatch.setattr(divergence, "CHUNK_ELEMENTS", 1)
    head, states = torch.nn.Linear(6, 9, bias=bias).to(dtype), torch.randn(6, 5, 6, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, 9, (3, 5))
    labels[1, 2:] = -100
    present, inputs = labels.ne(-100), [states, *head.parameters()]
    wide = head.double()(states.double()) if dtype == torch.float64 else head(states).float()
    first, second = (half[present].log_softmax(-1) for half in wide.chunk(2))
    plain = ((first.exp() - second.exp()) * (first - second)).sum() / 2
    found = summed_divergence_without_logits(head, states, present)
    tolerance = {"rtol": 0.05, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(found, plain, **tolerance)
    expected = torch.autograd.grad(3 * plain, inputs)
    for gradient, reference in zip(torch.autograd.grad(3 * found, inputs), expected, strict=True):
        torch.testing.assert_close(gradient, reference, **tolerance)
    assert summed_divergence_without_logits(head, states, torch.zeros_like(present)).item() == 0


def test_on_an_accelerator_divergence_and_gradients_are_the_same():
    head, states, labels = torch.nn.Linear(6, 9), torch.randn(6, 5, 6, requires_grad=True), torch.randint(0, 9, (3, 5))
    labels[1, 2:] = -100

    def divergences():
        divergence = mean_divergence(head(states), labels)
        without_logits = summed_divergence_without_logits(head, states, labels.ne(-100))
        inputs = [states, *head.parameters()]
        return [torch.autograd.grad(each, inputs) + (each,) for each in (divergence, without_logits)]

    expected = divergences()
    with Waits() as waits:
        found = divergences()
    assert waits.found == []
    torch.testing.assert_close(found, expected)
