"""Set-up of an experiment: argument checks, text, tokenizer, model, token ids, trainer."""

from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.arguments import DataArguments
from ..data.batching import check_token_ids, token_lengths
from ..data.encoding import LengthLimits, tokenize_pairs
from ..inference.alignment import set_alignment_heads
from ..model.configuration_vanilla_transformer import VanillaTransformerConfig
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..options import POSITIVE, check_range
from ..presets import preset_config
from ..pretrained.languages import has_tags, set_language_ids
from ..pretrained.loading import load_model, load_tokenizer
from ..pretrained.output_limits import ROOM
from ..pretrained.teacher_forcing import position_limit, tightest_limit
from ..text.facts import TextFacts
from .arguments import ModelArguments, VanillaTransformerTrainingArguments, parse_overrides, with_learning_rate
from .callbacks import METRICS, EarlyStopping
from .evaluation import corpus_scorer
from .metrics import check_tokenizer
from .model_card import check_template
from .options import AUTO_METRIC
from .plan import RunPlan, plan_run
from .resuming import check_changes, experiment_record, requested_dropout, run_record
from .text_facts import TrainingText, learn_facts
from .text_splits import TextSplits, TokenizedSplits, align_text, load_text, part_numbers
from .tokenizer import add_embeddings, load_or_train_tokenizer, source_prefixes, vocabulary_sizes
from .trainer import VanillaTransformerTrainer
from .trainer_loss import AlignedPairsCollator, data_seed, is_resampled, resampling

logger = logging.get_logger(__name__)

# Output length of the saved model's `generate()`, whose own default is 20 tokens; more if training had longer targets.
DEFAULT_MAX_LENGTH = 512

# Configuration fields that `vocabulary_sizes` returns.
VOCABULARY_SIZES = ("vocab_size", "decoder_vocab_size")


@dataclass(frozen=True)
class Experiment:
    """Everything that training and evaluation need."""

    plan: RunPlan
    text: TextSplits
    ids: TokenizedSplits
    tokenizer: PreTrainedTokenizerBase
    trainer: VanillaTransformerTrainer


def set_up(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
    checkpoint: str | None = None,
) -> Experiment:
    """Read the data, plan, train or load the tokenizer, build or load the model, and create the trainer.

    The first process does so before the others, which then read its caches. A resumed run uses the model and tokenizer
    of its checkpoint.

    Raises:
        ValueError: Data or arguments cannot be used (`DataError` for data), or do not match the checkpoint.
    """
    if model_args.attn_implementation == "flex_attention" and args.device.type == "cpu":
        raise ValueError("`attn_implementation` flex_attention has no gradients on a CPU; leave it out")
    # First among all machines, because they share the folder in which the tokenizer is saved.
    with args.main_process_first(local=False, desc="reading the data"):
        training = TrainingText(load_text(data_args))
        plan = plan_run(model_args, data_args, args, training, checkpoint)
        if plan.data_args.drop_repeated:
            training = training.without_repeats
        text = training.text
        tokenizer = load_or_train_tokenizer(plan.source, plan.args, text)
        model = load_or_build_model(plan.source, tokenizer, **requested_dropout(plan))
        plan = replace(plan, args=with_learning_rate(plan.args, model))
        record = experiment_record(plan, text)
        if checkpoint:
            # Before the text is aligned and tokenized, which may take a long time.
            check_changes(checkpoint, run_record(plan.args, model, tokenizer) | record, args.resume_with_changes)
        text = align_text(text, plan.data_args, plan.args)
        if plan.data_args.links:
            guide_alignments(model, tokenizer, plan.args)
        ids = tokenize_splits(text, tokenizer, model.config, plan.data_args, plan.args)
        learn_facts(model, tokenizer, training, ids)
        if has_tags(tokenizer):
            set_language_ids(model, tokenizer)
    trainer = make_trainer(model, tokenizer, text, ids, plan.args)
    trainer.experiment = record
    return Experiment(plan, text, ids, tokenizer, trainer)


