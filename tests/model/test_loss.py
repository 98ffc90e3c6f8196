"""The loss: shifted labels, smoothing, accumulation, and the loss that never stores its logits."""

import re

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.model import chunked_loss_vanilla_transformer, loss_vanilla_transformer
from hf_vanilla_transformer.model.loss_vanilla_transformer import (
    mean_over_labels,
    shift_tokens_right,
    summed_loss,
    summed_loss_without_logits,
)

VOCABULARY = 50
IGNORED = -100


def tiny_model(**changes) -> VanillaTransformerForConditionalGeneration:
    torch.manual_seed(0)
    sizes = {"vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "dropout": 0.0}
    widths = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**{**sizes, **widths, **changes}))


def pairs(count: int = 4, length: int = 7) -> dict[str, Tensor]:
    """Sources and labels of unequal lengths."""
    labels = torch.randint(4, VOCABULARY, (count, length))
    for row in range(count):
        labels[row, length - row % 4 :] = IGNORED
    source = torch.randint(4, VOCABULARY, (count, length + 1))
    return {"input_ids": source, "attention_mask": torch.ones_like(source), "labels": labels}


def gradients(model: nn.Module) -> dict[str, Tensor]:
    taken = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return taken


def smoothed_by_formula(logits: Tensor, labels: Tensor, eps: float) -> Tensor:
    """Sum over the labels of the cross-entropy with (1 - eps) one-hot + eps / V, term by term."""
    total = torch.zeros((), dtype=logits.dtype)
    for row, label in zip(logits.flatten(0, 1), labels.flatten().tolist(), strict=True):
        if label != IGNORED:
            log_p = row - row.exp().sum().log()
            target = torch.full_like(row, eps / len(row))
            target[label] += 1 - eps
            total = total - (target * log_p).sum()
    return total


def test_shift_tokens_right():
    labels = torch.tensor([[7, 8, 2], [9, 2, IGNORED]])
    shifted = shift_tokens_right(labels, pad_token_id=0, decoder_start_token_id=1)
    assert shifted.tolist() == [[1, 7, 8], [1, 9, 2]]
    labels = torch.tensor([[9, IGNORED, IGNORED]])
    assert shift_tokens_right(labels, pad_token_id=0, decoder_start_token_id=1).tolist() == [[1, 9, 0]]
    assert labels.tolist() == [[9, IGNORED, IGNORED]]


def test_the_start_token_is_right_before_the_first_label():
    labels = torch.tensor([[IGNORED, IGNORED, 8, 2], [7, IGNORED, 9, 2], [IGNORED] * 4, [IGNORED, 6, IGNORED, 2]])
    shifted = shift_tokens_right(labels, pad_token_id=0, decoder_start_token_id=1)
    assert shifted.tolist() == [
        [IGNORED, IGNORED, 1, 8],
        [1, 7, 0, 9],
        [1, 0, 0, 0],
        [IGNORED, 1, 6, 0],
    ]


def padded_on_both_sides() -> tuple[Tensor, Tensor, Tensor]:
    """Labels of unequal lengths, padded on the right; the same padded on the left; a source for each row."""
    right = pairs()["labels"]
    right[3, 1] = IGNORED
    kept = torch.arange(7) < (7 - torch.arange(4) % 4)[:, None]
    left = torch.full_like(right, IGNORED).masked_scatter_(kept.flip(1), right[kept])
    return right, left, torch.randint(4, VOCABULARY, (4, 8))


# What is given beside the labels; an accelerator, a graph and a transform move rows without looking at them first.
BESIDE = {
    "labels alone": lambda model, labels: {},
    "decoder input of a collator": lambda model, labels: {
        "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)
    },
    "mask": lambda model, labels: {"decoder_attention_mask": (labels.ne(IGNORED).cumsum(1) > 0).long()},
}


