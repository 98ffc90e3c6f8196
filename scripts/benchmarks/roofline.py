"""What a machine can do at the most, measured, and what a Transformer asks of it at the least, counted.

Legend: S source length, T target length, d width, d_k and d_v of all heads together, V target vocabulary.
"""

import os
import platform
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PACKAGES = ("accelerate", "ctranslate2", "datasets", "numpy", "tokenizers", "torch", "transformers")

# Rows, columns summed over and columns of the products that are tried: squares, and a layer's shapes.
CPU_PRODUCTS = ((1024, 1024, 1024), (2048, 2048, 2048), (4096, 512, 2048), (4096, 2048, 512))
GPU_PRODUCTS = ((8192, 8192, 8192), (16384, 1024, 4096), (16384, 4096, 1024))
CPU_BYTES, GPU_BYTES = 2**27, 2**32


# What the machine can do


def synchronize(device: str) -> None:
    """Wait until the device has done what it was told."""
    if device != "cpu":
        torch.accelerator.synchronize()


def precision(device: str, dtype: str) -> AbstractContextManager:
    """Return the context in which a model of float32 weights multiplies in that type."""
    return nullcontext() if dtype == "float32" else torch.autocast(device, DTYPES[dtype])


@dataclass
class Limits:
    """The machine's limits, measured; each is the best of all ways and of all tries so far.

    Attributes:
        device: "cpu" or "cuda".
        flops: Floating-point operations a second in matrix products, by data type.
        bandwidth: Bytes a second, read and written.
        ways: How each limit was reached, by the name of the data type or "bandwidth".
    """

    device: str
    flops: dict[str, float] = field(default_factory=dict)
    bandwidth: float = 0.0
    ways: dict[str, str] = field(default_factory=dict)
    _fastest: dict[str, tuple[float, Callable[[], Any]]] = field(default_factory=dict, repr=False)

    def try_product(self, dtype: str, seconds: float) -> float:
        """Return the operations a second that the fastest product reaches now."""
        flops, work = self._fastest[dtype]
        return self._note(dtype, flops / best_time(work, self.device, seconds))

    def try_memory(self, seconds: float) -> float:
        """Return the bytes a second that the fastest way through memory reaches now."""
        moved, work = self._fastest["bandwidth"]
        return self._note("bandwidth", moved / best_time(work, self.device, seconds))

    def _note(self, name: str, rate: float) -> float:
        if name == "bandwidth":
            self.bandwidth = max(self.bandwidth, rate)
        else:
            self.flops[name] = max(self.flops.get(name, 0.0), rate)
        return rate

    def find(self, name: str, ways: Iterator[tuple[str, float, Callable[[], Any]]], seconds: float) -> None:
        """Try ways to a limit: name, operations or bytes of a call, and the call; keep the fastest."""
        best = 0.0
        for way, amount, work in ways:
            rate = amount / best_time(work, self.device, seconds)
            if rate > best:
                best, self.ways[name], self._fastest[name] = rate, way, (amount, work)
        self._note(name, best)

    def facts(self) -> dict[str, Any]:
        """Return the limits for a JSON file."""
        return {"flops": self.flops, "bandwidth": self.bandwidth, "ways": self.ways}


def measure_limits(device: str, dtypes: Sequence[str], seconds: float = 0.5) -> Limits:
    """Measure the machine's limits, for so many seconds each way."""
    limits = Limits(device)
    for dtype in dtypes:
        limits.find(dtype, products(device, dtype), seconds)
    limits.find("bandwidth", passes_through_memory(device), seconds)
    return limits


def products(device: str, dtype: str) -> Iterator[tuple[str, float, Callable[[], Any]]]:
    """Yield the ways to multiply matrices: name, floating-point operations, function.

    On x86 processors other than Intel's the library behind `@` may be much slower in float32 than oneDNN, which torch
    keeps for its compiled models.
    """
    one_dnn = getattr(torch.ops.mkldnn, "_linear_pointwise", None) if device == "cpu" and dtype == "float32" else None
    for rows, inner, columns in CPU_PRODUCTS if device == "cpu" else GPU_PRODUCTS:
        a, b = (torch.randn(*shape, device=device, dtype=DTYPES[dtype]) for shape in ((rows, inner), (inner, columns)))
        name, flops = f"{rows} x {inner} x {columns}", 2.0 * rows * inner * columns
        yield f"a @ b, {name}", flops, partial(torch.matmul, a, b)
        if one_dnn is not None:
            weight = b.t().contiguous()
            yield f"oneDNN, {name}", flops, partial(one_dnn, a, weight, None, "none", [], "")


def passes_through_memory(device: str) -> Iterator[tuple[str, float, Callable[[], Any]]]:
    """Yield the ways through memory that lies beyond the caches: name, bytes read and written, function."""
    size = CPU_BYTES if device == "cpu" else GPU_BYTES
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)
    yield "copy", 2.0 * size, lambda: target.copy_(source)
    yield "sum", float(size), lambda: source.sum()


def best_time(work: Callable[[], Any], device: str, seconds: float) -> float:
    """Return the least time of a call, of all that begin within so many seconds, at least two."""
    work()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        synchronize(device)
        start = time.perf_counter()
        work()
        synchronize(device)
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