def check_arguments(
    data_args: DataArguments, args: VanillaTransformerTrainingArguments, card_template: str | Path | None
) -> None:
    """Raise a ValueError for arguments that would otherwise fail only after hours."""
    metric = args.metric_for_best_model
    if metric not in (AUTO_METRIC, *METRICS, "loss"):
        raise ValueError(
            f"`metric_for_best_model` {metric} is unknown; use {', '.join((AUTO_METRIC, *METRICS))} or loss"
        )
    if metric in METRICS and not args.predict_with_generate and args.eval_strategy != "no":
        raise ValueError(f"`metric_for_best_model` {metric} needs `predict_with_generate`; use loss without it")
    if args.early_stopping_patience is not None and args.eval_strategy == "no":
        raise ValueError("`early_stopping_patience` needs evaluations; set `eval_strategy` to epoch or steps")
    if data_args.streaming and args.max_steps < 1:
        raise ValueError("`streaming`: a stream has no epochs; set the length of training with `max_steps`")
    if args.max_steps < 1:
        check_range(POSITIVE, num_train_epochs=args.num_train_epochs)
    for name in ("bf16_full_eval", "fp16_full_eval"):
        if getattr(args, name):
            raise ValueError(
                f"`{name}` has no effect: evaluations during training use the precision of training; leave it out"
            )
    if args.bleu_tokenize:
        check_tokenizer(args.bleu_tokenize, "bleu_tokenize")
    if card_template:
        check_template(card_template)
    if find_spec("matplotlib"):
        # Fail now if the installation is broken.
        import_module(".visualization", __package__)


def guide_alignments(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, args: VanillaTransformerTrainingArguments
) -> None:
    """Choose the head that learns alignments: the first of the last layer, the closest to the prediction."""
    if "smoothing" not in signature(model.forward).parameters:
        raise ValueError(
            f"`guided_alignment` supports only models of this package, not {type(model).__name__}; leave it out"
        )
    if not tokenizer.is_fast:
        raise ValueError(
            f"`guided_alignment` needs a fast tokenizer, for the offsets of tokens, but {type(tokenizer).__name__} is "
            "slow; set it to none"
        )
    if args.packing:
        raise ValueError("`guided_alignment` needs padded batches; leave it or `packing` out")
    set_alignment_heads(model, [[model.config.decoder_layers - 1, 0]])


def load_or_build_model(
    model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase, **dropout: Any
) -> PreTrainedModel:
    """Load the model that the arguments name, with this dropout, or build one for the tokenizer's vocabulary.

    Raises:
        ValueError: An override is impossible, tokenizer and model do not match, or the attention cannot be used.
    """
    model: PreTrainedModel
    if model_args.model_name_or_path:
        name, trust_remote_code = model_args.model_name_or_path, model_args.trust_remote_code
        model = load_model(name, trust_remote_code=trust_remote_code, **dropout)
        add_embeddings(model, load_tokenizer(name, trust_remote_code=trust_remote_code), tokenizer)
        check_tokenizer_fits(model.config, tokenizer)
    else:
        config = configuration(model_args, tokenizer)
        check_tokenizer_fits(config, tokenizer)
        model = VanillaTransformerForConditionalGeneration(config)
    if model_args.attn_implementation:
        try:
            model.set_attn_implementation(model_args.attn_implementation)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"`attn_implementation` {model_args.attn_implementation} cannot be used: {error}"
            ) from error
    return model