@pytest.mark.parametrize("skip_logits", [False, True], ids=["logits", "skip_logits"])
@pytest.mark.parametrize("looks", [True, False], ids=["looks", "does not look"])
@pytest.mark.parametrize("positions", ["sinusoidal", "learned"])
@pytest.mark.parametrize("beside", BESIDE)
def test_the_side_of_padding_changes_no_gradient(monkeypatch, beside, positions, looks, skip_logits):
    if not looks:
        monkeypatch.setattr(loss_vanilla_transformer, "is_plain_cpu", lambda *_: False)
    model, (right, left, source) = tiny_model(position_embedding_type=positions), padded_on_both_sides()
    found = []
    for labels in (right, left):
        given = {"input_ids": source, "labels": labels, "smoothing": 0.1, "skip_logits": skip_logits}
        outputs = model(**given, **BESIDE[beside](model, labels))
        outputs.loss.backward()
        logits = None if skip_logits else outputs.logits[labels != IGNORED]
        found.append((outputs.loss, logits, gradients(model)))
    (loss, logits, expected), (other_loss, other_logits, actual) = found
    torch.testing.assert_close(other_loss, loss, rtol=1e-5, atol=1e-5)
    if not skip_logits:
        torch.testing.assert_close(other_logits, logits, rtol=1e-5, atol=1e-5)
    assert actual.keys() == expected.keys() and max(grad.abs().max() for grad in expected.values()) > 1e-3
    for name, grad in expected.items():
        torch.testing.assert_close(actual[name], grad, rtol=1e-5, atol=1e-5, msg=name)


def test_rows_padded_on_the_left_keep_their_places_in_every_output():
    model, (_, labels, source) = tiny_model(attn_implementation="eager"), padded_on_both_sides()
    given = {"input_ids": source, "labels": labels, "output_attentions": True, "output_hidden_states": True}
    moved, masked = model(**given), model(**given, **BESIDE["mask"](model, labels))
    seen = labels != IGNORED
    assert not seen.all()
    for name, dim in (("decoder_hidden_states", 1), ("decoder_attentions", 2), ("cross_attentions", 2)):
        for one, other in zip(moved[name], masked[name], strict=True):
            one, other = (each.movedim(dim, 1)[seen] for each in (one, other))
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_rows_padded_on_the_left_go_on_from_a_cache():
    """As from a learned prefix: its keys stay before those of the target in what attention returns."""
    model, (right, left, source) = tiny_model(attn_implementation="eager"), padded_on_both_sides()
    found = []
    for labels in (right, left):
        cache = model(input_ids=source, decoder_input_ids=source[:, :3], use_cache=True).past_key_values
        found.append(model(input_ids=source, labels=labels, past_key_values=cache, output_attentions=True))
    torch.testing.assert_close(found[1].loss, found[0].loss, rtol=1e-5, atol=1e-5)
    for row, padding in enumerate(left.ne(IGNORED).long().argmax(1).tolist()):
        expected, actual = (each.decoder_attentions[1][row] for each in found)
        length = 7 - padding
        torch.testing.assert_close(actual[:, padding:, :3], expected[:, :length, :3], rtol=1e-5, atol=1e-5)
        own = actual[:, padding:, 3 + padding :]
        torch.testing.assert_close(own, expected[:, :length, 3 : 3 + length], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("looks", [True, False], ids=["looks", "does not look"])
def test_padding_before_the_start_token_without_the_labels(monkeypatch, looks):
    """`Trainer` takes them from the model where it smooths them itself, or has a loss function of its own."""
    if not looks:
        monkeypatch.setattr(loss_vanilla_transformer, "is_plain_cpu", lambda *_: False)
    model, (_, labels, source) = tiny_model(), padded_on_both_sides()
    decoder_input_ids = model.prepare_decoder_input_ids_from_labels(labels)
    found = model(input_ids=source, decoder_input_ids=decoder_input_ids, use_cache=False).logits
    seen = labels != IGNORED
    torch.testing.assert_close(found[seen], model(input_ids=source, labels=labels).logits[seen])


def test_padding_before_the_start_token_is_not_cached():
    """Tokens after it would look at it, and at others than those that they follow."""
    model, (_, labels, source) = tiny_model(), padded_on_both_sides()
    given = {"input_ids": source, "decoder_input_ids": model.prepare_decoder_input_ids_from_labels(labels)}
    filled = model(input_ids=source, decoder_input_ids=source[:, :3], use_cache=True).past_key_values
    for options in ({}, {"use_cache": True}, {"use_cache": False, "past_key_values": filled}):
        with pytest.raises(ValueError, match=r"`decoder_input_ids` has -100 at \[1, 0\].*labels.*or pad on the right"):
            model(**given, **options)


INTEGERS = [torch.int32, torch.int16, torch.int8, torch.uint8, torch.uint16]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("skip_logits", [False, True], ids=["logits", "skip_logits"])
def test_labels_are_of_any_integer_type(skip_logits, dtype):
    model, batch = tiny_model(), pairs()
    if not dtype.is_signed:
        batch["labels"] = batch["labels"].clamp(min=4)
    expected = model(**batch, skip_logits=skip_logits).loss
    batch["labels"] = batch["labels"].to(dtype)
    torch.testing.assert_close(model(**batch, skip_logits=skip_logits).loss, expected, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool, torch.complex64], ids=str)
