"""R-Drop: the loss of the paper, and where it changes nothing."""

import math
from types import SimpleNamespace

import pytest
import torch
from transformers import DataCollatorForSeq2Seq

from hf_vanilla_transformer.training import trainer_loss
from hf_vanilla_transformer.training.rdrop import mean_divergence
from trainers import TOKENIZER, id_pairs, losses, trainable_marian, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")


def kl(p, q):
    return sum(a * math.log(a / b) for a, b in zip(p, q, strict=True))


def test_the_divergence_is_that_of_the_paper():
    torch.manual_seed(0)
    logits, labels = torch.randn(4, 3, 5, dtype=torch.float64), torch.tensor([[1, 2, 3], [4, -100, -100]])
    expected = 0.0
    for row, position in ((0, 0), (0, 1), (0, 2), (1, 0)):
        p, q = (logits[row + shift, position].softmax(-1).tolist() for shift in (0, 2))
        expected += (kl(p, q) + kl(q, p)) / 2
    assert mean_divergence(logits, labels).item() == pytest.approx(expected / 4, rel=1e-5)
    assert mean_divergence(logits, labels, 8).item() == pytest.approx(expected / 8, rel=1e-5)
    assert mean_divergence(logits, torch.tensor(8)[None, None].expand(2, 3), torch.tensor(8)).isfinite()


def test_without_labels_there_is_no_divergence():
    assert mean_divergence(torch.randn(2, 3, 5), torch.full((1, 3), -100)).item() == 0


def gradients_of(trainer, batch, return_outputs):
    torch.manual_seed(1)
    result = trainer.compute_loss(trainer.model, dict(batch), return_outputs, num_items_in_batch=40)
    loss = result[0] if return_outputs else result
    loss.backward()
    found = {name: each.grad for name, each in trainer.model.named_parameters()}
    trainer.model.zero_grad(set_to_none=True)
    return loss.detach(), found


@pytest.mark.parametrize(
    "options",
    [{}, {"norm_position": "pre"}, {"tie_word_embeddings": False, "lm_head_bias": True}],
    ids=["tied", "pre-norm", "biased"],
)
def test_training_stores_no_logits_and_learns_the_same(tmp_path, options, monkeypatch):
    model = trainable_model(dropout=0.3, **options)
    trainer = trainer_of(tmp_path, model, rdrop_alpha=3.0, label_smoothing_factor=0.1)
    batch = batch_of(model)
    model.train()
    expected, references = gradients_of(trainer, batch, return_outputs=True)
    monkeypatch.setattr(trainer_loss, "mean_divergence", None)
    loss, gradients = gradients_of(trainer, batch, return_outputs=False)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
    for name, reference in references.items():
        torch.testing.assert_close(gradients[name], reference, rtol=1e-4, atol=1e-6)


def test_an_output_projection_that_does_more_than_multiply_is_called(tmp_path):
    model = trainable_model(dropout=0.3, tie_word_embeddings=False)
    trainer = trainer_of(tmp_path, model, rdrop_alpha=3.0)
    batch = batch_of(model)
    model.train()
    plain, _ = gradients_of(trainer, batch, return_outputs=False)
    handle = model.lm_head.register_forward_hook(lambda module, inputs, logits: 2 * logits)
    doubled, _ = gradients_of(trainer, batch, return_outputs=False)
    handle.remove()
    with torch.no_grad():
        model.lm_head.weight *= 2
    expected, _ = gradients_of(trainer, batch, return_outputs=False)
    torch.testing.assert_close(doubled, expected, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(doubled, plain)


def batch_of(model, rows=6):
    collate = DataCollatorForSeq2Seq(TOKENIZER, model=model)
    return dict(collate([{name: row[name] for name in ("input_ids", "labels")} for row in id_pairs(rows)]))


@pytest.mark.parametrize("make", [trainable_model, trainable_marian], ids=["ours", "marian"])
def test_without_dropout_the_loss_is_the_plain_one(tmp_path, make):
    model = make() if make is trainable_marian else make(dropout=0.0)
    plain, rdrop = (trainer_of(tmp_path, model, rdrop_alpha=alpha) for alpha in (0.0, 5.0))
    batch = batch_of(model)
    model.train()
    count = int(batch["labels"].ne(-100).sum()) * 2
    for number in (None, count) if make is trainable_model else (None,):
        expected = plain.compute_loss(model, dict(batch), num_items_in_batch=number)
        found = rdrop.compute_loss(model, dict(batch), num_items_in_batch=number)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_with_dropout_the_loss_is_that_of_two_passes(tmp_path):
    model = trainable_model(dropout=0.3)
    trainer = trainer_of(tmp_path, model, rdrop_alpha=3.0, label_smoothing_factor=0.1)
    batch = batch_of(model)
    labels = batch["labels"]
    model.train()
    torch.manual_seed(1)
    loss, outputs = trainer.compute_loss(model, dict(batch), return_outputs=True)
    both = torch.cat([labels, labels])
    smoothed = torch.nn.functional.cross_entropy(outputs.logits.flatten(0, 1), both.flatten(), label_smoothing=0.1)
    torch.testing.assert_close(loss, smoothed + 1.5 * mean_divergence(outputs.logits, labels), rtol=1e-5, atol=1e-6)
    assert mean_divergence(outputs.logits, labels) > 0.001
    model.eval()
    with torch.no_grad():
        plain = trainer_of(tmp_path, model).compute_loss(model, dict(batch))
        assert trainer.compute_loss(model, dict(batch)).item() == plain.item()


@pytest.mark.parametrize(("shards", "scale"), [(1, 4), (2, 2)])
def test_both_terms_are_scaled_by_the_processes_with_other_batches(tmp_path, monkeypatch, shards, scale):
    model = trainable_model(dropout=0.3)
    trainer = trainer_of(tmp_path, model, rdrop_alpha=3.0)
    batch = batch_of(model)
    model.train()
    one, _ = gradients_of(trainer, batch, return_outputs=False)
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", 4)
    # transformers 5.17 and 5.18 ask the one, later releases the other.
    sharding = SimpleNamespace(tp_size=shards, sp_backend=None)
    monkeypatch.setattr(type(trainer.accelerator), "parallelism_config", sharding)
    monkeypatch.setattr(trainer, "get_tp_size", lambda: shards)
    several, _ = gradients_of(trainer, batch, return_outputs=False)
    torch.testing.assert_close(several, scale * one, rtol=1e-6, atol=0)


def test_accumulated_batches_count_as_one(tmp_path):
    found = []
    for accumulated in (1, 3):
        options = {"max_tokens": 0, "per_device_train_batch_size": 60 // accumulated, "max_steps": 2}
        model = trainable_model(dropout=0.0)
        trainer = trainer_of(tmp_path, model, rdrop_alpha=2.0, gradient_accumulation_steps=accumulated, **options)
        trainer.train()
        found.append(losses(trainer))
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_packed_batches_are_refused(tmp_path):
    with pytest.raises(ValueError, match="`rdrop_alpha` needs padded batches; leave it or `packing` out"):
        trainer_of(tmp_path, rdrop_alpha=1.0, packing=True)
