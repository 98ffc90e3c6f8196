"""Record of a run's settings, kept in its checkpoints, and the changes that a resumed run may make."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from transformers import PreTrainedTokenizerBase

from ..data.arguments import AUTO
from ..data.fingerprint import data_fingerprint
from ..data.reading import PAIR_FEATURES, TEXT_COLUMNS
from ..inference.fingerprint import tokenizer_fingerprint
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.hub_code_vanilla_transformer import MODEL_TYPE
from ..presets import preset_config
from .arguments import parse_overrides
from .checkpoints import trained_with

if TYPE_CHECKING:
    from .plan import RunPlan

# Recorded besides the arguments; fields of the configuration have a prefix.
TEXT, VALIDATION, DATA, PARTS, TOKENIZER, PROCESSES = (
    "training text", "validation text", "training data", "corpora and weights", "tokenizer", "processes",
)  # fmt: skip  # a list of names
FIELD = "config_overrides "
DROPOUT = f"{FIELD}dropout"

# Fields of the configuration, except those without effect on the weights; only the dropout fields may change.
OWN_FIELDS = {entry.name for entry in fields(VanillaTransformerConfig)}
OWN_FIELDS &= VanillaTransformerConfig.__annotations__.keys() - {"use_cache", "is_encoder_decoder", "init_std"}
VOCABULARY_FIELDS = ("vocab_size", "decoder_vocab_size", "share_encoder_decoder_embeddings")
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")

# Arguments in none of the following sets are neither recorded nor compared: they do not affect the weights, name a
# folder, or follow from the configuration or the text.

# May never change: model and vocabulary come from the checkpoint.
FIXED = frozenset(
    "model_name_or_path extend_vocab tokenizer_name_or_path tokenizer_algorithm vocab_size min_frequency "
    "separate_vocabularies lowercase normalization source_tokenizer_algorithm target_tokenizer_algorithm "
    "source_normalization feature_separator".split()
) | {TOKENIZER}

# May change if their product stays the same.
BATCH = frozenset(("max_tokens", "per_device_train_batch_size", "gradient_accumulation_steps", PROCESSES))

# Determine the batches of an epoch and their order.
ORDER = BATCH.union(
    (TEXT, DATA, PARTS),
    "seed data_seed streaming validation_split_size test_split_size split_seed max_train_samples max_source_length "
    "max_target_length on_long max_length_ratio drop_repeated".split(),
)

# Affect training from the next step on; may change only with `resume_with_changes`.
MEANT = ORDER.union(
    (f"{FIELD}{name}" for name in DROPOUTS),
    # Optimizer
    "learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps weight_decay adam_beta1 adam_beta2 "
    "adam_epsilon max_grad_norm optim optim_args optim_target_modules muon "
    # Loss
    "label_smoothing_factor guided_alignment guided_alignment_weight ema_decay neftune_noise_alpha "
    "average_tokens_across_devices "
    # Batches
    "augment train_sampling_strategy length_column_name dataloader_drop_last".split(),
)

# Affect the weights only by rounding, or only the length of the run; a change is applied and logged.
FREE = frozenset(
    "attn_implementation packing bf16 fp16 tf32 gradient_checkpointing torch_compile dataloader_num_workers use_cpu "
    "max_steps num_train_epochs time_budget per_device_eval_batch_size predict_with_generate generation_num_beams "
    "generation_max_length eval_strategy eval_steps eval_delay save_strategy save_steps save_total_limit "
    "logging_strategy logging_steps logging_first_step logging_nan_inf_filter on_nonfinite load_best_model_at_end "
    "metric_for_best_model bleu_tokenize ddp_find_unused_parameters average_last_checkpoints early_stopping_patience "
    "save_only_model final_num_beams final_length_penalty tune_search source_lang target_lang".split()
)

# Make the saved optimizer state unusable if changed.
NEW_OPTIMIZER = frozenset("muon optim optim_args optim_target_modules".split())

# Make earlier scores incomparable if changed.
SCORES = frozenset(
    ("metric_for_best_model", "bleu_tokenize", "generation_num_beams", "generation_max_length", VALIDATION)
)

Changes = dict[str, tuple[Any, Any]]
"""Old and new values, by name."""


# The record


def arguments_record(arguments: Any, names: Collection[str] | None = None) -> dict[str, Any]:
    """Return the recorded fields of a dataclass, all of them or only those named."""
    tracked = {option.name for option in fields(arguments)} & (FIXED | MEANT | FREE)
    options = {name: getattr(arguments, name) for name in sorted(tracked if names is None else tracked & {*names})}
    values = {name: getattr(option, "value", option) for name, option in options.items()}
    return cast(dict[str, Any], json.loads(json.dumps(values, default=str)))


def run_record(args: Any, model: Any, tokenizer: Any) -> dict[str, Any]:
    """Return the arguments of training, the configuration, and fingerprints of the vocabulary."""
    config = getattr(model, "config", None)
    names = sorted(OWN_FIELDS) if getattr(config, "model_type", None) == MODEL_TYPE else []
    record = {**arguments_record(args), **{f"{FIELD}{name}": getattr(config, name) for name in names}}
    record[PROCESSES] = args.world_size
    is_known = isinstance(tokenizer, PreTrainedTokenizerBase)
    return record | {TOKENIZER: tokenizer_fingerprint(tokenizer)} if is_known else record


def experiment_record(plan: "RunPlan", text: Any) -> dict[str, Any]:
    """Return the part of an experiment's record that its trainer lacks: on model, tokenizer and text."""
    model_args, data_args = plan.model_args, plan.data_args
    # A resumed run has the model of the checkpoint, so arguments that were not given have no effect.
    names = model_args.given if plan.checkpoint else None
    record = {**arguments_record(model_args, names), **arguments_record(data_args)}
    for name in ("model_name_or_path", "tokenizer_name_or_path"):
        if record.get(name):
            record[name] = Path(record[name]).name
    if data_args.links not in (None, AUTO):
        # The fingerprint of the text covers the links.
        record["guided_alignment"] = "a file"
    record[TEXT] = data_fingerprint(text.train, TEXT_COLUMNS)
    trained = [part for part in text.parts if part.weight > 0]
    if len(trained) == 1:
        # With one direction, language names change nothing.
        trained = [trained[0]._replace(source_lang=None, target_lang=None)]
    record[PARTS] = [text.temperature, *map(list, trained)]
    if text.validation is not None:
        record[VALIDATION] = data_fingerprint(text.validation, PAIR_FEATURES)
    return record | {f"{FIELD}{name}": value for name, value in _requested_fields(plan).items()}


