"""From parallel text to a trained, evaluated and saved translation model.

`train_translation` reads top to bottom: checks, text, tokenizer, model, ids, trainer, training, choice, test, files.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
from transformers import (
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    set_seed,
)
from transformers.trainer_utils import EvalPrediction
from transformers.utils import logging

from ..data.arguments import SPLITS, DataArguments
from ..data.batching import check_token_ids, token_lengths
from ..data.encoding import PairCounts, tokenize_pairs
from ..data.reading import headerless_tsv_files
from ..data.splits import load_parallel_text
from ..data.tokenizer_training import train_tokenizer
from ..errors import DataError, one_line
from ..inference.loading import load_model, load_tokenizer
from ..inference.translation import cross_attention, position_limit, tightest_limit, translate
from ..model.modeling_vanilla_transformer import VanillaTransformerForConditionalGeneration
from ..model.tokenization_vanilla_transformer import VanillaTransformerTokenizer
from ..presets import get_preset, preset_config
from .arguments import ModelArguments, VanillaTransformerTrainingArguments, parse_overrides, peak_learning_rate
from .callbacks import EarlyStopping, mean_training_loss
from .checkpoints import average_checkpoints, complete_checkpoints
from .metrics import translation_scores
from .model_card import TEMPLATE, check_template, write_model_card
from .run_folder import find_checkpoint, make_folder
from .trainer import VanillaTransformerTrainer

logger = logging.get_logger(__name__)

METRICS = ("bleu", "chrf", "exact_match")

SAMPLE_TRANSLATIONS = 10

# Longest output of the saved model's `generate()`, which by itself would stop after 20 tokens.
DEFAULT_MAX_LENGTH = 512

# Pairs of a stream that its tokenizer is trained on: reading on would not change the vocabulary much.
STREAM_TOKENIZER_PAIRS = 1_000_000

# The part of a short run that its warm-up had better take.
GOOD_WARMUP = 0.25

# How much of a sentence the summary shows.
SHOWN_WIDTH = 40

# Evaluations of a run on a stream, which has no epochs to evaluate after.
STREAM_EVALUATIONS = 20


def train_translation(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
    card_template: str | Path | None = TEMPLATE,
) -> dict[str, Any]:
    """Train a translation model and leave it in `args.output_dir` with all that belongs to it.

    Of several processes all train, and the first one does what comes after.

    Args:
        model_args: Model and tokenizer.
        data_args: Parallel text.
        args: Training; `resume_from_checkpoint="last"` goes on with the newest checkpoint of the folder, and with
            its model and tokenizer, whatever `model_args` says.
        card_template: Jinja template of the model card; by default the package's own. None writes no card.

    Returns:
        What `all_results.json` holds: counts, losses, scores and times.

    Raises:
        ValueError: Data, options or the output folder cannot be used (`DataError` for data); nothing was trained.
    """
    checkpoint = find_checkpoint(args)
    check_arguments(model_args, data_args, args, card_template)
    if checkpoint:
        model_args = ModelArguments(model_name_or_path=checkpoint, attn_implementation=model_args.attn_implementation)
    set_seed(args.seed)
    with args.main_process_first(desc="reading the data"):
        text = load_text(data_args)
        fit_to_splits(args, text)
        tokenizer = load_or_train_tokenizer(model_args, args, text["train"])
        model = load_or_build_model(model_args, tokenizer)
        ids, counts = tokenize_splits(text, tokenizer, model.config, data_args)
    trainer = make_trainer(model, tokenizer, text, ids, args)
    if trainer.is_world_process_zero():
        print(start_summary(trainer, tokenizer, counts, data_args), flush=True)

    outcome = trainer.train(resume_from_checkpoint=checkpoint)
    results = training_results(trainer, outcome.metrics, ids["train"], counts)
    if not trainer.is_world_process_zero():
        return results
    # Here already, so that nothing is lost should the rest be interrupted.
    model.save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    model = choose_model(tokenizer, text, args, results)
    samples = evaluate_test(model, tokenizer, text, args, results)
    save_run(model, trainer, results)
    draw_pictures(model, tokenizer, trainer, samples)
    if card_template:
        with reported("the model card"):
            write_model_card(args.output_dir, card_template, data_args, args, samples, results)
    print(end_summary(results, samples, args), flush=True)
    return results


# Before training


def check_arguments(
    model_args: ModelArguments,
    data_args: DataArguments,
    args: VanillaTransformerTrainingArguments,
    card_template: str | Path | None,
) -> None:
    """Raise a ValueError now for what would otherwise fail only after hours, and settle what follows from the rest."""
    metric = args.metric_for_best_model
    if metric not in (*METRICS, "loss"):
        raise ValueError(f"--metric_for_best_model {metric} is unknown; use {', '.join(METRICS)} or loss")
    if metric != "loss" and not args.predict_with_generate and args.eval_strategy != "no":
        raise ValueError(f"--metric_for_best_model {metric} needs --predict_with_generate; use loss without it")
    if args.early_stopping_patience is not None and args.eval_strategy == "no":
        raise ValueError("--early_stopping_patience needs evaluations; set --eval_strategy to epoch or steps")
    if data_args.streaming and args.max_steps < 1:
        raise ValueError("--streaming has no end of an epoch: say how long to train by --max_steps")
    wanted = {"final_num_beams": "hypothesis", "generation_num_beams": "hypothesis", "generation_max_length": "token"}
    for name, what in wanted.items():
        if (value := getattr(args, name)) is not None and value < 1:
            raise ValueError(f"--{name} {value} leaves no {what}; set at least 1")
    if card_template:
        check_template(card_template)
    if find_spec("matplotlib"):
        import_module("..inference.visualization", __package__)
    make_folder(Path(args.output_dir))
    if not model_args.model_name_or_path and args.default_smoothing:
        args.label_smoothing_factor = get_preset(model_args.preset).label_smoothing


def load_text(data_args: DataArguments) -> dict[str, Any]:
    """Return the pairs of every split; all but the training pairs are held in memory even where those are streamed.

    Raises:
        DataError: The data cannot be used, or there are no training pairs.
    """
    text = dict(load_parallel_text(data_args))
    if "train" not in text:
        raise DataError("there are no training pairs; give a training file or a data set with a train split")
    for split, pairs in text.items():
        if split != "train" and not isinstance(pairs, datasets.Dataset):
            text[split] = datasets.Dataset.from_list(list(pairs))
            if not len(text[split]):
                raise DataError(f"there are no {split} pairs; raise --{split}_split_size or give a file")
    return text


def fit_to_splits(args: VanillaTransformerTrainingArguments, text: dict[str, Any]) -> None:
    """Evaluate only where there are pairs for it, and by steps where there are no epochs.

    Raises:
        DataError: Early stopping is wanted, and there is nothing to evaluate on.
    """
    if "validation" not in text:
        if args.early_stopping_patience is not None:
            raise DataError("--early_stopping_patience needs validation pairs; give --validation_split_size or a file")
        args.eval_strategy, args.load_best_model_at_end = "no", False
    if not isinstance(text["train"], datasets.Dataset):
        every = max(1, args.max_steps // STREAM_EVALUATIONS)
        if args.eval_strategy == "epoch":
            args.eval_strategy, args.eval_steps = "steps", args.eval_steps or every
        if args.save_strategy == "epoch":
            args.save_strategy, args.save_steps = "steps", args.eval_steps or every


def load_or_train_tokenizer(
    model_args: ModelArguments, args: VanillaTransformerTrainingArguments, train: Any
) -> PreTrainedTokenizerBase:
    """Return the tokenizer that the arguments name, or one trained on the training pairs by the first process.

    Raises:
        ValueError: It cannot be loaded or trained; names the argument.
    """
    if name := model_args.tokenizer_name_or_path or model_args.model_name_or_path:
        return load_tokenizer(name)
    if args.process_index > 0:
        return AutoTokenizer.from_pretrained(args.output_dir)
    if not isinstance(train, datasets.Dataset):
        train = train.take(STREAM_TOKENIZER_PAIRS)

    algorithm, min_frequency = model_args.tokenizer_algorithm, model_args.min_frequency
    if min_frequency is None:
        # The unigram model prunes by likelihood, not by counts.
        min_frequency = 1 if algorithm == "unigram" else 2

    def learn(*sides: str) -> PreTrainedTokenizerFast:
        return train_tokenizer(
            (row[side] for row in train for side in sides),
            algorithm=algorithm,
            vocab_size=model_args.vocab_size,
            min_frequency=min_frequency,
            lowercase=model_args.lowercase,
            normalization=model_args.normalization,
        )

    tokenizer: PreTrainedTokenizerBase
    if model_args.separate_vocabularies:
        tokenizer = VanillaTransformerTokenizer.from_pair(learn("source"), learn("target"))
    else:
        tokenizer = learn("source", "target")
    # For the other processes, which must have the very same.
    tokenizer.save_pretrained(args.output_dir)
    return tokenizer


def vocabulary_sizes(tokenizer: PreTrainedTokenizerBase) -> tuple[int, int]:
    """Return the number of source and of target tokens."""
    return len(tokenizer), getattr(tokenizer, "target_vocab_size", len(tokenizer))


def load_or_build_model(model_args: ModelArguments, tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    """Return the model that the arguments name, or a new one for the vocabulary of the tokenizer.

    Raises:
        ValueError: An override is impossible, or tokenizer and model do not fit; names the field.
    """
    model: PreTrainedModel
    if model_args.model_name_or_path:
        model = load_model(model_args.model_name_or_path)
    else:
        source_size, target_size = vocabulary_sizes(tokenizer)
        sizes = {"vocab_size": source_size, "decoder_vocab_size": target_size}
        # One matrix can serve both sides only where ids mean the same on both.
        shared = {"share_encoder_decoder_embeddings": not hasattr(tokenizer, "target_vocab_size")}
        overrides = parse_overrides(model_args.config_overrides)
        config = preset_config(model_args.preset, **{**sizes, **shared, **overrides})
        check_tokenizer_fits(config, tokenizer)
        model = VanillaTransformerForConditionalGeneration(config)
    check_tokenizer_fits(model.config, tokenizer)
    if model_args.attn_implementation:
        try:
            model.set_attn_implementation(model_args.attn_implementation)
        except (ImportError, ValueError) as error:
            raise ValueError(
                f"--attn_implementation {model_args.attn_implementation} cannot be used: {error}"
            ) from error
    return model


def check_tokenizer_fits(config: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError if special ids differ, or a vocabulary is larger than its embedding."""
    names = ("pad_token_id", "bos_token_id", "eos_token_id")
    found = {name: getattr(tokenizer, name) for name in names if getattr(tokenizer, name) is not None}
    differing = [name for name, value in found.items() if value != getattr(config, name)]
    if differing:
        theirs = ", ".join(f"{name} {found[name]}" for name in differing)
        ours = ", ".join(f"{name} {getattr(config, name)}" for name in differing)
        if "bos_token_id" in differing:
            found["decoder_start_token_id"] = found["bos_token_id"]
        remedy = ",".join(f"{name}={value}" for name, value in found.items())
        raise ValueError(
            f"the tokenizer has {theirs}, but the model {ours}: use the tokenizer that belongs to the model, or, to "
            f"train from scratch, --config_overrides {remedy}"
        )
    limits = (config.vocab_size, getattr(config, "decoder_vocab_size", None) or config.vocab_size)
    fields_of_size = ("vocab_size", "decoder_vocab_size")
    for name, size, limit in zip(fields_of_size, vocabulary_sizes(tokenizer), limits, strict=True):
        if size > limit:
            raise ValueError(
                f"the tokenizer has {size} tokens, but the model's `{name}` is {limit}: use the tokenizer that "
                "belongs to the model, or raise the field"
            )


