"""The part of the benchmark that reads text: training as each one would, and preparing the data."""

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import torch
import transformers
from torch.utils.data import BatchSampler, DataLoader, RandomSampler
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.batching import TokenBudgetBatchSampler, token_lengths
from hf_vanilla_transformer.data.encoding import tokenize_pairs
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.marian_fields import MARIAN_FIELDS
from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.training import VanillaTransformerTrainer, VanillaTransformerTrainingArguments

from .baselines import (
    TutorialTransformer,
    check_agreement,
    loss_and_gradients,
    marian_like,
    our_model,
    tutorial_like,
)
from .benchmark import OURS, BenchmarkArguments, Case, Disagreement, Sample
from .roofline import precision, synchronize, training_flops


@dataclass(frozen=True)
class Text:
    """Pairs, their tokenizer, and their ids.

    Attributes:
        description: Where the pairs come from.
        pairs: Rows with the strings `source` and `target`.
        tokenizer: Trained on both sides.
        ids: Rows with `input_ids` and `labels`.
    """

    description: str
    pairs: datasets.Dataset
    tokenizer: PreTrainedTokenizerBase
    ids: datasets.Dataset

    @property
    def tokens_a_pair(self) -> float:
        """The mean of both sides together."""
        source, target = token_lengths(self.ids)
        return float(source.mean() + target.mean())


def read_text(args: BenchmarkArguments, data_args: DataArguments) -> Text:
    """Return the training pairs that the arguments name, or the built-in corpus.

    Raises:
        DataError: There are none, or they cannot be read.
    """
    if not (data_args.dataset_name or data_args.files("train")):
        data_args = replace(data_args, toy_corpus=True)
    if data_args.streaming:
        raise DataError("--streaming has no number of pairs to measure; leave it out")
    splits = load_parallel_text(data_args)
    if "train" not in splits:
        raise DataError("there are no training pairs; give a training file or a data set with a train split")
    pairs: Any = splits["train"]
    sides = (text for side in ("source", "target") for text in pairs[side])
    tokenizer = train_tokenizer(sides, algorithm="bpe", vocab_size=args.text_vocab_size)
    ids, _ = tokenize_pairs(
        pairs,
        tokenizer,
        max_source_length=data_args.max_source_length,
        max_target_length=data_args.max_target_length,
        on_long=data_args.on_long,
        max_length_ratio=data_args.max_length_ratio,
    )
    return Text(data_args.description, pairs, tokenizer, cast(datasets.Dataset, ids))


def sampler_of(text: Text, args: BenchmarkArguments) -> TokenBudgetBatchSampler:
    """Return our batches."""
    return TokenBudgetBatchSampler(*token_lengths(text.ids), args.max_tokens, seed=args.seed)


def equal_batch_size(text: Text, args: BenchmarkArguments) -> int:
    """Return how many pairs are as many tokens, padding left out, as a batch of ours has on average."""
    return max(1, round(len(text.ids) / len(sampler_of(text, args))))


# Training


