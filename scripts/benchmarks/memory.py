"""Peak memory of training steps, each measured in a fresh process."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor

from hf_vanilla_transformer.data.arguments import DataArguments

from .agreement import check_agreement, loss_and_gradients
from .arguments import BenchmarkArguments
from .baselines import bart_like, marian_like, our_model, random_batch, training_options
from .machine import autocast
from .measure import OURS, Case
from .peak import fresh_peak, peak_above_idle

CHECKPOINTED = f"{OURS}, gradient checkpointing"


def memory_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Compare the peak memory of a training step above the idle model: weights, gradients, Adam's state."""
    for dtype, preset in product(args.dtype, args.preset):
        check_step(preset, dtype, args)
        names = [OURS, CHECKPOINTED, *(name for name in ("marian", "bart") if name in args.baselines)]
        rows = max(1, args.memory_tokens // args.length)
        sizes = {"preset": preset, "vocab_size": args.vocab_size[-1], "rows": rows, "length": args.length}
        size = f"vocabulary {args.vocab_size[-1]:,}, {rows} x {args.length}"
        yield Case(
            "memory",
            f"step, {preset}, {size}, {dtype}",
            {name: fresh_peak(peak_of_step, name=name, **sizes, device=args.device, dtype=dtype) for name in names},
            dtype=dtype,
            quantity="bytes",
            notes="peak above the idle model",
            # Memory hardly varies.
            rounds=min(args.rounds, 3),
            warm_up=False,
        )


def check_step(preset: str, dtype: str, args: BenchmarkArguments) -> None:
    """Check on a few pairs that the measured steps compute the same results."""
    if "marian" not in args.baselines:
        return
    torch.manual_seed(args.seed)
    model, batch, options = build_step(OURS, preset, args.vocab_size[-1], 4, args.length, args.device)
    marian = marian_like(model).to(args.device)
    with autocast(args.device, dtype):
        result = loss_and_gradients(model, batch, **options)
        check_agreement(result, loss_and_gradients(marian, batch), "marian", dtype)


def build_step(
    name: str, preset: str, vocab_size: int, rows: int, length: int, device: str
) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    """Build an implementation's model, a batch without padding, and the forward options of training."""
    model: Any = our_model(preset, vocab_size=vocab_size)
    batch = random_batch(model.config, rows, length, length, device)
    if name == CHECKPOINTED:
        # Before transformers 5.23 only the second name exists.
        enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
        enable()
    elif name != OURS:
        model = {"marian": marian_like, "bart": bart_like}[name](model)
    return model.to(device), batch, training_options(OURS if name == CHECKPOINTED else name)


def peak_of_step(
    name: str, preset: str, vocab_size: int, rows: int, length: int, device: str, dtype: str, threads: int
) -> int:
    """Return the peak bytes of a training step above those between steps; call it in a fresh process."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, batch, options = build_step(name, preset, vocab_size, rows, length, device)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)

    def step(inputs: dict[str, Tensor]) -> None:
        with autocast(device, dtype):
            loss = model(**inputs, **options).loss
        loss.backward()
        optimizer.step()
        # Gradients stay allocated between steps.
        optimizer.zero_grad(set_to_none=False)

    step({column: ids[:1, :2] for column, ids in batch.items()})
    return peak_above_idle(lambda: step(batch), device)