def tokenize_splits(
    text: dict[str, Any], tokenizer: PreTrainedTokenizerBase, config: Any, data_args: DataArguments
) -> tuple[dict[str, Any], dict[str, PairCounts]]:
    """Return the ids and the counts of every split; evaluation pairs are never dropped for their length.

    Raises:
        DataError: No pair is left, an id has no embedding, or an evaluation pair no positions.
    """
    ids, counts = {}, {}
    limit = position_limit(config)
    for split, pairs in text.items():
        ids[split], counts[split] = tokenize_pairs(
            pairs,
            tokenizer,
            max_source_length=tightest_limit(data_args.max_source_length, limit),
            max_target_length=tightest_limit(data_args.max_target_length, limit),
            on_long=data_args.on_long,
            max_length_ratio=data_args.max_length_ratio,
            evaluation=split != "train",
            num_proc=data_args.preprocessing_num_workers,
        )
        if not isinstance(ids[split], datasets.Dataset):
            continue
        check_token_ids(ids[split], config.vocab_size, getattr(config, "decoder_vocab_size", None))
        longest = int(np.max(token_lengths(ids[split])))
        if limit is not None and longest > limit:
            raise DataError(
                f"the longest {split} pair has {longest} tokens on one side, but the model has {limit} positions; "
                "use --on_long truncate, or --config_overrides max_position_embeddings=..."
            )
    return ids, counts


