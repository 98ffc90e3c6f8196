"""Growth of costs with length, batch size, beams, vocabulary and layers, and of memory over a stream."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.batching import TokenBudgetStream

from .arguments import BenchmarkArguments
from .baselines import marian_like, our_model, random_batch, training_options
from .generate import decoding_case
from .machine import autocast, resident_bytes
from .measure import OURS, Case, Sample
from .roofline import training_flops

# Memory is read after these fractions of the stream.
STREAM_FRACTIONS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)


def scaling_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    for dtype, preset in product(args.dtype, args.preset):
        for scale in args.scales:
            yield pass_case(preset, dtype, args, "source length", 32 * scale, source_length=32 * scale)
        for scale in args.scales:
            yield pass_case(preset, dtype, args, "vocabulary", 1000 * scale, vocab_size=1000 * scale)
        for scale in args.scales[:4]:
            yield pass_case(preset, dtype, args, "layers", scale, encoder_layers=scale, decoder_layers=scale)
        for scale in args.scales:
            yield generation_case(preset, dtype, args, "batch", scale, rows=scale, num_beams=1)
        for scale in args.scales[:4]:
            yield generation_case(preset, dtype, args, "beams", scale, rows=8, num_beams=scale)
    yield from stream_cases(args)


def pass_case(
    preset: str,
    dtype: str,
    args: BenchmarkArguments,
    axis: str,
    size: int,
    rows: int = 4,
    source_length: int = 32,
    **fields: Any,
) -> Case:
    """Measure forward and backward on a few pairs; the optimizer is left out, as it depends only on the weights."""
    torch.manual_seed(args.seed)
    fields = {"vocab_size": 1000, "max_position_embeddings": max(1024, source_length), **fields}
    ours = our_model(preset, **fields).to(args.device).train()
    batch = random_batch(ours.config, rows, source_length, 32, args.device)
    models: dict[str, PreTrainedModel] = {OURS: ours}
    if "marian" in args.baselines:
        models["marian"] = marian_like(ours).to(args.device).train()

    def forward_and_backward(name: str, model: Any) -> Callable[[], None]:
        def work() -> None:
            with autocast(args.device, dtype):
                loss = model(**batch, **training_options(name)).loss
            loss.backward()
            model.zero_grad()

        return work

    return Case(
        "scaling",
        f"forward and backward, {axis} {size:,}, {preset}, {dtype}",
        {name: forward_and_backward(name, model) for name, model in models.items()},
        rows * (source_length + 32),
        "tokens",
        dtype,
        flops=training_flops(ours.config, rows, source_length, 32),
        axis=(axis, size),
        notes=f"forward and backward, {preset}, {dtype}",
    )


def generation_case(
    preset: str, dtype: str, args: BenchmarkArguments, axis: str, size: int, rows: int, num_beams: int
) -> Case:
    marian_only = replace(args, baselines=[name for name in args.baselines if name == "marian"])
    case = decoding_case(preset, rows, num_beams, dtype, marian_only, Path(), vocab_size=args.vocab_size[0])
    name = f"generate, {axis} {size:,}, {preset}, {dtype}"
    return replace(case, benchmark="scaling", name=name, axis=(axis, size), notes=f"generate, {preset}, {dtype}")


def stream_cases(args: BenchmarkArguments) -> Iterator[Case]:
    """Batch a stream of random pairs, reading the memory of the process along the way."""
    batches = iter(TokenBudgetStream(random_pairs(args.stream_pairs, args.seed), args.max_tokens, seed=args.seed))
    pairs = 0
    for fraction in STREAM_FRACTIONS:
        while pairs < int(args.stream_pairs * fraction):
            pairs += len(next(batches))
        yield Case(
            "scaling",
            f"memory after {pairs:,} pairs of a stream",
            {OURS: lambda: Sample(resident_bytes())},
            quantity="bytes",
            axis=("pairs streamed", pairs),
            notes="resident memory of the process",
            rounds=1,
            warm_up=False,
        )


def random_pairs(number: int, seed: int) -> Iterable[dict[str, list[int]]]:
    """Yield `number` pairs of ids with typical sentence lengths."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(2.6, 0.5, (4999, 2)), 2, 200).astype(int).tolist()
    pairs = [{"input_ids": [5] * source, "labels": [5] * target} for source, target in lengths]
    for _, pair in zip(range(number), cycle(pairs), strict=False):
        # A new object every time, as when reading a file.
        yield {column: list(ids) for column, ids in pair.items()}
