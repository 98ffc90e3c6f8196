"""The part of the benchmark that needs fresh processes: peak memory of a training step, and starting."""

import gc
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.data.toy_corpus.corpus import load_toy_corpus

from .baselines import (
    bart_like,
    check_agreement,
    loss_and_gradients,
    marian_like,
    our_model,
    random_batch,
    training_options,
)
from .benchmark import OURS, BenchmarkArguments, Case, Disagreement, Sample
from .roofline import precision, resident_bytes, synchronize

# Freed memory goes back to the system at once, so that what is resident is what is in use: otherwise glibc keeps
# pieces of up to 32 MiB, and a step's peak would hide in what building the model has left.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}


def run_python(program: str, *words: str, **environment: str) -> str:
    """Run a program in a fresh Python of this package, and return the last line of its output.

    Raises:
        OSError: It failed; holds the last line of its errors.
    """
    path = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = done.stdout.strip().splitlines()
    if done.returncode or not printed:
        errors = done.stderr.strip().splitlines() or [f"it ended with {done.returncode} and no word"]
        raise OSError(f"a process of the benchmark failed: {errors[-1]}")
    return printed[-1]


# Memory


def memory_suite(args: BenchmarkArguments, data_args: Any) -> Iterator[Case]:
    """Compare the peak memory of a training step above the resting model: weights, gradients, Adam's state."""
    for dtype, preset in product(args.dtype, args.preset):
        check_step(preset, dtype, args)
        names = [OURS, *(peer for peer in ("marian", "bart") if peer in args.peers)]
        rows = max(1, args.memory_tokens // args.length)
        size = f"vocabulary {args.vocab_size[-1]:,}, {rows} x {args.length}"
        yield Case(
            "memory",
            f"step, {preset}, {size}, {dtype}",
            {name: MemoryTurns(name, preset, rows, dtype, args) for name in names},
            dtype=dtype,
            quantity="bytes",
            notes="peak above the resting model",
            # The same memory every time.
            rounds=min(args.rounds, 3),
            warm_up=False,
        )


def check_step(preset: str, dtype: str, args: BenchmarkArguments) -> None:
    """Make sure that the steps whose memory is measured compute the same; a few pairs show it."""
    if "marian" not in args.peers:
        return
    torch.manual_seed(args.seed)
    model, batch, options = step_parts(OURS, preset, args.vocab_size[-1], 4, args.length, args.device)
    marian = marian_like(model).to(args.device)
    with precision(args.device, dtype):
        found = loss_and_gradients(model, batch, **options)
        check_agreement(found, loss_and_gradients(marian, batch), "marian", dtype)


class MemoryTurns:
    """Measures the memory of one contestant, in a process of its own at every call."""

    def __init__(self, name: str, preset: str, rows: int, dtype: str, args: BenchmarkArguments):
        """Take what the process is to be told."""
        self.settings = {
            "name": name,
            "preset": preset,
            "vocab_size": args.vocab_size[-1],
            "rows": rows,
            "length": args.length,
            "device": args.device,
            "dtype": dtype,
            "threads": torch.get_num_threads(),
        }

    def __call__(self) -> Sample:
        """Return the bytes."""
        program = (
            f"import sys, json; from {__name__} import peak_of_step; print(peak_of_step(**json.loads(sys.argv[1])))"
        )
        return Sample(float(run_python(program, json.dumps(self.settings), **MALLOC)))


def step_parts(
    name: str, preset: str, vocab_size: int, rows: int, length: int, device: str
) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    """Return a contestant's model, a batch of rows without padding, and the options of its training."""
    model: Any = our_model(preset, vocab_size=vocab_size)
    batch = random_batch(model.config, rows, length, length, device)
    if name != OURS:
        model = {"marian": marian_like, "bart": bart_like}[name](model)
    return model.to(device), batch, training_options(name)


def peak_of_step(
    name: str, preset: str, vocab_size: int, rows: int, length: int, device: str, dtype: str, threads: int
) -> int:
    """Return the most bytes that a training step takes above what rests between steps; for a process of its own.

    On a CPU this is the system's high-water mark of resident memory, reset after a small step: unlike the profiler of
    torch, it sees the scratch memory of the libraries that multiply matrices too. On a GPU torch allocates all.
    """
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, batch, options = step_parts(name, preset, vocab_size, rows, length, device)
    model.train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, fused=True)

    def step(part: dict[str, Tensor]) -> None:
        with precision(device, dtype):
            loss = model(**part, **options).loss
        loss.backward()
        optimizer.step()
        # The gradients stay where they are, part of what rests.
        optimizer.zero_grad(set_to_none=False)

    step({side: ids[:1, :2] for side, ids in batch.items()})
    gc.collect()
    synchronize(device)
    if device == "cuda":
        resting = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step(batch)
        return torch.cuda.max_memory_allocated() - resting
    resting = resident_bytes()
    reset_peak()
    step(batch)
    return peak_bytes() - resting