def make_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: dict[str, Any],
    ids: dict[str, Any],
    args: VanillaTransformerTrainingArguments,
) -> VanillaTransformerTrainer:
    """Return the trainer.

    Raises:
        ValueError: A reporting tool is not installed, or the generation settings contradict each other.
    """
    set_generation_defaults(model, args)
    validation, scorer, callbacks = None, None, []
    if "validation" in ids:
        # Batches of like length end their decoding together.
        order = np.argsort(token_lengths(ids["validation"])[0], kind="stable")
        validation = ids["validation"].select(order)
        if args.predict_with_generate:
            scorer = corpus_scorer(tokenizer, text["validation"].select(order)["target"][:])
    if args.early_stopping_patience is not None:
        callbacks.append(EarlyStopping(early_stopping_patience=args.early_stopping_patience))
    try:
        return VanillaTransformerTrainer(
            model=model,
            args=args,
            train_dataset=ids["train"],
            eval_dataset=validation,
            data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
            processing_class=tokenizer,
            compute_metrics=scorer,
            callbacks=callbacks,
        )
    except (ImportError, RuntimeError) as error:
        raise ValueError(f"--report_to: {error}") from error


def set_generation_defaults(model: PreTrainedModel, args: VanillaTransformerTrainingArguments) -> None:
    """Let the saved model decode as the final evaluation does."""
    settings: Any = model.generation_config
    settings.update(
        num_beams=args.final_num_beams, max_length=tightest_limit(DEFAULT_MAX_LENGTH, position_limit(model.config))
    )
    # Without beams there is nothing that a length penalty could decide, and saving would refuse it.
    settings.length_penalty = args.final_length_penalty if args.final_num_beams > 1 else None
    settings.validate(strict=True)