def text_training_cases(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Compare training on real text: our Trainer, Hugging Face's by its default batches, and the tutorials' loop."""
    text = read_text(args, data_args)
    with tempfile.TemporaryDirectory() as folder:
        for dtype, preset in product(args.dtype, args.preset):
            yield text_training_case(text, preset, dtype, args, Path(folder))


def text_training_case(text: Text, preset: str, dtype: str, args: BenchmarkArguments, folder: Path) -> Case:
    """Compare steps on real text, with reading and padding it; what counts are tokens, padding left out."""
    torch.manual_seed(args.seed)
    ours = our_model(preset, vocab_size=len(text.tokenizer)).to(args.device)
    contestants: dict[str, Callable[[], Any]] = {OURS: TrainerTurns(OURS, ours, text, dtype, args, folder)}
    notes = [f"{text.description}, {args.max_tokens} tokens a batch"]
    if "marian" in args.peers:
        marian = marian_like(ours).to(args.device)
        check_on_text(ours, marian, text, args)
        contestants["marian, Seq2SeqTrainer"] = TrainerTurns("marian", marian, text, dtype, args, folder)
        notes.append(f"marian: {equal_batch_size(text, args)} pairs a batch")
    if "tutorial" in args.peers:
        tutorial = make_tutorial(ours.config, text, args)
        contestants["nn.Transformer, tutorial"] = TutorialTurns(tutorial, text, dtype, args)
        notes.append(f"tutorial: {args.tutorial_batch_size} pairs padded to {args.tutorial_length}")
    return Case(
        "train",
        f"real text, {preset}, {dtype}",
        contestants,
        unit="tokens",
        dtype=dtype,
        notes="; ".join(notes),
    )


def check_on_text(ours: Any, marian: Any, text: Text, args: BenchmarkArguments) -> None:
    """Make sure that two models agree on a batch of real text, padding and all, in float32."""
    rows = [text.ids[number] for number in range(min(8, len(text.ids)))]
    batch = DataCollatorForSeq2Seq(text.tokenizer, model=ours)(rows).to(args.device)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    found = loss_and_gradients(ours, inputs, skip_logits=True)
    check_agreement(found, loss_and_gradients(marian, inputs), "marian", "float32")


def make_tutorial(config: VanillaTransformerConfig, text: Text, args: BenchmarkArguments) -> TutorialTransformer:
    """Return the tutorials' model, after making sure that it computes what ours does in the same shape."""
    ours, tutorial = tutorial_like(config, args.tutorial_length)
    rows = [text.ids[number] for number in range(min(2, len(text.ids)))]
    padded = tutorial.collate(rows)
    pad = cast(int, config.pad_token_id)
    real = padded["labels"].ne(pad)
    inputs = {
        "input_ids": padded["input_ids"],
        "attention_mask": padded["input_ids"].ne(pad).long(),
        "labels": padded["labels"].where(real, -100),
    }
    found = loss_and_gradients(ours, inputs, skip_logits=True)
    check_agreement(found, tutorial.loss_and_gradients(padded), "nn.Transformer", "float32")
    return tutorial.to(args.device)


class _Clock(TrainerCallback):
    """Notes when each step has ended."""

    def __init__(self, device: str):
        self.device = device
        self.times: list[float] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        synchronize(self.device)
        self.times.append(time.perf_counter())


class TrainerTurns:
    """Some steps by a Trainer at every call, without its preparations, on other batches every time."""

    def __init__(self, name: str, model: Any, text: Text, dtype: str, args: BenchmarkArguments, folder: Path):
        """Train `model`: ours by our Trainer and its batches, others by Hugging Face's and its default batches."""
        self.model, self.text, self.args, self.turn = model, text, args, 0
        self.ours = name == OURS
        self.settings: dict[str, Any] = {
            "output_dir": str(folder / name),
            "max_steps": args.steps + 1,
            "bf16": dtype == "bfloat16",
            "use_cpu": args.device == "cpu",
            "label_smoothing_factor": args.label_smoothing_factor,
            "learning_rate": 1e-5,
            "max_grad_norm": 0.0,
            "eval_strategy": "no",
            "save_strategy": "no",
            "logging_strategy": "no",
            "logging_first_step": False,
            "report_to": "none",
            "disable_tqdm": True,
            "dataloader_pin_memory": args.device == "cuda",
        }
        if self.ours:
            self.settings["max_tokens"] = args.max_tokens
        else:
            self.settings["per_device_train_batch_size"] = equal_batch_size(text, args)

    def __call__(self) -> Sample:
        """Take the steps of one turn."""
        self.turn += 1
        kind, settings = (
            (VanillaTransformerTrainer, VanillaTransformerTrainingArguments)
            if self.ours
            else (Seq2SeqTrainer, Seq2SeqTrainingArguments)
        )
        collator, clock, seen = (
            DataCollatorForSeq2Seq(self.text.tokenizer, model=self.model),
            _Clock(self.args.device),
            [],
        )

        def collate(rows: list[Any]) -> Any:
            seen.append([(len(row["input_ids"]), len(row["labels"])) for row in rows])
            return collator(rows)

        trainer = kind(
            model=self.model,
            args=settings(**self.settings, seed=self.args.seed + self.turn),
            train_dataset=self.text.ids,
            data_collator=collate,
            callbacks=[clock],
        )
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        # The first step pays for preparations too, and a batch beyond the last step may have been made.
        lengths = np.concatenate([np.array(batch) for batch in seen[1 : self.args.steps + 1]])
        return sample_of(self.model.config, lengths, clock.times[-1] - clock.times[0])


def sample_of(config: Any, lengths: np.ndarray, seconds: float) -> Sample:
    """Return the sample of training steps over pairs of lengths (pairs, 2); padding is no useful work."""
    sizes = config if isinstance(config, VanillaTransformerConfig) else _as_ours(config)
    source, target = lengths.astype(np.float64).T
    return Sample(seconds, float(lengths.sum()), float(training_flops(sizes, 1, source, target).sum()))


def _as_ours(config: Any) -> VanillaTransformerConfig:
    """Return the configuration of ours that has Marian's sizes."""
    return VanillaTransformerConfig(**{name: getattr(config, name) for name in MARIAN_FIELDS})


class TutorialTurns:
    """Some steps of the tutorials' loop at every call: pairs in random order, padded to a fixed length, and Adam."""

    def __init__(self, model: TutorialTransformer, text: Text, dtype: str, args: BenchmarkArguments):
        """Train `model`."""
        self.model, self.dtype, self.args = model, dtype, args
        self.optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, eps=1e-9)
        self.batches = self._endless(text)

    def _endless(self, text: Text) -> Iterator[tuple[np.ndarray, dict[str, torch.Tensor]]]:
        def collate(rows: list[Any]) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
            lengths = np.array([(len(row["input_ids"]), len(row["labels"])) for row in rows])
            return lengths.clip(max=self.model.length), self.model.collate(rows)

        generator = torch.Generator().manual_seed(self.args.seed)
        rows: Any = text.ids
        loader = DataLoader(rows, self.args.tutorial_batch_size, shuffle=True, collate_fn=collate, generator=generator)
        while True:
            yield from loader

    def __call__(self) -> Sample:
        """Take the steps of one turn."""
        device = self.args.device
        taken = []
        synchronize(device)
        start = time.perf_counter()
        for _ in range(self.args.steps):
            lengths, batch = next(self.batches)
            taken.append(lengths)
            with precision(device, self.dtype):
                loss = self.model(**{name: each.to(device) for name, each in batch.items()})
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        synchronize(device)
        return sample_of(self.model.config, np.concatenate(taken), time.perf_counter() - start)


