"""Muon beside Adam: which parameters it takes, their updates, schedules and resuming."""

import copy

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from hf_vanilla_transformer.training.muon import Muon, MuonWithAdam, layer_matrices, orthogonalized, stackable
from trainers import SAVING, assert_same_weights, losses, trainable_marian, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    "model",
    [
        trainable_model(),
        trainable_model(position_embedding_type="learned", tie_word_embeddings=False),
        trainable_marian(),
    ],
    ids=["ours", "learned positions, untied", "marian"],
)
def test_the_matrices_of_layers(model):
    matrices = layer_matrices(model)
    assert matrices and all(".layers." in name and name.endswith("weight") for name in matrices)
    others = [(name, each) for name, each in model.named_parameters() if name not in matrices]
    tables = ("embed", "shared", "lm_head")
    assert all(each.dim() == 1 or any(table in name for table in tables) for name, each in others)


def test_frozen_parameters_stay(tmp_path):
    model = trainable_model()
    frozen = model.model.encoder.requires_grad_(False)
    before = [each.clone() for each in frozen.parameters()]
    trainer_of(tmp_path, model, muon=True, max_steps=2).train()
    assert all(torch.equal(a, b.cpu()) for a, b in zip(before, frozen.parameters(), strict=True))


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5)])
def test_updates_are_those_of_torch(shape, monkeypatch):
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), torch.randn(4, *shape)
    options = {"lr": 0.1, "weight_decay": 0.3, "momentum": 0.9}
    reference = torch.nn.Parameter(start.clone())
    optimizers = [torch.optim.Muon([reference], adjust_lr_fn="match_rms_adamw", **options)]
    matrices = [reference]
    for fast in (True, False):
        monkeypatch.setattr("hf_vanilla_transformer.training.muon.bf16_is_fast", lambda fast=fast: fast)
        matrices.append(torch.nn.Parameter(start.clone()))
        optimizers.append(Muon([matrices[-1]], **options))
    for gradient in gradients:
        for matrix, optimizer in zip(matrices, optimizers, strict=True):
            matrix.grad = gradient.clone()
            optimizer.step()
    assert torch.equal(matrices[1], reference)
    torch.testing.assert_close(matrices[2], reference, atol=0.02, rtol=0)
    assert not torch.equal(matrices[2], reference)


@pytest.mark.parametrize("fast, tolerance", [(False, 1e-5), (True, 0.02)], ids=["float32", "bfloat16"])
def test_stacks_change_nothing(monkeypatch, fast, tolerance):
    """Wide, tall, square and single matrices, one without gradient, one whose gradient is zero; and a resumed run."""
    monkeypatch.setattr("hf_vanilla_transformer.training.muon.bf16_is_fast", lambda: fast)
    torch.manual_seed(0)
    shapes = [(4, 6), (6, 4), (4, 6), (5, 5), (6, 4), (5, 5), (4, 6), (3, 9)]
    without, zero = 2, 4
    start, ends = [torch.randn(shape) for shape in shapes], []
    gradients = [[torch.randn(shape) for shape in shapes] for _ in range(6)]
    for stacks in (False, True):
        monkeypatch.setattr("hf_vanilla_transformer.training.muon.launches_cost", lambda device, stacks=stacks: stacks)
        matrices = [torch.nn.Parameter(each.clone()) for each in start]
        optimizer = Muon(matrices, lr=0.1, weight_decay=0.3)
        for step, each_gradient in enumerate(gradients):
            for index, (matrix, gradient) in enumerate(zip(matrices, each_gradient, strict=True)):
                matrix.grad = None if index == without else gradient * (index != zero)
            optimizer.step()
            if step == 2:
                state = copy.deepcopy(optimizer.state_dict())
                optimizer = Muon(matrices, lr=0.1, weight_decay=0.3)
                optimizer.load_state_dict(state)
        assert torch.equal(matrices[without], start[without])
        torch.testing.assert_close(matrices[zero].detach(), start[zero] * (1 - 0.1 * 0.3) ** 6, atol=1e-6, rtol=0)
        ends.append((matrices, optimizer.state_dict()["state"]))
    (alone, alone_state), (together, together_state) = ends
    torch.testing.assert_close(together, alone, atol=tolerance, rtol=0)
    assert alone_state.keys() == together_state.keys() == {*range(len(shapes))} - {without}
    for index, state in alone_state.items():
        assert state.keys() == together_state[index].keys() == {"momentum_buffer"}
        assert together_state[index]["momentum_buffer"].stride() == state["momentum_buffer"].stride()
        torch.testing.assert_close(together_state[index], state, atol=1e-6, rtol=0)


