"""Forward and backward passes on a GPU agree with a CPU, in every dtype and attention implementation."""

import copy
from importlib.util import find_spec

import pytest
import torch
from torch.nn import functional as F

from devices import on
from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.fast import cpu_ops, linear, modules
from tiny import (
    EVERY_SHAPE,
    batch_with_padding,
    close,
    close_gradients,
    gradients,
    labelled_batch,
    loss_and_gradients,
    perturbed_model,
)

# For sums of up to 50 products of numbers near 1 in another order: float32 rounds each by 2**-24, and two layers
# multiply the difference.
EXACT = 2e-5
# Largest error of loss and logits, relative to their norm: some 30 operations each round by 2**-8 or 2**-11, with
# random signs. Gradients pass through as many again.
HALF = {torch.bfloat16: 0.05, torch.float16: 0.01}


def padded_labels():
    batch = labelled_batch()
    batch["attention_mask"][-1, 4:] = 0
    return batch


def on_cpu(loss, gradients):
    return loss.cpu(), on("cpu", gradients)


@EVERY_SHAPE
@pytest.mark.parametrize("biases", [False, True], ids=["no biases", "biases"])
@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1, "skip_logits": True}], ids=["logits", "no logits"])
def test_float32_is_that_of_a_cpu(device, changes, biases, options):
    model, batch = perturbed_model(**changes, lm_head_bias=biases, attention_bias=biases).train(), padded_labels()
    expected_loss, expected = loss_and_gradients(model, batch, **options)
    loss, found = on_cpu(*loss_and_gradients(model.to(device), on(device, batch), **options))
    close(loss, expected_loss, EXACT)
    close_gradients(found, expected, EXACT)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("way", ["autocast", "pure"])
@pytest.mark.parametrize("skip_logits", [False, True])
def test_half_precision(device, dtype, way, skip_logits):
    model, batch = perturbed_model(scale=0.05).train(), padded_labels()
    options = {"smoothing": 0.1, "skip_logits": skip_logits}
    expected_loss, expected = loss_and_gradients(model, batch, **options)
    half = copy.deepcopy(model).to(device)
    half, autocast = (half.to(dtype), None) if way == "pure" else (half, dtype)
    loss, found = on_cpu(*loss_and_gradients(half, on(device, batch), autocast, **options))
    assert loss.dtype == torch.float32
    close(loss, expected_loss, HALF[dtype])
    for name, grad in found.items():
        assert (grad.float() - expected[name]).norm() <= 2 * HALF[dtype] * max(1.0, expected[name].norm()), name


@pytest.mark.parametrize("implementation", ["sdpa", "eager", "flex_attention", "flash_attention_2"])
def test_attention_implementations_agree(device, implementation):
    is_flash = implementation == "flash_attention_2"
    if is_flash and (device == "cpu" or not find_spec("flash_attn")):
        pytest.skip(f"{implementation} needs a GPU and flash_attn")
    if implementation == "flex_attention" and device == "cpu":
        pytest.skip("tests/model/test_attention.py has flex attention on a CPU, which compiles it for minutes")
    # Flash attention needs half precision and heads of width 8 or more; flex attention, 16 or more.
    model = perturbed_model(d_model=64).to(device, torch.bfloat16 if is_flash else torch.float32)
    reference = copy.deepcopy(model).float()
    reference.set_attn_implementation("eager")
    model.set_attn_implementation(implementation)
    batch = on(device, padded_labels())
    expected, found = reference(**batch), model(**batch)
    tolerance = HALF[torch.bfloat16] if is_flash else 1e-4
    close(found.loss, expected.loss, tolerance)
    assert (found.logits.float() - expected.logits).norm() / expected.logits.norm() < tolerance


def test_the_routines_of_a_cpu_step_aside(cuda, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a CPU routine was called with GPU tensors")

    monkeypatch.setattr(linear, "_ONEDNN", refuse)
    monkeypatch.setattr(cpu_ops._Dropout, "apply", refuse)
    monkeypatch.setattr(modules, "bmm_attention", refuse)
    model, batch = perturbed_model(dropout=0.1).train().to(cuda), on(cuda, padded_labels())
    assert not cpu_ops.is_plain_cpu(batch["input_ids"])
    model(**batch, skip_logits=True).loss.backward()
    with linear.decoding_products(shared=True):
        model.eval().generate(batch["input_ids"], num_beams=4, max_new_tokens=8, eos_token_id=None)
        products = linear._decoding_products.get()
        assert not (products._packed or products._chosen or products._uses)


def test_dropout_is_that_of_torch(device):
    x = torch.ones(64, 1000, device=device)
    dropped = cpu_ops.apply_dropout(x, 0.25)
    # Five standard deviations of the mean of 64,000 draws.
    assert (dropped.eq(0).float().mean() - 0.25).abs() < 5 * (0.25 * 0.75 / x.numel()) ** 0.5
    if device == "cuda":
        torch.manual_seed(1)
        found = cpu_ops.apply_dropout(x, 0.25)
        torch.manual_seed(1)
        assert torch.equal(found, F.dropout(x, 0.25))


def test_loading_onto_a_gpu(cuda, tmp_path):
    pytest.importorskip("accelerate", reason="`device_map` needs accelerate")
    model, batch = perturbed_model(), batch_with_padding()
    model.save_pretrained(tmp_path)
    loaded = VanillaTransformerForConditionalGeneration.from_pretrained(tmp_path, device_map="auto")
    assert {parameter.device.type for parameter in loaded.parameters()} == {cuda}
    with torch.no_grad():
        expected, found = model(**batch).logits, loaded(**on(cuda, batch)).logits.cpu()
    kept = batch["decoder_attention_mask"].bool()
    close(found[kept], expected[kept], EXACT)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"smoothing": 0.1, "skip_logits": True}], ids=["logits", "no logits"])
def test_a_compiled_training_step(cuda, options):
    """One graph on a GPU; tests/model/test_graphs.py covers the CPU."""
    model, batch = perturbed_model().train().to(cuda), on(cuda, padded_labels())
    expected_loss, expected = loss_and_gradients(model, batch, **options)
    compiled = torch.compile(model, fullgraph=True)
    compiled(**batch, **options).loss.backward()
    model.zero_grad()
    loss = compiled(**batch, **options).loss
    loss.backward()
    close(loss, expected_loss, EXACT)
    close_gradients(gradients(model), expected, EXACT)
