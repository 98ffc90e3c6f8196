"""Profiles of training steps and decoding: the slowest operations on the host and the GPU."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity

from hf_vanilla_transformer.data.arguments import DataArguments

from .arguments import BenchmarkArguments
from .baselines import our_model, random_batch, training_options
from .generate import generation
from .machine import DTYPES, synchronize
from .measure import OURS, Case
from .train import training_steps

CALLS = 10
# Rows of a table, and characters of a name.
ROWS, WIDTH = 30, 90


def profile_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Print a profile of ten training steps and of ten decoding calls, and time these calls without the profiler.

    Decoding uses the last values of `args.batch_size` and `args.num_beams`.
    """
    for dtype, preset in product(args.dtype, args.preset):
        for build in (training, decoding):
            name, unit, call = build(preset, dtype, args)
            averages = profile(call, args.device)
            time = "self_cpu_time_total" if args.device == "cpu" else "self_device_time_total"
            table = averages.table(sort_by=time, row_limit=ROWS, max_name_column_width=WIDTH)
            print(f"{CALLS} calls: {name}, {dtype}", table, sep="\n", flush=True)
            calls = {OURS: partial(repeat, call)}
            yield Case("profile", f"{name}, {dtype}", calls, CALLS, unit, dtype, notes=summary(averages))


def training(preset: str, dtype: str, args: BenchmarkArguments) -> tuple[str, str, Callable[[], Any]]:
    """Return the name and unit of training steps on a random batch, and a function that takes one step."""
    torch.manual_seed(args.seed)
    model = our_model(preset, vocab_size=args.vocab_size[-1]).to(args.device)
    rows = max(1, args.tokens // args.length)
    batch = random_batch(model.config, rows, args.length, args.length, args.device)
    step = training_steps(model, batch, dtype, 1, **training_options(OURS))
    return f"step, {preset}, vocabulary {args.vocab_size[-1]:,}, {rows} x {args.length}", "steps", step


def decoding(preset: str, dtype: str, args: BenchmarkArguments) -> tuple[str, str, Callable[[], Any]]:
    """Return the name and unit of decoding random sources, and a function that decodes them once."""
    torch.manual_seed(args.seed)
    model = our_model(preset, vocab_size=args.vocab_size[-1]).eval().to(args.device, DTYPES[dtype])
    rows, beams = args.batch_size[-1], args.num_beams[-1]
    ids = random_batch(model.config, rows, args.length, args.length, args.device)["input_ids"]
    return f"beams {beams}, {preset}, {rows} x {args.length}", "batches", generation(model, ids, beams)


def repeat(call: Callable[[], Any]) -> None:
    for _ in range(CALLS):
        call()


def profile(call: Callable[[], Any], device: str) -> Any:
    """Return the averages by operation over `CALLS` calls, after a warm-up call."""
    call()
    synchronize(device)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device == "cuda" else [])]
    with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
        repeat(call)
        synchronize(device)
    return profiler.key_averages()


def summary(averages: Any) -> str:
    """Describe how busy the GPU is during a call; "" on a CPU."""
    # Annotations enclose operations that are counted themselves.
    kernels = [event for event in averages if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    busy = sum(kernel.self_device_time_total for kernel in kernels) / CALLS / 1000
    launches = sum(kernel.count for kernel in kernels) / CALLS
    return f"GPU busy for {busy:.1f} ms per call, with {launches:,.0f} kernels and copies" if kernels else ""
