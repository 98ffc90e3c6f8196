"""Guided attention: one head learns alignments, whatever computes attention."""

import pytest
import torch

from devices import same_numbers
from hf_vanilla_transformer.model.attention_vanilla_transformer import AlignmentHead
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
    model, batch = perturbed_model(**changes).train(), aligned_batch()
    expected = plain_loss(model, batch, 0.3, 11)
    expected.backward()
    expected_gradients = gradients(model)
    model.set_attn_implementation(implementation)
    loss = model(**batch, alignment_head=HEAD, alignment_weight=0.3, num_items_in_batch=11).loss
    loss.backward()
    close(loss, expected)
    close_gradients(gradients(model), expected_gradients)


@pytest.mark.parametrize("skip_logits", [False, True])
def test_any_split_of_a_batch_gives_the_same_gradients(skip_logits):
    torch.manual_seed(2)
    model, batch = perturbed_model().train(), aligned_batch(rows=6)
    count = batch["labels"].ne(-100).sum()
    options = {"alignment_head": HEAD, "alignment_weight": 0.5, "smoothing": 0.1, "skip_logits": skip_logits}
    model(**batch, **options).loss.backward()
    whole = gradients(model)
    for sizes in ([1] * 6, [4, 2]):
        for part in zip(*(value.split(sizes) for value in batch.values()), strict=True):
            model(**dict(zip(batch, part, strict=True)), **options, num_items_in_batch=count).loss.backward()
        close_gradients(gradients(model), whole)


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
def test_gradient_checkpointing_changes_no_gradient():
    torch.manual_seed(3)
    model, batch = perturbed_model().train(), aligned_batch()
    options = {"alignment_head": HEAD, "alignment_weight": 0.5}
    model(**batch, **options).loss.backward()
    expected = gradients(model)
    model.gradient_checkpointing_enable()
    model(**batch, **options).loss.backward()
    close_gradients(gradients(model), expected)


def test_labels_padded_on_the_left():
    torch.manual_seed(4)
    model, batch = perturbed_model(), aligned_batch()
    options = {"alignment_head": HEAD, "alignment_weight": 0.5}
    shifts = batch["labels"].eq(-100).sum(1)
    left = dict(batch)
    for name in ("labels", "alignments"):
        rows = zip(batch[name], shifts.tolist(), strict=True)
        left[name] = torch.stack([row.roll(shift, 0) for row, shift in rows])
    assert left["labels"][3, 0] == -100
    close(model(**left, **options).loss, model(**batch, **options).loss)


def test_without_alignments_nothing_is_computed(monkeypatch):
    monkeypatch.setattr(AlignmentHead, "attend", lambda *arguments: pytest.fail("computed"))
    batch = aligned_batch()
    del batch["alignments"]
    tiny_model()(**batch)


def test_a_weight_of_zero_leaves_the_loss_as_it_is():
    model, batch = perturbed_model(), aligned_batch()
    loss = model(**batch, alignment_head=HEAD, alignment_weight=0.0).loss
    del batch["alignments"]
    assert torch.equal(loss, model(**batch).loss)


@pytest.mark.parametrize("head", [None, (3, 0), (0, 2), (-1, 0)])
def test_impossible_heads(head):
    with pytest.raises(ValueError, match="need a decoder layer below 3 and a head below 2; pass both, counted from 0"):
        tiny_model()(**aligned_batch(), alignment_head=head)


def test_alignments_of_another_shape():
    batch = aligned_batch()
    batch["alignments"] = batch["alignments"][:, :, 1:]
    with pytest.raises(ValueError, match=r"`alignments` have shape \(4, 7, 7\).*by \(4, 7, 8\); pass \(B, T, S\)"):
        tiny_model()(**batch, alignment_head=HEAD)


def test_packed_pairs_take_no_alignments():
    edges = torch.tensor([0, 3], dtype=torch.int32)
    packed = {"cu_seq_lens": edges, "max_length": 3, "decoder_cu_seq_lens": edges, "decoder_max_length": 3}
    ids = torch.tensor([[4, 5, 2]])
    with pytest.raises(ValueError, match="`alignments` is set, but packed sequences"):
        tiny_model()(input_ids=ids, labels=ids, **packed, alignments=torch.zeros(1, 3, 3), alignment_head=HEAD)