def _requested_fields(plan: "RunPlan") -> dict[str, Any]:
    """Return fields that would replace the checkpoint's, except vocabulary sizes, which the tokenizer determines."""
    if not plan.checkpoint:
        return {}
    model_args = plan.model_args
    overrides = parse_overrides(model_args.config_overrides)
    if "preset" not in model_args.given:
        return overrides
    config = preset_config(model_args.preset, **overrides).to_dict()
    # Fields derived from others are None.
    shape = {name: config[name] for name in OWN_FIELDS - {*VOCABULARY_FIELDS} if config.get(name) is not None}
    return shape | overrides


def requested_dropout(plan: "RunPlan") -> dict[str, Any]:
    """Return the dropout that replaces the checkpoint's, the only part of a configuration that may change."""
    requested = _requested_fields(plan)
    return {name: requested[name] for name in DROPOUTS if name in requested}


# The comparison


def check_changes(checkpoint: str | Path, record: Mapping[str, Any], with_changes: bool = False) -> Changes:
    """Return what has changed since the record in the checkpoint to resume from; nothing if it has no record.

    Raises:
        ValueError: A change is impossible, or affects training without `with_changes`.
    """
    before, now = trained_with(checkpoint) or {}, record
    changes = {name: (before[name], now[name]) for name in now if name in before and before[name] != now[name]}
    where = f"`resume_from_checkpoint` {checkpoint} was trained differently"
    if fixed := {name for name in changes if name in FIXED or name.startswith(FIELD)} - MEANT:
        raise ValueError(
            f"{where}: {_listed(changes, fixed)}; its model and vocabulary cannot change, so leave that out, or train "
            "from scratch in another `output_dir`"
        )
    meant = changes.keys() & MEANT - (BATCH if _batch_size(before) == _batch_size(now) else set())
    if meant and not with_changes:
        raise ValueError(
            f"{where}: {_listed(changes, meant)}; repeat its command, or set `resume_with_changes` if this is intended"
        )
    return changes


def _batch_size(record: Mapping[str, Any]) -> int:
    size = record.get("max_tokens") or record.get("per_device_train_batch_size", 1)
    return prod((size, record.get("gradient_accumulation_steps", 1), record.get(PROCESSES, 1)))


def _listed(changes: Changes, names: Collection[str]) -> str:
    """List old and new values of the named changes, for an error."""
    return ", ".join(_shown(name, *change) for name, change in changes.items() if name in names)


def _shown(name: str, before: Any, now: Any) -> str:
    before, now = (f"{value:g}" if isinstance(value, float) else value for value in (before, now))
    if name in (TEXT, VALIDATION, DATA):
        one, other = (list(value.values()) for value in (before, now))
        if one[1:3] == other[2:0:-1]:
            return f"{name} with source and target swapped"
        return f"{name} {_fingerprint(other)} (was {_fingerprint(one)})"
    if name == PARTS:
        return "directions, weights, tags or `sampling_temperature` of the corpora"
    if name.startswith(FIELD):
        return f"`{FIELD.strip()}` {name.removeprefix(FIELD)}={now} (was {before})"
    return f"{name if name in (TOKENIZER, PROCESSES) else f'`{name}`'} {now} (was {before})"


def _fingerprint(value: Sequence[Any]) -> str:
    number, *digests = value
    return f"of {'a stream' if number is None else f'{number} pairs'}, {'/'.join(digests)}"


def changes_summary(checkpoint: str, changes: Changes) -> str:
    """Describe the changes and their consequences."""
    consequences = {
        "the current epoch continues in a different order": ORDER,
        "the optimizer starts afresh": NEW_OPTIMIZER,
        "the best checkpoint is chosen among later ones": SCORES,
    }
    parts = [f"resuming {Path(checkpoint).name} with {_listed(changes, changes).replace('`', '')}"]
    return "; ".join([*parts, *(text for text, names in consequences.items() if names & changes.keys())])
