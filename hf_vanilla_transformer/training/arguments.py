"""Arguments of training, with the paper's defaults: which model, and how to train it."""

import json
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any, get_args, get_origin

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.training_args import OptimizerNames

from ..data.arguments import refuse_empty_strings
from ..inference.translation import EXTRA_OUTPUT_TOKENS
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..presets import get_preset

DEFAULT_METRIC = "bleu"

# Shorter warm-ups get the peak learning rate of this one. In 120 steps with a warm-up of 20, models of width 128 learn
# most at about that rate, and next to nothing at the formula's 0.02; those of width 256 and 512 still learn at theirs.
LEAST_WARMUP = 1000


# Options of a tokenizer that is to be trained.
TOKENIZER_OPTIONS = (
    "tokenizer_algorithm", "vocab_size", "min_frequency", "separate_vocabularies", "lowercase", "normalization",
)  # fmt: skip  # one line says it


@dataclass
class ModelArguments:
    """Which model and tokenizer to train; for `transformers.HfArgumentParser`.

    Raises:
        ValueError: The arguments contradict each other, there is no such preset, or an override is malformed.
    """

    preset: str = field(  # type: ignore[assignment]  # None, here and below, until it is sure that none was given
        default=None,
        metadata={
            "help": "Model shape: base (the default), big, small, tiny or a row of the paper's Table 3 (which may "
            "bring its label smoothing, in place of the default)."
        },
    )
    config_overrides: str | None = field(
        default=None,
        metadata={"help": "Fields over the preset's, e.g. 'encoder_layers=4,decoder_layers=4,dropout=0.3'."},
    )
    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Go on from this model and its tokenizer (folder or Hub name), not from scratch."},
    )
    attn_implementation: str | None = field(
        default=None,
        metadata={
            "help": "Attention: sdpa (the default), eager (faster for short sentences on a CPU) or flex_attention."
        },
    )
    tokenizer_name_or_path: str | None = field(
        default=None, metadata={"help": "Use this tokenizer (folder or Hub name); by default one is trained."}
    )
    tokenizer_algorithm: str = field(  # type: ignore[assignment]
        default=None,
        metadata={"help": "Tokens to learn: bpe (the default), unigram, word, whitespace or character."},
    )
    vocab_size: int = field(  # type: ignore[assignment]
        default=None, metadata={"help": "Most tokens in the vocabulary to learn; by default 8000."}
    )
    min_frequency: int | None = field(
        default=None, metadata={"help": "Least occurrences of a token to learn; by default 2, where it applies."}
    )
    separate_vocabularies: bool = field(
        default=False, metadata={"help": "Learn a vocabulary for each side instead of a shared one."}
    )
    lowercase: bool = field(default=False, metadata={"help": "Lower-case all text, in training and in use."})
    normalization: str | None = field(
        default=None, metadata={"help": "Unicode normalization: NFC, NFD, NFKC or NFKD."}
    )

    def __post_init__(self) -> None:
        """Refuse what cannot be, before anything is read, and fill in the defaults."""
        refuse_empty_strings(self)
        self._refuse_beside("tokenizer_name_or_path", TOKENIZER_OPTIONS)
        self._refuse_beside(
            "model_name_or_path", ("preset", "config_overrides", "tokenizer_name_or_path", *TOKENIZER_OPTIONS)
        )
        self.preset = self.preset or "base"
        self.tokenizer_algorithm = self.tokenizer_algorithm or "bpe"
        if self.vocab_size is None:
            self.vocab_size = 8000
        get_preset(self.preset)
        parse_overrides(self.config_overrides)

    def _refuse_beside(self, name: str, options: Iterable[str]) -> None:
        given = [f"--{option}" for option in options if getattr(self, option) not in (None, False)]
        if getattr(self, name) and given:
            brings = "its own tokenizer and configuration" if name == "model_name_or_path" else "its own vocabulary"
            raise ValueError(f"--{name} brings {brings}; leave {', '.join(given)} out")