def test_labels_that_are_no_integers_are_refused(dtype):
    batch = pairs()
    batch["labels"] = batch["labels"].to(dtype)
    with pytest.raises(ValueError, match=f"`labels` has dtype {dtype}, but ids are integers"):
        tiny_model()(**batch)


@pytest.mark.parametrize("wrong", [VOCABULARY, -1])
@pytest.mark.parametrize("beside", ["labels alone", "decoder input of a collator"])
@pytest.mark.parametrize("skip_logits", [False, True], ids=["logits", "skip_logits"])
def test_a_label_outside_of_the_vocabulary_is_named_a_label(skip_logits, beside, wrong):
    model, batch = tiny_model(), pairs()
    batch["labels"][1, 2] = wrong
    with pytest.raises(ValueError, match=rf"`labels` has {wrong} at \[1, 2\]"):
        model(**batch, **BESIDE[beside](model, batch["labels"]), skip_logits=skip_logits)


@pytest.mark.parametrize("shape", [(3, 0), (3,), (3, 2, 2)], ids=str)
def test_labels_of_another_shape_are_named(shape):
    with pytest.raises(ValueError, match=rf"`labels` have shape {re.escape(str(shape))}; use \(B, T\)"):
        tiny_model()(input_ids=torch.ones(3, 4, dtype=torch.long), labels=torch.ones(shape, dtype=torch.long))


@pytest.mark.parametrize("missing", ["pad_token_id", "decoder_start_token_id"])
def test_shifting_without_a_token_names_it(missing):
    tokens = {"pad_token_id": 0, "decoder_start_token_id": 1, missing: None}
    with pytest.raises(ValueError, match=f"`{missing}` is None.*decoder_input_ids"):
        shift_tokens_right(torch.ones(1, 2, dtype=torch.long), **tokens)


@pytest.mark.parametrize("eps", [0.0, 0.1, 0.9])
def test_smoothing_equals_torch_and_the_formula(eps):
    logits, labels = torch.randn(3, 5, 11, dtype=torch.float64), torch.randint(0, 11, (3, 5))
    labels[0, 2:] = IGNORED
    loss = summed_loss(logits, labels, eps)
    by_torch = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=eps, reduction="sum")
    torch.testing.assert_close(loss, by_torch, rtol=1e-12, atol=0)
    torch.testing.assert_close(loss, smoothed_by_formula(logits, labels, eps), rtol=1e-12, atol=0)


