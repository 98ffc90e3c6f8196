"""Guided attention: one head learns alignments, whatever computes attention."""

import pytest
import torch

from devices import same_numbers
from hf_vanilla_transformer.training.guided_alignment import AlignmentHead
from tiny import close, close_gradients, gradients, labelled_batch, perturbed_model, tiny_model

HEAD = (1, 1)


@same_numbers
def aligned_batch(rows=4, length=7):
    """A batch of padded pairs; some labels have no links."""
    batch = labelled_batch(rows, length)
    batch["attention_mask"][0, -3:] = 0
    links = torch.rand(rows, length, length + 1) < 0.25
    links &= batch["labels"].ne(-100)[..., None] & batch["attention_mask"].bool()[:, None]
    batch["alignments"] = links / links.sum(-1, keepdim=True).clamp(min=1)
    assert links.any(-1).any() and not links.any(-1).all()
    return batch


def guided_loss(model, batch, weight, count=None, **options):
    """The loss with that of the alignments, as the trainer adds them up."""
    head = AlignmentHead.of(model)
    batch = dict(batch)
    others = {name: x for name, x in batch.items() if name != "alignments"}
    head.attach()
    loss = model(**others, num_items_in_batch=count, **options).loss
    return loss + weight * head.loss(batch, count)


def guided_model(**changes):
    model = perturbed_model(**changes).train()
    model.generation_config.alignment_heads = [[*HEAD]]
    return model


def plain_loss(model, batch, weight, count):
    """The same loss from the weights that eager attention returns."""
    batch = dict(batch)
    alignments = batch.pop("alignments")
    model.set_attn_implementation("eager")
    outputs = model(**batch, output_attentions=True)
    model.set_attn_implementation("sdpa")
    linked = alignments > 0
    logs = torch.where(linked, outputs.cross_attentions[HEAD[0]][:, HEAD[1]], 1.0).log()
    labels = batch["labels"].ne(-100).sum()
    return outputs.loss * labels / count - weight * (alignments * logs).sum() / count


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("changes", [{}, {"norm_position": "pre"}], ids=["post", "pre"])
def test_the_loss_is_that_of_the_returned_weights(implementation, changes):
    torch.manual_seed(1)
    model, batch = guided_model(**changes), aligned_batch()
    expected = plain_loss(model, batch, 0.3, 11)
    expected.backward()
    expected_gradients = gradients(model)
    model.set_attn_implementation(implementation)
    loss = guided_loss(model, batch, 0.3, 11)
    loss.backward()
    close(loss, expected)
    close_gradients(gradients(model), expected_gradients)


@pytest.mark.parametrize("skip_logits", [False, True])
def test_any_split_of_a_batch_gives_the_same_gradients(skip_logits):
    torch.manual_seed(2)
    model, batch = guided_model(), aligned_batch(rows=6)
    count = batch["labels"].ne(-100).sum()
    options = {"smoothing": 0.1, "skip_logits": skip_logits}
    guided_loss(model, batch, 0.5, **options).backward()
    whole = gradients(model)
    for sizes in ([1] * 6, [4, 2]):
        for part in zip(*(value.split(sizes) for value in batch.values()), strict=True):
            guided_loss(model, dict(zip(batch, part, strict=True)), 0.5, count, **options).backward()
        close_gradients(gradients(model), whole)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_gradient_checkpointing_changes_no_gradient():
    torch.manual_seed(3)
    model, batch = guided_model(), aligned_batch()
    guided_loss(model, batch, 0.5).backward()
    expected = gradients(model)
    model.gradient_checkpointing_enable()
    guided_loss(model, batch, 0.5).backward()
    close_gradients(gradients(model), expected)


def test_labels_padded_on_the_left():
    torch.manual_seed(4)
    model, batch = guided_model(), aligned_batch()
    shifts = batch["labels"].eq(-100).sum(1)
    left = dict(batch)
    for name in ("labels", "alignments"):
        rows = zip(batch[name], shifts.tolist(), strict=True)
        left[name] = torch.stack([row.roll(shift, 0) for row, shift in rows])
    assert left["labels"][3, 0] == -100
    close(guided_loss(model, left, 0.5), guided_loss(model, batch, 0.5))


@pytest.mark.parametrize("head", [None, (3, 0), (0, 2), (-1, 0)])
def test_impossible_heads(head):
    model = tiny_model()
    model.generation_config.alignment_heads = head and [[*head]]
    with pytest.raises(ValueError, match="`generation_config.alignment_heads` is .*decoder's 3 layers"):
        AlignmentHead.of(model)


def test_alignments_of_another_shape():
    batch = aligned_batch()
    batch["alignments"] = batch["alignments"][:, :, 1:]
    with pytest.raises(ValueError, match=r"`alignments` have shape \(4, 7, 7\).*by \(4, 7, 8\); pass \(B, T, S\)"):
        guided_loss(guided_model(), batch, 0.5)