def parse_overrides(text: str | None) -> dict[str, Any]:
    """Return `{"d_model": 256, "norm_position": "pre"}` for `"d_model=256,norm_position=pre"`.

    Raises:
        ValueError: A part is no `field=value`, the field is unknown, or the value is of another type.
    """
    own = VanillaTransformerConfig.__annotations__
    types = {entry.name: entry.type for entry in fields(VanillaTransformerConfig) if entry.name in own}
    overrides: dict[str, Any] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, literal = (piece.strip() for piece in part.partition("="))
        if not equals or name not in types:
            near = get_close_matches(name, types, n=1)
            hint = f"did you mean {near[0]}=...?" if near and near[0] != name else "write field=value,field=value"
            raise ValueError(f"--config_overrides: {part.strip()!r} sets no field of the configuration; {hint}")
        try:
            value = json.loads({"True": "true", "False": "false", "None": "null"}.get(literal, literal))
        except json.JSONDecodeError:
            value = literal
        kinds = tuple(get_origin(kind) or kind for kind in get_args(types[name]) or (types[name],))
        if not isinstance(value, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"--config_overrides: {name}={literal} is of the wrong type; {name} takes {names}")
        overrides[name] = value
    return overrides


@dataclass
class VanillaTransformerTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's defaults (section 5) and batches by tokens.

    Adam with betas 0.9 and 0.98 and epsilon 1e-9, linear warm-up, then decay by the inverse square root of the step,
    label smoothing 0.1, no weight decay, no gradient clipping. The peak learning rate follows from width and
    warm-up, see `peak_learning_rate`, unless it is given. Checkpoints are saved when the model is evaluated,
    unless `save_strategy` says otherwise.

    Raises:
        ValueError: No learning rate follows, two arguments contradict each other, or the optimizer is not installed.
    """

    output_dir: str = field(
        default="trainer_output", metadata={"help": "Folder of the checkpoints and, at the end, of the model."}
    )
    learning_rate: float | None = field(  # type: ignore[assignment]  # None until the width of the model is known
        default=None,
        metadata={
            "help": "Peak learning rate; by default the paper's (d_model * warmup_steps) ** -0.5, where fewer than "
            f"{LEAST_WARMUP} steps count as {LEAST_WARMUP}."
        },
    )
    warmup_steps: float = field(default=4000, metadata={"help": "Steps of linear warm-up (the paper: 4000)."})
    lr_scheduler_type: str = field(default="inverse_sqrt", metadata={"help": "Schedule after the warm-up."})
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's beta2."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's epsilon."})
    max_grad_norm: float = field(default=0.0, metadata={"help": "Clip gradients to this norm; 0 (the paper): never."})
    label_smoothing_factor: float | None = field(  # type: ignore[assignment]  # None until this is made
        default=None, metadata={"help": "Label smoothing while training; by default that of the preset, or 0.1."}
    )
    max_tokens: int | None = field(
        default=8192,
        metadata={
            "help": "Most tokens in a batch of one process, source and target and padding counted, instead of a "
            "number of sentences (0: --per_device_train_batch_size sentences). The paper's batches have 50,000: "
            "combine with --gradient_accumulation_steps."
        },
    )
    num_train_epochs: float = field(default=20.0, metadata={"help": "Passes over the training pairs."})
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Sentences in a batch of evaluation."})
    predict_with_generate: bool = field(default=True, metadata={"help": "Evaluate by generate()."})
    generation_num_beams: int | None = field(default=1, metadata={"help": "Beams of the evaluations in training."})
    generation_max_length: int | None = field(
        default=None,
        metadata={
            "help": "Longest output of the evaluations in training; by default (section 6.1) "
            f"{EXTRA_OUTPUT_TOKENS} tokens more than the longest source of the batch."
        },
    )
    eval_strategy: str = field(default="epoch", metadata={"help": "When to evaluate: no, steps or epoch."})
    save_strategy: str | None = field(  # type: ignore[assignment]  # None until eval_strategy is known
        default=None, metadata={"help": "When to save a checkpoint: no, steps or epoch; by default with evaluation."}
    )
    save_steps: float | None = field(  # type: ignore[assignment]  # None until eval_steps is known
        default=None, metadata={"help": "Save every so many steps; by default --eval_steps, or 500 without it."}
    )
    logging_steps: float = field(default=50, metadata={"help": "Log the loss every so many steps."})
    logging_first_step: bool = field(default=True, metadata={"help": "Log the loss of the first step too."})
    logging_nan_inf_filter: bool = field(
        default=False,
        metadata={"help": "Hide losses that are not finite from the log; training stops at them anyway."},
    )
    load_best_model_at_end: bool = field(
        default=True, metadata={"help": "End with the best checkpoint, where there are evaluations and checkpoints."}
    )
    metric_for_best_model: str | None = field(
        default=DEFAULT_METRIC,
        metadata={"help": "What is best: bleu (loss where nothing computes it), chrf, exact_match or loss."},
    )
    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available, metadata={"help": "Whether batches are copied to pinned memory."}
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False,
        metadata={"help": "Whether to look for weights without a gradient; an encoder-decoder has none."},
    )
    average_last_checkpoints: int = field(
        default=5,
        metadata={
            "help": "Average the last so many checkpoints at the end (section 6.1: 5) and keep the average if it is "
            "better on the validation pairs, or if there are none; 0: never."
        },
    )
    bf16_if_fast: bool = field(
        default=False, metadata={"help": "Set --bf16 where the GPU or CPU has instructions for it."}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after so many evaluations without a better metric_for_best_model."}
    )
    final_num_beams: int = field(
        default=4, metadata={"help": "Beams of the final evaluation, and of the saved model's generate()."}
    )
    final_length_penalty: float = field(
        default=1.0, metadata={"help": "Length penalty of the same (scores are divided by length ** penalty)."}
    )

    def __post_init__(self) -> None:
        """Fill in what follows from other fields."""
        # A preset may bring another one, but only where none was given.
        self.default_smoothing = self.label_smoothing_factor is None
        if self.label_smoothing_factor is None:
            self.label_smoothing_factor = get_preset("base").label_smoothing
        if self.save_strategy is None:
            self.save_strategy = "epoch" if self.eval_strategy == "no" else self.eval_strategy
        if self.save_steps is None:
            by_evaluations = self.eval_strategy == self.save_strategy == "steps"
            self.save_steps = (self.eval_steps or self.logging_steps) if by_evaluations else 500
        self.load_best_model_at_end = self.load_best_model_at_end and "no" not in (
            self.eval_strategy,
            self.save_strategy,
        )
        if self.save_total_limit is None:
            # One more than the average needs: the best checkpoint is kept besides the last ones.
            self.save_total_limit = max(0, self.average_last_checkpoints) + 1
        if self.disable_tqdm is None:
            # In a log file a progress bar is thousands of lines.
            self.disable_tqdm = not sys.stderr.isatty()
        self.bf16 = self.bf16 or (self.bf16_if_fast and not self.fp16 and bf16_is_fast())
        # transformers refuses bf16 on a CPU, which computes it well, unless told that the CPU is meant.
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        super().__post_init__()
        if self.learning_rate is None and self.warmup_steps < 1:
            raise ValueError(
                f"--warmup_steps is {self.warmup_steps:g}, from which no learning rate follows: make it at least 1, "
                "or give --learning_rate"
            )
        try:
            Seq2SeqTrainer.get_optimizer_cls_and_kwargs(self)
        except ImportError as error:
            raise ValueError(f"--optim {OptimizerNames(self.optim).value} cannot be used: {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        """Leave the token out of what is pickled, such as the `training_args.bin` of a checkpoint."""
        return {**self.__dict__, "hub_token": None}


def bf16_is_fast() -> bool:
    """Return whether the GPU, or else the CPU, multiplies bfloat16 matrices by instructions of its own."""
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return bool(torch.cpu.get_capabilities().get("avx512_bf16") or torch.cpu.get_capabilities().get("amx_bf16"))


def peak_learning_rate(d_model: int, warmup_steps: float) -> float:
    """Return the paper's peak, `(d_model * warmup_steps) ** -0.5` (section 5.3, eq. 3), capped for a short warm-up.

    The formula alone diverges as the warm-up shrinks: fewer than `LEAST_WARMUP` steps count as `LEAST_WARMUP`.
    """
    return (d_model * max(warmup_steps, LEAST_WARMUP)) ** -0.5


__all__ = ["ModelArguments", "VanillaTransformerTrainingArguments", "parse_overrides", "peak_learning_rate"]
