"""Fast dropout and attention equal the standard ones, gradients included, and yield where they do not apply."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hf_vanilla_transformer.fast import cpu_ops
from hf_vanilla_transformer.fast.routines import ANY, Attention, Batched
from hf_vanilla_transformer.model.modeling_vanilla_transformer import eager_attention
from tables import looped
from tiny import close, close_gradients, loss_and_gradients, tiny_model, tokens


class TestDropout:
    @looped("dtype", [torch.float32, torch.bfloat16, torch.float64])
    @looped("p", [0.1, 0.5, 0.9])
    def test_zeroes_a_fraction_and_keeps_the_mean(self, p, dtype):
        x = torch.full((1000, 999), 3.0, dtype=dtype, requires_grad=True)
        y = cpu_ops.apply_dropout(x, p)
        kept = y != 0
        # Four standard deviations of the share of heads in a million tosses.
        assert abs(kept.double().mean() - (1 - p)) < 4 * (p * (1 - p) / x.numel()) ** 0.5
        torch.testing.assert_close(y[kept].double(), (x[kept] / (1 - p)).double(), rtol=1e-2, atol=0)
        if dtype == torch.float64:
            assert abs(y.mean() / 3 - 1) < 4 * (p / (1 - p) / x.numel()) ** 0.5
        y.backward(torch.ones_like(y))
        torch.testing.assert_close(x.grad != 0, kept)
        torch.testing.assert_close(x.grad, y.detach() / 3, rtol=1e-2, atol=0)

    def test_elements_are_independent(self):
        kept = (cpu_ops.apply_dropout(torch.ones(4000, 500), 0.5) != 0).double() - 0.5
        for distance in (1, 2, 3, 4, 8, 500):
            flat = kept.flatten()
            assert abs((flat[:-distance] * flat[distance:]).mean() * 4) < 5 / flat.numel() ** 0.5

    def test_nothing_or_everything_dropped(self):
        x = torch.randn(5)
        assert cpu_ops.apply_dropout(x, 0.0) is x
        assert not cpu_ops.apply_dropout(x, 1.0).any()

    def test_second_derivatives(self):
        x = torch.randn(50, requires_grad=True)
        y = cpu_ops.apply_dropout(x, 0.5)
        scale = (y / x).detach()
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        close(torch.autograd.grad(grad.sum(), x)[0], 2 * scale.square())

    # The oldest supported transformers lacks the method that replaces it.
    @pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
    @pytest.mark.parametrize("dropout", ["dropout", "attention_dropout"])
    @pytest.mark.parametrize("reentrant", [False, True], ids=["plain", "reentrant"])
    def test_gradient_checkpointing_repeats_the_mask(self, monkeypatch, dropout, reentrant):
        rules = Attention(Batched(ANY, 0), Batched(ANY, 0), Batched(1, ANY))
        monkeypatch.setattr(cpu_ops, "ATTENTION", {torch.float32: rules})
        model = tiny_model(**{dropout: 0.4}).train()
        batch = {"input_ids": tokens(3, 7), "labels": tokens(3, 5)}
        found = []
        for checkpointing in (False, True):
            if checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": reentrant})
            torch.manual_seed(3)
            found.append(loss_and_gradients(model, batch)[1])
        close_gradients(*found)


def test_sparse_tensors_are_not_plain():
    assert not cpu_ops.is_plain_cpu(torch.eye(4).to_sparse())


MASKS = {
    "none": lambda: None,
    "padding": lambda: torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]], dtype=torch.bool)[:, None, None],
    "numbers": lambda: torch.randn(2, 1, 5, 7),
}


def attention_module(is_causal=False):
    module = nn.Module()
    module.is_causal = is_causal
    return module


class TestBmmAttention:
    @pytest.mark.parametrize("mask", MASKS)
    def test_equals_eager_attention(self, mask):
        q, k, v = (torch.randn(2, 3, length, width, requires_grad=True) for length, width in ((5, 8), (7, 8), (7, 6)))
        attention_mask, module = MASKS[mask](), attention_module()
        additive = attention_mask
        if mask == "padding":
            additive = torch.zeros(2, 1, 1, 7).masked_fill(~attention_mask, -torch.inf)
        fast, _ = cpu_ops.bmm_attention(module, q, k, v, attention_mask, 0.3)
        expected, _ = eager_attention(module, q, k, v, additive, 0.3)
        close(fast, expected)
        grad = torch.randn_like(expected)
        for mine, other in zip(*(torch.autograd.grad(y, (q, k, v), grad) for y in (fast, expected)), strict=True):
            close(mine, other)

    @pytest.mark.parametrize("queries", [1, 4, 7])
    def test_later_positions_are_hidden(self, queries):
        states, module = (torch.randn(2, 3, queries, 8), *torch.randn(2, 2, 3, 7, 8)), attention_module(is_causal=True)
        hidden = torch.ones(queries, 7).triu(8 - queries) * -1e9
        expected, _ = eager_attention(module, *states, hidden, 0.3)
        close(cpu_ops.bmm_attention(module, *states, None, 0.3)[0], expected)

    @pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
    def test_a_query_without_visible_keys_gets_0_as_from_sdpa(self, dtype):
        states = torch.randn(2, 3, 5, 8), *torch.randn(2, 2, 3, 7, 8)
        seen = torch.ones(2, 1, 1, 7, dtype=torch.bool)
        seen[1] = False
        mask = seen if dtype == torch.bool else torch.zeros(2, 1, 1, 7).masked_fill(~seen, -torch.inf)
        expected = F.scaled_dot_product_attention(*states, mask.expand(2, 1, 5, 7), scale=0.3).transpose(1, 2)
        close(cpu_ops.bmm_attention(attention_module(), *states, mask, 0.3)[0], expected)
        assert not expected[1].any()

    def test_weights_are_dropped(self):
        q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 700, 8), torch.ones(2, 3, 700, 8)
        out, _ = cpu_ops.bmm_attention(attention_module(), q, k, v, None, 0.3, dropout=0.5)
        assert out.std() > 0 and abs(out.mean() - 1) < 0.1

    def test_when_it_is_used(self, monkeypatch):
        rules = Attention(step=Batched(72, 1000), queries=Batched(80, 300), training=Batched(8, 100))
        monkeypatch.setattr(cpu_ops, "ATTENTION", {torch.float32: rules})

        def is_used(queries: int, keys: int, rows: int, training: bool = False, dtype=torch.float32) -> bool:
            states = (torch.empty(rows, 8, length, 4, dtype=dtype) for length in (queries, keys))
            return cpu_ops.use_bmm_attention(*states, training)

        assert is_used(1, 1000, 9) and not is_used(1, 1001, 9) and not is_used(1, 9, 8)
        assert is_used(2, 300, 10) and not is_used(2, 301, 10) and not is_used(2, 300, 9)
        for queries in (1, 2):
            assert is_used(queries, 100, 1, training=True) and not is_used(queries, 101, 32, training=True)
        assert not is_used(1, 9, 32, dtype=torch.float64)
        on_meta = torch.empty(32, 8, 1, 4, device="meta")
        assert not cpu_ops.use_bmm_attention(on_meta, torch.empty(32, 8, 9, 4), False)

    def test_bfloat16_errors_are_no_larger_than_eager(self, monkeypatch):
        always = Batched(0, ANY)
        monkeypatch.setattr(cpu_ops, "ATTENTION", {torch.bfloat16: Attention(always, always, always)})
        model = tiny_model(encoder_attention_heads=4, decoder_attention_heads=4).train()
        batch = {"input_ids": tokens(20, 9), "labels": tokens(20, 8)}
        batch["attention_mask"] = torch.arange(9)[None] < torch.randint(3, 10, (20, 1))
        _, exact = loss_and_gradients(model, batch)
        errors = []
        for name in ("sdpa", "eager"):
            model.set_attn_implementation(name)
            _, found = loss_and_gradients(model, batch, torch.bfloat16)
            errors.append(sum(float((found[each] - grad).norm() / grad.norm()) for each, grad in exact.items()))
        assert 0 < errors[0] < 1.5 * errors[1]