def test_the_model_takes_the_mean_over_labels():
    model, batch = tiny_model(), pairs()
    outputs = model(**batch, smoothing=0.1)
    count = (batch["labels"] != IGNORED).sum()
    expected = smoothed_by_formula(outputs.logits, batch["labels"], 0.1) / count
    torch.testing.assert_close(outputs.loss, expected, rtol=1e-5, atol=1e-5)
    unsmoothed = F.cross_entropy(outputs.logits.flatten(0, 1), batch["labels"].flatten())
    torch.testing.assert_close(model(**batch).loss, unsmoothed, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("as_tensor", [False, True])
def test_num_items_in_batch_divides_the_sum(as_tensor):
    labels = torch.tensor([[3, IGNORED, 4]])
    count = torch.tensor(8) if as_tensor else 8
    assert mean_over_labels(torch.tensor(12.0), labels, count).item() == 1.5
    assert mean_over_labels(torch.tensor(12.0), labels, None).item() == 6.0


@pytest.mark.parametrize("skip_logits", [False, True])
@pytest.mark.parametrize("split", [2, 4, 16])
def test_any_split_of_a_batch_gives_the_same_gradient(split, skip_logits):
    model, batch = tiny_model(), pairs(count=16)
    count = (batch["labels"] != IGNORED).sum()

    def accumulated(pieces: int) -> tuple[float, dict[str, Tensor]]:
        total = 0.0
        for part in zip(*(tensor.chunk(pieces) for tensor in batch.values()), strict=True):
            piece = dict(zip(batch, part, strict=True))
            loss = model(**piece, num_items_in_batch=count, smoothing=0.1, skip_logits=skip_logits).loss
            loss.backward()
            total += loss.item()
        return total, gradients(model)

    whole_loss, whole = accumulated(1)
    split_loss, parts = accumulated(split)
    assert split_loss == pytest.approx(whole_loss, abs=1e-5)
    assert whole.keys() == parts.keys() and max(grad.abs().max() for grad in whole.values()) > 1e-3
    for name, grad in whole.items():
        torch.testing.assert_close(parts[name], grad, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)], ids=["float32", "float64"]
)
@pytest.mark.parametrize(
    ("chunk_elements", "chunks_per_block"),
    [(2**23, 4), (3 * VOCABULARY, 4), (4 * VOCABULARY, 1), (2 * VOCABULARY, 2)],
    ids=["one chunk", "chunks", "blocks", "chunks in blocks"],
)
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lm_head_bias": True},
        {"tie_word_embeddings": False, "lm_head_bias": True},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCABULARY + 7},
    ],
    ids=["tied", "tied-bias", "untied-bias", "two-vocabularies"],
)
def test_skip_logits_equals_stored_logits(monkeypatch, changes, chunk_elements, chunks_per_block, dtype, tolerance):
    monkeypatch.setattr(chunked_loss_vanilla_transformer, "CHUNK_ELEMENTS", chunk_elements)
    monkeypatch.setattr(chunked_loss_vanilla_transformer, "CHUNKS_PER_BLOCK", chunks_per_block)
    model, batch = tiny_model(**changes).to(dtype), pairs()
    if model.lm_head.bias is not None:
        nn.init.normal_(model.lm_head.bias)
    stored = model(**batch, smoothing=0.1)
    stored.loss.backward()
    expected = gradients(model)
    skipped = model(**batch, smoothing=0.1, skip_logits=True)
    assert skipped.logits is None and stored.logits is not None
    assert skipped.loss.dtype == dtype
    torch.testing.assert_close(skipped.loss, stored.loss, rtol=tolerance, atol=tolerance)
    skipped.loss.backward()
    actual = gradients(model)
    assert actual.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(actual[name], grad, rtol=tolerance, atol=tolerance, msg=name)


@pytest.mark.parametrize(
    ("chunk_elements", "chunks"), [(3 * VOCABULARY, [3, 3, 3]), (1, [1] * 9), (2**23, [9])], ids=["3 rows", "1", "all"]
)
def test_chunks_are_as_small_as_asked(monkeypatch, chunk_elements, chunks):
    monkeypatch.setattr(chunked_loss_vanilla_transformer, "CHUNK_ELEMENTS", chunk_elements)
    sizes, log_softmax = [], Tensor.log_softmax

    def recording_log_softmax(logits: Tensor, dim: int) -> Tensor:
        sizes.append(len(logits))
        return log_softmax(logits, dim)

    monkeypatch.setattr(Tensor, "log_softmax", recording_log_softmax)
    labels = torch.randint(4, VOCABULARY, (2, 5))
    labels[0, 0] = IGNORED
    summed_loss_without_logits(torch.randn(2, 5, 16), nn.Linear(16, VOCABULARY), labels, 0.1)
    assert sizes == chunks


def test_gradients_are_not_computed_where_none_are_wanted(monkeypatch):
    products, multiply = [], chunked_loss_vanilla_transformer.linear_forward
    monkeypatch.setattr(
        chunked_loss_vanilla_transformer,
        "linear_forward",
        lambda *arguments: products.append(1) or multiply(*arguments),
    )
    states, head, labels = torch.randn(2, 5, 16), nn.Linear(16, VOCABULARY), torch.randint(0, VOCABULARY, (2, 5))
    with torch.no_grad():
        without = summed_loss_without_logits(states, head, labels, 0.1)
    assert len(products) == 1
    torch.testing.assert_close(summed_loss_without_logits(states, head, labels, 0.1), without)
    assert len(products) == 4


