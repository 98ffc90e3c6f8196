"""Arguments of training: which model, and how to train it."""

import json
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args, get_origin

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.training_args import OptimizerNames

from ..data.arguments import refuse_empty_strings
from ..errors import did_you_mean, short_errors
from ..inference.output_limits import EXTRA_OUTPUT_TOKENS
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..presets import AUTO_PRESET, get_preset
from ..processor import processor

# Metric of the best model, until the text decides.
AUTO_METRIC = "auto"

# What to do about a loss or gradient that is NaN or infinite.
OnNonfinite = Literal["stop", "skip"]

# A shorter warm-up gets the peak learning rate of this one. In 120 steps with a warm-up of 20, models of width 128
# learn most at about that rate, and next to nothing at the formula's 0.02; widths 256 and 512 still learn at theirs.
MIN_RATE_WARMUP = 1000

FAST_IN_BF16 = ("AMD AVX-512 BF16", "Intel AMX")

# Defaults of the fields that a preset may set, where they are not given.
PRESET_DEFAULTS: dict[str, Any] = {
    "warmup_steps": 4000,
    "lr_scheduler_type": "inverse_sqrt",
    "label_smoothing_factor": get_preset("base").label_smoothing,
    "max_tokens": 8192,
    "muon": False,
    "num_train_epochs": 20.0,
}

# Fields that apply only where a tokenizer is trained.
TOKENIZER_FIELDS = (
    "tokenizer_algorithm", "vocab_size", "min_frequency", "separate_vocabularies", "lowercase", "normalization",
)  # fmt: skip  # one line says it


@dataclass
class ModelArguments:
    """Model and tokenizer to train; for `transformers.HfArgumentParser`.

    Attributes:
        given: Names of the fields that were given.

    Raises:
        ValueError: Two arguments exclude each other, the preset is unknown, or an override is malformed.
    """

    preset: str = field(  # type: ignore[assignment]  # None, here and below, until __post_init__
        default=None,
        metadata={
            "help": "Model shape: base (the default), big, small, deep-encoder, tiny, student (default of distill), "
            "student-12-1 or a row of the paper's Table 3; its label smoothing replaces the default one. auto: shape, "
            "vocabulary, dropout, batches and schedule by the size of the corpus, except what other options set."
        },
    )
    config_overrides: str | None = field(
        default=None,
        metadata={"help": "Fields that replace those of the preset: encoder_layers=4,decoder_layers=4,dropout=0.3."},
    )
    model_name_or_path: str | None = field(
        default=None,
        metadata={
            "help": "Continue from this model and its tokenizer (folder or Hub name) instead of from scratch.",
            "aliases": ["--init_from"],
        },
    )
    extend_vocab: int = field(
        default=0,
        metadata={"help": "Learn so many tokens on the training pairs beside those of its tokenizer (BPE only)."},
    )
    trust_remote_code: bool = field(
        default=False,
        metadata={"help": "Run Python code that comes with this model or tokenizer; only from sources you trust."},
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
        default=None, metadata={"help": "Largest vocabulary to learn (default: 8000, unless --preset auto chooses)."}
    )
    min_frequency: int | None = field(
        default=None, metadata={"help": "Fewest occurrences of a token to learn (default: 2; unigram: 1)."}
    )
    separate_vocabularies: bool = field(
        default=False, metadata={"help": "Learn a vocabulary for each side instead of a shared one."}
    )
    lowercase: bool = field(default=False, metadata={"help": "Lowercase all text, in training and in use."})
    normalization: str | None = field(
        default=None, metadata={"help": "Unicode normalization: NFC, NFD, NFKC or NFKD."}
    )

    def __post_init__(self) -> None:
        refuse_empty_strings(self)
        self.given = {each.name for each in fields(self) if getattr(self, each.name) != each.default}
        self._check_excluded("tokenizer_name_or_path", TOKENIZER_FIELDS, "its own vocabulary")
        from_scratch = ("preset", "config_overrides", "tokenizer_name_or_path", *TOKENIZER_FIELDS)
        self._check_excluded("model_name_or_path", from_scratch, "its own tokenizer and configuration")
        if self.extend_vocab < 0:
            raise ValueError(f"`extend_vocab` {self.extend_vocab} is negative; set 0 or more")
        if self.extend_vocab and not self.model_name_or_path:
            raise ValueError(
                "`extend_vocab` adds to the vocabulary of `model_name_or_path`; name it, or set `vocab_size`"
            )
        self.preset = self.preset or "base"
        self.tokenizer_algorithm = self.tokenizer_algorithm or "bpe"
        if self.preset != AUTO_PRESET:
            get_preset(self.preset)
            self.vocab_size = 8000 if self.vocab_size is None else self.vocab_size
        parse_overrides(self.config_overrides)

    def _check_excluded(self, name: str, others: Iterable[str], brings: str) -> None:
        given = [f"`{other}`" for other in others if getattr(self, other) not in (None, False)]
        if getattr(self, name) and given:
            raise ValueError(f"`{name}` brings {brings}; leave {', '.join(given)} out")