def corpus_scorer(tokenizer: PreTrainedTokenizerBase, references: list[str]) -> Any:
    """Return the `compute_metrics` of a Trainer that scores generated ids against the untokenized references."""

    def score(prediction: EvalPrediction) -> dict[str, float]:
        ids = cast(np.ndarray, prediction.predictions)
        texts = tokenizer.batch_decode(ids.clip(min=0), skip_special_tokens=True)  # -100 fills up short rows
        scores = translation_scores(cast(list[str], texts), references)
        return {name: float(scores[name]) for name in METRICS}

    return score


def start_summary(
    trainer: VanillaTransformerTrainer,
    tokenizer: PreTrainedTokenizerBase,
    counts: dict[str, PairCounts],
    data_args: DataArguments,
) -> str:
    """Return what a run is about to do, in one screen."""
    args, model = trainer.args, cast(PreTrainedModel, trainer.model)
    config: Any = model.config
    source_size, target_size = vocabulary_sizes(tokenizer)
    size = f"{args.max_tokens} tokens" if args.max_tokens else f"{args.per_device_train_batch_size} sentences"
    lines = data_summary(counts, data_args)
    parameters = f"{model.num_parameters() / 1e6:.1f} M parameters"
    lines += [
        f"vocabulary   {source_size} source, {target_size} target tokens",
        f"model        {config.model_type}, {parameters}, width {config.hidden_size}",
        f"batches      {size} x {args.gradient_accumulation_steps} accumulated x {args.world_size} processes",
    ]
    steps = args.max_steps
    if isinstance(trainer.train_dataset, datasets.Dataset):
        per_epoch = -(-len(trainer.get_train_dataloader()) // args.gradient_accumulation_steps)
        steps = steps if steps > 0 else int(args.num_train_epochs * per_epoch)
        lines.append(f"steps        {steps}, {per_epoch} an epoch")
    else:
        lines.append(f"steps        {steps}")
    warmup = args.get_warmup_steps(steps)
    schedule = getattr(args.lr_scheduler_type, "value", args.lr_scheduler_type)
    lines.append(f"learning     up to {args.learning_rate:.3g} after {warmup} steps, then {schedule}")
    lines.append(f"output       {args.output_dir}")
    if warmup > steps / 2:
        lines.append(f"warning      {warmup_advice(args, config.hidden_size, warmup, steps)}")
    return "\n".join(lines)


def data_summary(counts: dict[str, PairCounts], data_args: DataArguments) -> list[str]:
    """Return the lines about the pairs, which show what was taken for one and may be a header."""
    lines = [f"{split:<12} {count}" if count.read else f"{split:<12} streamed" for split, count in counts.items()]
    if "validation" not in counts:
        lines.append("validation   none, so no evaluation while training")
    for name, pair in headerless_tsv_files(data_args):
        first = " -> ".join(repr(text[:SHOWN_WIDTH]) for text in pair.values())
        lines.append(f"first pair   {first} (if {name} has a header, name --source_column and --target_column)")
    return lines


def warmup_advice(args: VanillaTransformerTrainingArguments, d_model: int, warmup: int, steps: int) -> str:
    """Return what to do about a warm-up that takes most of a run, and what learning rate that would give."""
    shorter = max(1, int(steps * GOOD_WARMUP))
    rate = cast(float, args.learning_rate)
    better = peak_learning_rate(d_model, shorter) if rate == peak_learning_rate(d_model, warmup) else rate
    return (
        f"--warmup_steps {warmup} is more than half of the {steps} steps, whose highest learning rate is "
        f"{rate * min(1, steps / warmup):.2g}; with --warmup_steps {shorter} it is {better:.2g}"
    )


# After training


def training_results(
    trainer: VanillaTransformerTrainer, metrics: dict[str, float], train: Any, counts: dict[str, PairCounts]
) -> dict[str, Any]:
    """Return the facts about the data and the training that has ended, all of its sessions together."""
    state, record = trainer.state, trainer.run_record
    seconds = record.seconds + metrics["train_runtime"]
    loss = mean_training_loss(state.log_history)
    results: dict[str, Any] = {f"{split}_pairs": count.kept for split, count in counts.items() if count.read}
    results |= {"train_runtime": seconds, "train_loss": metrics["train_loss"] if loss is None else loss}
    results |= {"epoch": state.epoch, "parameters": cast(PreTrainedModel, trainer.model).num_parameters()}
    results["steps"] = state.global_step
    if isinstance(train, datasets.Dataset) and seconds > 0:
        tokens = float(np.sum(token_lengths(train), dtype=np.int64))
        results["train_tokens_per_second"] = tokens * (state.epoch - record.since_epoch) / seconds
    return results


def choose_model(
    tokenizer: PreTrainedTokenizerBase,
    text: dict[str, Any],
    args: VanillaTransformerTrainingArguments,
    results: dict[str, Any],
) -> PreTrainedModel:
    """Return the trained model or the average of its last checkpoints, whichever is better on the validation pairs."""
    models = {"trained": load_model(args.output_dir)}
    number = args.average_last_checkpoints
    checkpoints = complete_checkpoints(args.output_dir)[-number:] if args.save_strategy != "no" else []
    if number > 1 and len(checkpoints) > 1:
        models["averaged"] = average_checkpoints(checkpoints)
        models["averaged"].generation_config = models["trained"].generation_config
        results["averaged_checkpoints"] = len(checkpoints)
    metric = args.metric_for_best_model if args.metric_for_best_model in METRICS else "bleu"
    for name, model in models.items():
        model.to(args.device)  # type: ignore[arg-type]  # mypy loses the signature that transformers wraps
        if "validation" in text:
            translations = best_texts(model, tokenizer, text["validation"]["source"][:], args)
            scores = translation_scores(translations, text["validation"]["target"][:])
            results |= {f"validation_{name}_{each}": scores[each] for each in METRICS}
    chosen = max(models, key=lambda name: (results.get(f"validation_{name}_{metric}", 0.0), name == "averaged"))
    results["chosen_model"] = chosen
    return models[chosen]


def best_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: list[str],
    args: VanillaTransformerTrainingArguments,
) -> list[str]:
    """Return the best translation of each source by the model's own generation settings."""
    hypotheses = translate(model, tokenizer, sources, show_progress=not args.disable_tqdm)
    return [candidates[0].text for candidates in hypotheses]


