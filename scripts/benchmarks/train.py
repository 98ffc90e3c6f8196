"""Training: steps on identical batches, and steps on real text with each implementation's own batches."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice, product, repeat
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import transformers
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.batching import collate_packed
from hf_vanilla_transformer.marian_fields import MARIAN_FIELDS
from hf_vanilla_transformer.model.configuration_vanilla_transformer import VanillaTransformerConfig
from hf_vanilla_transformer.training import VanillaTransformerTrainer, VanillaTransformerTrainingArguments

from .agreement import check_agreement, loss_and_gradients
from .arguments import BenchmarkArguments
from .baselines import (
    TutorialTransformer,
    bart_like,
    marian_like,
    our_model,
    random_batch,
    training_options,
    tutorial_like,
)
from .machine import autocast, synchronize
from .measure import OURS, Case, Sample
from .roofline import training_flops
from .text import TokenizedText, matching_batch_size, read_text

# Steps per timed call. On a GPU the host prepares a step while the previous one runs, which single steps do not show.
STEPS_PER_CALL = {"cpu": 1, "cuda": 10}

PACKED = f"{OURS}, packed"


def train_benchmark(args: BenchmarkArguments, data_args: DataArguments) -> Iterator[Case]:
    shapes = list(product(args.dtype, args.preset, args.vocab_size)) if args.tokens else []
    for dtype, preset, vocab_size in shapes:
        yield step_case(preset, vocab_size, dtype, args)
    if args.steps:
        text = read_text(args, data_args)
        with tempfile.TemporaryDirectory() as folder:
            for dtype, preset in product(args.dtype, args.preset):
                yield text_case(text, preset, dtype, args, Path(folder))
    # Last, since compiling takes minutes.
    for dtype, preset, vocab_size in shapes if args.torch_compile else []:
        yield step_case(preset, vocab_size, dtype, args, is_compiled=True)


# Identical batches


def step_case(
    preset: str, vocab_size: int, dtype: str, args: BenchmarkArguments, *, is_compiled: bool = False
) -> Case:
    """Compare training steps on one batch without padding: forward, loss, backward, Adam.

    With `is_compiled`, ours and Marian are compiled with `torch.compile`.
    """
    torch.manual_seed(args.seed)
    rows = max(1, args.tokens // args.length)
    ours = our_model(preset, vocab_size=vocab_size).to(args.device)
    batch = random_batch(ours.config, rows, args.length, args.length, args.device)
    models: dict[str, PreTrainedModel] = {OURS: ours}
    if "marian" in args.baselines:
        models["marian"] = marian_like(ours).to(args.device)
        with autocast(args.device, dtype):
            results = {
                name: loss_and_gradients(model, batch, **training_options(name)) for name, model in models.items()
            }
        check_agreement(results[OURS], results["marian"], "marian", dtype)
    if "bart" in args.baselines and not is_compiled:
        models["bart"] = bart_like(ours).to(args.device)
    if is_compiled:
        models = {name: cast(Any, torch.compile(model, dynamic=False)) for name, model in models.items()}
    steps = STEPS_PER_CALL[args.device]
    step = "compiled step" if is_compiled else "step"
    return Case(
        "train",
        f"{step}, {preset}, vocabulary {vocab_size:,}, {rows} x {args.length}, {dtype}",
        {name: training_steps(model, batch, dtype, steps, **training_options(name)) for name, model in models.items()},
        steps * 2 * rows * args.length,
        "tokens",
        dtype,
        flops=steps * training_flops(ours.config, rows, args.length, args.length),
        notes="bart has its own weights" if "bart" in models else "",
    )


def training_steps(
    model: PreTrainedModel, batch: Mapping[str, Tensor], dtype: str, steps: int, **options: Any
) -> Callable[[], Any]:
    """Return a function that takes `steps` Adam steps on the batch."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, betas=(0.9, 0.98), eps=1e-9, fused=True)
    model.train()

    def take_steps() -> None:
        for _ in range(steps):
            with autocast(model.device.type, dtype):
                loss = model(**batch, **options).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    return take_steps


# Real text


def text_case(text: TokenizedText, preset: str, dtype: str, args: BenchmarkArguments, folder: Path) -> Case:
    """Compare steps on real text, including reading and padding; token counts exclude padding.

    Our Trainer uses token-budget batches, with `args.packing` packed ones too; Hugging Face's uses its default
    batches, and the tutorials' loop pads to a fixed length.
    """
    torch.manual_seed(args.seed)
    ours = our_model(preset, vocab_size=len(text.tokenizer)).to(args.device)
    implementations: dict[str, Callable[[], Any]] = {OURS: TrainerSteps(OURS, ours, text, dtype, args, folder)}
    if args.packing:
        implementations[PACKED] = TrainerSteps(PACKED, ours, text, dtype, args, folder)
    notes = [f"{text.description}, {args.max_tokens} tokens per batch"]
    if "marian" in args.baselines:
        marian = marian_like(ours).to(args.device)
        check_on_text(ours, marian, text, args)
        implementations["marian, Seq2SeqTrainer"] = TrainerSteps("marian", marian, text, dtype, args, folder)
        notes.append(f"marian: {matching_batch_size(text, args)} pairs per batch")
    if "tutorial" in args.baselines:
        tutorial = build_tutorial(ours.config, text, args)
        implementations["nn.Transformer, tutorial"] = tutorial_steps(tutorial, text, dtype, args)
        notes.append(f"tutorial: {args.tutorial_batch_size} pairs padded to {args.tutorial_length}")
    return Case(
        "train",
        f"real text, {preset}, {dtype}",
        implementations,
        unit="tokens",
        dtype=dtype,
        notes="; ".join(notes),
    )