def test_skip_logits_under_bf16_autocast():
    model, batch = tiny_model(lm_head_bias=True), pairs(count=8)
    model(**batch, smoothing=0.1).loss.backward()
    exact = gradients(model)
    results = {}
    for skip_logits in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(**batch, smoothing=0.1, skip_logits=skip_logits).loss
        loss.backward()
        results[skip_logits] = (loss, gradients(model))
    (stored_loss, stored), (skipped_loss, skipped) = results[False], results[True]
    assert skipped_loss.dtype == torch.float32
    # A bfloat16 number has 8 significant bits, so one rounding errs by up to 2**-9 = 0.2 %. The losses differ only
    # in the order of sums over equally rounded logits; a gradient passes some ten roundings in either case.
    torch.testing.assert_close(skipped_loss, stored_loss, rtol=2e-3, atol=0)
    for name, grad in exact.items():
        error = (skipped[name] - grad).norm() / grad.norm()
        stored_error = (stored[name] - grad).norm() / grad.norm()
        assert error < max(2 * stored_error, 0.02), name


def test_backward_twice_adds_up():
    states = torch.randn(2, 3, 8, requires_grad=True)
    head, labels = nn.Linear(8, 13), torch.randint(0, 13, (2, 3))
    loss = summed_loss_without_logits(states, head, labels, 0.1)
    loss.backward(retain_graph=True)
    once = [tensor.grad.clone() for tensor in (states, head.weight, head.bias)]
    (2 * loss).backward()
    for tensor, grad in zip((states, head.weight, head.bias), once, strict=True):
        torch.testing.assert_close(tensor.grad, 3 * grad)


def test_two_losses_of_one_head_add_their_gradients():
    head, labels = nn.Linear(8, 13).double(), torch.randint(0, 13, (2, 2, 3))
    states = torch.randn(2, 2, 3, 8, dtype=torch.float64)
    sum(summed_loss_without_logits(states[i], head, labels[i], 0.1) for i in range(2)).backward()
    actual, head.weight.grad = head.weight.grad, None
    sum(summed_loss(head(states[i]), labels[i], 0.1) for i in range(2)).backward()
    torch.testing.assert_close(actual, head.weight.grad, rtol=1e-12, atol=1e-12)


def test_gradients_of_the_chunked_loss_by_finite_differences():
    states = torch.randn(1, 3, 4, dtype=torch.float64, requires_grad=True)
    head, labels = nn.Linear(4, 6).double(), torch.tensor([[1, 5, IGNORED]])
    summed_loss_without_logits(states, head, labels, 0.2).backward()
    step = 1e-6
    for tensor in (states, head.weight, head.bias):
        flat = tensor.data.view(-1)
        for index in range(0, flat.numel(), 5):
            flat[index] += step
            above = summed_loss_without_logits(states, head, labels, 0.2).item()
            flat[index] -= 2 * step
            below = summed_loss_without_logits(states, head, labels, 0.2).item()
            flat[index] += step
            assert tensor.grad.view(-1)[index].item() == pytest.approx((above - below) / (2 * step), abs=1e-6)


@pytest.mark.parametrize("num_items_in_batch", [None, 0, torch.tensor(0), 12], ids=["none", "0", "tensor 0", "12"])
@pytest.mark.parametrize("skip_logits", [False, True])
def test_a_batch_without_labels_that_count_gives_zero(skip_logits, num_items_in_batch):
    model, batch = tiny_model(), pairs()
    batch["labels"] = torch.full_like(batch["labels"], IGNORED)
    loss = model(**batch, num_items_in_batch=num_items_in_batch, skip_logits=skip_logits, smoothing=0.1).loss
    assert loss.item() == 0
    loss.backward()
    taken = gradients(model)
    assert taken and all((grad == 0).all() for grad in taken.values())


@pytest.mark.parametrize("skip_logits", [False, True])
@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_smoothing_out_of_range_raises(smoothing, skip_logits):
    with pytest.raises(ValueError, match=f"`smoothing` is {smoothing}; .*below 1"):
        tiny_model()(**pairs(), smoothing=smoothing, skip_logits=skip_logits)


