"""The Triton kernels of the loss and of a decoding step in Triton's interpreter, and the PyTorch ops in their place.

tests/gpu/test_loss_cuda.py and test_decoding_cuda.py run the kernels on a GPU.
"""

from importlib.metadata import version
from importlib.util import find_spec
from types import SimpleNamespace

import pytest
import torch
from packaging.version import Version

from hf_vanilla_transformer.fast.step_cache import StepCache
from processes import interpret_triton
from steps import LENGTH, attended, random_step
from tables import looped

LOSS = """
import torch
from torch.nn import functional as F
from hf_vanilla_transformer.fast.kernels import SOFTMAX_BLOCK as BLOCK, replace_by_gradients

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

DECODING = """
import torch
from transformers import LogitsProcessorList

from hf_vanilla_transformer.fast import static_search
from hf_vanilla_transformer.fast.kernels import KEYS_BLOCK as BLOCK, attend
from hf_vanilla_transformer.inference.decoding import RefuseNaN
from hf_vanilla_transformer.search.beams import top_log_probs
from steps import attended, random_step

# The interpreter truncates to bfloat16, where a GPU rounds.
for dtype, tolerance in ((torch.float32, 1e-5), (torch.bfloat16, 2**-6), (torch.float16, 2**-9)):
    # The first step, less than a block, whole blocks, and more.
    for past in (0, 5, BLOCK, 2 * BLOCK + 1):
        for widths in ((16, 16), (12, 5)):
            for moved in (False, True):
                step = random_step(past, widths, moved, dtype=dtype)
                torch.testing.assert_close(attend(*step).float(), attended(*step), rtol=tolerance, atol=tolerance)
                assert torch.equal(step[3][:, :, past], step[1][:, :, 0]), "the key is stored"
                assert torch.equal(step[4][:, :, past], step[2][:, :, 0]), "the value is stored"
static_search.suits = lambda logits: True
beams = object.__new__(static_search.StaticBeams)
for dtype in (torch.float32, torch.bfloat16):
    logits = 3 * torch.randn(5, 5000).to(dtype)
    # As a bias may cause.
    logits[:, 0] = -torch.inf
    processors = LogitsProcessorList([RefuseNaN(at_once=False)])
    found, tokens = beams._top_log_probs(logits, 8, processors, torch.zeros(5, 1))
    expected, _ = top_log_probs(logits, 8, processors, torch.zeros(5, 1))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.float().log_softmax(-1).gather(1, tokens), expected, rtol=1e-5, atol=1e-5)
# As an activation that overflows float16 causes.
for bad in (torch.nan, torch.inf):
    logits[3, 4999] = bad
    refuse = RefuseNaN(at_once=False)
    beams._top_log_probs(logits, 8, LogitsProcessorList([refuse]), torch.zeros(5, 1))
    try:
        refuse.check()
    except ValueError:
        continue
    raise AssertionError(f"{bad} goes unnoticed")
print("passed")
"""


NEEDS_TRITON = pytest.mark.skipif(
    not find_spec("triton"), reason="needs Triton, which comes with PyTorch's wheels for CUDA"
)


@NEEDS_TRITON
def test_losses_and_gradients_are_those_of_torch():
    interpret_triton(LOSS)


@NEEDS_TRITON
@pytest.mark.skipif(
    bool(find_spec("triton"))
    and Version(version("triton")) < Version("3.8")
    and Version(version("numpy")) >= Version("2.5"),
    reason="the interpreter of Triton before 3.8 makes numbers of arrays, which NumPy 2.5 refuses",
)
def test_kernels_attend_and_choose_as_the_definition_says():
    interpret_triton(DECODING)


@looped("moved", [False, True])
@looped("widths", [(16, 16), (12, 5)])
@looped("past", [0, 5, 40])
def test_operations_of_torch_attend_as_the_definition_says(past, widths, moved):
    step = random_step(past, widths, moved)
    query, key, value, *kept, length, rows, scaling = step
    cache = object.__new__(StepCache)
    cache.states, cache.length, cache.rows, cache.is_moved = [tuple(kept)], length, rows, moved
    cache._places, cache._has_kernel = torch.arange(LENGTH), False
    found, _ = cache.attend(SimpleNamespace(layer_idx=0), query, key, value, None, scaling)
    torch.testing.assert_close(found, attended(*step), rtol=1e-5, atol=1e-5)
    assert torch.equal(step[3][:, :, past], step[1][:, :, 0]) and torch.equal(step[4][:, :, past], step[2][:, :, 0])