def check_on_text(ours: Any, marian: Any, text: TokenizedText, args: BenchmarkArguments) -> None:
    """Check that both models agree on a padded batch of real text in float32."""
    rows = [text.ids[index] for index in range(min(8, len(text.ids)))]
    batch = DataCollatorForSeq2Seq(text.tokenizer, model=ours)(rows).to(args.device)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask", "labels")}
    result = loss_and_gradients(ours, inputs, skip_logits=True)
    check_agreement(result, loss_and_gradients(marian, inputs), "marian", "float32")


def build_tutorial(
    config: VanillaTransformerConfig, text: TokenizedText, args: BenchmarkArguments
) -> TutorialTransformer:
    """Build the tutorials' model and check that it agrees with ours of the same shape."""
    ours, tutorial = tutorial_like(config, args.tutorial_length)
    batch = tutorial.collate([text.ids[index] for index in range(min(2, len(text.ids)))])
    pad = cast(int, config.pad_token_id)
    inputs = {
        "input_ids": batch["input_ids"],
        "attention_mask": batch["input_ids"].ne(pad).long(),
        "labels": batch["labels"].where(batch["labels"].ne(pad), -100),
    }
    result = loss_and_gradients(ours, inputs, skip_logits=True)
    check_agreement(result, tutorial.loss_and_gradients(batch), "nn.Transformer", "float32")
    return tutorial.to(args.device)


class _StepClock(TrainerCallback):
    """Records when each step ends."""

    def __init__(self, device: str):
        self.device = device
        self.times: list[float] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if state.global_step in (1, state.max_steps):
            # In between, the GPU may lag behind the host, as in real use.
            synchronize(self.device)
        self.times.append(time.perf_counter())


class TrainerSteps:
    """Training steps by a Trainer, without its set-up time, on fresh batches at every call."""

    def __init__(
        self,
        name: str,
        model: Any,
        text: TokenizedText,
        dtype: str,
        args: BenchmarkArguments,
        folder: Path,
        unit: str = "tokens",
    ):
        """Train our model with our Trainer and its batches, others with Hugging Face's Trainer and its batches."""
        self.model, self.text, self.args, self.unit, self.calls = model, text, args, unit, 0
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
        self.trainer: type[Seq2SeqTrainer] = Seq2SeqTrainer
        self.training_arguments: type[Seq2SeqTrainingArguments] = Seq2SeqTrainingArguments
        if name in (OURS, PACKED):
            self.trainer = VanillaTransformerTrainer
            self.training_arguments = VanillaTransformerTrainingArguments
            self.settings |= {"max_tokens": args.max_tokens, "packing": name == PACKED}
        else:
            self.settings["per_device_train_batch_size"] = matching_batch_size(text, args)

    def __call__(self) -> Sample:
        self.calls += 1
        is_packed = self.settings.get("packing", False)
        collator: Any = collate_packed if is_packed else DataCollatorForSeq2Seq(self.text.tokenizer, model=self.model)
        clock = _StepClock(self.args.device)
        lengths: list[list[tuple[int, int]]] = []

        def collate(rows: list[Any]) -> Any:
            lengths.append([(len(row["input_ids"]), len(row["labels"])) for row in rows])
            return collator(rows)

        trainer = self.trainer(
            model=self.model,
            args=self.training_arguments(**self.settings, seed=self.args.seed + self.calls),
            train_dataset=self.text.ids,
            data_collator=collate,
            callbacks=[clock],
        )
        if isinstance(trainer, VanillaTransformerTrainer):
            trainer.packed_collator = collate
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.train()
        # The first step includes set-up, and the loader may have prefetched a batch beyond the last.
        timed = np.concatenate([np.array(batch) for batch in lengths[1 : self.args.steps + 1]])
        sample = text_sample(self.model.config, timed, clock.times[-1] - clock.times[0])
        return sample if self.unit == "tokens" else replace(sample, units=len(timed))


def tutorial_steps(
    model: TutorialTransformer, text: TokenizedText, dtype: str, args: BenchmarkArguments
) -> Callable[[], Sample]:
    """Return a function that takes the steps of one round: shuffled pairs, padding to a fixed length, Adam."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, eps=1e-9)
    rows: Any = text.ids
    generator = torch.Generator().manual_seed(args.seed)

    def collate(rows: list[Any]) -> tuple[np.ndarray, dict[str, Tensor]]:
        lengths = np.array([(len(row["input_ids"]), len(row["labels"])) for row in rows])
        return lengths.clip(max=model.length), model.collate(rows)

    loader = DataLoader(rows, args.tutorial_batch_size, shuffle=True, collate_fn=collate, generator=generator)
    batches = chain.from_iterable(repeat(loader))

    def take_steps() -> Sample:
        timed = []
        synchronize(args.device)
        start = time.perf_counter()
        for lengths, batch in islice(batches, args.steps):
            timed.append(lengths)
            with autocast(args.device, dtype):
                loss = model(**{name: ids.to(args.device) for name, ids in batch.items()})
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        synchronize(args.device)
        return text_sample(model.config, np.concatenate(timed), time.perf_counter() - start)

    return take_steps


def text_sample(config: Any, lengths: np.ndarray, seconds: float) -> Sample:
    """Return the sample of steps over pairs of these lengths (pairs, 2), excluding padding from the work."""
    if not isinstance(config, VanillaTransformerConfig):
        config = VanillaTransformerConfig(**{name: getattr(config, name) for name in MARIAN_FIELDS})
    source, target = lengths.astype(np.float64).T
    return Sample(seconds, float(lengths.sum()), float(training_flops(config, 1, source, target).sum()))
