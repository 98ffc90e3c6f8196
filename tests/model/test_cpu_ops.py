"""The fast CPU routines equal the standard ones, gradients included, and yield where they do not apply."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from hf_vanilla_transformer.model import cpu_ops_vanilla_transformer as cpu_ops
from hf_vanilla_transformer.model.attention_vanilla_transformer import eager_attention
from tiny import close, close_gradients, gradients, tiny_model, tokens

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
needs_fast_bfloat16 = pytest.mark.skipif(
    not cpu_ops.ONEDNN_HAS_BFLOAT16, reason="oneDNN has no bfloat16 products for this processor"
)


@pytest.fixture
def fast_products(monkeypatch):
    """Use oneDNN on every processor, not only where it is faster."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("this PyTorch has no oneDNN")
    monkeypatch.setattr(cpu_ops, "ONEDNN_BEATS_MKL", True)


def uses_onednn(layer: nn.Module, x: Tensor) -> bool:
    return type(cpu_ops.apply_linear(layer, x).grad_fn).__name__ == "_OneDNNLinearBackward"


@pytest.mark.usefixtures("fast_products")
class TestLinear:
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize(("inputs", "outputs"), [(48, 16), (16, 48), (32, 32), (1, 7), (7, 1)])
    @pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5), (1, 1)], ids=str)
    def test_equals_the_layer(self, shape, inputs, outputs, bias):
        layer = nn.Linear(inputs, outputs, bias)
        x = torch.randn(*shape, inputs, requires_grad=True)
        fast, standard = cpu_ops.apply_linear(layer, x), layer(x)
        assert uses_onednn(layer, x)
        close(fast, standard)
        grad = torch.randn_like(standard)
        found = [torch.autograd.grad(y, [x, *layer.parameters()], grad) for y in (fast, standard)]
        for mine, other in zip(*found, strict=True):
            assert mine.shape == other.shape
            close(mine, other)

    @pytest.mark.parametrize(
        "change",
        [lambda x: x.transpose(0, 1), lambda x: x[:, ::2], lambda x: x[:1].expand(4, -1, -1), lambda x: x[..., 8:]],
        ids=["transposed", "every other", "expanded", "columns"],
    )
    def test_non_contiguous_inputs(self, change):
        x = torch.randn(4, 6, 24)
        layer = nn.Linear(change(x).shape[-1], 12)
        fast, standard = cpu_ops.apply_linear(layer, change(x)), layer(change(x))
        close(fast, standard)
        # The gradient of a sum is one expanded number.
        close(*(torch.autograd.grad(y.sum(), layer.weight)[0] for y in (fast, standard)))

    def test_non_contiguous_weights(self):
        layer = nn.Linear(8, 12)
        layer.weight = nn.Parameter(torch.randn(12, 20)[:, 4:12])
        assert not (layer.weight.is_contiguous() or layer.weight.T.is_contiguous())
        x = torch.randn(3, 8)
        close(cpu_ops.apply_linear(layer, x), layer(x))

    def test_only_required_gradients(self):
        layer = nn.Linear(4, 6).requires_grad_(False)
        x = torch.randn(3, 4, requires_grad=True)
        cpu_ops.apply_linear(layer, x).sum().backward()
        assert layer.weight.grad is None and layer.bias.grad is None
        close(x.grad, layer.weight.sum(0).expand(3, -1))

    def test_second_derivatives(self):
        layer, x = nn.Linear(4, 6), torch.randn(3, 4, requires_grad=True)

        def penalty(y: Tensor) -> Tensor:
            (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            return torch.autograd.grad(grad.square().sum(), layer.weight)[0]

        close(penalty(cpu_ops.apply_linear(layer, x)), penalty(layer(x)), 1e-4)

    def test_no_rows(self):
        assert cpu_ops.apply_linear(nn.Linear(4, 6), torch.empty(0, 4)).shape == (0, 6)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
    def test_other_dtypes_use_the_layer(self, dtype):
        layer = nn.Linear(4, 6, dtype=dtype)
        assert not uses_onednn(layer, torch.randn(3, 4, dtype=dtype))

    def test_a_hook_is_called(self):
        layer, seen = nn.Linear(4, 6), []
        layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
        assert not uses_onednn(layer, torch.randn(3, 4)) and seen

    def test_a_patched_forward_is_called(self):
        class Doubled(nn.Linear):
            def forward(self, x: Tensor) -> Tensor:
                return 2 * super().forward(x)

        x = torch.randn(3, 4)
        doubled, replaced = Doubled(4, 6), nn.Linear(4, 6)
        close(cpu_ops.apply_linear(doubled, x), doubled(x))
        # As accelerate patches a layer with offloaded weights.
        replaced.forward = partial(F.linear, weight=torch.ones(6, 4))
        close(cpu_ops.apply_linear(replaced, x), x.sum(-1, keepdim=True).expand(-1, 6))

    def test_dispatch_modes_and_transforms_see_standard_ops(self):
        layer, x = nn.Linear(4, 6), torch.randn(3, 4)
        with FlopCounterMode(display=False) as counter:
            cpu_ops.apply_linear(layer, x)
        assert counter.get_total_flops() == 2 * 3 * 4 * 6
        close(torch.func.vmap(lambda row: cpu_ops.apply_linear(layer, row))(x), layer(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert cpu_ops.apply_linear(layer, x).dtype == torch.bfloat16

    # PyTorch builds its forward-mode rules by deprecated functions.
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
    def test_forward_mode_and_sparse_tensors_use_standard_ops(self):
        layer, x, tangent = nn.Linear(4, 6), torch.randn(3, 4), torch.randn(3, 4)
        with torch.autograd.forward_ad.dual_level(), torch.no_grad():
            dual = cpu_ops.apply_linear(layer, torch.autograd.forward_ad.make_dual(x, tangent))
            close(torch.autograd.forward_ad.unpack_dual(dual).tangent, tangent @ layer.weight.T)
        assert not cpu_ops.is_plain_cpu(torch.eye(4).to_sparse())

    def test_onednn_can_be_switched_off(self, monkeypatch):
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
        assert not uses_onednn(nn.Linear(4, 6), torch.randn(3, 4))

    @pytest.mark.parametrize("skip_logits", [True, False], ids=["skip_logits", "logits"])
    def test_the_model_has_the_same_gradients(self, monkeypatch, skip_logits):
        model = tiny_model(activation_function="gelu").train()
        batch = {"input_ids": tokens(3, 7), "labels": tokens(3, 5)}
        found = {}
        for fast in (True, False):
            monkeypatch.setattr(cpu_ops, "ONEDNN_BEATS_MKL", fast)
            loss = model(**batch, smoothing=0.1, skip_logits=skip_logits).loss
            loss.backward()
            found[fast] = (loss.detach(), gradients(model))
        close(found[True][0], found[False][0])
        close_gradients(found[True][1], found[False][1])


class TestDropout:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
    @pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
    def test_zeroes_a_fraction_and_keeps_the_mean(self, p, dtype):
        torch.manual_seed(0)
        x = torch.full((1000, 999), 3.0, dtype=dtype, requires_grad=True)
        y = cpu_ops.apply_dropout(x, p, training=True)
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
        torch.manual_seed(0)
        kept = (cpu_ops.apply_dropout(torch.ones(4000, 500), 0.5, training=True) != 0).double() - 0.5
        for distance in (1, 2, 3, 4, 8, 500):
            flat = kept.flatten()
            assert abs((flat[:-distance] * flat[distance:]).mean() * 4) < 5 / flat.numel() ** 0.5

    def test_a_seed_determines_the_mask(self):
        x = torch.randn(7, 11)
        masks = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            masks.append(cpu_ops.apply_dropout(x, 0.3, training=True))
        assert torch.equal(masks[0], masks[1]) and not torch.equal(masks[0], masks[2])

    @pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.4, False), (0.0, False)])
    def test_nothing_to_drop(self, p, training):
        x = torch.randn(5)
        assert cpu_ops.apply_dropout(x, p, training) is x

    def test_everything_dropped(self):
        assert not cpu_ops.apply_dropout(torch.ones(9), 1.0, training=True).any()

    def test_second_derivatives(self):
        x = torch.randn(50, requires_grad=True)
        y = cpu_ops.apply_dropout(x, 0.5, training=True)
        scale = (y / x).detach()
        (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        close(torch.autograd.grad(grad.sum(), x)[0], 2 * scale.square())

    # The oldest supported transformers lacks its successor.
    @pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated:FutureWarning")
    def test_gradient_checkpointing_repeats_the_mask(self):
        model = tiny_model(dropout=0.4).train()
        batch = {"input_ids": tokens(3, 7), "labels": tokens(3, 5)}
        found = []
        for checkpointing in (False, True):
            if checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": False})
            torch.manual_seed(3)
            model(**batch).loss.backward()
            found.append(gradients(model))
        close_gradients(*found)


MASKS = {
    "none": lambda: None,
    "padding": lambda: torch.tensor([[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 1]], dtype=torch.bool)[:, None, None],
    "numbers": lambda: torch.randn(2, 1, 5, 7),
}


class TestBmmAttention:
    @pytest.mark.parametrize("mask", MASKS)
    def test_equals_eager_attention(self, mask):
        q, k, v = (torch.randn(2, 3, length, width, requires_grad=True) for length, width in ((5, 8), (7, 8), (7, 6)))
        attention_mask, module = MASKS[mask](), nn.Module()
        module.is_causal = False
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
        q, k, v = torch.randn(2, 3, queries, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
        module = nn.Module()
        module.is_causal = True
        hidden = torch.ones(queries, 7).triu(8 - queries) * -1e9
        close(
            cpu_ops.bmm_attention(module, q, k, v, None, 0.3)[0],
            eager_attention(module, q, k, v, hidden, 0.3)[0],
        )

    @pytest.mark.parametrize("dtype", [torch.bool, torch.float32], ids=str)
    def test_a_query_without_visible_keys_gets_0_as_from_sdpa(self, dtype):
        module = nn.Module()
        module.is_causal = False
        q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 8)
        seen = torch.ones(2, 1, 1, 7, dtype=torch.bool)
        seen[1] = False
        mask = seen if dtype == torch.bool else torch.zeros(2, 1, 1, 7).masked_fill(~seen, -torch.inf)
        expected = F.scaled_dot_product_attention(q, k, v, mask.expand(2, 1, 5, 7), scale=0.3).transpose(1, 2)
        close(cpu_ops.bmm_attention(module, q, k, v, mask, 0.3)[0], expected)
        assert not expected[1].any()

    def test_weights_are_dropped(self):
        torch.manual_seed(0)
        module = nn.Module()
        module.is_causal = False
        q, k, v = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 700, 8), torch.ones(2, 3, 700, 8)
        out, _ = cpu_ops.bmm_attention(module, q, k, v, None, 0.3, dropout=0.5)
        assert out.std() > 0 and abs(out.mean() - 1) < 0.1

    def test_when_it_is_used(self):
        def state(rows: int, length: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(rows, 8, length, 4, dtype=dtype)

        bf16, fp32 = torch.bfloat16, torch.float32
        assert cpu_ops.use_bmm_attention(state(32, 20, bf16), state(32, 20, bf16))
        assert not cpu_ops.use_bmm_attention(state(32, 20, bf16), state(32, 2000, bf16))
        assert cpu_ops.use_bmm_attention(state(32, 1, bf16), state(32, 2000, bf16))
        assert not cpu_ops.use_bmm_attention(state(1, 1, bf16), state(1, 20, bf16))
        assert not cpu_ops.use_bmm_attention(state(32, 1, fp32), state(32, 20, fp32))
        with torch.no_grad():
            assert cpu_ops.use_bmm_attention(state(32, 1, fp32), state(32, 20, fp32))
            assert not cpu_ops.use_bmm_attention(state(32, 20, fp32), state(32, 20, fp32))

    def test_bfloat16_errors_are_no_larger_than_eager(self):
        torch.manual_seed(0)
        model = tiny_model(encoder_attention_heads=4, decoder_attention_heads=4).train()
        batch = {"input_ids": tokens(20, 9), "labels": tokens(20, 8)}
        batch["attention_mask"] = torch.arange(9)[None] < torch.randint(3, 10, (20, 1))
        model(**batch).loss.backward()
        exact, errors = gradients(model), {}
        for name in ("sdpa", "eager"):
            model.set_attn_implementation(name)
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(**batch).loss
            loss.backward()
            errors[name] = sum(
                float((grad - exact[weight]).norm() / exact[weight].norm())
                for weight, grad in gradients(model).items()
            )
        assert 0 < errors["sdpa"] < 1.5 * errors["eager"]


@needs_onednn
@needs_fast_bfloat16
class TestPacking:
    def test_a_weight_is_packed_after_some_uses(self):
        layer, x = nn.Linear(32, 64).to(torch.bfloat16), torch.randn(3, 2, 32).to(torch.bfloat16)
        with torch.no_grad(), cpu_ops.weight_packing():
            outputs, packed = [], []
            for _ in range(cpu_ops.USES_BEFORE_PACKING + 3):
                outputs.append(cpu_ops.apply_linear(layer, x))
                packed.append(isinstance(cpu_ops._packed_weights.get()[layer], Tensor))
            assert packed == [False] * cpu_ops.USES_BEFORE_PACKING + [True] * 3
            # One bfloat16 rounding.
            for output in outputs:
                torch.testing.assert_close(output, layer(x), rtol=2**-7, atol=1e-2)
            many = x.repeat(cpu_ops.MAX_PACKED_ROWS, 1, 1)
            torch.testing.assert_close(cpu_ops.apply_linear(layer, many), layer(many))
        assert cpu_ops._packed_weights.get() is None

    def test_weights_may_change_between_calls(self):
        model = tiny_model().to(torch.bfloat16)
        options = {"max_new_tokens": 12, "eos_token_id": None, "output_logits": True, "return_dict_in_generate": True}
        source = tokens(2, 5)
        before = model.generate(source, **options).logits[-1]
        with torch.no_grad():
            model.lm_head.weight.mul_(-1)
        after = model.generate(source, **options).logits
        fresh = model(source, decoder_input_ids=torch.full((2, 1), model.config.decoder_start_token_id)).logits[:, 0]
        torch.testing.assert_close(after[0], fresh.float(), rtol=2e-2, atol=2e-2)
        assert not torch.equal(after[-1], before)
