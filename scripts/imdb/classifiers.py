"""Three text classifiers: BERT, our encoder from scratch, and logistic regression on TF-IDF weights.

All get the same token ids and the same test texts. Test scores choose nothing: of the accuracies after each epoch, the
last one is reported.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import datasets
import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import EvalPrediction

from hf_vanilla_transformer.extras import install_command

try:
    from scipy.stats import binomtest
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
except ImportError as error:
    raise ImportError(f"{__name__} needs scikit-learn; install it with `{install_command('compare')}`") from error

from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForSequenceClassification
from hf_vanilla_transformer.presets import preset_config
from hf_vanilla_transformer.pretrained.loading import load_config, load_model, load_tokenizer
from hf_vanilla_transformer.training.arguments import bf16_is_fast, parse_overrides
from hf_vanilla_transformer.training.checkpoints import newest_checkpoint

from .arguments import ComparisonArguments
from .labelled_text import LABELS

ID2LABEL = dict(enumerate(LABELS))
LABEL2ID = {name: index for index, name in ID2LABEL.items()}

EVAL_BATCH_SIZE = 128


@dataclass
class Outcome:
    """The result of one of `CLASSIFIERS`."""

    name: str
    # Fraction 0..1 of the test texts classified correctly, and its 95 % confidence interval (Wilson).
    accuracy: float
    interval: tuple[float, float]
    parameters: int
    # Excludes evaluation.
    training_seconds: float
    # Counts every epoch.
    training_samples_per_second: float
    # Of the last evaluation.
    inference_samples_per_second: float
    # Size of the stored parameters.
    megabytes: float
    # Accuracy after each epoch.
    epochs: list[float] = field(default_factory=list)
    log_history: list[dict[str, Any]] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class ClassificationTask:
    """Input of all classifiers: BERT's tokenizer, and texts with columns `input_ids` and `labels`."""

    tokenizer: PreTrainedTokenizerBase
    train: datasets.Dataset
    test: datasets.Dataset
    args: ComparisonArguments
    show_progress: bool


# Tokens


def load_bert_tokenizer(args: ComparisonArguments) -> PreTrainedTokenizerBase:
    """Load the tokenizer of `args.model_name_or_path`; raises ValueError for other models or too few positions."""
    name = args.model_name_or_path
    config = load_config(name)
    if config.model_type != "bert":
        raise ValueError(f"`model_name_or_path` {name} is not a BERT: its model type is {config.model_type!r}")
    tokenizer = load_tokenizer(name)
    if args.max_length > config.max_position_embeddings:
        raise ValueError(
            f"`max_length` {args.max_length} exceeds the {config.max_position_embeddings} positions of {name}"
        )
    # Single texts need no segment ids; without them, one collator serves all models.
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def tokenize(
    splits: datasets.DatasetDict, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[datasets.DatasetDict, dict[str, float]]:
    """Return the ids of each split, test texts sorted by length, and the fraction of each split that was truncated."""

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded = tokenizer(batch["text"], truncation=True, max_length=max_length)
        ids = cast(list[list[int]], encoded["input_ids"])
        truncated = [bool(encoding.overflowing) for encoding in encoded.encodings or []]
        return {"input_ids": ids, "labels": batch["label"], "length": list(map(len, ids)), "truncated": truncated}

    encoded = splits.map(encode, batched=True, remove_columns=["text", "label"], desc="tokenizing")
    truncated = {split: float(np.mean(encoded[split]["truncated"][:])) for split in encoded}
    # Batches of similar length need little padding, and accuracy does not depend on order.
    encoded["test"] = encoded["test"].select(np.argsort(encoded["test"]["length"][:], kind="stable")[::-1])
    return encoded.remove_columns("truncated"), truncated


# Models


def train_bert(task: ClassificationTask) -> Outcome:
    """Fine-tune BERT with a new classification head."""
    args = task.args
    set_seed(args.seed)
    model = load_model(
        args.model_name_or_path,
        AutoModelForSequenceClassification,
        new_weights=("classifier.", "bert.pooler."),
        num_labels=len(LABELS),
        id2label=ID2LABEL,
        label2id=LABEL2ID,
    )
    return train_model(
        "bert",
        model,
        task,
        num_train_epochs=args.bert_num_train_epochs,
        learning_rate=args.bert_learning_rate,
        per_device_train_batch_size=args.bert_batch_size,
    )


def train_from_scratch(task: ClassificationTask) -> Outcome:
    """Train the Transformer's encoder with a linear classifier on its mean state, from random weights."""
    args, tokenizer = task.args, task.tokenizer
    set_seed(args.seed)
    fields: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.cls_token_id,
        "eos_token_id": tokenizer.sep_token_id,
        "decoder_start_token_id": tokenizer.cls_token_id,
        "id2label": ID2LABEL,
        "label2id": LABEL2ID,
    }
    config = preset_config(args.scratch_preset, **{**fields, **parse_overrides(args.scratch_config_overrides)})
    return train_model(
        "from_scratch",
        VanillaTransformerForSequenceClassification(config),
        task,
        num_train_epochs=args.scratch_num_train_epochs,
        learning_rate=args.scratch_learning_rate,
        per_device_train_batch_size=args.scratch_batch_size,
        warmup_steps=0.1,
        weight_decay=0.1,
    )


