"""The roofline: measured peak FLOP/s and memory bandwidth, and counts of a Transformer's FLOPs and bytes.

Legend: S source length, T target length, d width, d_k and d_v of all heads together, V target vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch

from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig

from .machine import DTYPES, timer

# Rows, inner size and columns of the matrix products to try: squares, and the shapes of a layer.
CPU_SHAPES = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 512, 2048), (4096, 2048, 512))
GPU_SHAPES = ((8192, 8192, 8192), (16384, 1024, 4096), (16384, 4096, 1024))
CPU_BYTES, GPU_BYTES = 2**27, 2**32
BANDWIDTH = "bandwidth"


class Probe(NamedTuple):
    """A call that may reach a peak, with its FLOPs or bytes."""

    name: str
    amount: float
    run: Callable[[], Any]

    def rate(self, seconds: float) -> float:
        """Return the best FLOP/s or bytes/s of calls repeated for `seconds`."""
        return self.amount / min(timer(self.run).blocked_autorange(min_run_time=seconds).times)


@dataclass
class Roofline:
    """The machine's measured peaks; each is the best over all probes and all tries so far."""

    device: str
    # FLOP/s of matrix products by data type, and bytes/s of reads and writes as "bandwidth".
    rates: dict[str, float] = field(default_factory=dict)
    # The fastest probe for each.
    probes: dict[str, Probe] = field(default_factory=dict)

    def calibrate(self, name: str, probes: Iterator[Probe], seconds: float) -> None:
        for probe in probes:
            rate = probe.rate(seconds)
            if rate > self.rates.get(name, 0.0):
                self.rates[name], self.probes[name] = rate, probe

    def current_rate(self, name: str, seconds: float) -> float:
        rate = self.probes[name].rate(seconds)
        self.rates[name] = max(self.rates[name], rate)
        return rate

    def as_json(self) -> dict[str, Any]:
        return {"rates": self.rates, "probes": {name: probe.name for name, probe in self.probes.items()}}


def measure_roofline(device: str, dtypes: Sequence[str], seconds: float = 0.5) -> Roofline:
    """Measure the machine's peaks, running each probe for `seconds`."""
    roofline = Roofline(device)
    for dtype in dtypes:
        roofline.calibrate(dtype, matmul_probes(device, dtype), seconds)
    roofline.calibrate(BANDWIDTH, bandwidth_probes(device), seconds)
    return roofline


def matmul_probes(device: str, dtype: str) -> Iterator[Probe]:
    """Yield matrix products of several shapes; for float32 on a CPU, with oneDNN too.

    On non-Intel x86 processors, the float32 library behind `@` can be much slower than oneDNN, which torch uses only
    in compiled models.
    """
    one_dnn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if device == "cpu" and dtype == "float32" else None
    for rows, inner, columns in CPU_SHAPES if device == "cpu" else GPU_SHAPES:
        a = torch.randn(rows, inner, device=device, dtype=DTYPES[dtype])
        b = torch.randn(inner, columns, device=device, dtype=DTYPES[dtype])
        shape, flops = f"{rows} x {inner} x {columns}", 2.0 * rows * inner * columns
        yield Probe(f"a @ b, {shape}", flops, partial(torch.matmul, a, b))
        if one_dnn is not None:
            weight = b.t().contiguous()
            yield Probe(f"oneDNN, {shape}", flops, partial(one_dnn, a, weight, None, "none", [], ""))


def bandwidth_probes(device: str) -> Iterator[Probe]:
    """Yield passes over more memory than the caches hold."""
    size = CPU_BYTES if device == "cpu" else min(GPU_BYTES, torch.cuda.mem_get_info()[0] // 4)
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    yield Probe("copy", 2.0 * size, lambda: target.copy_(source))
    yield Probe("sum", float(size), lambda: source.sum())


class Sizes(NamedTuple):
    """Numbers of weights, and widths d_k + d_v, of a layer, which determine FLOPs and bytes."""

    encoder: int
    # Excludes cross-attention.
    decoder: int
    # Half of the weights of cross-attention: those of queries and output, or those of keys and values.
    cross: int
    encoder_width: int
    decoder_width: int
    # Weights of the output projection.
    output: int

    @classmethod
    def of(cls, config: VanillaTransformerConfig) -> "Sizes":
        d = config.d_model
        own, other = (
            heads * sum(config.attention_dims(heads))
            for heads in (config.encoder_attention_heads, config.decoder_attention_heads)
        )
        encoder, decoder = 2 * d * (own + config.encoder_ffn_dim), 2 * d * (other + config.decoder_ffn_dim)
        return cls(encoder, decoder, d * other, own, other, d * config.decoder_vocab_size)


def forward_flops(config: VanillaTransformerConfig, rows: int, source_length: Any, target_length: Any) -> Any:
    """Count the FLOPs of the matrix products of a forward pass over pairs without padding; lengths may be arrays.

    Counted are projections, attention products (including the masked half in the decoder, as is usual) and the output
    layer; a multiply-add is two FLOPs.
    """
    sizes, s, t = Sizes.of(config), source_length, target_length
    encoder = s * sizes.encoder + s * s * sizes.encoder_width
    # In cross-attention, queries and outputs have target length, keys and values source length.
    decoder = t * sizes.decoder + (t + s) * sizes.cross + (t * t + s * t) * sizes.decoder_width
    return 2 * rows * (config.encoder_layers * encoder + config.decoder_layers * decoder + t * sizes.output)


def training_flops(config: VanillaTransformerConfig, rows: int, source_length: Any, target_length: Any) -> Any:
    """Count the FLOPs of forward and backward; see `forward_flops` for the arguments.

    Each product in the forward pass has two in the backward pass, for the gradients of its two factors.
    """
    return 3 * forward_flops(config, rows, source_length, target_length)


def decoding_flops_and_bytes(
    config: VanillaTransformerConfig, rows: int, beams: int, source_length: int, new_tokens: int, itemsize: int
) -> tuple[float, float]:
    """Count the minimum FLOPs and bytes read in decoding with a key-value cache.

    Each step reads the decoder's weights once for all rows, the cross-attention cache once per source for all its
    beams, and the self-attention cache once per hypothesis, at `itemsize` bytes per number.
    """
    sizes, s, n = Sizes.of(config), source_length, new_tokens
    encoder_weights = config.encoder_layers * sizes.encoder + config.decoder_layers * sizes.cross
    step_weights = config.decoder_layers * (sizes.decoder + sizes.cross) + sizes.output
    cached_steps = n * (n + 1) / 2
    cache = config.decoder_layers * sizes.decoder_width * rows
    encoder = rows * s * encoder_weights + rows * s * s * config.encoder_layers * sizes.encoder_width
    flops = 2 * (encoder + rows * beams * n * step_weights + cache * beams * (n * s + cached_steps))
    numbers = encoder_weights + n * step_weights + cache * (n * s + beams * cached_steps)
    return flops, float(numbers * itemsize)
