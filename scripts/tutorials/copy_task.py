"""The copy task: sequences of random symbols, copied by greedy decoding."""

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import datasets
import numpy as np
import torch
from torch import Tensor
from transformers import default_data_collator, set_seed

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from hf_vanilla_transformer.presets import preset_config
from hf_vanilla_transformer.training.arguments import bf16_is_fast

from .common import UNTIED, TutorialArguments, TutorialResult, greedy, seed_range, train

COPY_SYMBOLS, COPY_LENGTH, COPY_START = 11, 10, 1
COPY_TEST_SEQUENCES = 1000
COPY_SAVE_STEPS = 200
# Symbol 0 is padding and never drawn, symbol 1 starts every sequence, and there is no end token.
COPY_CONFIG: dict[str, Any] = {
    **UNTIED,
    "vocab_size": COPY_SYMBOLS,
    "pad_token_id": 0,
    "bos_token_id": COPY_START,
    "decoder_start_token_id": COPY_START,
    "eos_token_id": None,
    "norm_position": "pre",
    "max_position_embeddings": 32,
}
COPY_TRAINING: dict[str, Any] = {
    "lr_scheduler_type": "cosine",
    "label_smoothing_factor": 0.0,
    "max_tokens": 0,
    "per_device_train_batch_size": 64,
    "num_train_epochs": 1,
}


class CopyTask(NamedTuple):
    """A model preset and its training; every step uses fresh sequences."""

    preset: str
    steps: int
    learning_rate: float
    warmup_steps: int


COPY_TASK = CopyTask("base", steps=600, learning_rate=3e-4, warmup_steps=100)
LIGHT_COPY_TASK = CopyTask("tiny", steps=1500, learning_rate=1e-3, warmup_steps=150)


def reproduce_copy(args: TutorialArguments, data_args: DataArguments) -> TutorialResult:
    task = LIGHT_COPY_TASK if args.light else COPY_TASK
    if args.max_steps > 0:
        task = task._replace(steps=args.max_steps, warmup_steps=min(task.warmup_steps, args.max_steps - 1))
    untrained = [greedy_copy(build_copier(task, seed), torch.arange(COPY_LENGTH)[None] + 1)[0] for seed in range(10)]
    start = time.perf_counter()
    exact = [learn_to_copy(task, seed, args) for seed in seed_range(args, 1)]
    seconds = (time.perf_counter() - start) / len(exact)
    shape = preset_config(task.preset, **COPY_CONFIG)
    return TutorialResult(
        "copy",
        f"{COPY_SYMBOLS} symbols, length {COPY_LENGTH}, N={shape.encoder_layers}, d_model={shape.d_model}, "
        f"h={shape.encoder_attention_heads}, d_ff={shape.encoder_ffn_dim}: never trained, its loss being wrong",
        f"{np.mean(exact):.1%} of {COPY_TEST_SEQUENCES:,} fresh sequences exact by greedy decoding"
        f" (seeds: {len(exact)}, worst {min(exact):.1%}), {task.steps} steps, {seconds / 60:.1f} minutes per seed; "
        f"{len(untrained)} untrained models decode {len(untrained[0])} symbols each",
        {
            "exact": exact,
            "seeds": len(exact),
            "steps": task.steps,
            "seconds_per_seed": seconds,
            "untrained": [symbols.tolist() for symbols in untrained],
        },
        min(exact) >= 0.99 and all(len(symbols) == COPY_LENGTH for symbols in untrained),
    )


def build_copier(task: CopyTask, seed: int) -> VanillaTransformerForConditionalGeneration:
    set_seed(seed)
    return VanillaTransformerForConditionalGeneration(preset_config(task.preset, **COPY_CONFIG)).eval()


def draw_sequences(number: int, generator: torch.Generator) -> Tensor:
    """Draw sequences (number, COPY_LENGTH) of symbols above 0 that start with COPY_START."""
    sequences = torch.randint(1, COPY_SYMBOLS, (number, COPY_LENGTH), generator=generator)
    sequences[:, 0] = COPY_START
    return sequences


def greedy_copy(model: VanillaTransformerForConditionalGeneration, sequences: Tensor) -> Tensor:
    """Decode `COPY_LENGTH` symbols for sequences (B, COPY_LENGTH), starting with the given first symbol."""
    return greedy(model, sequences.to(model.device), COPY_LENGTH - 1)[0].cpu()


def learn_to_copy(task: CopyTask, seed: int, args: TutorialArguments) -> float:
    """Train with a seed and return the fraction of fresh sequences copied without a mistake."""
    generator = torch.Generator().manual_seed(seed)
    test = draw_sequences(COPY_TEST_SEQUENCES, generator)
    train_sequences = draw_sequences(task.steps * COPY_TRAINING["per_device_train_batch_size"], generator)
    # Collisions are unlikely among a billion sequences, but test sequences must be unseen.
    test_rows = set(map(tuple, test.tolist()))
    rows = [row for row in train_sequences.tolist() if tuple(row) not in test_rows]
    ids = datasets.Dataset.from_dict({"input_ids": rows, "labels": [row[1:] for row in rows]})
    model = build_copier(task, seed)
    folder = Path(args.output_dir, "copy", f"{task.preset}-{task.steps}-{seed}")
    train(
        model,
        ids,
        default_data_collator,
        folder,
        seed=seed,
        save_strategy="steps",
        save_steps=COPY_SAVE_STEPS,
        save_total_limit=1,
        learning_rate=task.learning_rate,
        warmup_steps=task.warmup_steps,
        bf16=bf16_is_fast(),
        **COPY_TRAINING,
    )
    copies = torch.cat([greedy_copy(model, batch) for batch in test.split(250)])
    # The checkpoints are no longer needed.
    shutil.rmtree(folder, ignore_errors=True)
    return float((copies == test).all(-1).float().mean())
