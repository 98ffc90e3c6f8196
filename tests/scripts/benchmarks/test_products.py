"""Products and attention with each routine."""

import pytest
import torch

from benchmarking import small_arguments
from benchmarks import products
from benchmarks.measure import measure
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.fast import linear as linear


@pytest.fixture(autouse=True)
def _few_sizes(monkeypatch):
    monkeypatch.setattr(products, "SECONDS", 0.0)
    monkeypatch.setattr(products, "STEP_WEIGHTS", 2)
    monkeypatch.setattr(products, "DECODED_ROWS", (1, 3))
    monkeypatch.setattr(products, "TRAINED_ROWS", (4,))
    monkeypatch.setattr(products, "DECODED", ((2, 1, 5),))
    monkeypatch.setattr(products, "TRAINED", ((2, 5, 5),))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_routine_is_measured_and_gives_the_same(dtype, capsys):
    rules = linear.PRODUCTS
    cases = list(products.products_benchmark(small_arguments(dtype=[dtype]), DataArguments()))
    assert capsys.readouterr().out.startswith("rules for: ") and linear.PRODUCTS is rules
    names = [case.name for case in cases]
    assert names[:2] == ["call of a product, 1 x 8 x 8", f"product, 1 x 128 x 128, {dtype}"]
    assert names[-3:] == [
        f"attention, 2 x 4 heads, 1 queries, 5 keys, {dtype}",
        f"attention, 2 x 4 heads, 5 queries, 5 keys, {dtype}",
        f"attention and gradients, 2 x 4 heads, 5 queries, 5 keys, {dtype}",
    ]
    onednn = {"onednn", "packed"} if dtype == "float32" or torch.ops.mkldnn._is_mkldnn_bf16_supported() else set()
    assert set(cases[1].implementations) == {"ours", "default"} | onednn
    for case in cases:
        result = measure(case, rounds=1)
        assert all(cost > 0 for each in result.costs.values() for cost in each)


def test_bfloat16_where_onednn_has_no_such_products(monkeypatch):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: False)
    monkeypatch.setattr(products, "_case", lambda name, works, dtype: set(works))
    assert products.decoding_product(1, 4, 6, "bfloat16") == {"ours", "default"}
    assert products.training_product(1, 4, 6, "bfloat16") == {"ours", "default"}
    assert products.training_product(1, 4, 6, "float32") == {"ours", "default", "onednn"}


def test_the_layers_of_a_step_take_turns(monkeypatch):
    used = []
    monkeypatch.setattr(products, "_case", lambda name, works, dtype: works)
    monkeypatch.setattr(linear.F, "linear", lambda x, weight, bias: used.append(weight.data_ptr()) or x)
    works = products.decoding_product(1, 4, 6, "float32")
    used.clear()
    for _ in range(4):
        works["default"]()
    first, second = dict.fromkeys(used)
    assert used == [first, second, first, second]


def test_routines_give_the_same_product():
    layer, x = products._layer_and_input(3, 8, 16, "float32")
    for routine in products.Routine:
        rules = {torch.float32: (products.Product(products.ANY, 0, routine),)}
        torch.testing.assert_close(products._with_rules([layer], x, rules)(), layer(x))


def test_routines_of_a_cpu_are_not_those_of_a_gpu():
    args = small_arguments()
    args.device = "cuda"
    with pytest.raises(ValueError, match="^the routines are for CPUs, but `device` is cuda; leave this benchmark"):
        next(products.products_benchmark(args, DataArguments()))
