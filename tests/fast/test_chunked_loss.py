"""The losses without stored logits against those with them, gradients included."""

import pytest
import torch
from torch import Tensor, nn

from hf_vanilla_transformer.fast import chunked_loss
from hf_vanilla_transformer.fast.modules import summed_loss_without_logits
from hf_vanilla_transformer.model.checks_vanilla_transformer import IGNORE_INDEX
from hf_vanilla_transformer.model.loss_vanilla_transformer import summed_loss
from tables import looped
from tiny import VOCABULARY, close_gradients, labelled_batch, loss_and_gradients, one_layer_model


def problem(*lengths, vocabulary=13):
    """Random states of width 8, an output projection, and labels."""
    states = torch.randn(*lengths, 8, requires_grad=True)
    return states, nn.Linear(8, vocabulary), torch.randint(0, vocabulary, lengths)


@looped(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-12)])
@looped(
    ("chunk_elements", "chunks_per_block"),
    [(2**23, 4), (3 * VOCABULARY, 4), (4 * VOCABULARY, 1), (2 * VOCABULARY, 2)],
)
@looped(
    "changes",
    [
        {},
        {"lm_head_bias": True},
        {"tie_word_embeddings": False, "lm_head_bias": True},
        {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": VOCABULARY + 7},
    ],
)
def test_skip_logits_equals_stored_logits(monkeypatch, changes, chunk_elements, chunks_per_block, dtype, tolerance):
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS", chunk_elements)
    monkeypatch.setattr(chunked_loss, "MIN_CHUNK_ROWS", 1)
    monkeypatch.setattr(chunked_loss, "CHUNKS_PER_BLOCK", chunks_per_block)
    model, batch = one_layer_model(**changes).to(dtype), labelled_batch()
    if model.lm_head.bias is not None:
        nn.init.normal_(model.lm_head.bias)
    loss, expected = loss_and_gradients(model, batch, smoothing=0.1)
    found, actual = loss_and_gradients(model, batch, smoothing=0.1, skip_logits=True)
    assert model(**batch, skip_logits=True).logits is None
    assert found.dtype == dtype
    torch.testing.assert_close(found, loss, rtol=tolerance, atol=tolerance)
    close_gradients(actual, expected, tolerance)


@pytest.mark.parametrize(
    ("chunk_elements", "chunks"), [(3 * VOCABULARY, [3, 3, 3]), (1, [1] * 9), (2**23, [9])], ids=["3 rows", "1", "all"]
)
def test_chunk_sizes(monkeypatch, chunk_elements, chunks):
    monkeypatch.setattr(chunked_loss, "CHUNK_ELEMENTS", chunk_elements)
    monkeypatch.setattr(chunked_loss, "MIN_CHUNK_ROWS", 1)
    sizes, log_softmax = [], Tensor.log_softmax

    def recording_log_softmax(logits: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        sizes.append(len(logits))
        return log_softmax(logits, dim, dtype=dtype)

    monkeypatch.setattr(Tensor, "log_softmax", recording_log_softmax)
    states, head, labels = problem(2, 5, vocabulary=VOCABULARY)
    labels[0, 0] = IGNORE_INDEX
    summed_loss_without_logits(states, head, labels, 0.1)
    assert sizes == chunks


def test_no_gradients_without_grad_mode(monkeypatch):
    products, multiply = [], chunked_loss.linear_forward
    monkeypatch.setattr(chunked_loss, "linear_forward", lambda *args: products.append(1) or multiply(*args))
    given = problem(2, 5)
    with torch.no_grad():
        without = summed_loss_without_logits(*given, 0.1)
    assert len(products) == 1
    torch.testing.assert_close(summed_loss_without_logits(*given, 0.1), without)
    assert len(products) == 4


def test_skip_logits_under_bf16_autocast():
    model, batch = one_layer_model(lm_head_bias=True), labelled_batch(rows=8)
    _, exact = loss_and_gradients(model, batch, smoothing=0.1)
    stored_loss, stored = loss_and_gradients(model, batch, torch.bfloat16, smoothing=0.1)
    skipped_loss, skipped = loss_and_gradients(model, batch, torch.bfloat16, smoothing=0.1, skip_logits=True)
    assert skipped_loss.dtype == torch.float32
    # A bfloat16 number has 8 significant bits, so one rounding errs by up to 2**-9 = 0.2 %. The losses differ only
    # in the order of sums over equally rounded logits; a gradient passes some ten roundings in either case.
    torch.testing.assert_close(skipped_loss, stored_loss, rtol=2e-3, atol=0)
    for name, grad in exact.items():
        error, stored_error = ((found[name] - grad).norm() / grad.norm() for found in (skipped, stored))
        assert error < max(2 * stored_error, 0.02), name


def test_backward_twice_adds_up():
    states, head, labels = problem(2, 3)
    loss = summed_loss_without_logits(states, head, labels, 0.1)
    loss.backward(retain_graph=True)
    once = [tensor.grad.clone() for tensor in (states, head.weight, head.bias)]
    (2 * loss).backward()
    for tensor, grad in zip((states, head.weight, head.bias), once, strict=True):
        torch.testing.assert_close(tensor.grad, 3 * grad)


# opcheck of torch 2.14 reads it.
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")
def test_the_op_passes_opcheck():
    states, weight, bias = torch.randn(6, 8), torch.randn(13, 8), torch.randn(13)
    labels = torch.tensor([1, 2, IGNORE_INDEX, 3, 12, 0])
    tensors = [tensor.requires_grad_() for tensor in (states, weight, bias)]
    for arguments in ((*tensors, labels, 0.1, True), (*tensors[:2], None, labels, 0.0, True)):
        torch.library.opcheck(chunked_loss.chunked_cross_entropy, arguments)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_label_smoothing_is_summed_exactly_under_autocast(dtype):
    """A sum over all states and words overflows float16."""
    states, head = torch.randn(4, 4000, 8) + 1, nn.Linear(8, 13, bias=False)
    with torch.no_grad():
        head.weight -= 3
    labels = torch.randint(0, 13, (4, 4000))
    expected = summed_loss(head(states), labels, 0.1)
    with torch.autocast("cpu", dtype):
        found = summed_loss_without_logits(states, head, labels, 0.1)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=0)


def test_an_output_projection_with_a_hook_is_left_to_the_plain_loss():
    states, head, labels = problem(2, 3)
    head.register_forward_hook(lambda module, inputs, logits: logits / 2)
    assert summed_loss_without_logits(states, head, labels, 0.1) is None


def test_second_derivatives_raise():
    states, head, labels = problem(2, 3)
    loss = summed_loss_without_logits(states, head, labels, 0.1)
    with pytest.raises(RuntimeError, match="no second derivatives; leave out `skip_logits`"):
        torch.autograd.grad(loss, states, create_graph=True)


@looped("autocast", [False, True])
@looped(("count", "width", "scale"), [(100_000, 4, 1e-5), (2, 1e-3, 1e5)])
def test_sums_beyond_float16_do_not_overflow(count, width, scale, autocast):
    """Summed gradients and a loss scale may each overflow float16; their products do not."""
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
