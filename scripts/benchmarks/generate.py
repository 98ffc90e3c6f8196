"""Decoding with `generate()`, greedy and with beams, against Marian and CTranslate2."""

import ctypes
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import CompileConfig

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.inference.ctranslate2 import ctranslate2_missing

from .agreement import check_tokens
from .arguments import BenchmarkArguments
from .baselines import ctranslate2_like, marian_like, our_model, random_batch
from .machine import DTYPES
from .measure import OURS, Case
from .roofline import decoding_flops_and_bytes

# Data types of CTranslate2's weights by device; int8 decodes a few different tokens.
CTRANSLATE2 = {"cpu": ("float32", "int8"), "cuda": ("float16",)}
# The library that CTranslate2 loads on a GPU, and its version of a newer CUDA.
CUBLAS, NEWER_CUBLAS = "libcublas.so.12", "libcublas.so.13"


def generate_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Compare decoding with as many new tokens as source tokens."""
    for dtype, preset in product(args.dtype, args.preset):
        with tempfile.TemporaryDirectory() as folder:
            for num_beams, rows in product(args.num_beams, args.batch_size):
                yield decoding_case(preset, rows, num_beams, dtype, args, Path(folder))


def decoding_case(
    preset: str, rows: int, num_beams: int, dtype: str, args: BenchmarkArguments, folder: Path, **fields: Any
) -> Case:
    """Compare decoding one batch; `dtype` is that of our and Marian's weights, CTranslate2 has its own.

    `folder` stores the exported models, and may already hold those of the same preset and fields.
    """
    torch.manual_seed(args.seed)
    ours = our_model(preset, **{"vocab_size": args.vocab_size[-1], **fields}).eval()
    ids = random_batch(ours.config, rows, args.length, args.length, args.device)["input_ids"]
    marian = marian_like(ours).eval()
    exported = _exported(ours, ids, num_beams, args, folder)
    ours.to(args.device, DTYPES[dtype])
    implementations = {name: generation(ours, ids, num_beams, **way) for name, way in own_ways(args).items()}
    if "marian" in args.baselines:
        implementations["marian"] = generation(marian.to(args.device, DTYPES[dtype]), ids, num_beams)
    implementations |= exported
    tokens = {name: decode() for name, decode in implementations.items()}
    dtypes = {name: name.removeprefix("ctranslate2 ") if name in exported else dtype for name in tokens}
    notes = []
    for name, decoded in tokens.items():
        if name != OURS:
            compared_in = dtype if dtypes[name] == "float32" else dtypes[name]
            notes.append(f"{check_tokens(tokens[OURS], decoded, name, compared_in):.1%} of {name}'s tokens are equal")
    for name in exported:
        size = (folder / dtypes[name] / "model.bin").stat().st_size
        notes.append(f"{name} takes {size / 1e6:.1f} MB")
    flops, read = decoding_flops_and_bytes(
        ours.config, rows, num_beams, args.length, args.length, DTYPES[dtype].itemsize
    )
    search = "greedy" if num_beams == 1 else f"beam {num_beams}"
    return Case(
        "generate",
        f"{search}, {preset}, {rows} x {args.length}, {dtype}",
        implementations,
        rows * args.length,
        "tokens",
        dtype,
        flops=flops,
        bytes=read,
        other_dtype=frozenset(name for name, other in dtypes.items() if other != dtype),
        notes=", ".join(notes),
    )


def own_ways(args: BenchmarkArguments) -> dict[str, dict[str, Any]]:
    """Return our ways to decode, as options of `generate()`, the default first."""
    ways: dict[str, dict[str, Any]] = {OURS: {}}
    if args.device == "cuda":
        ways[f"{OURS}, without graphs"] = {"cache_implementation": "dynamic"}
    if args.torch_compile:
        # transformers compiles only on a GPU, and our model there only with a `compile_config`.
        how = {"compile_config": CompileConfig()} if args.device == "cuda" else {}
        ways[f"{OURS}, static cache"] = {"cache_implementation": "static", **how}
    return ways


def _exported(
    model: Any, ids: Tensor, num_beams: int, args: BenchmarkArguments, folder: Path
) -> dict[str, Callable[[], Tensor]]:
    """Export the model to CTranslate2 in each data type, unless already done; return functions that decode `ids`."""
    if "ctranslate2" not in args.baselines:
        return {}
    if reason := ctranslate2_missing() or (cublas_missing() if args.device == "cuda" else None):
        print(f"ctranslate2: not measured, {reason}", file=sys.stderr, flush=True)
        return {}
    implementations = {}
    for dtype in CTRANSLATE2[args.device]:
        (folder / dtype).mkdir(exist_ok=True)
        decoder = ctranslate2_like(model, folder / dtype, args.device, dtype)
        implementations[f"ctranslate2 {dtype}"] = decoder(ids, num_beams, args.length)
    return implementations


def cublas_missing() -> str | None:
    """Return why CTranslate2 cannot run on a GPU, or None."""
    if _can_load(CUBLAS):
        return None
    advice = f"; {NEWER_CUBLAS} exists: link to it under the missing name, in a folder of LD_LIBRARY_PATH"
    return f"{CUBLAS} is not found{advice if _can_load(NEWER_CUBLAS) else ''}"


def _can_load(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def generation(model: Any, ids: Tensor, num_beams: int, **options: Any) -> Callable[[], Tensor]:
    """Return a function that decodes S new tokens for the sources `ids` (B, S)."""
    options = {"max_new_tokens": ids.shape[1], "num_beams": num_beams, "do_sample": False, **options}
    # Makes all outputs equally long, without the copy of all scores that `min_new_tokens` costs at every step.
    model.generation_config.eos_token_id = None
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    # Includes the copy of ids to the CPU, where CTranslate2 returns them.
    return lambda: model.generate(**inputs, **options).cpu()
