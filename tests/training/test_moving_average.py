"""The moving average of the weights: evaluated, saved, and exact under resuming."""

import pytest
import torch
from safetensors.torch import load_file

from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.training.moving_average import TRAINED_WEIGHTS
from trainers import EVALUATING, SAVING, At, assert_same_weights, id_pairs, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")


class Recorded:
    """Weights after each step."""

    def __init__(self, trainer, steps):
        self.weights = []
        for step in range(1, steps + 1):
            trainer.add_callback(At(step, lambda model, **kwargs: self.weights.append(copies(model))))


def copies(model):
    return {name: each.detach().clone() for name, each in model.named_parameters()}


def average(start, weights, decay):
    found = {name: value.double() for name, value in start.items()}
    for step, after in enumerate(weights):
        kept = min(decay, (1 + step) / (10 + step))
        found = {name: kept * value + (1 - kept) * after[name].double() for name, value in found.items()}
    return found


@pytest.mark.parametrize("decay", [0.1, 0.3, 0.999])
def test_a_run_ends_with_the_average(tmp_path, decay):
    trainer = trainer_of(tmp_path, ema_decay=decay, max_steps=6)
    start, recorded = copies(trainer.model), Recorded(trainer, 6)
    trainer.train()
    for name, expected in average(start, recorded.weights, decay).items():
        found = trainer.model.get_parameter(name).double()
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert max((recorded.weights[-1][name] - each).abs().max() for name, each in copies(trainer.model).items()) > 1e-4


def test_the_average_does_not_change_training(tmp_path):
    found = []
    for decay in (0.0, 0.9):
        options = {**EVALUATING, "save_strategy": "no", "ema_decay": decay, "eval_dataset": id_pairs(8)}
        trainer = trainer_of(tmp_path, **options)
        recorded = Recorded(trainer, 6)
        trainer.train()
        found.append(recorded.weights[-1])
    for name, value in found[0].items():
        assert torch.equal(value, found[1][name]), name


def test_the_average_is_evaluated_and_saved(tmp_path):
    trainer = trainer_of(tmp_path, ema_decay=0.8, eval_dataset=id_pairs(8), **EVALUATING)
    recorded = Recorded(trainer, 6)
    trainer.train()
    evaluations = [each["eval_loss"] for each in trainer.state.log_history if "eval_loss" in each]
    for step, loss in zip((2, 4, 6), evaluations, strict=True):
        folder = tmp_path / f"checkpoint-{step}"
        saved = VanillaTransformerForConditionalGeneration.from_pretrained(folder)
        again = trainer_of(tmp_path / "again", saved, eval_dataset=id_pairs(8), metric_for_best_model="loss")
        assert again.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-6)
        trained = load_file(folder / TRAINED_WEIGHTS)
        assert trained.keys() == recorded.weights[step - 1].keys()
        for name, value in trained.items():
            assert torch.equal(value, recorded.weights[step - 1][name]), name
    best = VanillaTransformerForConditionalGeneration.from_pretrained(trainer.state.best_model_checkpoint)
    assert_same_weights(trainer.model, best)


def test_resuming_is_exact(tmp_path):
    options = {**SAVING, "ema_decay": 0.7}
    whole = trainer_of(tmp_path / "whole", trainable_model(dropout=0.2), **options)
    whole.train()
    resumed = trainer_of(tmp_path / "resumed", trainable_model(seed=1, dropout=0.2), **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    assert_same_weights(whole.model, resumed.model)


def test_an_average_that_starts_late_and_one_that_ends_early(tmp_path):
    without = trainer_of(tmp_path / "without", **SAVING)
    without.train()
    late = trainer_of(tmp_path / "late", trainable_model(seed=1), **SAVING, ema_decay=0.5, resume_with_changes=True)
    late_weights = Recorded(late, 6)
    late.train(resume_from_checkpoint=str(tmp_path / "without" / "checkpoint-4"))
    start = load_file(tmp_path / "without" / "checkpoint-4" / "model.safetensors")
    for name, value in late_weights.weights[-1].items():
        assert torch.equal(value, without.model.get_parameter(name)), name
        # The decay of steps 4 and 5 is at most 5/14 and 6/15.
        first = 5 / 14 * start[name] + 9 / 14 * late_weights.weights[0][name]
        expected = 0.4 * first + 0.6 * value
        torch.testing.assert_close(late.model.get_parameter(name), expected, rtol=1e-5, atol=1e-6)
    with_average = trainer_of(tmp_path / "with", **SAVING, ema_decay=0.5)
    with_average.train()
    ended = trainer_of(tmp_path / "ended", trainable_model(seed=1), **SAVING, resume_with_changes=True)
    ended.train(resume_from_checkpoint=str(tmp_path / "with" / "checkpoint-4"))
    assert_same_weights(ended.model, without.model)