def configuration(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> VanillaTransformerConfig:
    """Return the configuration of a model that is trained from scratch with a tokenizer."""
    fields: dict[str, Any] = dict(zip(VOCABULARY_SIZES, vocabulary_sizes(tokenizer), strict=True))
    # One matrix can serve both sides only if ids mean the same on both.
    fields["share_encoder_decoder_embeddings"] = not hasattr(tokenizer, "target_vocab_size")
    return preset_config(model_args.preset, **fields | parse_overrides(model_args.config_overrides))


def check_tokenizer_fits(config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError if special ids differ, or a vocabulary is larger than its embedding."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    tokens = {name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None}
    differing = [name for name, value in tokens.items() if value != getattr(config, name)]
    if differing:
        theirs = ", ".join(f"{name} {tokens[name]}" for name in differing)
        ours = ", ".join(f"{name} {getattr(config, name)}" for name in differing)
        if "bos_token_id" in differing:
            tokens["decoder_start_token_id"] = tokens["bos_token_id"]
        remedy = ",".join(f"{name}={value}" for name, value in tokens.items())
        raise ValueError(
            f"the tokenizer has {theirs}, but the model {ours}: use the model's own tokenizer or, to train from "
            f"scratch, `config_overrides={remedy}`"
        )
    for name, size in zip(VOCABULARY_SIZES, vocabulary_sizes(tokenizer), strict=True):
        if size > (limit := getattr(config, name, None) or config.vocab_size):
            raise ValueError(
                f"the tokenizer has {size} tokens, but the {name} of the model is {limit}: use the model's own "
                "tokenizer, or raise the field"
            )


def tokenize_splits(
    text: TextSplits,
    tokenizer: PreTrainedTokenizerBase,
    config: Any,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
) -> TokenizedSplits:
    """Tokenize every split; long evaluation pairs are truncated, never dropped.

    Training pairs keep their texts if each epoch retokenizes them.
    """
    ids, counts = {}, {}
    limit = position_limit(config)
    limits = LengthLimits(
        tightest_limit(data_args.max_source_length, limit),
        tightest_limit(data_args.max_target_length, limit),
        data_args.max_length_ratio,
    )
    prefixes = source_prefixes(tokenizer, text.parts)
    resample = resampling(tokenizer, args, limits, prefixes=prefixes).resample if is_resampled(args) else None
    for split, pairs in text.present().items():
        ids[split], counts[split] = tokenize_pairs(
            pairs,
            tokenizer,
            max_source_length=limits.source,
            max_target_length=limits.target,
            on_long=data_args.on_long,
            max_length_ratio=limits.ratio,
            evaluation=split != "train",
            num_proc=data_args.preprocessing_num_workers,
            keep_text=split == "train" and resample is not None,
            resample=resample,
            prefixes=prefixes,
        )
        if isinstance(ids[split], datasets.Dataset):
            check_token_ids(ids[split], config.vocab_size, getattr(config, "decoder_vocab_size", None))
    counts["train"].add_repeated(text.repeated or 0)
    return TokenizedSplits(ids["train"], ids.get("validation"), counts)


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: TextSplits,
    ids: TokenizedSplits,
    args: VanillaTransformerTrainingArguments,
) -> VanillaTransformerTrainer:
    """Create the trainer, which scores generated translations of the validation pairs."""
    set_generation_defaults(model, args)
    validation = scorer = rows = None
    callbacks = []
    if ids.validation is not None and text.validation is not None:
        # Sentences of similar length finish decoding together.
        order = np.argsort(token_lengths(ids.validation)[0], kind="stable")
        validation = ids.validation.select(order)
        if args.predict_with_generate:
            scorer = corpus_scorer(tokenizer, text, text.validation.select(order), args)
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(early_stopping_patience=args.early_stopping_patience))
    if isinstance(ids.train, datasets.Dataset):
        rows = text.epoch_rows(part_numbers(ids.train), data_seed(args))
    if rows and not args.max_tokens:
        raise ValueError("corpus weights and `sampling_temperature` need token-budget batches; set `max_tokens`")
    try:
        trainer = VanillaTransformerTrainer(
            model=model,
            args=args,
            train_dataset=ids.train,
            eval_dataset=validation,
            data_collator=AlignedPairsCollator(tokenizer, model=model),
            processing_class=tokenizer,
            compute_metrics=scorer,
            callbacks=callbacks,
        )
    except (ImportError, RuntimeError) as error:
        raise ValueError(f"`report_to` cannot be used: {error}") from error
    trainer.epoch_rows, trainer.source_prefixes = rows, source_prefixes(tokenizer, text.parts)
    return trainer


def set_generation_defaults(model: PreTrainedModel, args: VanillaTransformerTrainingArguments) -> None:
    """Make the saved model decode as the final evaluation does."""
    settings: Any = model.generation_config
    trained = max((target for _, target in TextFacts.of(settings).target_lengths), default=0)
    max_length = tightest_limit(max(DEFAULT_MAX_LENGTH, int(ROOM * trained) + 1), position_limit(model.config))
    settings.update(num_beams=args.final_num_beams, max_length=max_length)
    # Without beams a length penalty has no effect, and a model that sets one cannot be saved.
    settings.length_penalty = args.final_length_penalty if args.final_num_beams > 1 else None
    if args.tune_search:
        # What was tuned for the pairs of an earlier training may not suit these.
        settings.no_repeat_ngram_size = None
    settings.validate(strict=True)
