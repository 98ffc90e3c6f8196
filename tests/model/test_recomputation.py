"""Recomputed activations change no gradient, take less memory, and yield where something else keeps tensors."""

import gc
import weakref

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.nn import functional as F

from hf_vanilla_transformer.model import recomputation_vanilla_transformer as recomputation
from tiny import close_gradients, gradients, labelled_batch, perturbed_model, tiny_model


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    monkeypatch.setattr(recomputation, "MIN_ELEMENTS", 0)


@pytest.fixture
def computed(monkeypatch):
    """The nodes whose output is computed again."""
    nodes = []

    def compute(node, original=recomputation._compute):
        nodes.append(node.name())
        return original(node)

    monkeypatch.setattr(recomputation, "_compute", compute)
    return nodes


def step(model, batch, plain=False, dtype=None, **options):
    """Return loss and gradients of one step, with the same random numbers each time."""
    torch.manual_seed(1)
    with pytest.MonkeyPatch.context() as patch, torch.autocast("cpu", dtype, enabled=dtype is not None):
        if plain:
            patch.setattr(recomputation, "MIN_ELEMENTS", float("inf"))
        loss = model(**batch, **options).loss
    loss.backward()
    return loss, gradients(model)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_position": "pre"},
        {"norm_position": "none"},
        {"final_layer_norm": True},
        {"activation_function": "gelu"},
        {"activation_function": "prelu"},
        {"activation_dropout": 0.2, "attention_dropout": 0.1, "dropout": 0.3},
        {"encoder_ffn_dim": 0},
        {"attn_implementation": "eager"},
    ],
    ids=str,
)
def test_same_gradients(changes, dtype, computed):
    model, batch = perturbed_model(**changes).train(), labelled_batch()
    loss, expected = step(model, batch, plain=True, dtype=dtype, skip_logits=True)
    assert not computed
    recomputed_loss, actual = step(model, batch, dtype=dtype, skip_logits=True)
    assert computed
    torch.testing.assert_close(recomputed_loss, loss)
    close_gradients(actual, expected, 1e-5 if dtype is None else 2e-2)


def test_each_activation_is_computed_once(computed):
    model = tiny_model().train()
    step(model, labelled_batch())
    # Two encoder layers have two norms, three decoder layers three; nothing uses the last one's output again.
    assert computed.count("NativeLayerNormBackward0") == 2 * 2 + 3 * 3 - 1
    assert len(computed) == 2 * 2 + 3 * 3 - 1 + 5


def test_less_is_kept(monkeypatch):
    model, batch = tiny_model(encoder_ffn_dim=64, decoder_ffn_dim=64).train(), labelled_batch(8, 16)

    def kept(pack):
        storages = {}

        def record(saved):
            packed = pack(saved)
            if isinstance(packed[0], torch.Tensor) and packed[0].data_ptr() not in weights:
                storages[packed[0].data_ptr()] = packed[0]
            return packed

        monkeypatch.setattr(recomputation, "_pack", record)
        loss = model(**batch, skip_logits=True).loss
        loss.backward()
        return sum(x.numel() * x.element_size() for x in storages.values())

    weights = {p.data_ptr() for p in model.parameters()}
    assert kept(recomputation._pack) < 0.65 * kept(lambda saved: (saved, saved._version))


def test_second_derivatives():
    def second(plain):
        with pytest.MonkeyPatch.context() as patch:
            if plain:
                patch.setattr(recomputation, "MIN_ELEMENTS", float("inf"))
            loss = model(**batch).loss
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        sum(grad.square().sum() for grad in grads).backward()
        return gradients(model)

    # Flash attention has no second derivatives.
    model = perturbed_model(activation_function="gelu", attn_implementation="eager").double().train()
    batch = labelled_batch()
    close_gradients(second(plain=False), second(plain=True), 1e-9)