class Launches(TorchDispatchMode):
    """Counts ops that an accelerator launches: all but views, and those on a list of tensors once."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_view = func.is_view or func is torch.ops.aten._unsafe_view.default
        self.count += func.namespace == "aten" and not is_view
        return func(*args, **(kwargs or {}))


def launches(layers):
    model = trainable_model(encoder_layers=layers, decoder_layers=layers)
    matrices = [each for name, each in model.named_parameters() if name in layer_matrices(model)]
    optimizer = Muon(matrices, lr=0.1)
    # The first step creates the state.
    for _ in range(2):
        for each in matrices:
            each.grad = torch.randn_like(each)
        with Launches() as found:
            optimizer.step()
    return found.count


def test_more_layers_take_no_more_launches(monkeypatch):
    monkeypatch.setattr("hf_vanilla_transformer.training.muon.launches_cost", lambda device: True)
    assert launches(2) == launches(8) < 60


class Sharded(torch.nn.Parameter):
    """A tensor subclass, like DTensor."""


def test_a_sharded_matrix_is_updated_alone(monkeypatch):
    monkeypatch.setattr("hf_vanilla_transformer.training.muon.launches_cost", lambda device: True)
    whole, sharded = [torch.nn.Parameter(torch.zeros(2, 3)) for _ in range(2)], Sharded(torch.zeros(2, 3))
    groups = [[id(each) for each in group] for group in stackable([whole[0], sharded, whole[1]])]
    assert groups == [[id(whole[0]), id(whole[1])], [id(sharded)]]


def test_singular_values_become_those_of_the_polynomial():
    matrix = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    values = values / matrix.norm()
    for _ in range(3):
        values = 3 * values - 4 * values**3 + 2 * values**5
    expected = left @ torch.diag(values) @ right
    torch.testing.assert_close(orthogonalized(matrix, (3.0, -4.0, 2.0), 3, 1e-7), expected, atol=1e-12, rtol=0)
    assert torch.equal(orthogonalized(torch.zeros(3, 2), (3.0, -4.0, 2.0), 3, 1e-7), torch.zeros(3, 2))


def test_updates_are_those_of_each_optimizer():
    torch.manual_seed(0)
    matrix, vector = torch.nn.Parameter(torch.randn(6, 4)), torch.nn.Parameter(torch.randn(5))
    alone = [torch.nn.Parameter(each.detach().clone()) for each in (matrix, vector)]
    both = MuonWithAdam([{"params": [matrix]}], [{"params": [vector]}], lr=0.1, betas=(0.9, 0.98), eps=1e-9)
    muon = Muon([alone[0]], lr=0.1, weight_decay=0.1)
    adam = torch.optim.AdamW([alone[1]], lr=0.1, betas=(0.9, 0.98), eps=1e-9)
    for _ in range(3):
        for one, other in zip((matrix, vector), alone, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in (both, muon, adam):
            optimizer.step()
    assert torch.equal(matrix, alone[0]) and torch.equal(vector, alone[1])


def test_a_closure_is_called_once():
    parameter = torch.nn.Parameter(torch.ones(2, 2))
    optimizer = MuonWithAdam([{"params": [parameter]}], [{"params": [torch.nn.Parameter(torch.ones(1))]}], lr=0.1)
    calls = []

    def closure():
        loss = parameter.sum()
        loss.backward()
        calls.append(1)
        return loss.item()

    assert optimizer.step(closure) == 4 and calls == [1]


def test_training_schedules_and_resuming(tmp_path):
    options = {**SAVING, "muon": True, "learning_rate": 0.02, "lr_scheduler_type": "linear", "weight_decay": 0.01}
    whole = trainer_of(tmp_path / "whole", **options)
    whole.train()
    assert isinstance(whole.optimizer.optimizer, MuonWithAdam)
    assert {group["lr"] for group in whole.optimizer.optimizer.muon.param_groups} == {0.0}
    assert [group["weight_decay"] for group in whole.optimizer.param_groups] == [0.01, 0.01, 0.0]
    assert losses(whole)[-1] < losses(whole)[0]
    resumed = trainer_of(tmp_path / "resumed", trainable_model(seed=1), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert_same_weights(whole.model, resumed.model)
