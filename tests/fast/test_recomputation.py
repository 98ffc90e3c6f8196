"""Recomputed activations change no gradient, take less memory, and yield where something else keeps tensors."""

import gc
import weakref
from contextlib import contextmanager, nullcontext
from functools import partial

import pytest
import torch
from torch import nn
from torch.autograd.graph import (
    disable_saved_tensors_hooks,
    register_multi_grad_hook,
    save_on_cpu,
    saved_tensors_hooks,
)
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from hf_vanilla_transformer.fast import recomputation
from tiny import close_gradients, gradients, labelled_batch, loss_and_gradients, perturbed_model, tiny_model


@pytest.fixture(autouse=True)
def every_size(monkeypatch):
    monkeypatch.setattr(recomputation, "MIN_ELEMENTS", 0)


@pytest.fixture
def model():
    return perturbed_model().train()


@pytest.fixture
def batch():
    return labelled_batch()


@pytest.fixture
def computed(monkeypatch):
    """Names of the functions that are recomputed."""
    calls = []

    def call_again(node, original=recomputation._call_again):
        calls.append(node.function.__qualname__.split(".")[0].strip("_"))
        return original(node)

    monkeypatch.setattr(recomputation, "_call_again", call_again)
    return calls


@contextmanager
def keeping_all():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recomputation, "MIN_ELEMENTS", float("inf"))
        yield


def step(model, batch, plain=False, dtype=None, **options):
    """Return loss and gradients of one step, with the same random numbers each time."""
    torch.manual_seed(1)
    with keeping_all() if plain else nullcontext():
        return loss_and_gradients(model, batch, dtype, **options)


def close_to_plain(model, batch, dtype=None, tolerance=1e-5):
    """Compare the gradients of a step with those without recomputation."""
    _, expected = step(model, batch, plain=True, dtype=dtype)
    _, actual = step(model, batch, dtype=dtype)
    close_gradients(actual, expected, tolerance)


