"""Small experiments: text files, options of a tiny model, and readers of run folders."""

import json
import random
from dataclasses import fields
from itertools import count, islice
from pathlib import Path

import torch
from transformers import AutoModelForSeq2SeqLM

from devices import TEST_DEVICE
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.training import ModelArguments, VanillaTransformerTrainingArguments, train_translation
from hf_vanilla_transformer.training import setup as experiment_setup
from parallel_text import tsv, write

TINY = "d_model=16,encoder_layers=1,decoder_layers=1,encoder_attention_heads=2,decoder_attention_heads=2"
TINY += ",encoder_ffn_dim=32,decoder_ffn_dim=32"
SHAPE = {"preset": "tiny", "config_overrides": TINY}
MODEL = {**SHAPE, "tokenizer_algorithm": "word", "min_frequency": 1}
SCHEDULE = {"max_tokens": 400, "warmup_steps": 10, "num_train_epochs": 2, "logging_steps": 5}


def sentences(rows=80, seed=0):
    """Pairs of sentences whose target is the upper-cased source; seeds share no sources."""
    generator, words = random.Random(seed), ["ant", "bee", "cat", "dog", "eel", "fox"]
    lines = (" ".join(generator.choices(words, k=generator.randint(2, 6))) for _ in count())
    own = (line for line in lines if sum(map(ord, line)) % 3 == seed)
    return [(line, line.upper()) for line in islice(own, rows)]


def write_splits(folder):
    """Write training, validation and test pairs, and return the arguments that name them."""
    folder.mkdir(exist_ok=True)
    parts = {"train": sentences(), "validation": sentences(12, 1), "test": sentences(9, 2)}
    return {f"{split}_file": write(folder / f"{split}.tsv", tsv(pairs)) for split, pairs in parts.items()}


def arguments(folder, model=MODEL, **options):
    """Return the three argument objects of a run with the tiny model."""
    machine = {"use_cpu": TEST_DEVICE.startswith("cpu"), "disable_tqdm": True, "output_dir": str(folder)}
    options = {**model, **SCHEDULE, **machine, **options}
    kinds = (ModelArguments, DataArguments, VanillaTransformerTrainingArguments)
    names = [{each.name for each in fields(kind)} for kind in kinds]
    assert options.keys() <= set.union(*names)
    own = [{name: options[name] for name in options.keys() & each} for each in names]
    return [kind(**values) for kind, values in zip(kinds, own, strict=True)]


def train(folder, model=MODEL, **options):
    """Run an experiment, and return its results as stored in its folder."""
    returned = train_translation(*arguments(folder, model, **options))
    results = json.loads(Path(folder, "all_results.json").read_text())
    assert returned == results
    return results


def set_up(folder, model=MODEL, **options):
    """Set up an experiment without training."""
    return experiment_setup.set_up(*arguments(folder, model, **options))


def weights(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict()


def assert_equal_weights(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def history(folder, key="loss"):
    log = json.loads(Path(folder, "trainer_state.json").read_text())["log_history"]
    return [(entry["step"], entry[key]) for entry in log if key in entry]
