"""Layer-wise learning rates: the rate of each parameter, under a schedule, with either optimizer, and resumed."""

import pytest
import torch

from trainers import SAVING, assert_same_weights, trainable_marian, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")


def rates(trainer):
    """Learning rate by name of the parameter, as a multiple of the highest."""
    groups = trainer.optimizer.param_groups
    names = {id(each): name for name, each in trainer.model.named_parameters()}
    highest = max(group["lr"] for group in groups)
    return {names[id(each)]: group["lr"] / highest for group in groups for each in group["params"]}


@pytest.mark.parametrize("muon", [False, True])
@pytest.mark.parametrize(
    "model",
    [
        lambda: trainable_model(encoder_layers=3, decoder_layers=2),
        lambda: trainable_model(encoder_layers=3, decoder_layers=2, embedding_layer_norm=True),
        lambda: trainable_marian(),
    ],
    ids=["ours", "norm after the embeddings", "marian"],
)
def test_the_rate_of_each_layer(tmp_path, model, muon):
    trainer = trainer_of(tmp_path, model(), layerwise_lr_decay=0.5, muon=muon, weight_decay=0.1)
    trainer.create_optimizer()
    found = rates(trainer)
    assert found.keys() == {name for name, each in trainer.model.named_parameters() if each.requires_grad}
    layers = {"encoder": trainer.model.config.encoder_layers, "decoder": trainer.model.config.decoder_layers}
    for name, rate in found.items():
        side = "encoder" if ".encoder." in name else "decoder"
        if ".layers." in name:
            index = int(name.split(".layers.")[1].split(".")[0])
            assert rate == 0.5 ** (layers[side] - 1 - index), name
        elif "layernorm_embedding" in name:
            assert rate == 0.5 ** layers[side], name
        elif "shared" in name or "embed_tokens" in name:
            assert rate == 0.5 ** max(layers.values()), name
        else:
            assert rate == 1, name


def test_one_layer_learns_at_its_rate(tmp_path):
    updates = []
    for decay in (1.0, 0.25):
        model = trainable_model(encoder_layers=2, decoder_layers=2)
        before = [each.detach().clone() for each in model.model.encoder.layers[0].parameters()]
        options = {"learning_rate": 1e-3, "lr_scheduler_type": "constant", "max_steps": 1}
        trainer_of(tmp_path / str(decay), model, layerwise_lr_decay=decay, **options).train()
        after = model.model.encoder.layers[0].parameters()
        updates.append(torch.cat([(new - old).flatten() for new, old in zip(after, before, strict=True)]))
    # Adam's first update does not depend on the size of the gradient.
    torch.testing.assert_close(updates[1], 0.25 * updates[0], atol=1e-6, rtol=0)


@pytest.mark.parametrize("muon", [False, True])
def test_schedules_and_resuming(tmp_path, muon):
    options = {**SAVING, "muon": muon, "layerwise_lr_decay": 0.5, "lr_scheduler_type": "linear", "learning_rate": 0.01}
    whole = trainer_of(tmp_path / "whole", **options)
    whole.train()
    assert {group["lr"] for group in whole.optimizer.param_groups} == {0.0}
    resumed = trainer_of(tmp_path / "resumed", trainable_model(seed=1), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert_same_weights(whole.model, resumed.model)


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.5, float("nan")])
def test_rates_that_do_not_fall_are_refused(tmp_path, decay):
    with pytest.raises(ValueError, match="`layerwise_lr_decay` is .*; it must be above 0 and at most 1"):
        trainer_of(tmp_path, layerwise_lr_decay=decay)