class _EpochTimer(TrainerCallback):
    """Logs the training time of each epoch without evaluation; checkpoints include the log."""

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.start = time.perf_counter()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        seconds = time.perf_counter() - self.start
        state.log_history.append({"epoch": state.epoch, "step": state.global_step, "train_seconds": seconds})


def train_model(name: str, model: PreTrainedModel, task: ClassificationTask, **training: Any) -> Outcome:
    """Train a model with `Trainer`, and save it with the tokenizer in a folder with its name."""
    folder = Path(task.args.output_dir, name)
    trainer = Trainer(
        model=model,
        args=TrainingArguments(
            output_dir=str(folder),
            eval_strategy="epoch",
            save_strategy="epoch",
            save_total_limit=1,
            per_device_eval_batch_size=EVAL_BATCH_SIZE,
            train_sampling_strategy="group_by_length",
            logging_steps=50,
            seed=task.args.seed,
            bf16=bf16_is_fast(),
            use_cpu=not torch.accelerator.is_available(),
            disable_tqdm=not task.show_progress,
            report_to="none",
            **training,
        ),
        train_dataset=task.train,
        eval_dataset=task.test,
        data_collator=DataCollatorWithPadding(task.tokenizer),
        processing_class=task.tokenizer,
        compute_metrics=_accuracy_of_logits,
        callbacks=[_EpochTimer()],
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(folder))
    trainer.save_model()
    log = trainer.state.log_history
    evaluations = [entry for entry in log if "eval_accuracy" in entry]
    seconds = sum(entry.get("train_seconds", 0.0) for entry in log)
    accuracy = evaluations[-1]["eval_accuracy"]
    return Outcome(
        name,
        accuracy,
        confidence_interval(accuracy, len(task.test)),
        model.num_parameters(),
        seconds,
        len(task.train) * training["num_train_epochs"] / seconds,
        evaluations[-1]["eval_samples_per_second"],
        sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6,
        [entry["eval_accuracy"] for entry in evaluations],
        log,
    )


def _accuracy_of_logits(prediction: EvalPrediction) -> dict[str, float]:
    logits: Any = prediction.predictions
    return {"accuracy": float(np.mean(logits.argmax(-1) == prediction.label_ids))}


def train_tfidf(task: ClassificationTask) -> Outcome:
    classifier = make_pipeline(
        TfidfVectorizer(analyzer=list, min_df=2, sublinear_tf=True), LogisticRegression(max_iter=1000)
    )
    start = time.perf_counter()
    classifier.fit(task.train["input_ids"][:], task.train["labels"][:])
    trained = time.perf_counter()
    predictions = classifier.predict(task.test["input_ids"][:])
    end = time.perf_counter()
    references = task.test["labels"][:]
    accuracy = float(np.mean(predictions == np.array(references)))
    learned = (classifier[0].idf_, classifier[1].coef_, classifier[1].intercept_)
    return Outcome(
        "tfidf",
        accuracy,
        confidence_interval(accuracy, len(references)),
        sum(array.size for array in learned),
        trained - start,
        len(task.train) / (trained - start),
        len(references) / (end - trained),
        sum(array.nbytes for array in learned) / 1e6,
    )


def confidence_interval(accuracy: float, number: int) -> tuple[float, float]:
    """Return the 95 % confidence interval of an accuracy measured on `number` texts (Wilson 1927)."""
    interval = binomtest(round(accuracy * number), number).proportion_ci(confidence_level=0.95, method="wilson")
    return float(interval.low), float(interval.high)
