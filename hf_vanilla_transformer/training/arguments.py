"""Model and training arguments."""

import json
import os
import sys
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar, get_args, get_origin

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments
from transformers.training_args import OptimizerNames

from ..data.arguments import NONE, refuse_empty_strings
from ..data.augmentation import parse_shares
from ..errors import did_you_mean, short_errors
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..options import check_ranges
from ..presets import AUTO_PRESET, get_preset
from ..processor import processor
from .options import LOWER_IS_BETTER, MIN_RATE_WARMUP, ModelOptions, OnNonfinite, TrainingOptions

Arguments = TypeVar("Arguments")

FAST_IN_BF16 = ("AMD AVX-512 BF16", "Intel AMX")

# Defaults of fields that a preset may set.
PRESET_DEFAULTS: dict[str, Any] = {
    "warmup_steps": 4000,
    "lr_scheduler_type": "inverse_sqrt",
    "label_smoothing_factor": get_preset("base").label_smoothing,
    "max_tokens": 8192,
    "muon": False,
    "augment": NONE,
    "final_length_penalty": 1.0,
    "tune_search": False,
    "num_train_epochs": 20.0,
    "eval_strategy": "epoch",
    "per_device_eval_batch_size": 64,
}

# Number of steps until a time budget is turned into one.
UNDECIDED_STEPS = 10**9

# With a time budget: share of the run between evaluations, unless `eval_steps` is given.
SHARE_BETWEEN_EVALUATIONS = 0.1

# Fields that apply only when a tokenizer is trained.
TOKENIZER_FIELDS = (
    "tokenizer_algorithm", "source_tokenizer_algorithm", "target_tokenizer_algorithm", "vocab_size", "min_frequency",
    "separate_vocabularies", "lowercase", "normalization", "source_normalization",
)  # fmt: skip  # a list of names


@dataclass
class ModelArguments(ModelOptions):
    """Model and tokenizer to train; for `transformers.HfArgumentParser`.

    Attributes:
        given: Names of fields set to other than their defaults.

    Raises:
        ValueError: Two arguments are mutually exclusive, the preset is unknown, or an override is malformed.
    """

    def __post_init__(self) -> None:
        refuse_empty_strings(self)
        check_ranges(self)
        self.given = {option.name for option in fields(self) if getattr(self, option.name) != option.default}
        self._check_excluded("tokenizer_name_or_path", TOKENIZER_FIELDS, "its own vocabulary")
        from_scratch = ("preset", "config_overrides", "tokenizer_name_or_path", *TOKENIZER_FIELDS)
        self._check_excluded("model_name_or_path", from_scratch, "its own tokenizer and configuration")
        if self.extend_vocab and not self.model_name_or_path:
            raise ValueError(
                "`extend_vocab` extends the vocabulary of `model_name_or_path`; set that, or use `vocab_size`"
            )
        self.preset = self.preset or "base"
        if self.preset != AUTO_PRESET:
            get_preset(self.preset)
            self.vocab_size = 8000 if self.vocab_size is None else self.vocab_size
            self.tokenizer_algorithm = self.tokenizer_algorithm or "bpe"
            sides = (self.source_tokenizer, self.target_tokenizer)
            self.separate_vocabularies = bool(self.separate_vocabularies) or sides[0] != sides[1]
        parse_overrides(self.config_overrides)

    @property
    def source_tokenizer(self) -> tuple[str | None, str | None]:
        """Algorithm and normalization of the source side."""
        return (
            self.source_tokenizer_algorithm or self.tokenizer_algorithm,
            self.source_normalization or self.normalization,
        )

    @property
    def target_tokenizer(self) -> tuple[str | None, str | None]:
        """Algorithm and normalization of the target side."""
        return self.target_tokenizer_algorithm or self.tokenizer_algorithm, self.normalization

    def _check_excluded(self, name: str, others: Iterable[str], brings: str) -> None:
        excluded = [f"`{other}`" for other in others if getattr(self, other) not in (None, False)]
        if getattr(self, name) and excluded:
            raise ValueError(f"`{name}` brings {brings}; leave {', '.join(excluded)} out")