@short_errors()
def parse_overrides(text: str | None) -> dict[str, Any]:
    """Parse `"d_model=256,norm_position=pre"` to `{"d_model": 256, "norm_position": "pre"}`.

    Raises:
        ValueError: A part is not `field=value`, the field is unknown or set twice, or the value has the wrong type.
    """
    own = VanillaTransformerConfig.__annotations__
    types = {entry.name: entry.type for entry in fields(VanillaTransformerConfig) if entry.name in own}
    overrides: dict[str, Any] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, literal = (piece.strip() for piece in part.partition("="))
        if not equals or name not in types:
            hint = ("" if name in types else did_you_mean(name, types)) or "; write field=value,field=value"
            raise ValueError(f"`config_overrides`: {part.strip()!r} sets no field of the configuration{hint}")
        if name in overrides:
            raise ValueError(f"`config_overrides` sets {name} twice; remove one of them")
        try:
            value = json.loads({"True": "true", "False": "false", "None": "null"}.get(literal, literal))
        # No JSON, a number of thousands of digits, or brackets without end.
        except (ValueError, RecursionError):
            value = literal
        kinds = tuple(get_origin(kind) or kind for kind in get_args(types[name]) or (types[name],))
        if not isinstance(value, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"`config_overrides`: {name}={literal} has the wrong type; {name} takes {names}")
        overrides[name] = value
    return overrides


def join_overrides(overrides: Mapping[str, Any]) -> str | None:
    """Write overrides as `parse_overrides` reads them; None if there are none."""
    return ",".join(f"{name}={value}" for name, value in overrides.items()) or None


