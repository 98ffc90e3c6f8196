"""The Triton kernel of the loss, run by Triton's interpreter; tests/gpu/test_loss_cuda.py runs it on a GPU."""

from importlib.util import find_spec

import pytest

from processes import interpret_triton

PROGRAM = """
import torch
from torch.nn import functional as F
from hf_vanilla_transformer.fast.softmax_kernel import BLOCK, replace_by_gradients

torch.manual_seed(0)
# The interpreter truncates to bfloat16, where a GPU rounds.
for dtype, tolerance in ((torch.float32, 1e-6), (torch.bfloat16, 2**-7), (torch.float16, 2**-11)):
    # Less than a block, whole blocks, and more.
    for vocabulary in (7, BLOCK, 2 * BLOCK + 1):
        for eps in (0.0, 0.1):
            logits = (3 * torch.randn(4, vocabulary)).to(dtype)
            labels = torch.tensor([1, -100, vocabulary - 1, 0])
            kept = labels >= 0
            exact = logits.double().requires_grad_()
            losses = F.cross_entropy(exact, labels.clamp(min=0), reduction="none") * kept
            expected = losses + eps * exact.gather(1, labels.clamp(min=0)[:, None])[:, 0] * kept
            expected.sum().backward()
            found = logits.clone()
            torch.testing.assert_close(
                replace_by_gradients(found, labels, eps, False).double(), expected.detach(), rtol=1e-6, atol=1e-5
            )
            assert torch.equal(found, logits)
            replace_by_gradients(found, labels, eps, True)
            torch.testing.assert_close(found.double(), exact.grad, rtol=tolerance, atol=1e-7)
assert len(replace_by_gradients(torch.empty(0, 7), torch.empty(0, dtype=torch.long), 0.1, True)) == 0
print("passed")
"""


@pytest.mark.skipif(not find_spec("triton"), reason="needs Triton, which comes with PyTorch's wheels for CUDA")
def test_losses_and_gradients_are_those_of_torch():
    interpret_triton(PROGRAM)
