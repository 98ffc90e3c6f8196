"""The loss: shifted labels, smoothing, accumulation, and labels that raise."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from devices import CHECKS_VALUES
from hf_vanilla_transformer.model import loss_vanilla_transformer
from hf_vanilla_transformer.model.checks_vanilla_transformer import IGNORE_INDEX
from hf_vanilla_transformer.model.loss_vanilla_transformer import mean_over_labels, shift_tokens_right, summed_loss
from tables import looped
from tiny import (
    VOCABULARY,
    close,
    close_gradients,
    gradients,
    labelled_batch,
    loss_and_gradients,
    one_layer_model,
    tiny_model,
)

# Target arguments passed besides the labels.
BESIDE = {
    "labels alone": lambda model, labels: {},
    "decoder input of a collator": lambda model, labels: {
        "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)
    },
    "mask": lambda model, labels: {"decoder_attention_mask": (labels.ne(IGNORE_INDEX).cumsum(1) > 0).long()},
}
EVERY_LOSS = pytest.mark.parametrize("skip_logits", [False, True], ids=["logits", "skip_logits"])
INTEGERS = [torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16]


def smoothed_by_formula(logits: Tensor, labels: Tensor, eps: float) -> Tensor:
    """Sum of the cross-entropy with (1 - eps) one-hot + eps / V, term by term."""
    total = torch.zeros((), dtype=logits.dtype)
    for row, label in zip(logits.flatten(0, 1), labels.flatten().tolist(), strict=True):
        if label != IGNORE_INDEX:
            log_p = row - row.exp().sum().log()
            target = torch.full_like(row, eps / len(row))
            target[label] += 1 - eps
            total = total - (target * log_p).sum()
    return total


def padded_on_both_sides() -> tuple[Tensor, Tensor, Tensor]:
    """Labels padded on the right, the same padded on the left, and sources."""
    right = labelled_batch()["labels"]
    right[3, 1] = IGNORE_INDEX
    kept = torch.arange(7) < (7 - torch.arange(4) % 4)[:, None]
    left = torch.full_like(right, IGNORE_INDEX).masked_scatter_(kept.flip(1), right[kept])
    return right, left, torch.randint(4, VOCABULARY, (4, 8))


def test_the_start_token_precedes_the_first_label():
    rows = [[7, 8, 9, 2], [9, 2, -100, -100], [-100, -100, 8, 2], [7, -100, 9, 2], [-100] * 4, [-100, 6, -100, 2]]
    labels = torch.tensor(rows)
    expected = [[1, 7, 8, 9], [1, 9, 2, 0], [-100, -100, 1, 8], [1, 7, 0, 9], [1, 0, 0, 0], [-100, 1, 6, 0]]
    assert shift_tokens_right(labels, pad_token_id=0, decoder_start_token_id=1).tolist() == expected
    assert labels.tolist() == rows


@pytest.fixture(params=["looks at labels", "does not look"])
def looks(request, monkeypatch):
    """With and without reading the labels; on an accelerator they are not read."""
    if request.param == "does not look":
        monkeypatch.setattr(loss_vanilla_transformer, "can_branch_on", lambda *_: False)


@EVERY_LOSS
@pytest.mark.usefixtures("looks")
@looped("positions", ["sinusoidal", "learned"])
@looped("beside", BESIDE)
def test_the_padding_side_changes_no_gradient(beside, positions, skip_logits):
    model, (right, left, source) = one_layer_model(position_embedding_type=positions), padded_on_both_sides()
    found = []
    for labels in (right, left):
        given = {"input_ids": source, "labels": labels, "smoothing": 0.1, "skip_logits": skip_logits}
        outputs = model(**given, **BESIDE[beside](model, labels))
        outputs.loss.backward()
        logits = None if skip_logits else outputs.logits[labels != IGNORE_INDEX]
        found.append((outputs.loss, logits, gradients(model)))
    (loss, logits, expected), (other_loss, other_logits, actual) = found
    close(other_loss, loss)
    if not skip_logits:
        close(other_logits, logits)
    close_gradients(actual, expected)


def test_left_padded_rows_keep_their_positions_in_every_output():
    model, (_, labels, source) = one_layer_model(attn_implementation="eager"), padded_on_both_sides()
    given = {"input_ids": source, "labels": labels, "output_attentions": True, "output_hidden_states": True}
    moved, masked = model(**given), model(**given, **BESIDE["mask"](model, labels))
    seen = labels != IGNORE_INDEX
    for name, dim in (("decoder_hidden_states", 1), ("decoder_attentions", 2), ("cross_attentions", 2)):
        for pair in zip(moved[name], masked[name], strict=True):
            close(*(each.movedim(dim, 1)[seen] for each in pair))


def test_left_padded_rows_continue_a_cache():
    """As after a learned prefix: its keys stay first in the returned attention."""
    model, (right, left, source) = tiny_model(attn_implementation="eager"), padded_on_both_sides()
    found = []
    for labels in (right, left):
        cache = model(input_ids=source, decoder_input_ids=source[:, :3], use_cache=True).past_key_values
        found.append(model(input_ids=source, labels=labels, past_key_values=cache, output_attentions=True))
    close(found[1].loss, found[0].loss)
    for row, padding in enumerate(left.ne(IGNORE_INDEX).long().argmax(1).tolist()):
        expected, actual = (each.decoder_attentions[1][row] for each in found)
        length = 7 - padding
        close(actual[:, padding:, :3], expected[:, :length, :3])
        close(actual[:, padding:, 3 + padding :], expected[:, :length, 3 : 3 + length])


@pytest.mark.usefixtures("looks")
def test_left_padding_without_labels():
    """`Trainer` withholds the labels if it computes the loss itself."""
    model, (_, labels, source) = one_layer_model(), padded_on_both_sides()
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    found = model(input_ids=source, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    seen = labels != IGNORE_INDEX
    torch.testing.assert_close(found[seen], model(input_ids=source, labels=labels).logits[seen])


@CHECKS_VALUES
def test_left_padding_with_a_cache_raises():
    """Later tokens would attend to the padding, and to tokens at wrong positions."""
    model, (_, labels, source) = one_layer_model(), padded_on_both_sides()
    given = {"input_ids": source, "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}
    filled = model(input_ids=source, decoder_input_ids=source[:, :3], use_cache=True).past_key_values
    for options in ({}, {"use_cache": True}, {"use_cache": False, "past_key_values": filled}):
        with pytest.raises(ValueError, match=r"`decoder_input_ids` has -100 at \[1, 0\].*labels.*or pad on the right"):
            model(**given, **options)


@looped("dtype", INTEGERS)
@EVERY_LOSS
def test_labels_of_any_integer_dtype(skip_logits, dtype):
    model, batch = one_layer_model(), labelled_batch()
    if not dtype.is_signed:
        batch["labels"] = batch["labels"].clamp(min=4)
    expected = model(**batch, skip_logits=skip_logits).loss
    batch["labels"] = batch["labels"].to(dtype)
    torch.testing.assert_close(model(**batch, skip_logits=skip_logits).loss, expected, rtol=0, atol=0)


@looped(
    ("labels", "message"),
    [
        *((torch.ones(3, 4, dtype=each), f"`labels` has dtype {each}, but") for each in (torch.bool, torch.complex64)),
        *((torch.ones(shape).long(), "`labels` has shape .*; use") for shape in ((3, 0), (3,), (3, 2, 2))),
    ],
)
def test_labels_that_are_no_rows_of_ids_raise(labels, message):
    with pytest.raises(ValueError, match=message):
        one_layer_model()(input_ids=torch.ones(3, 4, dtype=torch.long), labels=labels)


@looped("wrong", [VOCABULARY, -1])
@looped("beside", ["labels alone", "decoder input of a collator"])
@EVERY_LOSS
@CHECKS_VALUES
def test_labels_outside_the_vocabulary_raise(skip_logits, beside, wrong):
    model, batch = one_layer_model(), labelled_batch()
    batch["labels"][1, 2] = wrong
    with pytest.raises(ValueError, match=rf"`labels` has {wrong} at \[1, 2\]"):
        model(**batch, **BESIDE[beside](model, batch["labels"]), skip_logits=skip_logits)


@pytest.mark.parametrize("missing", ["pad_token_id", "decoder_start_token_id"])
def test_shifting_needs_both_tokens(missing):
    ids = {"pad_token_id": 0, "decoder_start_token_id": 1, missing: None}
    with pytest.raises(ValueError, match=f"`{missing}` is None.*decoder_input_ids"):
        shift_tokens_right(torch.ones(1, 2, dtype=torch.long), **ids)


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.9])
def test_smoothing_equals_torch_and_the_formula(eps):
    logits, labels = torch.randn(3, 5, 11, dtype=torch.float64), torch.randint(0, 11, (3, 5))
    labels[0, 2:] = IGNORE_INDEX
    loss = summed_loss(logits, labels, eps)
    by_torch = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=eps, reduction="sum")
    torch.testing.assert_close(loss, by_torch, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss, smoothed_by_formula(logits, labels, eps), rtol=1e-12, atol=0)


def test_the_model_takes_the_mean_over_labels():
    model, batch = one_layer_model(), labelled_batch()
    outputs = model(**batch, smoothing=0.1)
    count = (batch["labels"] != IGNORE_INDEX).sum()
    expected = smoothed_by_formula(outputs.logits, batch["labels"], 0.1) / count
    close(outputs.loss, expected)
    unsmoothed = F.cross_entropy(outputs.logits.flatten(0, 1), batch["labels"].flatten())
    close(model(**batch).loss, unsmoothed)


@pytest.mark.parametrize(("count", "mean"), [(8, 1.5), (torch.tensor(8), 1.5), (None, 6.0)], ids=str)
def test_num_items_in_batch_divides_the_sum(count, mean):
    assert mean_over_labels(torch.tensor(12.0), torch.tensor([[3, IGNORE_INDEX, 4]]), count).item() == mean


@EVERY_LOSS
@pytest.mark.parametrize("split", [2, 4, 16])
def test_any_split_of_a_batch_gives_the_same_gradient(split, skip_logits):
    model, batch = one_layer_model(), labelled_batch(rows=16)
    count = (batch["labels"] != IGNORE_INDEX).sum()
    options = {"num_items_in_batch": count, "smoothing": 0.1, "skip_logits": skip_logits}

    def accumulated(pieces: int) -> tuple[float, dict[str, Tensor]]:
        total = 0.0
        for part in zip(*(tensor.chunk(pieces) for tensor in batch.values()), strict=True):
            loss = model(**dict(zip(batch, part, strict=True)), **options).loss
            loss.backward()
            total += loss.item()
        return total, gradients(model)

    whole_loss, whole = accumulated(1)
    split_loss, parts = accumulated(split)
    assert split_loss == pytest.approx(whole_loss, abs=1e-5)
    close_gradients(parts, whole)


@looped("num_items_in_batch", [None, 0, torch.tensor(0), 12])
@EVERY_LOSS
def test_a_batch_of_ignored_labels_gives_zero(skip_logits, num_items_in_batch):
    model, batch = one_layer_model(), labelled_batch()
    batch["labels"] = torch.full_like(batch["labels"], IGNORE_INDEX)
    options = {"num_items_in_batch": num_items_in_batch, "skip_logits": skip_logits, "smoothing": 0.1}
    loss, taken = loss_and_gradients(model, batch, **options)
    assert loss == 0 and taken and all((grad == 0).all() for grad in taken.values())


@EVERY_LOSS
@looped("smoothing", [-0.1, 1.0, float("nan")])
def test_smoothing_out_of_range_raises(smoothing, skip_logits):
    with pytest.raises(ValueError, match=f"`smoothing` is {smoothing}; .*below 1"):
        one_layer_model()(**labelled_batch(), smoothing=smoothing, skip_logits=skip_logits)


@EVERY_LOSS
def test_labels_and_decoder_input_of_different_lengths_raise(skip_logits):
    batch = labelled_batch()
    with pytest.raises(ValueError, match=r"`labels`.*\(4, 7\).*\(4, 3\)"):
        one_layer_model()(**batch, decoder_input_ids=batch["input_ids"][:, :3], skip_logits=skip_logits)