def reset_peak() -> None:
    """Set the high-water mark of this process's resident memory to what is resident now.

    Raises:
        OSError: The system has no such mark.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        raise OSError(
            f"memory on a CPU is measured by Linux's /proc only ({error.strerror}); use --device cuda"
        ) from error


def peak_bytes() -> int:
    """Return the high-water mark."""
    status = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (line,) = (line for line in status if line.startswith("VmHWM"))
    return 1024 * int(line.split()[1])


# Starting

IMPORTS = {
    OURS: "from hf_vanilla_transformer import VanillaTransformerForConditionalGeneration",
    "marian": "from transformers import MarianMTModel",
}
LOADERS = {
    OURS: "import hf_vanilla_transformer; from transformers import AutoModelForSeq2SeqLM as Model",
    "marian": "from transformers import MarianMTModel as Model",
}
TRANSLATE = """
import sys
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = Model.from_pretrained(sys.argv[1])
source = tokenizer(["This is the first sentence."], return_tensors="pt", return_token_type_ids=False)
print(model.generate(**source, max_new_tokens=16, num_beams=1, do_sample=False)[0].tolist())
"""


def startup_suite(args: BenchmarkArguments, data_args: Any) -> Iterator[Case]:
    """Compare importing, and the way to the first translation of a model on disk; each in a fresh process."""
    names = [OURS, *(["marian"] if "marian" in args.peers else [])]
    yield Case("startup", "import", {name: Start(f"{IMPORTS[name]}; print('done')") for name in names})
    for preset in args.preset:
        with tempfile.TemporaryDirectory() as folder:
            save_models(preset, Path(folder), args)
            programs = {name: Start(LOADERS[name] + TRANSLATE, str(Path(folder, name))) for name in names}
            said = {name: program() for name, program in programs.items()}
            if len(set(said.values())) > 1:
                raise Disagreement(f"the first translations differ: {said}, so their times cannot be compared")
            yield Case("startup", f"first translation, {preset}, float32", programs)


class Start:
    """A program, run in a fresh process at every call."""

    def __init__(self, program: str, *words: str):
        """Take a Python program and its arguments."""
        self.program, self.words = program, words

    def __call__(self) -> str:
        """Return the last line of its output."""
        return run_python(self.program, *self.words, HF_HUB_OFFLINE="1")


def save_models(preset: str, folder: Path, args: BenchmarkArguments) -> None:
    """Save our model and Marian's with the same weights and tokenizer, in folders of their names."""
    torch.manual_seed(args.seed)
    corpus = load_toy_corpus()["train"]
    tokenizer = train_tokenizer(corpus["source"][:], algorithm="bpe", vocab_size=args.text_vocab_size)
    ours: Any = our_model(preset, vocab_size=args.vocab_size[0])
    for name, model in ((OURS, ours), ("marian", marian_like(ours))):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


__all__ = ["memory_suite", "startup_suite"]
