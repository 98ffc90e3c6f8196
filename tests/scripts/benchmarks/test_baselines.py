import pytest
import torch

from benchmarks.agreement import check_agreement, loss_and_gradients
from benchmarks.baselines import bart_like, marian_like, our_model, random_batch, tutorial_like


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"norm_position": "pre"}, "post-norm"), ({"head_dim": 16, "value_head_dim": 16}, "without a head_dim")],
)
def test_marian_cannot_have_every_shape(changes, message):
    with pytest.raises(ValueError, match=message):
        marian_like(our_model("tiny", vocab_size=50, **changes))


def test_bart_has_our_sizes():
    ours = our_model("tiny", vocab_size=50)
    bart = bart_like(ours)
    assert bart.config.d_model == 128 and bart(**random_batch(ours.config, 3, 7, 7, "cpu")).loss > 0


def test_the_tutorials_model_computes_what_ours_does():
    ours, tutorial = tutorial_like(our_model("tiny", vocab_size=50).config, length=9)
    rows = [{"input_ids": [5, 6, 7, 2], "labels": [8, 2]}, {"input_ids": [9, 2], "labels": [5, 6, 7, 2]}]
    batch = tutorial.collate(rows)
    assert {name: tuple(each.shape) for name, each in batch.items()} == dict.fromkeys(batch, (2, 9))
    assert batch["decoder_input_ids"][0].tolist() == [1, 8] + [0] * 7
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["input_ids"].ne(0).long()}
    inputs["labels"] = batch["labels"].masked_fill(batch["labels"] == 0, -100)
    gradients = tutorial.loss_and_gradients(batch)
    check_agreement(loss_and_gradients(ours, inputs), gradients, "tutorial", "float32")
    assert len(gradients) == 1 + len(list(ours.parameters()))
    assert tutorial.training
    assert torch.equal(tutorial.collate([{"input_ids": [5] * 12, "labels": [2]}])["input_ids"], torch.full((1, 9), 5))
