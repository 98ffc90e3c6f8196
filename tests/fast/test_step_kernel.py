"""Attention of a decoding step: PyTorch's operations, and the Triton kernel, here run by Triton's interpreter.

tests/gpu/test_decoding_cuda.py runs it on a GPU.
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

PROGRAM = """
import torch
from transformers import LogitsProcessorList

from hf_vanilla_transformer.fast import static_search
from hf_vanilla_transformer.fast.step_kernel import BLOCK, attend
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
    # What a bias may do.
    logits[:, 0] = -torch.inf
    processors = LogitsProcessorList([RefuseNaN(at_once=False)])
    found, tokens = beams._top_log_probs(logits, 8, processors, torch.zeros(5, 1))
    expected, _ = top_log_probs(logits, 8, processors, torch.zeros(5, 1))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(logits.float().log_softmax(-1).gather(1, tokens), expected, rtol=1e-5, atol=1e-5)
# What an activation that overflows float16 leaves.
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


@pytest.mark.skipif(not find_spec("triton"), reason="needs Triton, which comes with PyTorch's wheels for CUDA")
@pytest.mark.skipif(
    bool(find_spec("triton"))
    and Version(version("triton")) < Version("3.8")
    and Version(version("numpy")) >= Version("2.5"),
    reason="the interpreter of Triton before 3.8 makes numbers of arrays, which NumPy 2.5 refuses",
)
def test_kernels_attend_and_choose_as_the_definition_says():
    interpret_triton(PROGRAM)


@pytest.mark.parametrize("moved", [False, True])
@pytest.mark.parametrize("widths", [(16, 16), (12, 5)])
@pytest.mark.parametrize("past", [0, 5, 40])
def test_operations_of_torch_attend_as_the_definition_says(past, widths, moved):
    step = random_step(past, widths, moved)
    query, key, value, *kept, length, rows, scaling = step
    cache = object.__new__(StepCache)
    cache.states, cache.length, cache.rows, cache.is_moved = [tuple(kept)], length, rows, moved
    cache._places, cache._has_kernel = torch.arange(LENGTH), False
    found, _ = cache.attend(SimpleNamespace(layer_idx=0), query, key, value, None, scaling)
    torch.testing.assert_close(found, attended(*step), rtol=1e-5, atol=1e-5)
    assert torch.equal(step[3][:, :, past], step[1][:, :, 0]) and torch.equal(step[4][:, :, past], step[2][:, :, 0])
