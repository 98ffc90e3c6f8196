import pytest
import torch

from benchmarks.agreement import check_agreement, check_tokens, loss_and_gradients
from benchmarks.baselines import marian_like, our_model
from benchmarks.measure import Disagreement


def padded_batch(rows=3, length=7, vocabulary=50):
    ids = torch.randint(4, vocabulary, (2, rows, length))
    mask = torch.ones_like(ids[0])
    ids[0, -1, 4:], mask[-1, 4:] = 0, 0
    labels = ids[1].clone()
    labels[-1, 5:] = -100
    return {"input_ids": ids[0], "attention_mask": mask, "labels": labels}


@pytest.fixture(scope="module")
def ours():
    torch.manual_seed(0)
    return our_model("tiny", vocab_size=50)


@pytest.fixture(scope="module")
def batch():
    torch.manual_seed(0)
    return padded_batch()


@pytest.fixture(scope="module")
def gradients(ours, batch):
    return loss_and_gradients(ours, batch, skip_logits=True)


def test_marian_with_our_weights_agrees(ours, batch, gradients):
    check_agreement(gradients, loss_and_gradients(marian_like(ours), batch), "marian", "float32")
    assert {"loss", "lm_head.weight", "model.decoder.layers.1.encoder_attn.q_proj.weight"} <= set(gradients)
    assert all(parameter.grad is None for parameter in ours.parameters())


@pytest.mark.parametrize(
    "weight", ["model.encoder.layers.0.self_attn.k_proj.weight", "model.decoder.layers.1.fc2.bias", "lm_head.weight"]
)
def test_other_weights_are_noticed(ours, batch, gradients, weight):
    marian = marian_like(ours)
    with torch.no_grad():
        parameter = dict(marian.named_parameters(remove_duplicate=False))[weight]
        parameter += 0.1 * torch.randn_like(parameter)
    with pytest.raises(Disagreement, match="marian and ours do not agree in float32: the .* differs by"):
        check_agreement(gradients, loss_and_gradients(marian, batch), "marian", "float32")


@pytest.mark.parametrize(
    ("factor", "dtype", "difference"), [(1.01, "float32", "1.0e-02"), (torch.nan, "bfloat16", "nan")]
)
def test_one_wrong_gradient_is_noticed(gradients, factor, dtype, difference):
    name = "model.encoder.layers.1.fc1.bias"
    wrong = {**gradients, name: gradients[name] * factor}
    with pytest.raises(Disagreement, match=f"gradient of {name} differs by {difference}"):
        check_agreement(gradients, wrong, "marian", dtype)


def test_a_missing_gradient_is_noticed(gradients):
    name = "model.encoder.layers.1.fc1.bias"
    others = {each: value for each, value in gradients.items() if each != name}
    with pytest.raises(Disagreement, match=f"marian has no gradient of {name}"):
        check_agreement(gradients, others, "marian", "float32")


def test_other_tokens_are_noticed_in_float32():
    ours, longer = torch.ones(4, 10), torch.ones(4, 12)
    assert check_tokens(ours, ours, "marian", "float32") == 1
    with pytest.raises(Disagreement, match="marian and ours decode different tokens in float32: 83.3% are equal"):
        check_tokens(ours, longer, "marian", "float32")
    assert check_tokens(ours, longer, "marian", "bfloat16") == pytest.approx(10 / 12)