@dataclass
class VanillaTransformerTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's defaults (section 5) and batches by tokens.

    Adam with betas 0.9 and 0.98 and epsilon 1e-9; linear warm-up, then inverse square-root decay; label smoothing
    0.1; no weight decay; no gradient clipping. The peak learning rate, if not given, follows from width and warm-up
    (`peak_learning_rate`). Checkpoints are saved whenever the model is evaluated, unless `save_strategy` differs.

    Attributes:
        not_given: Fields that a preset may set: no argument did, and they still have their defaults. In a copy by
            `dataclasses.replace` or from `to_dict()`, every field counts as given; `copy.copy` keeps what is not.

    Raises:
        ValueError: No learning rate follows from the warm-up, two arguments exclude each other, the optimizer is not
            installed, or `fp16` is set on a CPU.
    """

    output_dir: str = field(
        default="trainer_output", metadata={"help": "Folder of the checkpoints and, in the end, of the model."}
    )
    learning_rate: float | None = field(  # type: ignore[assignment]  # None until the model's width is known
        default=None,
        metadata={
            "help": "Peak learning rate (default: the paper's (d_model * warmup_steps) ** -0.5, where fewer than "
            f"{MIN_RATE_WARMUP} steps count as {MIN_RATE_WARMUP})."
        },
    )
    warmup_steps: float = field(  # type: ignore[assignment]  # None until __post_init__
        default=None, metadata={"help": "Steps of linear warm-up (default and paper: 4000)."}
    )
    lr_scheduler_type: str = field(  # type: ignore[assignment]  # None until __post_init__
        default=None, metadata={"help": "Schedule after the warm-up (default and paper: inverse_sqrt)."}
    )
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's beta2."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's epsilon."})
    max_grad_norm: float = field(
        default=0.0, metadata={"help": "Clip gradients to this norm; 0, as in the paper: no clipping."}
    )
    label_smoothing_factor: float = field(  # type: ignore[assignment]  # None until __post_init__
        default=None, metadata={"help": "Label smoothing in training (default: the preset's, or 0.1)."}
    )
    max_tokens: int = field(  # type: ignore[assignment]  # None until __post_init__
        default=None,
        metadata={
            "help": "Size of a batch of one process in tokens: source, target and padding (default: 8192; 0: batches "
            "of per_device_train_batch_size sentences instead). The paper's 50,000 need gradient_accumulation_steps."
        },
    )
    packing: bool = field(
        default=False,
        metadata={
            "help": "Train without padding: the same batches, but their pairs one after another in a row, each "
            "attending to itself only. A GPU in bf16 or fp16 then computes no padding; a CPU does as without."
        },
    )
    guided_alignment_weight: float = field(
        default=0.1, metadata={"help": "Weight of --guided_alignment in the loss, beside the translation's 1."}
    )
    bpe_dropout: float = field(
        default=0.0,
        metadata={
            "help": "Leave out each merge of BPE with this probability while training, so that a pair is split into "
            "other tokens in each epoch (0.1 in Provilkov et al. 2020)."
        },
    )
    rdrop_alpha: float = field(
        default=0.0,
        metadata={
            "help": "R-Drop: weight of the divergence of two passes with different dropout (5 in Wu et al. 2021); "
            "a step takes two to three times as long."
        },
    )
    ema_decay: float = field(
        default=0.0,
        metadata={
            "help": "Evaluate, save and end with an exponential moving average of the weights, of this decay a step "
            "(for example 0.999)."
        },
    )
    muon: bool = field(  # type: ignore[assignment]  # None until __post_init__
        default=None,
        metadata={"help": "Optimize the matrices of the layers with Muon; Adam keeps all else (default: false)."},
    )
    num_train_epochs: float = field(  # type: ignore[assignment]  # None until __post_init__
        default=None, metadata={"help": "Passes over the training pairs (default: 20)."}
    )
    per_device_eval_batch_size: int = field(default=64, metadata={"help": "Sentences in an evaluation batch."})
    predict_with_generate: bool = field(default=True, metadata={"help": "Evaluate with generate()."})
    generation_num_beams: int | None = field(default=1, metadata={"help": "Beams of evaluations during training."})
    generation_max_length: int | None = field(
        default=None,
        metadata={
            "help": "Longest output, in tokens, of evaluations during training (default: that of its source plus "
            f"{EXTRA_OUTPUT_TOKENS}, as in section 6.1)."
        },
    )
    eval_strategy: str = field(default="epoch", metadata={"help": "When to evaluate: no, steps or epoch."})
    save_strategy: str | None = field(  # type: ignore[assignment]  # None until __post_init__
        default=None,
        metadata={"help": "When to save a checkpoint: no, steps or epoch (default: after each evaluation)."},
    )
    save_steps: float | None = field(  # type: ignore[assignment]  # None until __post_init__
        default=None, metadata={"help": "Steps between checkpoints (default: eval_steps, or 500)."}
    )
    logging_steps: float = field(default=50, metadata={"help": "Steps between logs of the loss."})
    logging_first_step: bool = field(default=True, metadata={"help": "Log the loss of the first step too."})
    logging_nan_inf_filter: bool = field(
        default=False,
        metadata={"help": "Hide NaN and infinite losses from the log; on_nonfinite decides about them in any case."},
    )
    on_nonfinite: OnNonfinite = field(
        default="stop",
        metadata={
            "help": "At a NaN or infinite loss or gradient: stop, or skip the step, which then leaves weights and "
            "optimizer as they are and is counted. To skip, a GPU is waited for at every step."
        },
    )
    load_best_model_at_end: bool = field(
        default=True, metadata={"help": "End with the best checkpoint, if there are evaluations and checkpoints."}
    )
    metric_for_best_model: str | None = field(
        default=AUTO_METRIC,
        metadata={
            "help": "Metric of the best model: auto (the default: bleu where it suits the validation targets, else "
            "chrf; loss if nothing computes them), bleu, chrf, exact_match or loss. Where it ties, chrf, exact_match "
            "and bleu decide, and loss if all are 0."
        },
    )
    bleu_tokenize: str | None = field(
        default=None,
        metadata={
            "help": "sacreBLEU's tokenizer of BLEU, in evaluations and results: 13a, intl, zh, char, ..., or none for "
            "text that is tokenized already (default: that of target_lang, zh, ja-mecab or ko-mecab, else 13a)."
        },
    )
    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available, metadata={"help": "Copy batches to pinned memory."}
    )
    ddp_find_unused_parameters: bool | None = field(
        default=False,
        metadata={"help": "Search for parameters without a gradient; an encoder-decoder has none."},
    )
    average_last_checkpoints: int = field(
        default=5,
        metadata={
            "help": "Average so many of the last checkpoints (section 6.1: 5) and keep the average if it scores "
            "better on the validation pairs, or if there are none; 0: no averaging."
        },
    )
    bf16_if_fast: bool = field(
        default=False, metadata={"help": "Set bf16 if the GPU or CPU computes faster in bfloat16."}
    )
    early_stopping_patience: int | None = field(
        default=None, metadata={"help": "Stop after so many evaluations without a better metric_for_best_model."}
    )
    resume_with_changes: bool = field(
        default=False,
        metadata={
            "help": "Resume although training goes on otherwise than it began: other text, batches, seed, loss or "
            "optimizer."
        },
    )
    final_num_beams: int = field(
        default=4, metadata={"help": "Beams of the final evaluation and of the saved model's generate()."}
    )
    final_length_penalty: float = field(
        default=1.0, metadata={"help": "Their length penalty: scores are divided by length ** penalty."}
    )

    def __post_init__(self) -> None:
        self._without_argument = [name for name in PRESET_DEFAULTS if getattr(self, name) is None]
        for name in self._without_argument:
            setattr(self, name, PRESET_DEFAULTS[name])
        self._infer_saving()
        if self.disable_tqdm is None:
            # In a log file a progress bar takes thousands of lines.
            self.disable_tqdm = not sys.stderr.isatty()
        self.bf16 = self.bf16 or (self.bf16_if_fast and not self.fp16 and bf16_is_fast())
        if self.accelerator_config is None and self.dataloader_pin_memory:
            # Copying a batch to the GPU would otherwise wait for the steps before it.
            self.accelerator_config = {"non_blocking": True}
        # transformers accepts bf16 on a CPU only with `use_cpu`.
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        self._check_numbers()
        super().__post_init__()
        if self.learning_rate is None and self.warmup_steps < 1:
            raise ValueError(
                f"`warmup_steps` {self.warmup_steps:g} gives no learning rate; set it to at least 1, or set "
                "`learning_rate`"
            )
        try:
            Seq2SeqTrainer.get_optimizer_cls_and_kwargs(self)
        except ImportError as error:
            raise ValueError(f"`optim` {OptimizerNames(self.optim).value} cannot be used: {error}") from error

    @property
    def not_given(self) -> set[str]:
        return {name for name in self._without_argument if getattr(self, name) == PRESET_DEFAULTS[name]}

    def _check_numbers(self) -> None:
        if self.on_nonfinite not in get_args(OnNonfinite):
            raise ValueError(
                f"`on_nonfinite` {self.on_nonfinite} is unknown; use {' or '.join(get_args(OnNonfinite))}"
            )
        if not 0 < self.guided_alignment_weight < math.inf:
            raise ValueError(
                f"`guided_alignment_weight` {self.guided_alignment_weight:g} is no positive number; set one"
            )
        for name in ("bpe_dropout", "ema_decay", "label_smoothing_factor"):
            if not 0 <= (value := getattr(self, name)) < 1:
                raise ValueError(f"`{name}` is {value:g}; it must be at least 0 and below 1")
        for name in ("average_last_checkpoints", "rdrop_alpha", "warmup_steps"):
            if not 0 <= (value := getattr(self, name)) < math.inf:
                raise ValueError(f"`{name}` is {value:g}; it must be finite and at least 0")
        self._check_extras()
        # `accelerate launch --mixed_precision` sets the variable.
        fp16 = self.fp16 or (not self.bf16 and os.environ.get("ACCELERATE_MIXED_PRECISION") == "fp16")
        if fp16 and self.use_cpu:
            raise ValueError("`fp16` needs a GPU: a CPU would compute in float32 all the same; use `bf16`")

    def _check_extras(self) -> None:
        if self.bpe_dropout and not self.max_tokens:
            raise ValueError("`bpe_dropout` needs batches by tokens; set `max_tokens`, or leave it out")
        if self.rdrop_alpha and self.packing:
            raise ValueError("`rdrop_alpha` needs padded batches; leave it or `packing` out")

    def _infer_saving(self) -> None:
        if self.save_strategy is None:
            self.save_strategy = "epoch" if self.eval_strategy == "no" else self.eval_strategy
        if self.save_steps is None:
            both_by_steps = self.eval_strategy == self.save_strategy == "steps"
            self.save_steps = (self.eval_steps or self.logging_steps) if both_by_steps else 500
        if "no" in (self.eval_strategy, self.save_strategy):
            self.load_best_model_at_end = False
        if self.save_total_limit is None:
            # One more than are averaged: the best checkpoint is kept beside the last ones.
            self.save_total_limit = max(0, self.average_last_checkpoints) + 1

    def __getstate__(self) -> dict[str, Any]:
        """Leave `hub_token` out of pickles, such as a checkpoint's `training_args.bin`."""
        return {**self.__dict__, "hub_token": None}

    # That of a dataclass would show `hub_token`.
    __repr__ = Seq2SeqTrainingArguments.__str__


def bf16_is_fast() -> bool:
    """Whether the GPU, or else the CPU, multiplies matrices faster in bfloat16 than in float32.

    Intel's AVX-512 does not, though it has the instructions: without AMX, products take 1.8 times as long.
    """
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return processor() in FAST_IN_BF16


def peak_learning_rate(d_model: int, warmup_steps: float) -> float:
    """Peak learning rate of the paper, `(d_model * warmup_steps) ** -0.5` (section 5.3, eq. 3).

    The formula alone diverges for a short warm-up: fewer than `MIN_RATE_WARMUP` steps count as `MIN_RATE_WARMUP`.
    """
    return (d_model * max(warmup_steps, MIN_RATE_WARMUP)) ** -0.5


def set_learning_rate(args: Any, model: Any) -> None:
    """Set the paper's learning rate for the width of a model, unless one was given."""
    if args.learning_rate is None:
        args.learning_rate = peak_learning_rate(model.config.hidden_size, args.warmup_steps)


__all__ = [
    "PRESET_DEFAULTS",
    "ModelArguments",
    "VanillaTransformerTrainingArguments",
    "bf16_is_fast",
    "join_overrides",
    "parse_overrides",
    "peak_learning_rate",
    "set_learning_rate",
]