def resident_bytes() -> int:
    """Return the memory that this process holds; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def facts(device: str) -> dict[str, Any]:
    """Return the machine and the versions that measurements belong to, for a JSON file."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "device": device,
        "hardware": torch.cuda.get_device_name() if device == "cuda" else processor(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "threads": torch.get_num_threads(),
        "capabilities": sorted(name for name, value in torch.cpu.get_capabilities().items() if value is True),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": versions,
    }


def processor() -> str:
    """Return the processor's name as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


# What a model asks of it


@dataclass(frozen=True)
class Sizes:
    """The numbers of a configuration that operations and bytes follow from.

    Attributes:
        width: d.
        keys: d_k of all heads of a layer, in the encoder and in the decoder.
        values: d_v of all heads, likewise.
        ffn: d_ff, likewise.
        layers: Likewise.
        vocabulary: V.
    """

    width: int
    keys: tuple[int, int]
    values: tuple[int, int]
    ffn: tuple[int, int]
    layers: tuple[int, int]
    vocabulary: int

    @classmethod
    def of(cls, config: VanillaTransformerConfig) -> "Sizes":
        """Read a configuration."""
        encoder, decoder = (
            (heads, *config.attention_dims(heads))
            for heads in (config.encoder_attention_heads, config.decoder_attention_heads)
        )
        return cls(
            config.d_model,
            (encoder[0] * encoder[1], decoder[0] * decoder[1]),
            (encoder[0] * encoder[2], decoder[0] * decoder[2]),
            (config.encoder_ffn_dim, config.decoder_ffn_dim),
            (config.encoder_layers, config.decoder_layers),
            config.decoder_vocab_size,
        )


def forward_flops(config: VanillaTransformerConfig, rows: int, source_length: Any, target_length: Any) -> Any:
    """Return the floating-point operations of the matrix products of a forward pass over pairs without padding.

    Counted are the projections, the products of attention (the masked half of the decoder's too, as is usual) and the
    output over the vocabulary; a multiplication and an addition are two operations.

    Args:
        config: The model's.
        rows: Pairs.
        source_length: S, a number, or an array for as many lengths.
        target_length: T, likewise.
    """
    sizes, s, t = Sizes.of(config), source_length, target_length
    d, (k, dk), (v, dv), (f, df) = sizes.width, sizes.keys, sizes.values, sizes.ffn
    encoder = s * (2 * d * (k + v) + 2 * d * f) + s * s * (k + v)
    own = t * 2 * d * (dk + dv) + t * t * (dk + dv)
    # Queries and outputs are the target's, keys and values the source's.
    cross = (t + s) * d * (dk + dv) + s * t * (dk + dv)
    decoder = own + cross + t * 2 * d * df
    return 2 * rows * (sizes.layers[0] * encoder + sizes.layers[1] * decoder + t * d * sizes.vocabulary)


def training_flops(config: VanillaTransformerConfig, rows: int, source_length: Any, target_length: Any) -> Any:
    """Return the operations of forward and backward, by the arguments of `forward_flops`.

    The backward pass has two products for each of the forward's: for the weights, and for the inputs.
    """
    return 3 * forward_flops(config, rows, source_length, target_length)


def decoding_work(
    config: VanillaTransformerConfig, rows: int, beams: int, source_length: int, new_tokens: int, itemsize: int
) -> tuple[float, float]:
    """Return the least operations and the least bytes read in decoding with a memory of keys and values.

    Every step reads the decoder's weights once for all rows, the keys and values of each source once for all its
    beams, and those of each hypothesis.

    Args:
        config: The model's.
        rows: Sentences.
        beams: Hypotheses of a sentence.
        source_length: S.
        new_tokens: Steps, each of one token.
        itemsize: Bytes of a number.
    """
    sizes, s, n = Sizes.of(config), source_length, new_tokens
    d, (k, dk), (v, dv), (f, df) = sizes.width, sizes.keys, sizes.values, sizes.ffn
    encoder_weights = sizes.layers[0] * (2 * d * (k + v) + 2 * d * f)
    # Of the source: the keys and values that every layer of the decoder attends to.
    source_weights = sizes.layers[1] * d * (dk + dv)
    # A step's: attention over the target, queries and outputs of the other, feed-forward, vocabulary.
    step_weights = sizes.layers[1] * (3 * d * (dk + dv) + 2 * d * df) + d * sizes.vocabulary
    seen = n * (n + 1) / 2
    attended = sizes.layers[1] * (dk + dv) * rows
    encoder = rows * s * (encoder_weights + source_weights) + rows * s * s * sizes.layers[0] * (k + v)
    flops = 2 * (encoder + rows * beams * n * step_weights + attended * beams * (n * s + seen))
    numbers = encoder_weights + source_weights + n * step_weights + attended * (n * s + beams * seen)
    return flops, float(numbers * itemsize)


def fitted_exponent(x: Sequence[float], y: Sequence[float]) -> float:
    """Return the exponent b of the power a x^b that fits best, by least squares of the logarithms."""
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


__all__ = [
    "DTYPES",
    "Limits",
    "decoding_work",
    "facts",
    "fitted_exponent",
    "forward_flops",
    "measure_limits",
    "precision",
    "resident_bytes",
    "synchronize",
    "training_flops",
]