@pytest.mark.parametrize("dtype", [None, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"norm_position": "pre"},
        {"norm_position": "none"},
        {"final_layer_norm": True, "embedding_layer_norm": True},
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


def test_each_activation_is_computed_once(batch, computed):
    model = tiny_model().train()
    step(model, batch)
    # Two encoder layers have two norms and an inner layer, three decoder layers one norm more.
    assert computed.count("normalize") == 2 * 2 + 3 * 3
    assert computed.count("activate") == 2 + 3


def test_less_is_kept(monkeypatch):
    model, batch = tiny_model(encoder_ffn_dim=64, decoder_ffn_dim=64).train(), labelled_batch(8, 16)
    weights = {p.data_ptr() for p in model.parameters()}

    def kept(pack):
        storages = {}

        def record(scope, saved):
            packed = pack(scope, saved)
            if isinstance(packed[0], torch.Tensor) and packed[0].data_ptr() not in weights:
                storages[packed[0].data_ptr()] = packed[0]
            return packed

        monkeypatch.setattr(recomputation._Scope, "pack", record)
        loss = model(**batch, skip_logits=True).loss
        loss.backward()
        return sum(x.numel() * x.element_size() for x in storages.values())

    # The second time, the inputs of recomputed functions are kept as before, and so is everything else.
    less = kept(recomputation._Scope.pack)
    monkeypatch.setattr(recomputation, "_origin", lambda saved: None)
    assert less < 0.65 * kept(lambda scope, saved: (saved.detach(), saved._version))


def test_second_derivatives():
    def second(context):
        with context:
            loss = model(**batch).loss
        grads = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        sum(grad.square().sum() for grad in grads).backward()
        return gradients(model)

    # Flash attention has no second derivatives.
    model = perturbed_model(activation_function="gelu", attn_implementation="eager").double().train()
    batch = labelled_batch()
    close_gradients(second(nullcontext()), second(keeping_all()), 1e-9)


def test_a_graph_is_used_several_times(model, batch):
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
def test_frozen_weights(model, batch, frozen):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(frozen not in name)
    close_to_plain(model, batch)


def test_changed_weights_are_refused(model, batch):
    loss = model(**batch).loss
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def in_place(y):
    with torch.no_grad():
        return y.mul_(3)


@pytest.mark.parametrize(
    "change", [in_place, lambda y: y.bfloat16().float(), lambda y: y[:, :4]], ids=["in place", "cast twice", "sliced"]
)
def test_other_values_are_kept(change, computed):
    x, weight = torch.randn(5, 8, requires_grad=True), torch.randn(2, 8, requires_grad=True)
    norm = nn.LayerNorm(8)

    def gradient():
        y = change(recomputation.layer_norm(norm, x))
        return torch.autograd.grad(F.linear(y, weight[:, : y.shape[1]]).square().sum(), weight)[0]

    expected = gradient()
    with recomputation.recomputation(x):
        actual = gradient()
    assert torch.equal(actual, expected) and not computed


@pytest.mark.parametrize("backward", [False, True])
def test_nothing_outlives_the_graph(backward):
    """A softmax saves its own output."""
    gc.disable()
    try:
        scopes = []
        x, norm = torch.randn(3, 4, requires_grad=True), nn.LayerNorm(4)
        with recomputation.recomputation(x):
            scopes.append(weakref.ref(recomputation._current_scope()))
            loss = nn.Linear(4, 2)(recomputation.layer_norm(norm, x).softmax(-1)).sum()
        assert scopes[0]() is not None
        if backward:
            loss.backward()
        del loss
        assert scopes[0]() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_skipped_loss_is_freed(attention, monkeypatch):
    """Flash attention and softmax save their own output."""
    scopes = []

    class Recorded(recomputation._Scope):
        def __init__(self):
            scopes.append(weakref.ref(self))

    monkeypatch.setattr(recomputation, "_Scope", Recorded)
    model = tiny_model(attn_implementation=attention).train()
    gc.disable()
    try:
        model(**labelled_batch()).loss.detach()
        assert len(scopes) == 2 and scopes[0]() is scopes[1]() is None
    finally:
        gc.enable()


class TestLayersThatAreMore:
    """Each gives the plain gradients."""

    def test_called_with_other_weights(self, model, batch):
        weights = {name: nn.Parameter(p.detach() * 1.5) for name, p in model.named_parameters()}

        def gradient(context):
            with context:
                loss = functional_call(model, weights, kwargs=batch).loss
            grads = torch.autograd.grad(loss, list(weights.values()), allow_unused=True)
            return {name: grad for name, grad in zip(weights, grads, strict=True) if grad is not None}

        close_gradients(gradient(nullcontext()), gradient(keeping_all()))

    def test_computed_weights(self, model, batch, computed):
        for layer in model.model.encoder.layers:
            parametrize.register_parametrization(layer.fc1, "weight", nn.Sigmoid())
            parametrize.register_parametrization(layer.self_attn_layer_norm, "weight", nn.Sigmoid())
        close_to_plain(model, batch)
        assert computed

    def test_hooks_of_tensors_run_once(self, model, batch):
        layer, seen = model.model.decoder.layers[0], []
        layer.fc1.weight.register_hook(lambda grad: grad * 2)
        layer.final_layer_norm.bias.register_hook(lambda grad: grad * 3)

        def watch(module, inputs):
            inputs[0].register_hook(lambda grad: seen.append(grad.clone()))

        layer.fc2.register_forward_pre_hook(watch)
        register_multi_grad_hook(list(model.parameters()), lambda grads: seen.append(grads))
        close_to_plain(model, batch)
        assert len(seen) == 4
        torch.testing.assert_close(seen[2], seen[0])

    @pytest.mark.parametrize(
        "activation", [nn.RReLU(), nn.Sequential(nn.GELU(), nn.Dropout(0.5)), nn.PReLU()], ids=str
    )
    def test_another_activation(self, model, batch, activation):
        model.model.decoder.layers[1].activation_fn = activation
        close_to_plain(model, batch)

    @pytest.mark.parametrize(
        "norm", [nn.RMSNorm(16), nn.LayerNorm(16, eps=0.3), nn.LayerNorm(16, elementwise_affine=False)], ids=str
    )
    def test_another_norm(self, model, batch, norm):
        model.model.decoder.layers[1].encoder_attn_layer_norm = norm
        close_to_plain(model, batch)

    def test_a_norm_whose_output_a_hook_changes(self, model, batch):
        norm = model.model.encoder.layers[0].self_attn_layer_norm
        norm.register_forward_hook(lambda module, inputs, output: in_place(output))
        close_to_plain(model, batch, torch.bfloat16, 2e-2)

    def test_a_model_in_bfloat16(self, computed):
        close_to_plain(perturbed_model().bfloat16().train(), labelled_batch(), tolerance=0)
        assert computed


def test_an_encoder_graph_used_before(model, batch):
    encoded = model.model.encoder(batch["input_ids"])
    weight = model.model.decoder.layers[0].encoder_attn.k_proj.weight
    model(encoder_outputs=encoded, labels=batch["labels"]).loss.backward()
    again = model(encoder_outputs=encoded, labels=batch["labels"]).loss
    torch.testing.assert_close(torch.autograd.grad(again, weight)[0], weight.grad)


def test_checkpoints_of_one_side(model, batch, computed):
    _, expected = step(model, batch, plain=True)
    encoded = checkpoint(model.model.encoder, batch["input_ids"], use_reentrant=False)
    model(encoder_outputs=encoded, labels=batch["labels"]).loss.backward()
    assert computed
    close_gradients(gradients(model), expected)


NO_HOOKS = partial(disable_saved_tensors_hooks, "none")
OTHER_HOOKS = partial(saved_tensors_hooks, lambda x: x, lambda x: x)


@pytest.mark.parametrize("context", [NO_HOOKS, OTHER_HOOKS, save_on_cpu], ids=["disabled", "others", "on a CPU"])
def test_yields_to_other_hooks_and_where_none_are_allowed(model, batch, context, computed):
    with context():
        step(model, batch)
    assert not computed


def test_a_hooked_layer_runs_once(model, batch):
    calls = []
    model.model.encoder.layers[0].fc1.register_forward_hook(lambda *_: calls.append(1))
    model.model.encoder.layers[1].activation_fn.register_forward_hook(lambda *_: calls.append(2))
    step(model, batch)
    assert calls == [1, 2]


# The oldest supported transformers lacks the method that replaces it.
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
@pytest.mark.parametrize("reentrant", [False, True])
def test_yields_to_gradient_checkpointing(model, batch, reentrant, computed):
    _, expected = step(model, batch, plain=True)
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    _, actual = step(model, batch)
    assert not computed
    close_gradients(actual, expected)


def test_only_for_large_batches(monkeypatch, computed):
    batch = labelled_batch(2, 7)
    # 2 sources of 8 tokens, targets of 7, of width 16.
    monkeypatch.setattr(recomputation, "MIN_ELEMENTS", 2 * 8 * 16)
    step(tiny_model().train(), batch)
    # Two norms and an inner layer in each of two encoder layers; the decoder's hidden states are fewer.
    assert len(computed) == 2 * (2 + 1)
    computed.clear()
    monkeypatch.setattr(recomputation, "MIN_ELEMENTS", 2 * 8 * 16 + 1)
    step(tiny_model().train(), batch)
    assert not computed


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(context):
    with context(), recomputation.recomputation(torch.ones(1)):
        assert recomputation._current_scope() is None
    with recomputation.recomputation(torch.ones(1)):
        assert recomputation._current_scope()
