"""Book translation, or any other pairs: word-level tokens against byte-level BPE."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.inference.translation import load, translate
from hf_vanilla_transformer.training.arguments import ModelArguments, VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.checkpoints import newest_checkpoint
from hf_vanilla_transformer.training.experiment import train_translation
from hf_vanilla_transformer.training.run_folder import check_same_run

from .common import TutorialArguments, TutorialResult

OPUS_BOOKS = {
    "dataset_name": "Helsinki-NLP/opus_books",
    "dataset_config_name": "en-es",
    "source_lang": "en",
    "target_lang": "es",
}
# One tenth for testing; the rest for training, except the pairs held out to choose the checkpoint.
OPUS_BOOKS_TEST, OPUS_BOOKS_VALIDATION = 0.1, 1000
# One vocabulary per language: words that occur at least twice, as in the notebook, or byte-level BPE.
OPUS_BOOKS_TOKENIZERS: dict[str, dict[str, Any]] = {
    "word": {"tokenizer_algorithm": "word", "vocab_size": 30_000, "min_frequency": 2},
    "bpe": {"tokenizer_algorithm": "bpe", "vocab_size": 8_000, "min_frequency": 2},
}
OPUS_BOOKS_TRAINING: dict[str, dict[str, Any]] = {
    "base": {"max_tokens": 16384, "num_train_epochs": 20.0},
    "small": {
        "max_tokens": 4096,
        "learning_rate": 0.0015,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 400,
        "num_train_epochs": 3.0,
        "per_device_eval_batch_size": 256,
    },
}
OPUS_BOOKS_EXAMPLES = 10
OPUS_BOOKS_FIGURES = ("test_bleu", "test_chrf", "test_bleu_signature", "train_runtime", "steps", "parameters")
# Longer than any training sentence.
LONG_SENTENCE = " ".join(["I saw the old house by the river , and then"] * 60) + " I went home ."


def reproduce_opus_books(args: TutorialArguments, data_args: DataArguments) -> TutorialResult:
    """Train the same model with word-level tokens and with byte-level BPE, and compare both on the same test pairs."""
    data_args = books_arguments(data_args)
    own = {name: getattr(args, name) for name in ("preset", "num_train_epochs", "max_steps")}
    check_same_run(Path(args.output_dir, "opus_books"), {**asdict(data_args), **own})
    folders = {name: Path(args.output_dir, "opus_books", name) for name in OPUS_BOOKS_TOKENIZERS}
    results = {name: train_on_books(name, folder, args, data_args) for name, folder in folders.items()}
    test = load_parallel_text(data_args)["test"]
    figures: dict[str, Any] = {"data": data_args.description, "preset": args.preset, "test_pairs": len(test)}
    for name, folder in folders.items():
        figures[name] = {**{key: results[name][key] for key in OPUS_BOOKS_FIGURES}, **model_figures(folder, test)}
    figures["examples"] = examples(test, folders)
    for example in figures["examples"]:
        print("\n".join(f"{name:<12} {text}" for name, text in example.items()), end="\n\n")
    word, bpe = figures["word"], figures["bpe"]
    return TutorialResult(
        "opus_books",
        "word-level tokens, one vocabulary per language, never trained; a long sentence is an error",
        f"BLEU {word['test_bleu']:.1f}, chrF {word['test_chrf']:.1f} with words ({word['unknown_target']:.1%} of the "
        f"reference's unknown); {bpe['test_bleu']:.1f}, {bpe['test_chrf']:.1f} with byte-level BPE (none unknown); "
        f"{len(test):,} test pairs, {args.preset} model",
        figures,
        bpe["unknown_target"] == 0 and all(system["long_sentence_words"] for system in (word, bpe)),
    )


def books_arguments(data_args: DataArguments) -> DataArguments:
    """Fill in the tutorial's data set, if none is named, and missing splits."""
    missing: dict[str, Any] = {}
    if not (data_args.dataset_name or data_args.toy_corpus or data_args.files("train")):
        missing |= OPUS_BOOKS
    for split, size in (("validation", OPUS_BOOKS_VALIDATION), ("test", OPUS_BOOKS_TEST)):
        if not data_args.files(split):
            missing[f"{split}_split_size"] = size
    return replace(data_args, **{name: value for name, value in missing.items() if getattr(data_args, name) is None})


def train_on_books(name: str, folder: Path, args: TutorialArguments, data_args: DataArguments) -> dict[str, Any]:
    """Train with a tokenizer of `OPUS_BOOKS_TOKENIZERS`, resuming if possible, and return the results.

    A finished run's results are read from its folder.
    """
    file = folder / "all_results.json"
    if file.is_file():
        return json.loads(file.read_text(encoding="utf-8"))
    training = dict(OPUS_BOOKS_TRAINING.get(args.preset, OPUS_BOOKS_TRAINING["base"]))
    if args.num_train_epochs is not None:
        training["num_train_epochs"] = args.num_train_epochs
    return train_translation(
        ModelArguments(
            preset=args.preset,
            separate_vocabularies=True,
            attn_implementation=None if torch.accelerator.is_available() else "eager",
            **OPUS_BOOKS_TOKENIZERS[name],
        ),
        data_args,
        VanillaTransformerTrainingArguments(
            output_dir=str(folder),
            max_steps=args.max_steps,
            bf16_if_fast=True,
            report_to="none",
            resume_from_checkpoint=newest_checkpoint(folder),
            **training,
        ),
    )


def model_figures(folder: Path, test: datasets.Dataset) -> dict[str, Any]:
    """Return the unknown-token rates of a saved tokenizer, and the word count of its model's long translation."""
    model, tokenizer = load(str(folder))
    translation = translate(model, tokenizer, [LONG_SENTENCE], num_beams=1, show_progress=False)[0][0].text
    return {**unknown_rates(tokenizer, test), "long_sentence_words": len(translation.split())}


def unknown_rates(tokenizer: PreTrainedTokenizerBase, pairs: datasets.Dataset) -> dict[str, float]:
    """Return the fraction of unknown tokens on each side, excluding end tokens."""
    encoded = tokenizer(pairs["source"][:], text_target=pairs["target"][:])
    rates = {}
    for side, column in (("source", "input_ids"), ("target", "labels")):
        ids = np.concatenate([row[:-1] for row in encoded[column]])
        rates[f"unknown_{side}"] = float(np.mean(ids == tokenizer.unk_token_id))
    return rates


def examples(test: datasets.Dataset, folders: dict[str, Path]) -> list[dict[str, str]]:
    """Return evenly spaced test pairs with each model's translation."""
    indices = np.linspace(0, len(test) - 1, min(OPUS_BOOKS_EXAMPLES, len(test))).astype(int).tolist()
    chosen = [{"source": test[i]["source"], "reference": test[i]["target"]} for i in indices]
    for name, folder in folders.items():
        lines = (folder / "test_translations.txt").read_text(encoding="utf-8").split("\n")
        chosen = [{**example, name: lines[i]} for example, i in zip(chosen, indices, strict=True)]
    return chosen
