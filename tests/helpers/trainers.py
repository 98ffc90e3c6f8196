"""Trainers, models that train within a second, and pairs for them."""

import random
from contextlib import contextmanager, nullcontext

import datasets
import torch
from transformers import DataCollatorForSeq2Seq, MarianConfig, MarianMTModel, TrainerCallback, TrainerState

from devices import TEST_DEVICE
from hf_vanilla_transformer import (
    VanillaTransformerConfig,
    VanillaTransformerForConditionalGeneration,
    train_tokenizer,
)
from hf_vanilla_transformer.data.encoding import tokenize_pairs
from hf_vanilla_transformer.training import VanillaTransformerTrainer, VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.checkpoints import MANIFEST

WORDS = [f"w{i}" for i in range(16)]
TOKENIZER = train_tokenizer([" ".join(WORDS)], algorithm="whitespace")
SIZES = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}
SHAPE = {f"{side}_{name}": size for side in ("encoder", "decoder") for name, size in SIZES.items()}
SHAPE |= {"vocab_size": len(TOKENIZER), "d_model": 16}

# Options of a run that saves checkpoints.
SAVING = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "logging_steps": 1}
EVALUATING = {**SAVING, "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss"}


def text_pairs(rows=60, seed=0):
    """Pairs of various lengths whose target is the reversed source."""
    generator = random.Random(seed)
    sources = [generator.choices(WORDS, k=generator.randint(1, 9)) for _ in range(rows)]
    sides = {"source": sources, "target": [source[::-1] for source in sources]}
    return datasets.Dataset.from_dict({name: list(map(" ".join, side)) for name, side in sides.items()})


def id_pairs(rows=60, seed=0):
    return tokenize_pairs(text_pairs(rows, seed), TOKENIZER)[0]


def token_stream():
    return tokenize_pairs(text_pairs().to_iterable_dataset(), TOKENIZER)[0]


def trainable_model(seed=0, **options):
    torch.manual_seed(seed)
    return VanillaTransformerForConditionalGeneration(VanillaTransformerConfig(**{**SHAPE, **options}))


def trainable_marian(seed=0, **options):
    torch.manual_seed(seed)
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    ids |= {"forced_eos_token_id": 2, "max_position_embeddings": 64, "dropout": 0.0}
    return MarianMTModel(MarianConfig(**{**SHAPE, **ids, **options}))


def train_args(folder, kind=VanillaTransformerTrainingArguments, **options):
    defaults = {"max_tokens": 128, "warmup_steps": 4} if kind is VanillaTransformerTrainingArguments else {}
    defaults |= {"eval_strategy": "no", "save_strategy": "no", "logging_steps": 1, "num_train_epochs": 2}
    defaults["use_cpu"] = TEST_DEVICE.startswith("cpu")
    return kind(str(folder), disable_tqdm=True, **{**defaults, **options})


def trainer_of(folder, model=None, train=None, kind=VanillaTransformerTrainer, args=None, **options):
    model = model or trainable_model()
    keywords = {key: options.pop(key) for key in ("eval_dataset", "compute_metrics") if key in options}
    return kind(
        model=model,
        args=args or train_args(folder, **options),
        train_dataset=id_pairs() if train is None else train,
        data_collator=DataCollatorForSeq2Seq(TOKENIZER, model=model),
        processing_class=TOKENIZER,
        **keywords,
    )


@contextmanager
def edited_state(checkpoint):
    """Yield a checkpoint's state for editing; without a manifest, it then looks as if from an earlier release."""
    file = str(checkpoint / "trainer_state.json")
    state = TrainerState.load_from_json(file)
    yield state
    state.save_to_json(file)
    (checkpoint / MANIFEST).unlink()


def losses(trainer, after=0):
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry and entry["step"] > after]


def assert_same_weights(one, other, tolerance=0.0):
    state = other.state_dict()
    for name, weight in one.state_dict().items():
        torch.testing.assert_close(
            weight.cpu(), state[name].cpu(), rtol=0, atol=tolerance, msg=lambda text, name=name: name + text
        )


def save_inside(trainer, step, context):
    """Enter a context while the checkpoint of `step` is saved."""
    save = trainer._save_checkpoint

    def save_checkpoint(*arguments):
        with context if trainer.state.global_step == step else nullcontext():
            save(*arguments)

    trainer._save_checkpoint = save_checkpoint


class Killed(BaseException):
    """Simulates a kill, since no `except Exception` catches it."""


def kill(*args, **kwargs):
    raise Killed


class At(TrainerCallback):
    """Calls a function at the end of a step, before saving."""

    def __init__(self, step, action):
        self.step, self.action = step, action

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            self.action(**kwargs)