@short_errors()
def parse_overrides(text: str | None) -> dict[str, Any]:
    """Parse `"d_model=256,norm_position=pre"` to `{"d_model": 256, "norm_position": "pre"}`; raises ValueError."""
    own = VanillaTransformerConfig.__annotations__
    types = {entry.name: entry.type for entry in fields(VanillaTransformerConfig) if entry.name in own}
    overrides: dict[str, Any] = {}
    for part in filter(None, (text or "").split(",")):
        name, equals, literal = (piece.strip() for piece in part.partition("="))
        if not equals or name not in types:
            hint = ("" if name in types else did_you_mean(name, types)) or "; write field=value,field=value"
            raise ValueError(f"`config_overrides`: {part.strip()!r} does not set a configuration field{hint}")
        if name in overrides:
            raise ValueError(f"`config_overrides` sets {name} twice; remove one of them")
        try:
            value = json.loads({"True": "true", "False": "false", "None": "null"}.get(literal, literal))
        # Not JSON, a number of thousands of digits, or too deeply nested.
        except (ValueError, RecursionError):
            value = literal
        kinds = tuple(get_origin(kind) or kind for kind in get_args(types[name]) or (types[name],))
        if not isinstance(value, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"`config_overrides`: {name}={literal} has the wrong type; {name} takes {names}")
        overrides[name] = value
    return overrides


def join_overrides(overrides: Mapping[str, Any]) -> str | None:
    """Inverse of `parse_overrides`; None if there are no overrides."""
    return ",".join(f"{name}={value}" for name, value in overrides.items()) or None


