"""What the benchmark compares: training, data, decoding, memory, starting, and how costs grow with sizes.

Each suite is a function that builds contestants, makes sure that they agree, and yields cases to be measured; what a
case holds is freed before the next one is built.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import cycle, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.batching import TokenBudgetStream
from hf_vanilla_transformer.inference.ctranslate2 import ctranslate2_missing

from .baselines import (
    bart_like,
    check_agreement,
    check_tokens,
    ctranslate2_like,
    loss_and_gradients,
    marian_like,
    our_model,
    random_batch,
    training_options,
)
from .benchmark import OURS, BenchmarkArguments, Case, Sample, Suite, skip
from .memory_and_startup import memory_suite, startup_suite
from .roofline import DTYPES, decoding_work, precision, resident_bytes, training_flops
from .text_benchmarks import data_suite, text_training_cases

# Contestants of the same weights, by their names; those of 8 bits give other tokens here and there.
CTRANSLATE2 = {f"ctranslate2 {kind}": kind for kind in ("float32", "int8")}


# Training


def train_suite(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Compare training steps on identical batches, and training on real text by each one's own batches."""
    if args.tokens:
        for dtype, preset, vocab_size in product(args.dtype, args.preset, args.vocab_size):
            yield step_case(preset, vocab_size, dtype, args)
    if args.steps:
        yield from text_training_cases(args, data_args)


