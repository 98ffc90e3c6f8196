"""Products with weights, and attention, with each CPU routine: the data behind `fast.linear` and `fast.cpu_ops`.

Legend: N rows, K inputs, M outputs, B batch, h heads, T queries, S keys, d_k key width.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from functools import partial
from itertools import cycle, product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.benchmark import Timer

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.fast import cpu_ops as cpu_ops
from hf_vanilla_transformer.fast import linear as linear
from hf_vanilla_transformer.fast.routines import ANY, Product, Routine
from hf_vanilla_transformer.presets import preset_config
from hf_vanilla_transformer.processor import processor

from .arguments import BenchmarkArguments
from .machine import DTYPES, timer
from .measure import OURS, Case, Sample

# Rows of a decoding step, and of a training batch.
DECODED_ROWS, TRAINED_ROWS = (1, 8, 32, 128, 512), (512, 2048)
# Sentences, queries and keys of decoding steps and of training batches.
DECODED = ((1, 1, 32), (8, 1, 32), (32, 1, 32), (128, 1, 32), (32, 1, 512))
TRAINED = ((1, 32, 32), (4, 32, 32), (64, 32, 32), (32, 64, 64), (16, 128, 128), (16, 256, 256))
# Seconds of repetitions per measurement.
SECONDS = 0.02
# The weights of a decoding step: this many of a shape, up to this many bytes, more than the caches hold.
STEP_WEIGHTS, STEP_BYTES = 48, 2**26


def products_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Compare the routine chosen by the rules (ours) with each of the others."""
    if args.device != "cpu":
        raise ValueError(f"the routines are for CPUs, but `device` is {args.device}; leave this benchmark out")
    print(f"rules for: {processor()}", flush=True)
    yield call_case()
    for dtype, preset in product(args.dtype, args.preset):
        width, inner = (getattr(preset_config(preset), name) for name in ("d_model", "decoder_ffn_dim"))
        heads = preset_config(preset).decoder_attention_heads
        shapes = dict.fromkeys([(width, width), (width, inner), (inner, width), (width, args.vocab_size[0])])
        for rows, (inputs, outputs) in product(DECODED_ROWS, shapes):
            yield decoding_product(rows, inputs, outputs, dtype)
        for rows, (inputs, outputs) in product(TRAINED_ROWS, shapes):
            yield training_product(rows, inputs, outputs, dtype)
        for sizes, trains in [*((sizes, False) for sizes in DECODED + TRAINED), *((sizes, True) for sizes in TRAINED)]:
            yield attention_case(*sizes, heads, width // heads, dtype, trains)


def call_case() -> Case:
    """Compare the Python overhead of a product: ours uses the layer's own routine, on tiny matrices."""
    layer, x = _layer_and_input(1, 8, 8, "float32")
    works = {OURS: _with_rules([layer], x, {}), "layer": torch.inference_mode()(lambda: layer(x))}
    return _case("call of a product, 1 x 8 x 8", works, "float32")


def decoding_product(rows: int, inputs: int, outputs: int, dtype: str) -> Case:
    """Compare products (N, K) x (K, M), cycling through the weights of a decoding step."""
    layer, x = _layer_and_input(rows, inputs, outputs, dtype)
    count = max(1, min(STEP_WEIGHTS, STEP_BYTES // (layer.weight.numel() * layer.weight.element_size())))
    layers = [layer, *(deepcopy(layer) for _ in range(count - 1))]
    works = {OURS: _with_rules(layers, x, linear.PRODUCTS)}
    for routine in _routines(x.dtype):
        works[routine.name.lower()] = _with_rules(layers, x, {x.dtype: (Product(ANY, 0, routine),)})
    return _case(f"product, {rows} x {inputs} x {outputs}, {dtype}", works, dtype)


def training_product(rows: int, inputs: int, outputs: int, dtype: str) -> Case:
    """Compare products (N, K) x (K, M) and their gradients."""
    layer, x = _layer_and_input(rows, inputs, outputs, dtype)
    x.requires_grad_()
    works: dict[str, Callable[[], Any]] = {
        OURS: lambda: linear.apply_linear(layer, x),
        "default": lambda: F.linear(x, layer.weight, layer.bias),
    }
    if Routine.ONEDNN in _routines(x.dtype):
        works["onednn"] = lambda: linear._OneDNNLinear.apply(x, layer.weight, layer.bias)
    works = {name: _with_gradients(work, (x, layer.weight)) for name, work in works.items()}
    return _case(f"product and gradients, {rows} x {inputs} x {outputs}, {dtype}", works, dtype)


def attention_case(rows: int, queries: int, keys: int, heads: int, width: int, dtype: str, trains: bool) -> Case:
    """Compare attention of (B, h, T, d_k) to (B, h, S, d_k), including gradients if `trains`."""
    query, key, value = (
        torch.randn(rows, heads, length, width, dtype=DTYPES[dtype], requires_grad=trains)
        for length in (queries, keys, keys)
    )
    module: Any = nn.Module()
    module.is_causal = False
    works: dict[str, Callable[[], Any]] = {
        "bmm": lambda: cpu_ops.bmm_attention(module, query, key, value, None, width**-0.5)[0],
        "flash": lambda: F.scaled_dot_product_attention(query, key, value).transpose(1, 2),
    }
    works = {OURS: works["bmm" if cpu_ops.use_bmm_attention(query, key, trains) else "flash"], **works}
    works = {
        name: _with_gradients(work, (query, key, value)) if trains else torch.inference_mode()(work)
        for name, work in works.items()
    }
    title = "attention and gradients" if trains else "attention"
    return _case(f"{title}, {rows} x {heads} heads, {queries} queries, {keys} keys, {dtype}", works, dtype)


def _routines(dtype: torch.dtype) -> list[Routine]:
    """Return the routines of this processor; oneDNN needs AVX-512 for bfloat16."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return [Routine.DEFAULT]
    return list(Routine)


def _layer_and_input(rows: int, inputs: int, outputs: int, dtype: str) -> tuple[nn.Linear, Tensor]:
    layer = nn.Linear(inputs, outputs, dtype=DTYPES[dtype])
    return layer, torch.randn(rows, inputs, dtype=DTYPES[dtype])


def _with_rules(layers: Sequence[nn.Linear], x: Tensor, rules: Any) -> Callable[[], Tensor]:
    """Return the product that a decoding step uses under these rules, with the next layer at each call."""
    products, own = linear.DecodingProducts(), linear.PRODUCTS
    products.is_plain = True
    linear.PRODUCTS = rules
    try:
        with torch.inference_mode():
            for layer in layers:
                for _ in range(linear.USES_BEFORE_PACKING + 1):
                    products(layer, x)
    finally:
        linear.PRODUCTS = own
    turn = cycle(layers)
    return torch.inference_mode()(lambda: products(next(turn), x))


def _with_gradients(forward: Callable[[], Tensor], inputs: tuple[Tensor, ...]) -> Callable[[], Any]:
    grad = torch.ones_like(forward())
    return lambda: torch.autograd.grad(forward(), inputs, grad)


def _case(name: str, works: dict[str, Callable[[], Any]], dtype: str) -> Case:
    timers = {key: timer(work) for key, work in works.items()}
    samples = {key: partial(_sample, measure) for key, measure in timers.items()}
    return Case("products", name, samples, dtype=dtype, settle=False)


def _sample(timed: Timer) -> Sample:
    return Sample(timed.blocked_autorange(min_run_time=SECONDS).median)