@dataclass
class VanillaTransformerTrainingArguments(TrainingOptions, Seq2SeqTrainingArguments):  # type: ignore[misc]  # see UNSET
    """`Seq2SeqTrainingArguments` with the paper's defaults (section 5) and token-budget batches.

    Adam with betas 0.9 and 0.98 and epsilon 1e-9; linear warm-up, then inverse square-root decay; label smoothing
    0.1; no weight decay; no gradient clipping. Unless given, the peak learning rate follows from width and warm-up
    (`peak_learning_rate`). Checkpoints are saved whenever the model is evaluated, unless `save_strategy` is set.

    Attributes:
        not_given: Names of fields that a preset may still set: no argument did, and they have their defaults. Copies
            by `dataclasses.replace` or from `to_dict()` count every field as given; those by `with_fields` do not.
        saving_is_given: Whether an argument set `save_strategy` or `save_steps`; likewise.
        dropout_is_open: Whether the preset `auto` leaves the dropout to the time budget, which decides the number of
            epochs.

    Raises:
        ValueError: The warm-up gives no learning rate, two arguments are mutually exclusive, the optimizer is not
            installed, or `fp16` is set on a CPU.
    """

    dataloader_pin_memory: bool = field(
        default_factory=torch.cuda.is_available, metadata={"help": "Copy batches to pinned memory."}
    )

    def __post_init__(self) -> None:
        self.dropout_is_open = False
        self._without_argument = [name for name in PRESET_DEFAULTS if getattr(self, name) is None]
        for name in self._without_argument:
            setattr(self, name, PRESET_DEFAULTS[name])
        self.saving_is_given = self.save_strategy is not None or self.save_steps is not None
        if self.time_budget is not None:
            self._leave_length_open()
        self._infer_saving()
        if self.disable_tqdm is None:
            # In a log file, a progress bar takes thousands of lines.
            self.disable_tqdm = not sys.stderr.isatty()
        self.bf16 = self.bf16 or (self.bf16_if_fast and not self.fp16 and bf16_is_fast())
        if self.accelerator_config is None and self.dataloader_pin_memory:
            # Otherwise copying a batch to the GPU waits for the steps before it.
            self.accelerator_config = {"non_blocking": True}
        # transformers accepts bf16 on a CPU only with `use_cpu`.
        self.use_cpu = self.use_cpu or not torch.accelerator.is_available()
        self._check()
        if self.greater_is_better is None and str(self.metric_for_best_model).rpartition("_")[2] in LOWER_IS_BETTER:
            # transformers knows only that of losses.
            self.greater_is_better = False
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

    def is_given(self, name: str) -> bool:
        """Whether an argument set this field, one of those that a preset may set."""
        return name not in self._without_argument

    def _leave_length_open(self) -> None:
        """Leave the number of steps to the time budget; evaluate and save by steps, since epochs may take any time."""
        # A copy has the steps of the original.
        if self.max_steps != UNDECIDED_STEPS:
            lengths = {"max_steps": self.max_steps > 0, "num_train_epochs": self.is_given("num_train_epochs")}
            if given := [f"`{name}`" for name, is_given in lengths.items() if is_given]:
                raise ValueError(f"`time_budget` sets the number of steps; leave it or {' and '.join(given)} out")
        self.max_steps = UNDECIDED_STEPS
        if self.eval_strategy == "epoch":
            self.eval_strategy = "steps"
        if self.save_strategy in (None, "epoch"):
            self.save_strategy = "steps"
        self.eval_steps = self.eval_steps or SHARE_BETWEEN_EVALUATIONS
        self.save_steps = self.save_steps or self.eval_steps

    def _check(self) -> None:
        check_ranges(self)
        if self.on_nonfinite not in get_args(OnNonfinite):
            raise ValueError(
                f"`on_nonfinite` {self.on_nonfinite} is unknown; use {' or '.join(get_args(OnNonfinite))}"
            )
        # Set by `accelerate launch --mixed_precision`.
        fp16 = self.fp16 or (not self.bf16 and os.environ.get("ACCELERATE_MIXED_PRECISION") == "fp16")
        if fp16 and self.use_cpu:
            raise ValueError("`fp16` needs a GPU: a CPU would still compute in float32; use `bf16`")
        if parse_shares(self.augment) and not self.max_tokens:
            raise ValueError("`augment` needs token-budget batches; set `max_tokens`, or leave `augment` out")

    def _infer_saving(self) -> None:
        if self.save_strategy is None:
            self.save_strategy = "epoch" if self.eval_strategy == "no" else self.eval_strategy
        if self.save_steps is None:
            both_by_steps = self.eval_strategy == self.save_strategy == "steps"
            self.save_steps = (self.eval_steps or self.logging_steps) if both_by_steps else 500
        if "no" in (self.eval_strategy, self.save_strategy):
            self.load_best_model_at_end = False
        if self.save_total_limit is None:
            # One more than the average needs: the best checkpoint is kept besides the last ones.
            self.save_total_limit = self.average_last_checkpoints + 1

    def __getstate__(self) -> dict[str, Any]:
        """Leave `hub_token` out of pickles, such as a checkpoint's `training_args.bin`."""
        return {**self.__dict__, "hub_token": None}

    # A dataclass's own would show `hub_token`.
    __repr__ = Seq2SeqTrainingArguments.__str__


def bf16_is_fast() -> bool:
    """Whether the GPU, or else the CPU, multiplies matrices faster in bfloat16 than in float32.

    Intel's AVX-512 has the instructions but is slower: without AMX, products take 1.8 times as long.
    """
    if torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return processor() in FAST_IN_BF16


def peak_learning_rate(d_model: int, warmup_steps: float) -> float:
    """Peak learning rate of the paper, `(d_model * warmup_steps) ** -0.5` (section 5.3, eq. 3).

    Training diverges at the formula's rate for a short warm-up, so fewer than `MIN_RATE_WARMUP` steps count as
    `MIN_RATE_WARMUP`.
    """
    return (d_model * max(warmup_steps, MIN_RATE_WARMUP)) ** -0.5


def with_learning_rate(args: Any, model: Any) -> Any:
    """Return arguments with the paper's learning rate for the model's width, unless one was given."""
    if args.learning_rate is not None:
        return args
    return with_fields(args, learning_rate=peak_learning_rate(model.config.hidden_size, args.warmup_steps))


def with_fields(arguments: Arguments, **values: Any) -> Arguments:
    """Return a copy of checked arguments with other values, which are not checked again."""
    copied = copy(arguments)
    # All fields, because pickles and thus copies leave `hub_token` out.
    vars(copied).update(vars(arguments) | values)
    return copied