# Preparing the data


def data_suite(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    """Compare tokenizing, tokenizing again, and making batches with the ways of the Hugging Face examples."""
    text = read_text(args, data_args)
    workers = data_args.preprocessing_num_workers
    yield tokenizing_case(text, workers)
    with tempfile.TemporaryDirectory() as folder:
        yield cached_case(text, workers, Path(folder))
    yield cutting_case(text, args)
    yield loading_case(text, args)


def tokenizing_case(text: Text, workers: int | None) -> Case:
    """Compare tokenizing pairs in memory, where nothing is found in a cache."""
    pairs = datasets.Dataset.from_dict({side: text.pairs[side][:] for side in ("source", "target")})
    contestants = {
        OURS: lambda: tokenize_pairs(pairs, text.tokenizer, num_proc=workers, **NO_LIMITS)[0],
        "map, batches": lambda: usual_map(pairs, text.tokenizer, batched=True),
        "map, one by one": lambda: usual_map(pairs, text.tokenizer, batched=False),
    }
    ids = {name: work() for name, work in contestants.items()}
    for name, rows in ids.items():
        for column in ("input_ids", "labels"):
            if rows[column][:] != ids[OURS][column][:]:
                raise Disagreement(f"{name} and ours make different {column}, so their times cannot be compared")
    how = f"{workers} processes" if workers else "one process"
    return Case("data", "tokenizing", contestants, len(pairs), "pairs", notes=f"{text.description}, ours with {how}")


NO_LIMITS: dict[str, Any] = {"max_source_length": None, "max_target_length": None, "max_length_ratio": None}


def usual_map(pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, batched: bool) -> datasets.Dataset:
    """Tokenize as the examples of transformers do: the target by a second call, its ids as the labels."""

    def encode(row: dict[str, Any]) -> Any:
        encoded = tokenizer(row["source"])
        encoded["labels"] = tokenizer(text_target=row["target"])["input_ids"]
        return encoded

    return pairs.map(encode, batched=batched, remove_columns=["source", "target"])


def cached_case(text: Text, workers: int | None, folder: Path) -> Case:
    """Compare tokenizing pairs on disk for the second time, which is to be found in the cache."""
    text.pairs.save_to_disk(str(folder / "pairs"))

    def tokenize() -> datasets.Dataset:
        pairs: Any = datasets.load_from_disk(str(folder / "pairs"))
        return tokenize_pairs(pairs, text.tokenizer, num_proc=workers, **NO_LIMITS)[0]

    def usual() -> datasets.Dataset:
        pairs: Any = datasets.load_from_disk(str(folder / "pairs"))
        return usual_map(pairs, text.tokenizer, batched=True)

    start = time.perf_counter()
    tokenize()
    first = len(text.pairs) / (time.perf_counter() - start)
    files = set(folder.rglob("cache-*.arrow"))
    tokenize()
    found = set(folder.rglob("cache-*.arrow")) == files
    notes = f"ours the first time {first:,.0f} pairs/s, then {'from the cache' if found else 'again, no cache'}"
    contestants = {OURS: tokenize, "map, batches": usual}
    return Case("data", "tokenizing once more", contestants, len(text.pairs), "pairs", notes=notes)


def cutting_case(text: Text, args: BenchmarkArguments) -> Case:
    """Measure the time to choose the pairs of every batch of an epoch; random batches of equal size choose nothing."""
    size = equal_batch_size(text, args)
    batches: dict[str, Sequence[list[int]]] = {
        OURS: list(sampler_of(text, args)),
        "random batches": list(BatchSampler(RandomSampler(text.ids), size, drop_last=False)),
    }
    notes = ", ".join(
        f"{name}: {len(each)} an epoch, {padding_share(text, each):.1%} padding" for name, each in batches.items()
    )
    contestants = {OURS: lambda: list(sampler_of(text, args))}
    return Case("data", "choosing batches", contestants, len(text.ids), "pairs", notes=notes)


def padding_share(text: Text, batches: Sequence[list[int]]) -> float:
    """Return the share 0..1 of padding in batches of row numbers, both sides together."""
    sides = token_lengths(text.ids)
    real = sum(int(side.sum()) for side in sides)
    padded = sum(int(side[batch].max()) * len(batch) for batch in batches for side in sides)
    return 1 - real / padded


def loading_case(text: Text, args: BenchmarkArguments) -> Case:
    """Compare making every batch of an epoch: choosing pairs, reading them, padding them."""
    rows: Any = text.ids
    collator = DataCollatorForSeq2Seq(text.tokenizer)
    size = equal_batch_size(text, args)

    def by_tokens() -> int:
        return sum(1 for _ in DataLoader(rows, batch_sampler=sampler_of(text, args), collate_fn=collator))

    def by_sentences() -> int:
        return sum(1 for _ in DataLoader(rows, size, shuffle=True, collate_fn=collator))

    return Case(
        "data",
        "making batches",
        {OURS: by_tokens, "random batches": by_sentences},
        len(text.ids),
        "pairs",
        notes=f"{args.max_tokens} tokens, or {size} pairs",
    )


__all__ = ["data_suite", "text_training_cases"]