def step_case(preset: str, vocab_size: int, dtype: str, args: BenchmarkArguments) -> Case:
    """Compare one training step on one batch without padding: forward, loss, backward, Adam."""
    torch.manual_seed(args.seed)
    rows = max(1, args.tokens // args.length)
    ours = our_model(preset, vocab_size=vocab_size).to(args.device)
    batch = random_batch(ours.config, rows, args.length, args.length, args.device)
    models: dict[str, PreTrainedModel] = {OURS: ours}
    if "marian" in args.peers:
        models["marian"] = marian_like(ours).to(args.device)
        with precision(args.device, dtype):
            found = {
                name: loss_and_gradients(model, batch, **training_options(name)) for name, model in models.items()
            }
        check_agreement(found[OURS], found["marian"], "marian", dtype)
    if "bart" in args.peers:
        models["bart"] = bart_like(ours).to(args.device)
    contestants = {
        name: training_step(model, batch, dtype, **training_options(name)) for name, model in models.items()
    }
    return Case(
        "train",
        f"step, {preset}, vocabulary {vocab_size:,}, {rows} x {args.length}, {dtype}",
        contestants,
        2 * rows * args.length,
        "tokens",
        dtype,
        flops=training_flops(ours.config, rows, args.length, args.length),
        notes="bart has weights of its own" if "bart" in models else "",
    )


def training_step(
    model: PreTrainedModel, batch: Mapping[str, Tensor], dtype: str, **options: Any
) -> Callable[[], Any]:
    """Return a function that takes one step of Adam on a batch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, betas=(0.9, 0.98), eps=1e-9, fused=True)
    model.train()

    def step() -> None:
        with precision(model.device.type, dtype):
            loss = model(**batch, **options).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


# Decoding


def generate_suite(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Compare `generate()`, greedy and with beams, for as many new tokens as the source has."""
    for dtype, preset, num_beams, rows in product(args.dtype, args.preset, args.num_beams, args.batch_size):
        with tempfile.TemporaryDirectory() as folder:
            yield decoding_case(preset, rows, num_beams, dtype, args, Path(folder))


def decoding_case(
    preset: str, rows: int, num_beams: int, dtype: str, args: BenchmarkArguments, folder: Path, **fields: Any
) -> Case:
    """Compare decoding of one batch; the weights are of the data type itself, CTranslate2's of its own."""
    torch.manual_seed(args.seed)
    ours = our_model(preset, **{"vocab_size": args.vocab_size[-1], **fields}).eval()
    ids = random_batch(ours.config, rows, args.length, args.length, args.device)["input_ids"]
    contestants: dict[str, Callable[[], Any]] = {}
    marian = marian_like(ours).eval()
    if "ctranslate2" in args.peers:
        if why := ctranslate2_missing():
            skip("ctranslate2", why)
        else:
            for name, kind in CTRANSLATE2.items():
                (folder / kind).mkdir()
                decoder = ctranslate2_like(ours, folder / kind, args.device, kind)
                contestants[name] = decoder(ids, num_beams, args.length)
    if "marian" in args.peers:
        contestants = {"marian": generation(marian.to(args.device, DTYPES[dtype]), ids, num_beams), **contestants}
    contestants = {OURS: generation(ours.to(args.device, DTYPES[dtype]), ids, num_beams), **contestants}
    tokens = {name: decode() for name, decode in contestants.items()}
    kinds = {name: CTRANSLATE2.get(name, dtype) for name in tokens}
    shares = {
        name: check_tokens(tokens[OURS], tokens[name], name, dtype if kinds[name] == "float32" else kinds[name])
        for name in tokens
        if name != OURS
    }
    sizes = {
        name: (folder / kind / "model.bin").stat().st_size for name, kind in CTRANSLATE2.items() if name in tokens
    }
    flops, read = decoding_work(ours.config, rows, num_beams, args.length, args.length, DTYPES[dtype].itemsize)
    how = "greedy" if num_beams == 1 else f"beam {num_beams}"
    return Case(
        "generate",
        f"{how}, {preset}, {rows} x {args.length}, {dtype}",
        contestants,
        rows * args.length,
        "tokens",
        dtype,
        flops=flops,
        bytes=read,
        other_limit=frozenset(name for name, kind in kinds.items() if kind != dtype),
        notes=", ".join(
            [f"{share:.1%} of {name}'s tokens" for name, share in shares.items()]
            + [f"{name} takes {size / 1e6:.1f} MB" for name, size in sizes.items()]
        ),
    )


def generation(model: Any, ids: Tensor, num_beams: int) -> Callable[[], Tensor]:
    """Return a function that decodes as many tokens as the sources (B, S) have."""
    options = {"max_new_tokens": ids.shape[1], "num_beams": num_beams, "do_sample": False}
    # All outputs are to be as long; `min_new_tokens` would copy the scores of the whole vocabulary at every step.
    model.generation_config.eos_token_id = None
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    # On the CPU, as CTranslate2's are.
    return lambda: model.generate(**inputs, **options).cpu()


# Growth


def scaling_suite(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Measure how costs grow with lengths, batches, beams, vocabularies and layers, and memory with a stream."""
    for dtype, preset in product(args.dtype, args.preset):
        for scale in args.scales:
            yield pass_case(preset, dtype, args, "source length", 32 * scale, source_length=32 * scale)
        for scale in args.scales:
            yield pass_case(preset, dtype, args, "vocabulary", 1000 * scale, vocab_size=1000 * scale)
        for scale in args.scales[:4]:
            yield pass_case(preset, dtype, args, "layers", scale, encoder_layers=scale, decoder_layers=scale)
        for scale in args.scales:
            yield growing_decoding(preset, dtype, args, "batch", scale, rows=scale, num_beams=1)
        for scale in args.scales[:4]:
            yield growing_decoding(preset, dtype, args, "beams", scale, rows=8, num_beams=scale)
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
    """Measure forward and backward of a few pairs; the optimizer's cost grows with the weights alone."""
    torch.manual_seed(args.seed)
    fields = {"vocab_size": 1000, "max_position_embeddings": max(1024, source_length), **fields}
    ours = our_model(preset, **fields).to(args.device).train()
    batch = random_batch(ours.config, rows, source_length, 32, args.device)
    models: dict[str, PreTrainedModel] = {OURS: ours}
    if "marian" in args.peers:
        models["marian"] = marian_like(ours).to(args.device).train()

    def run(model: Any, options: Mapping[str, Any]) -> Callable[[], None]:
        def work() -> None:
            with precision(args.device, dtype):
                loss = model(**batch, **options).loss
            loss.backward()
            model.zero_grad()

        return work

    contestants = {name: run(model, training_options(name)) for name, model in models.items()}
    return Case(
        "scaling",
        f"forward and backward, {axis} {size:,}, {preset}, {dtype}",
        contestants,
        rows * (source_length + 32),
        "tokens",
        dtype,
        flops=training_flops(ours.config, rows, source_length, 32),
        axis=(axis, size),
        notes=f"forward and backward, {preset}, {dtype}",
    )


def growing_decoding(
    preset: str, dtype: str, args: BenchmarkArguments, axis: str, size: int, rows: int, num_beams: int
) -> Case:
    """Measure `generate()` beside Marian's."""
    own = replace(args, peers=[peer for peer in args.peers if peer == "marian"])
    case = decoding_case(preset, rows, num_beams, dtype, own, Path(), vocab_size=args.vocab_size[0])
    name = f"generate, {axis} {size:,}, {preset}, {dtype}"
    return replace(case, suite="scaling", name=name, axis=(axis, size), notes=f"generate, {preset}, {dtype}")


# Parts of the stream after which the memory is read.
STREAM_CHECKS = (1 / 64, 1 / 32, 1 / 16, 1 / 8, 1 / 4, 1 / 2, 1)


def stream_cases(args: BenchmarkArguments) -> Iterator[Case]:
    """Let made-up pairs stream past in batches, and read the memory of the process on the way."""
    batches = iter(TokenBudgetStream(made_up_pairs(args.stream_pairs, args.seed), args.max_tokens, seed=args.seed))
    seen = 0
    for part in STREAM_CHECKS:
        while seen < int(args.stream_pairs * part):
            seen += len(next(batches))
        yield Case(
            "scaling",
            f"memory after {seen:,} pairs of a stream",
            {OURS: lambda: Sample(resident_bytes())},
            quantity="bytes",
            axis=("pairs streamed", seen),
            notes="resident memory of the process",
            rounds=1,
            warm_up=False,
        )


def made_up_pairs(number: int, seed: int) -> Iterable[dict[str, list[int]]]:
    """Yield so many pairs of ids, of lengths as real sentences have."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.lognormal(2.6, 0.5, (4999, 2)), 2, 200).astype(int).tolist()
    some = [{"input_ids": [5] * source, "labels": [5] * target} for source, target in lengths]
    for _, pair in zip(range(number), cycle(some), strict=False):
        # A pair of its own each time, as a reader of files would give.
        yield {side: list(ids) for side, ids in pair.items()}


SUITES: dict[str, Suite] = {
    "train": train_suite,
    "data": data_suite,
    "generate": generate_suite,
    "memory": memory_suite,
    "scaling": scaling_suite,
    "startup": startup_suite,
}


__all__ = ["SUITES"]