@pytest.mark.parametrize("skip_logits", [False, True])
def test_labels_of_another_length_than_the_decoder_input_raise(skip_logits):
    batch = pairs()
    with pytest.raises(ValueError, match=r"`labels`.*\(4, 7\).*\(4, 3\)"):
        tiny_model()(**batch, decoder_input_ids=batch["input_ids"][:, :3], skip_logits=skip_logits)


def test_the_operation_that_stores_no_logits_is_sound():
    states, weight, bias = torch.randn(6, 8), torch.randn(13, 8), torch.randn(13)
    labels = torch.tensor([1, 2, IGNORED, 3, 12, 0])
    tensors = [tensor.requires_grad_() for tensor in (states, weight, bias)]
    for arguments in ((*tensors, labels, 0.1, True), (*tensors[:2], None, labels, 0.0, True)):
        torch.library.opcheck(chunked_loss_vanilla_transformer.chunked_cross_entropy, arguments)


def test_skipped_logits_compile_to_one_graph():
    """With the plain backend, which needs no compiler; what it runs is what any backend would be given."""
    model, batch = tiny_model().train(), pairs()
    loss = model(**batch, smoothing=0.1, skip_logits=True).loss
    loss.backward()
    expected = gradients(model)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    other = compiled(**batch, smoothing=0.1, skip_logits=True).loss
    torch.testing.assert_close(other, loss, rtol=1e-5, atol=1e-5)
    other.backward()
    actual = gradients(model)
    assert actual.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(actual[name], grad, rtol=1e-5, atol=1e-5, msg=name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_label_smoothing_is_summed_exactly_under_autocast(dtype):
    """A sum over all states and words is beyond float16."""
    states, head = torch.randn(4, 4000, 8) + 1, nn.Linear(8, 13, bias=False)
    with torch.no_grad():
        head.weight -= 3
    labels = torch.randint(0, 13, (4, 4000))
    expected = summed_loss(head(states), labels, 0.1)
    with torch.autocast("cpu", dtype):
        found = summed_loss_without_logits(states, head, labels, 0.1)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=0)


def test_a_hook_on_the_output_projection_is_called():
    head, states, labels = nn.Linear(8, 13), torch.randn(2, 3, 8), torch.randint(0, 13, (2, 3))
    head.register_forward_hook(lambda module, inputs, logits: logits / 2)
    expected = summed_loss(head(states), labels, 0.1)
    torch.testing.assert_close(summed_loss_without_logits(states, head, labels, 0.1), expected)


def test_second_derivatives_are_refused():
    head, states = nn.Linear(8, 13), torch.randn(2, 3, 8, requires_grad=True)
    loss = summed_loss_without_logits(states, head, torch.randint(0, 13, (2, 3)), 0.1)
    with pytest.raises(RuntimeError, match="no second derivatives; leave out `skip_logits`"):
        torch.autograd.grad(loss, states, create_graph=True)


@pytest.mark.parametrize("autocast", [False, True], ids=["float16", "autocast"])
@pytest.mark.parametrize(
    ("count", "width", "scale"), [(100_000, 4, 1e-5), (2, 1e-3, 1e5)], ids=["mean of many", "scaled up"]
)
def test_sums_beyond_float16_do_not_overflow(count, width, scale, autocast):
    """Gradients summed over the labels are, and what a scaler multiplies the loss by; the products of both are not."""
    exact, labels = nn.Linear(8, 13, bias=False), torch.full((1, count), 3)
    states = width * (torch.randn(1, count, 8) + 1)
    (scale * summed_loss(exact(states), labels, 0.1)).backward()
    head = nn.Linear(8, 13, bias=False)
    head.load_state_dict(exact.state_dict())
    head.to(torch.float32 if autocast else torch.float16)
    with torch.autocast("cpu", torch.float16, enabled=autocast):
        loss = summed_loss_without_logits(states.to(head.weight.dtype), head, labels, 0.1)
    (scale * loss).backward()
    torch.testing.assert_close(head.weight.grad.float(), exact.weight.grad, rtol=2e-2, atol=2e-3)
