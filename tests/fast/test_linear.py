"""Linear layers by fast routines equal the standard ones, gradients included, and yield where they do not apply."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from weakref import ref

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from hf_vanilla_transformer.fast import linear
from hf_vanilla_transformer.fast.routines import ANY, Product, Routine
from tables import looped
from tiny import close, close_gradients, loss_and_gradients, tiny_model, tokens

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")

ONEDNN = {torch.float32: (Product(ANY, 0, Routine.ONEDNN),)}


@pytest.fixture
def onednn(monkeypatch):
    """Use oneDNN for every float32 product."""
    monkeypatch.setattr(linear, "PRODUCTS", ONEDNN)


@pytest.fixture
def packing(monkeypatch):
    """Pack the weights of products of up to 8 rows, and use oneDNN for others."""
    monkeypatch.setattr(linear, "PRODUCTS", {torch.float32: (Product(8, 0, Routine.PACKED), *ONEDNN[torch.float32])})


def uses_onednn(layer: nn.Module, x: Tensor) -> bool:
    return type(linear.apply_linear(layer, x).grad_fn).__name__ == "_OneDNNLinearBackward"


@pytest.mark.usefixtures("onednn")
class TestLinear:
    @looped("bias", [True, False])
    @looped(("inputs", "outputs"), [(48, 16), (16, 48), (32, 32), (1, 7), (7, 1)])
    @looped("shape", [(5,), (3, 5), (2, 3, 5), (1, 1)])
    def test_equals_the_layer(self, shape, inputs, outputs, bias):
        layer = nn.Linear(inputs, outputs, bias)
        x = torch.randn(*shape, inputs, requires_grad=True)
        fast, standard = linear.apply_linear(layer, x), layer(x)
        assert uses_onednn(layer, x)
        close(fast, standard)
        grad = torch.randn_like(standard)
        found = [torch.autograd.grad(y, [x, *layer.parameters()], grad) for y in (fast, standard)]
        for pair in zip(*found, strict=True):
            close(*pair)

    @looped(
        "change",
        [lambda x: x.transpose(0, 1), lambda x: x[:, ::2], lambda x: x[:1].expand(4, -1, -1), lambda x: x[..., 8:]],
    )
    def test_non_contiguous_inputs(self, change):
        x = torch.randn(4, 6, 24)
        layer = nn.Linear(change(x).shape[-1], 12)
        fast, standard = linear.apply_linear(layer, change(x)), layer(change(x))
        close(fast, standard)
        # The gradient of a sum is an expanded scalar.
        close(*(torch.autograd.grad(y.sum(), layer.weight)[0] for y in (fast, standard)))

    def test_non_contiguous_weights(self):
        layer, x = nn.Linear(8, 12), torch.randn(3, 8)
        layer.weight = nn.Parameter(torch.randn(12, 20)[:, 4:12])
        close(linear.apply_linear(layer, x), layer(x))

    def test_only_required_gradients(self):
        layer = nn.Linear(4, 6).requires_grad_(False)
        x = torch.randn(3, 4, requires_grad=True)
        linear.apply_linear(layer, x).sum().backward()
        assert layer.weight.grad is None and layer.bias.grad is None
        close(x.grad, layer.weight.sum(0).expand(3, -1))

    def test_second_derivatives(self):
        layer, x = nn.Linear(4, 6), torch.randn(3, 4, requires_grad=True)

        def penalty(y: Tensor) -> Tensor:
            (grad,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
            return torch.autograd.grad(grad.square().sum(), layer.weight)[0]

        close(penalty(linear.apply_linear(layer, x)), penalty(layer(x)), 1e-4)

    def test_no_rows_and_other_dtypes_use_the_layer(self):
        assert linear.apply_linear(nn.Linear(4, 6), torch.empty(0, 4)).shape == (0, 6)
        for dtype in (torch.float64, torch.bfloat16):
            assert not uses_onednn(nn.Linear(4, 6, dtype=dtype), torch.randn(3, 4, dtype=dtype))

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
        close(linear.apply_linear(doubled, x), doubled(x))
        # As accelerate patches a layer with offloaded weights.
        replaced.forward = partial(F.linear, weight=torch.ones(6, 4))
        close(linear.apply_linear(replaced, x), x.sum(-1, keepdim=True).expand(-1, 6))

    def test_dispatch_modes_and_transforms_see_standard_ops(self):
        layer, x = nn.Linear(4, 6), torch.randn(3, 4)
        with FlopCounterMode(display=False) as counter:
            linear.apply_linear(layer, x)
        assert counter.get_total_flops() == 2 * 3 * 4 * 6
        close(torch.func.vmap(lambda row: linear.apply_linear(layer, row))(x), layer(x))
        with torch.autocast("cpu", torch.bfloat16):
            assert linear.apply_linear(layer, x).dtype == torch.bfloat16

    # PyTorch builds its forward-mode rules with deprecated functions.
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
    def test_forward_mode_uses_standard_ops(self):
        layer, x, tangent = nn.Linear(4, 6), torch.randn(3, 4), torch.randn(3, 4)
        with torch.autograd.forward_ad.dual_level(), torch.no_grad():
            dual = linear.apply_linear(layer, torch.autograd.forward_ad.make_dual(x, tangent))
            close(torch.autograd.forward_ad.unpack_dual(dual).tangent, tangent @ layer.weight.T)

    def test_onednn_can_be_switched_off(self, monkeypatch):
        monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
        assert not uses_onednn(nn.Linear(4, 6), torch.randn(3, 4))

    @pytest.mark.parametrize("skip_logits", [True, False], ids=["skip_logits", "logits"])
    def test_the_model_has_the_same_gradients(self, monkeypatch, skip_logits):
        model = tiny_model(activation_function="gelu").train()
        batch = {"input_ids": tokens(3, 7), "labels": tokens(3, 5)}
        loss, found = loss_and_gradients(model, batch, smoothing=0.1, skip_logits=skip_logits)
        monkeypatch.setattr(linear, "PRODUCTS", {})
        standard_loss, expected = loss_and_gradients(model, batch, smoothing=0.1, skip_logits=skip_logits)
        close(loss, standard_loss)
        close_gradients(found, expected)


def test_the_first_rule_that_fits_holds(monkeypatch):
    rules = (Product(2, 0, Routine.DEFAULT), Product(8, 100, Routine.PACKED), Product(8, 50, Routine.ONEDNN))
    monkeypatch.setattr(linear, "PRODUCTS", {torch.float32: rules})

    def chosen(rows: int, numbers: int, may_pack: bool = False, dtype: torch.dtype = torch.float32) -> Routine:
        return linear._routine(torch.ones(1, rows, 10, dtype=dtype), torch.ones(numbers // 10, 10), may_pack)

    assert chosen(2, 200) is chosen(9, 200) is chosen(3, 40) is Routine.DEFAULT
    assert chosen(3, 50) is chosen(8, 100) is Routine.ONEDNN
    assert chosen(3, 100, may_pack=True) is Routine.PACKED
    assert chosen(3, 100, dtype=torch.float64) is chosen(3, 100, dtype=torch.bfloat16) is Routine.DEFAULT


@pytest.mark.parametrize("requires_grad", [True, False])
def test_a_processor_that_is_not_listed_uses_the_standard_op(monkeypatch, requires_grad):
    monkeypatch.setattr(linear, "PRODUCTS", {})
    layer, x = nn.Linear(4, 6), torch.randn(3, 4)
    with torch.set_grad_enabled(requires_grad), decoding(x):
        assert torch.equal(linear.apply_linear(layer, x), layer(x))


@contextmanager
def decoding(x: Tensor) -> Iterator[linear.DecodingProducts]:
    """Context of a call of `generate()` in a forward pass that starts from `x`."""
    with linear.decoding_products():
        linear.begin_forward_pass(x)
        products = linear._decoding_products.get()
        assert products.is_plain != torch.is_grad_enabled()
        yield products


@pytest.mark.usefixtures("packing")
class TestDecoding:
    @looped("bias", [True, False])
    @looped("rows", [1, 6, 40])
    def test_a_weight_is_packed_after_some_uses(self, rows, bias):
        layer, x = nn.Linear(32, 64, bias), torch.randn(rows, 1, 32)
        with torch.no_grad(), decoding(x) as products:
            packed = []
            for _ in range(linear.USES_BEFORE_PACKING + 3):
                x = torch.randn(rows, 1, 32)
                close(linear.apply_linear(layer, x), layer(x))
                packed.append(layer in products._packed)
            assert packed == [False] * linear.USES_BEFORE_PACKING + [rows <= 8] * 3
            for other in (x[:1], x.repeat(9, 1, 1), x.double().float()):
                close(linear.apply_linear(layer, other), layer(other))
        assert linear._decoding_products.get() is None

    def test_nothing_stays_packed(self):
        layer, other, x = nn.Linear(32, 64), nn.Linear(32, 64), torch.randn(3, 32)
        gc.disable()
        try:
            with torch.no_grad(), decoding(x) as products:
                linear.apply_linear(other, x)
                for _ in range(linear.USES_BEFORE_PACKING + 1):
                    linear.apply_linear(layer, x)
                packed = ref(products._packed[layer][2])
                del products
            assert packed() is None
        finally:
            gc.enable()

    def test_calls_inside_a_shared_one_share_what_is_packed(self):
        layer, x = nn.Linear(32, 64), torch.randn(3, 32)
        with torch.no_grad(), linear.decoding_products(shared=True):
            for _ in range(linear.USES_BEFORE_PACKING + 1):
                with decoding(x) as products:
                    close(linear.apply_linear(layer, x), layer(x))
            assert layer in products._packed and linear._decoding_products.get() is products
            with linear.decoding_products():
                assert linear._decoding_products.get() is products
        with linear.decoding_products():
            outer = linear._decoding_products.get()
            with linear.decoding_products():
                assert linear._decoding_products.get() is not outer

    def test_a_choice_is_made_once_for_each_shape(self, monkeypatch):
        seen, choose = [], linear._routine

        def recorded(x: Tensor, *rest, **named) -> Routine:
            seen.append(x.shape)
            return choose(x, *rest, **named)

        monkeypatch.setattr(linear, "_routine", recorded)
        layer = nn.Linear(4, 6)
        with torch.no_grad(), decoding(torch.ones(1)):
            for rows in (20, 20, 20, 30, 30):
                linear.apply_linear(layer, torch.randn(rows, 4))
        assert seen == [(20, 4), (30, 4)]

    @pytest.mark.parametrize("change", ["in place", "another", "another dtype"])
    def test_changed_weights_count_at_once(self, change):
        layer, x = nn.Linear(32, 64), torch.randn(3, 32)
        with torch.no_grad(), decoding(x):
            for step in range(3 * linear.USES_BEFORE_PACKING):
                if step % (linear.USES_BEFORE_PACKING + 2) == 0:
                    if change == "in place":
                        layer.weight.mul_(-1)
                    else:
                        layer.weight = nn.Parameter(torch.randn(64, 32))
                    if change == "another dtype":
                        layer, x = layer.double(), x.double()
                close(linear.apply_linear(layer, x), layer(x))

    def test_a_forward_pass_under_autocast_or_a_dispatch_mode_uses_standard_ops(self):
        layer, x = nn.Linear(4, 6), torch.randn(3, 4)
        with torch.no_grad(), decoding(x):
            linear.apply_linear(layer, x)
            with torch.autocast("cpu", torch.bfloat16):
                linear.begin_forward_pass(x)
                assert linear.apply_linear(layer, x).dtype == torch.bfloat16
            with FlopCounterMode(display=False) as counter:
                linear.begin_forward_pass(x)
                linear.apply_linear(layer, x)
            assert counter.get_total_flops() == 2 * 3 * 4 * 6

    def test_gradients_flow(self):
        """As in a logits processor that searches by gradients."""
        layer, x = nn.Linear(4, 6), torch.randn(3, 4, requires_grad=True)
        with decoding(x):
            with torch.no_grad():
                linear.begin_forward_pass(x)
                linear.apply_linear(layer, x)
            linear.begin_forward_pass(x)
            linear.apply_linear(layer, x).sum().backward()
        close(x.grad, layer.weight.sum(0).expand(3, -1))

    def test_a_hook_is_called_from_when_it_is_there(self):
        layer, x, seen = nn.Linear(4, 6), torch.randn(3, 4), []
        with torch.no_grad(), decoding(x):
            for step in range(8):
                if step == 6:
                    layer.register_forward_hook(lambda module, inputs, output: seen.append(output))
                linear.apply_linear(layer, x)
        assert len(seen) == 2

    def test_weights_may_change_between_calls(self):
        model, source = tiny_model(), tokens(2, 5)
        options = {"max_new_tokens": 12, "eos_token_id": None, "output_logits": True, "return_dict_in_generate": True}
        before = model.generate(source, **options).logits[-1]
        # Through `data`, which does not change the weight's version.
        model.lm_head.weight.data.mul_(-1)
        after = model.generate(source, **options).logits
        fresh = model(source, decoder_input_ids=torch.full((2, 1), model.config.decoder_start_token_id)).logits[:, 0]
        close(after[0], fresh.detach())
        assert not torch.equal(after[-1], before)

    @pytest.mark.parametrize("options", [{}, {"num_beams": 3}], ids=str)
    def test_tokens_are_those_of_standard_products(self, monkeypatch, options):
        model, source = tiny_model(), tokens(4, 7)
        packed = model.generate(source, max_new_tokens=15, **options)
        monkeypatch.setattr(linear, "PRODUCTS", {})
        assert torch.equal(packed, model.generate(source, max_new_tokens=15, **options))


@pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 products for this processor"
)
def test_packed_bfloat16(monkeypatch):
    monkeypatch.setattr(linear, "PRODUCTS", {torch.bfloat16: (Product(ANY, 0, Routine.PACKED),)})
    layer, x = nn.Linear(32, 64).bfloat16(), torch.randn(6, 32).bfloat16()
    with torch.no_grad(), decoding(x):
        for _ in range(linear.USES_BEFORE_PACKING + 3):
            # One bfloat16 rounding.
            torch.testing.assert_close(linear.apply_linear(layer, x), layer(x), rtol=2**-7, atol=1e-2)