def evaluate_test(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    text: dict[str, Any],
    args: VanillaTransformerTrainingArguments,
    results: dict[str, Any],
) -> list[dict[str, str]]:
    """Score the test pairs, if any, cased and lower-cased, and return some pairs with their translations."""
    if "test" in text:
        pairs = text["test"]
        translations, references = best_texts(model, tokenizer, pairs["source"][:], args), pairs["target"][:]
        results |= {f"test_{name}": value for name, value in translation_scores(translations, references).items()}
        lowercased = translation_scores(translations, references, lowercase=True)
        results |= {f"test_lowercase_{name}": lowercased[name] for name in ("bleu", "bleu_signature")}
        Path(args.output_dir, "test_translations.txt").write_text(
            "".join(f"{' '.join(line.splitlines())}\n" for line in translations), encoding="utf-8"
        )
    results["sample_split"], samples = choose_samples(text)
    outputs = best_texts(model, tokenizer, [pair["source"] for pair in samples], args)
    return [
        {"source": pair["source"], "reference": pair["target"], "translation": output}
        for pair, output in zip(samples, outputs, strict=True)
    ]


def choose_samples(text: dict[str, Any]) -> tuple[str, list[dict[str, str]]]:
    """Return test pairs with text on both sides, or else validation or training pairs, and the name of their split."""
    for split in reversed(SPLITS):
        if split in text and (samples := list(islice(spread_pairs(text[split]), SAMPLE_TRANSLATIONS))):
            return split, samples
    return "train", []


