"""Packed batches on a GPU: kernels that keep sequences separate, against padded batches and a CPU's float32."""

from functools import partial
from importlib.util import find_spec

import pytest
import torch
from torch.nn.attention import varlen

from tiny import close, close_gradients, gradients, loss_and_gradients, perturbed_model

pytest.importorskip("datasets", reason="the extra `train` installs it")

from hf_vanilla_transformer.training import VanillaTransformerTrainingArguments
from packed import packed, padded, token_pairs
from trainers import losses, trainable_model, trainer_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU, and torch finds none")

CUDA = torch.device("cuda")
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
# Head widths that flex attention supports.
WIDE = {"head_dim": 16, "value_head_dim": 16}
LONG = ([70, 1, 130, 33], [64, 90, 1, 129])


@pytest.fixture
def calls(monkeypatch):
    """Dtypes in the calls of PyTorch's kernel."""
    if torch.cuda.get_device_capability() < (8, 0):
        pytest.skip("needs a GPU of compute capability 8.0 or higher, for PyTorch's flash attention")
    made, kernel = [], varlen.varlen_attn

    def spy(*args, **kwargs):
        made.append(args[0].dtype)
        return kernel(*args, **kwargs)

    monkeypatch.setattr(varlen, "varlen_attn", spy)
    return made


step = partial(loss_and_gradients, smoothing=0.1, skip_logits=True)


def length_of_difference(found, expected):
    return torch.stack([(found[name].cpu() - grad.cpu()).norm() for name, grad in expected.items()]).norm()


@HALF
@pytest.mark.parametrize("width", [8, 16, 64, 128, 256])
def test_the_kernel_rounds_no_worse_than_padded_batches(dtype, width, calls):
    model = perturbed_model(head_dim=width, value_head_dim=width, max_position_embeddings=256)
    pairs = token_pairs(LONG)
    loss, exact = step(model, padded(pairs))
    model.to(CUDA)
    rounded, padded_gradients = step(model, padded(pairs, CUDA), dtype)
    found, packed_gradients = step(model, packed(pairs, CUDA), dtype)
    # Two encoder layers, and three decoder layers with two attentions each.
    assert calls == [dtype] * 8
    assert (found.cpu() - loss).abs() < 2 * (rounded.cpu() - loss).abs() + 1e-2
    errors = [length_of_difference(each, exact) for each in (packed_gradients, padded_gradients)]
    assert errors[0] < 1.5 * errors[1] + 1e-3


@pytest.mark.parametrize("changes", [{}, {"position_embedding_type": "learned"}, {"head_dim": 8, "value_head_dim": 4}])
def test_float32_takes_the_plain_way(changes):
    model, pairs = perturbed_model(**changes).to(CUDA), token_pairs()
    loss, expected = step(model, padded(pairs, CUDA))
    found, actual = step(model, packed(pairs, CUDA))
    close(found, loss)
    close_gradients(actual, expected, 1e-4)


def test_a_model_in_half_precision(calls):
    model, pairs = perturbed_model(**WIDE).to(CUDA, torch.bfloat16), token_pairs()
    with torch.no_grad():
        expected, found = model(**padded(pairs, CUDA)), model(**packed(pairs, CUDA))
    assert calls and found.logits.dtype == torch.bfloat16
    close(found.loss.float(), expected.loss.float(), 3e-2)


# Compilation makes transformers and torch call deprecated functions.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
class TestCompiled:
    def test_flex_attention(self):
        model, pairs = perturbed_model(**WIDE).to(CUDA), token_pairs(LONG)
        loss, expected = step(model, padded(pairs, CUDA))
        model.set_attn_implementation("flex_attention")
        found, actual = step(model, packed(pairs, CUDA))
        close(found, loss, 1e-3)
        close_gradients(actual, expected, 1e-2)

    def test_training_steps_of_several_shapes(self, calls):
        model = perturbed_model(**WIDE).to(CUDA)
        compiled = torch.compile(model)
        for lengths in (LONG, ([2, 9, 4], [8, 3, 5]), ([6, 6], [2, 7])):
            batch = packed(token_pairs(lengths), CUDA)
            loss, expected = step(model, batch, torch.bfloat16)
            with torch.autocast("cuda", torch.bfloat16):
                found = compiled(**batch, smoothing=0.1, skip_logits=True).loss
            found.backward()
            close(found.detach(), loss, 2e-2)
            nothing = {name: torch.zeros_like(grad) for name, grad in expected.items()}
            error = length_of_difference(gradients(model), expected)
            assert error < 0.1 * length_of_difference(nothing, expected)


@pytest.mark.skipif(find_spec("flash_attn") is None, reason="needs the package flash-attn")
def test_flash_attention_of_transformers():
    model, pairs = perturbed_model(**WIDE).to(CUDA, torch.bfloat16), token_pairs(LONG)
    model.set_attn_implementation("flash_attention_2")
    with torch.no_grad():
        expected, found = model(**padded(pairs, CUDA)).loss, model(**packed(pairs, CUDA)).loss
    close(found.float(), expected.float(), 3e-2)


def test_no_step_waits_for_the_gpu(calls):
    model, batch = perturbed_model(**WIDE).to(CUDA).train(), packed(token_pairs(), CUDA)
    model.config.dropout = 0.1
    step(model, batch, torch.bfloat16)
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(model, batch, torch.bfloat16)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_a_run_has_the_losses_of_padded_batches(calls, tmp_path):
    options = {"bf16": True, "optim": "sgd", "learning_rate": 0.5, "max_steps": 8, "logging_steps": 1}
    options |= {"max_tokens": 128, "eval_strategy": "no", "save_strategy": "no", "disable_tqdm": True}
    curves = []
    for packing in (False, True):
        args = VanillaTransformerTrainingArguments(str(tmp_path), packing=packing, **options)
        trainer = trainer_of(tmp_path, trainable_model(dropout=0.0), args=args)
        trainer.train()
        curves.append(losses(trainer))
    assert calls and curves[1] == pytest.approx(curves[0], abs=3e-2) and curves[1][-1] < curves[1][0]