def test_a_graph_is_used_several_times():
    model, batch = perturbed_model().train(), labelled_batch()
    _, expected = step(model, batch, plain=True)
    loss = model(**batch).loss
    weight = model.model.encoder.layers[0].self_attn.q_proj.weight
    for _ in range(2):
        (grad,) = torch.autograd.grad(loss, weight, retain_graph=True)
        torch.testing.assert_close(grad, expected["model.encoder.layers.0.self_attn.q_proj.weight"])
    loss.backward(retain_graph=True)
    close_gradients(gradients(model), expected)
    loss.backward()
    close_gradients(gradients(model), expected)
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()


@pytest.mark.parametrize("frozen", ["fc1", "fc2", "layer_norm", "q_proj", "embed", "encoder"])
def test_frozen_weights(frozen):
    model, batch = perturbed_model().train(), labelled_batch()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    _, expected = step(model, batch, plain=True)
    _, actual = step(model, batch)
    assert not any(frozen in name for name in actual)
    close_gradients(actual, expected)


def test_changed_weights_are_refused():
    model = perturbed_model().train()
    loss = model(**labelled_batch()).loss
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def in_place(y):
    with torch.no_grad():
        return y.mul_(3)


@pytest.mark.parametrize("change", [in_place, lambda y: y.bfloat16().float(), lambda y: y[:, :4]], ids=str)
def test_other_values_are_kept(change, computed):
    x, weight = torch.randn(5, 8, requires_grad=True), torch.randn(2, 8, requires_grad=True)

    def gradient():
        y = change(nn.LayerNorm(8)(x))
        return torch.autograd.grad(F.linear(y, weight[:, : y.shape[1]]).square().sum(), weight)[0]

    expected = gradient()
    with recomputation.recomputation(x):
        actual = gradient()
    assert torch.equal(actual, expected) and not computed


@pytest.mark.parametrize("backward", [False, True])
def test_nothing_outlives_the_graph(backward):
    class Square:
        def __call__(self, x):
            return x * x

    square = Square()
    freed = weakref.ref(square)
    gc.disable()
    try:
        x = torch.randn(3, 4, requires_grad=True)
        with recomputation.recomputation(x):
            y = recomputation.recomputed(square, nn.LayerNorm(4)(x))
            loss = nn.Linear(4, 2)(y).sum()
        if backward:
            loss.backward()
        del square, y, loss
        assert freed() is None
    finally:
        gc.enable()


def test_a_hooked_layer_runs_once():
    model, calls = perturbed_model().train(), []
    model.model.encoder.layers[0].fc1.register_forward_hook(lambda *_: calls.append(1))
    model.model.encoder.layers[1].activation_fn.register_forward_hook(lambda *_: calls.append(2))
    step(model, labelled_batch())
    assert calls == [1, 2]


# The oldest supported transformers lacks its successor.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_yields_to_gradient_checkpointing(reentrant, computed):
    model, batch = perturbed_model().train(), labelled_batch()
    _, expected = step(model, batch, plain=True)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    _, actual = step(model, batch)
    assert not computed
    close_gradients(actual, expected)


@pytest.mark.parametrize("outer", [save_on_cpu, lambda: saved_tensors_hooks(lambda x: x, lambda x: x)])
def test_yields_to_other_hooks(outer, computed):
    with outer():
        step(perturbed_model().train(), labelled_batch())
    assert not computed


def test_only_for_large_batches(monkeypatch, computed):
    batch = labelled_batch(2, 7)
    # 2 sources of 8 tokens, targets of 7, of width 16.
    monkeypatch.setattr(recomputation, "MIN_ELEMENTS", 2 * 8 * 16)
    step(tiny_model().train(), batch)
    # The decoder, whose hidden states are fewer, keeps the encoder's output.
    assert len(computed) == 2 * 2 - 1 + 2
    monkeypatch.setattr(recomputation, "MIN_ELEMENTS", 2 * 8 * 16 + 1)
    step(tiny_model().train(), batch)
    assert len(computed) == 2 * 2 - 1 + 2


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(context):
    with context(), recomputation.recomputation(torch.ones(1)) as hooks:
        assert hooks is None and not recomputation.is_recomputing()
    with recomputation.recomputation(torch.ones(1)):
        assert recomputation.is_recomputing()