def spread_pairs(pairs: Any) -> Iterator[dict[str, str]]:
    """Yield the first pair without a blank side of each of `SAMPLE_TRANSLATIONS` stretches, or all those of a stream.

    Corpora are often sorted.
    """
    if not isinstance(pairs, datasets.Dataset):
        yield from filter(has_text, pairs)
        return
    stretch = -(-len(pairs) // SAMPLE_TRANSLATIONS)
    for start in range(0, len(pairs), stretch):
        rows = (pairs[i] for i in range(start, min(start + stretch, len(pairs))))
        yield from islice(filter(has_text, rows), 1)


def has_text(pair: dict[str, str]) -> bool:
    """Whether neither side of a pair is blank."""
    return bool(pair["source"].strip() and pair["target"].strip())


def save_run(model: PreTrainedModel, trainer: VanillaTransformerTrainer, results: dict[str, Any]) -> None:
    """Write model, results and the history of the training."""
    folder = Path(trainer.args.output_dir)
    model.save_pretrained(folder)
    (folder / "all_results.json").write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n", "utf-8")
    trainer.state.save_to_json(str(folder / "trainer_state.json"))


@contextmanager
def reported(what: str) -> Iterator[None]:
    """Turn the failure of what is not worth a finished run into a warning that names it."""
    try:
        yield
    except Exception as error:
        logger.warning(f"{what} could not be made ({type(error).__name__}: {one_line(error)})")


def draw_pictures(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    trainer: VanillaTransformerTrainer,
    samples: list[dict[str, str]],
) -> None:
    """Draw the training curve and the attention of a sample, where matplotlib is installed."""
    if not find_spec("matplotlib"):
        return
    from ..inference.visualization import plot_attention, plot_training_curve  # matplotlib is optional

    folder = Path(trainer.args.output_dir)
    with reported("training_curve.png"):
        plot_training_curve(trainer.state.log_history, folder / "training_curve.png")
    for sample in samples[:1]:
        with reported("attention.png"):
            weights, source_tokens, target_tokens = cross_attention(model, tokenizer, sample["source"])
            plot_attention(weights, source_tokens, target_tokens, folder / "attention.png", title="Cross-attention")


def end_summary(
    results: dict[str, Any], samples: list[dict[str, str]], args: VanillaTransformerTrainingArguments
) -> str:
    """Return what a run has given, in one screen: sample translations, scores, times, where the files are."""
    lines = [f"translations of {results['sample_split']} pairs", ""] if samples else []
    for sample in samples:
        lines += [f"{name:<12} {text}" for name, text in sample.items()] + [""]
    for name in ("bleu", "chrf"):
        if f"test_{name}" in results:
            lines.append(f"test {name:<7} {results[f'test_{name}']:.2f}  {results[f'test_{name}_signature']}")
    if "test_exact_match" in results:
        lines.append(f"test exact   {results['test_exact_match']:.1f} %")
    minutes, speed = results["train_runtime"] / 60, results.get("train_tokens_per_second")
    lines.append(f"training     {minutes:.1f} minutes" + (f", {speed:.0f} tokens a second" if speed else ""))
    lines.append(f"model        {args.output_dir} (the {results['chosen_model']} weights)")
    return "\n".join(lines)


__all__ = ["train_translation"]
