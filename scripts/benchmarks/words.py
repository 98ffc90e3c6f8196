"""Words of about seven symbols: training by each implementation's own trainer and batches, and decoding."""

import json
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer

from .arguments import BenchmarkArguments
from .baselines import marian_like, our_model
from .generate import decoding_case
from .measure import OURS, Case, Sample
from .text import TokenizedText
from .train import TrainerSteps, check_on_text

WORDS, BATCH_WORDS = 12_000, 300
# Symbols of a word, without the end symbol.
LENGTHS = range(4, 11)
BEAMS = (1, 5)
# Four special symbols in each vocabulary.
SIZES: dict[str, Any] = {"vocab_size": 44, "decoder_vocab_size": 64, "share_encoder_decoder_embeddings": False}


def words_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    words = random_words(args.seed)
    mean = 1 + (LENGTHS[0] + LENGTHS[-1]) // 2
    args = replace(args, max_tokens=BATCH_WORDS * 2 * mean, length=mean, baselines=["marian"])
    for dtype, preset in product(args.dtype, args.preset):
        with tempfile.TemporaryDirectory() as folder:
            yield training_case(words, preset, dtype, args, Path(folder))
            for beams in BEAMS:
                case = decoding_case(preset, BATCH_WORDS, beams, dtype, args, Path(folder), **SIZES)
                yield replace(case, benchmark="words", units=BATCH_WORDS, unit="words")


def random_words(seed: int) -> TokenizedText:
    """Draw pairs of words as ids, with sources and targets of different symbols and similar lengths."""
    rng = np.random.default_rng(seed)
    tokenizer = train_tokenizer(["a"], algorithm="bpe", vocab_size=260)
    end = tokenizer.eos_token_id

    def draw(length: int, size: int) -> list[int]:
        return [*rng.integers(4, size, length).tolist(), end]

    lengths = rng.integers(LENGTHS[0], LENGTHS[-1] + 1, WORDS)
    others = (lengths + rng.integers(-1, 2, WORDS)).clip(LENGTHS[0], LENGTHS[-1])
    ids = {
        "input_ids": [draw(length, SIZES["vocab_size"]) for length in lengths],
        "labels": [draw(length, SIZES["decoder_vocab_size"]) for length in others],
    }
    pairs = datasets.Dataset.from_dict(ids)
    return TokenizedText("random words", pairs, tokenizer, pairs)


def training_case(words: TokenizedText, preset: str, dtype: str, args: BenchmarkArguments, folder: Path) -> Case:
    """Compare training steps, including reading and padding, with Marian's of equal weights and with yoyodyne's."""
    torch.manual_seed(args.seed)
    ours = our_model(preset, **SIZES).to(args.device)
    marian = marian_like(ours).to(args.device)
    check_on_text(ours, marian, words, args)
    implementations: dict[str, Callable[[], Any]] = {
        OURS: TrainerSteps(OURS, ours, words, dtype, args, folder, "words"),
        "marian, Seq2SeqTrainer": TrainerSteps("marian", marian, words, dtype, args, folder, "words"),
    }
    if args.yoyodyne_python:
        implementations["yoyodyne"] = yoyodyne_steps(args.yoyodyne_python, ours.config, words, dtype, args, folder)
    name = f"training, {preset}, {BATCH_WORDS} words, {dtype}"
    return Case("words", name, implementations, unit="words", dtype=dtype)


def yoyodyne_steps(
    python: str, config: Any, words: TokenizedText, dtype: str, args: BenchmarkArguments, folder: Path
) -> Callable[[], Sample]:
    """Return a function that takes yoyodyne's training steps in its own environment, without their set-up."""
    file = folder / "words.tsv"
    rows = zip(words.ids["input_ids"], words.ids["labels"], strict=True)
    file.write_text("".join(f"{' '.join(map(str, s[:-1]))}\t{' '.join(map(str, t[:-1]))}\n" for s, t in rows))
    worker = str(Path(__file__).with_name("yoyodyne_worker.py"))
    sizes = [config.d_model, config.encoder_ffn_dim, config.encoder_layers, config.encoder_attention_heads]
    options = [str(file), str(folder), dtype, *map(str, (BATCH_WORDS, args.steps, torch.get_num_threads(), *sizes))]

    def take_steps() -> Sample:
        # Isolated: modules of this folder have names of the standard library's.
        result = subprocess.run([python, "-I", worker, *options], capture_output=True, text=True)
        if result.returncode:
            raise ValueError(f"yoyodyne failed: {(result.stderr.splitlines() or [''])[-1]}")
        seconds, number = json.loads(result.stdout.splitlines()[-1])
        return Sample(seconds, number)

    return take_steps
