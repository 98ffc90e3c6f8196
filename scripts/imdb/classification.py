"""Three classifiers of reviews, trained and measured alike: BERT, our encoder from scratch, and TF-IDF.

All see the same texts, cut into the same tokens by BERT's tokenizer, and are scored on the same test texts. Nothing is
chosen by those scores: of the accuracies after each epoch the last one counts.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
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
    pipeline,
    set_seed,
)
from transformers.trainer_utils import EvalPrediction

try:
    from scipy.stats import binomtest
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
except ImportError as error:
    raise ImportError(
        f'{__name__} needs scikit-learn; install it with `pip install "hf-vanilla-transformer[compare]"`'
    ) from error

from hf_vanilla_transformer.inference.loading import load_config, load_model, load_tokenizer
from hf_vanilla_transformer.model.modeling_vanilla_transformer import VanillaTransformerForSequenceClassification
from hf_vanilla_transformer.presets import preset_config
from hf_vanilla_transformer.training.arguments import bf16_is_fast, parse_overrides
from hf_vanilla_transformer.training.checkpoints import newest_checkpoint
from hf_vanilla_transformer.training.metrics import Accuracy
from hf_vanilla_transformer.training.run_folder import check_same_run

from .labelled_text import LABELS, LabelledTextArguments, count_overlap, load_labelled_text

MODELS = ("bert", "from_scratch", "tfidf")
TITLES = {
    "bert": "BERT, fine-tuned",
    "from_scratch": "Transformer encoder, from scratch",
    "tfidf": "TF-IDF + logistic regression",
}

# What the notebook that this comparison grew from reports of google-bert/bert-base-uncased on its GPU.
NOTEBOOK_ACCURACY = (0.92436, 0.93424, 0.93748)
NOTEBOOK_SECONDS = 2985.8906
NOTEBOOK_SAMPLES_PER_SECOND = 25.118
NOTEBOOK_SENTENCE = (
    "This was a masterpiece. Not completely faithful to the books, but enthralling from beginning to end. Might be my "
    "favorite of the three."
)

ID2LABEL = dict(enumerate(LABELS))
LABEL2ID = {name: number for number, name in ID2LABEL.items()}

EVAL_BATCH_SIZE = 128
RESULT_FILE = "result.json"


@dataclass
class ComparisonArguments:
    """Which classifiers to train, and how; for `transformers.HfArgumentParser`.

    Raises:
        ValueError: There is no such classifier or shape, or a number is too small; names the argument.
    """

    model_name_or_path: str = field(
        default="google-bert/bert-base-uncased",
        metadata={"help": "The BERT to fine-tune, whose tokenizer serves all: a folder or a name on the Hub."},
    )
    compare: bool = field(default=False, metadata={"help": "Train all three: bert, from_scratch and tfidf."})
    models: list[str] = field(
        default_factory=lambda: ["bert"], metadata={"help": f"Those to train, of {', '.join(MODELS)}."}
    )
    output_dir: str = field(default="runs/imdb", metadata={"help": "Folder of the models, table, pictures and JSON."})
    resume: bool = field(default=False, metadata={"help": "Go on with an interrupted run of the same arguments."})
    max_length: int = field(default=512, metadata={"help": "Longest text in tokens; longer ones are cut."})
    seed: int = field(default=0, metadata={"help": "Seed of weights, order and dropout."})
    bert_num_train_epochs: float = field(default=3.0, metadata={"help": "Passes over the texts for BERT."})
    bert_learning_rate: float = field(default=5e-5, metadata={"help": "Peak learning rate for BERT."})
    bert_batch_size: int = field(default=8, metadata={"help": "Texts in a batch for BERT."})
    scratch_preset: str = field(default="tiny", metadata={"help": "Shape of the encoder from scratch."})
    scratch_config_overrides: str = field(
        default="encoder_layers=1,encoder_ffn_dim=256,dropout=0.5", metadata={"help": "Fields over its preset's."}
    )
    scratch_num_train_epochs: float = field(default=2.0, metadata={"help": "Passes over the texts from scratch."})
    scratch_learning_rate: float = field(default=1e-3, metadata={"help": "Peak learning rate from scratch."})
    scratch_batch_size: int = field(default=32, metadata={"help": "Texts in a batch from scratch."})

    def __post_init__(self) -> None:
        """Refuse what cannot be, before anything is read."""
        if self.compare:
            self.models = list(MODELS)
        for name in self.models:
            if name not in MODELS:
                raise ValueError(f"--models {name} is unknown; use {', '.join(MODELS)}")
        for name in ("max_length", "bert_batch_size", "scratch_batch_size"):
            if getattr(self, name) < 2:
                raise ValueError(f"--{name} {getattr(self, name)} is too small; set at least 2")
        preset_config(self.scratch_preset, **parse_overrides(self.scratch_config_overrides))


@dataclass
class Outcome:
    """What one classifier gives.

    Attributes:
        name: One of `MODELS`.
        accuracy: Fraction of the test texts classified rightly, 0..1.
        interval: 95 % confidence interval of the same (Wilson).
        parameters: Numbers that were learned.
        training_seconds: Time of training without evaluations.
        training_samples_per_second: Texts trained on in a second, counting every pass.
        inference_samples_per_second: Texts classified in a second, in the last evaluation.
        megabytes: Size of the parameters as stored.
        epochs: Accuracy on the test texts after each epoch.
        log_history: What `Trainer` logged.
    """

    name: str
    accuracy: float
    interval: tuple[float, float]
    parameters: int
    training_seconds: float
    training_samples_per_second: float
    inference_samples_per_second: float
    megabytes: float
    epochs: list[float] = field(default_factory=list)
    log_history: list[dict[str, Any]] = field(default_factory=list, repr=False)


@dataclass(frozen=True)
class Problem:
    """What every classifier is given.

    Attributes:
        tokenizer: BERT's.
        train: Training texts with the columns `input_ids` and `labels`.
        test: Test texts, likewise.
        args: The arguments of the run.
        show_progress: Whether to show bars.
    """

    tokenizer: PreTrainedTokenizerBase
    train: datasets.Dataset
    test: datasets.Dataset
    args: ComparisonArguments
    show_progress: bool


def compare_classifiers(
    data_args: LabelledTextArguments, args: ComparisonArguments, show_progress: bool = False
) -> dict[str, Any]:
    """Train the classifiers that the arguments name, and leave models, table, pictures and JSON in `args.output_dir`.

    Args:
        data_args: The texts.
        args: The classifiers.
        show_progress: Whether to show bars.

    Returns:
        What `results.json` holds: the data, the outcomes, and the notebook's figures.

    Raises:
        ValueError: The data, the model or the output folder cannot be used (`DataError` for data).
    """
    check_output(data_args, args)
    tokenizer = load_bert_tokenizer(args)
    splits = load_labelled_text(data_args)
    overlap = count_overlap(splits)
    ids, cut = tokenize(splits, tokenizer, args.max_length)
    data = {
        "train": len(ids["train"]),
        "test": len(ids["test"]),
        "duplicates": asdict(overlap),
        "truncated": cut,
        "max_length": args.max_length,
    }
    print(f"texts        {data['train']} for training, {data['test']} for testing; {overlap}")
    print(f"truncated    {cut['train']:.1%} and {cut['test']:.1%} of them, to {args.max_length} tokens", flush=True)
    problem = Problem(tokenizer, ids["train"], ids["test"], args, show_progress)
    outcomes = [run_once(name, problem) for name in args.models]
    saved = [outcome.name for outcome in outcomes if outcome.epochs]
    answers = {name: classify(Path(args.output_dir, name), NOTEBOOK_SENTENCE) for name in saved}
    results = {
        "data": data,
        "outcomes": [asdict(outcome) for outcome in outcomes],
        "notebook": {"accuracy": NOTEBOOK_ACCURACY, "samples_per_second": NOTEBOOK_SAMPLES_PER_SECOND},
        "sentence": answers,
    }
    save(results, outcomes, args)
    print(table(outcomes))
    for name, answer in answers.items():
        print(f"{name}: {answer['label']} ({answer['score']:.4f}) for the notebook's sentence")
    return results


# Before training


def check_output(data_args: LabelledTextArguments, args: ComparisonArguments) -> None:
    """Make the output folder, or raise a ValueError if it holds a run that is not to be resumed, or another one."""
    folder = Path(args.output_dir)
    held = [name for name in args.models if (folder / name).exists()]
    if held and not args.resume:
        raise ValueError(
            f"--output_dir {folder} already holds a run of {', '.join(held)}: go on with it by --resume, or name "
            "another folder"
        )
    # Which classifiers are wanted may change, and so may the folder's place.
    free = ("models", "compare", "resume", "output_dir")
    settings = {name: value for name, value in {**asdict(data_args), **asdict(args)}.items() if name not in free}
    check_same_run(folder, settings)


def load_bert_tokenizer(args: ComparisonArguments) -> PreTrainedTokenizerBase:
    """Return the tokenizer of the BERT that the arguments name.

    Raises:
        ValueError: It is no BERT, its tokenizer cannot be loaded, or `max_length` has no positions in it.
    """
    name = args.model_name_or_path
    try:
        config = load_config(name)
        if config.model_type != "bert":
            raise ValueError(f"it is of the type {config.model_type!r}, not 'bert'")
        tokenizer = load_tokenizer(name)
    except ValueError as error:
        raise no_bert(name, error) from error
    if args.max_length > config.max_position_embeddings:
        raise ValueError(
            f"--max_length {args.max_length} is more than the {config.max_position_embeddings} positions of {name}"
        )
    # One text has no second segment; without the ids of segments one collator suits all.
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    return tokenizer


def no_bert(name: str, error: Exception) -> ValueError:
    """Return the error of a folder or name that holds no usable BERT."""
    return ValueError(f"--model_name_or_path {name}: no BERT can be loaded from it ({error})")


def tokenize(
    splits: datasets.DatasetDict, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> tuple[datasets.DatasetDict, dict[str, float]]:
    """Return the ids of every split, the test texts by length, and the fraction of each split that was cut."""

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        encoded = tokenizer(batch["text"], truncation=True, max_length=max_length)
        ids = cast(list[list[int]], encoded["input_ids"])
        cut = [bool(each.overflowing) for each in encoded.encodings or []]
        return {"input_ids": ids, "labels": batch["label"], "length": list(map(len, ids)), "cut": cut}

    encoded = splits.map(encode, batched=True, remove_columns=["text", "label"], desc="tokenizing")
    cut = {split: float(np.mean(encoded[split]["cut"][:])) for split in encoded}
    # Batches of like length waste little on padding; the order does not matter to accuracy.
    encoded["test"] = encoded["test"].select(np.argsort(encoded["test"]["length"][:], kind="stable")[::-1])
    return encoded.remove_columns("cut"), cut


# Training


def run_once(name: str, problem: Problem) -> Outcome:
    """Return the outcome of a classifier; that of a run resumed after it had ended is read from its file."""
    file = Path(problem.args.output_dir, name, RESULT_FILE)
    if file.is_file():
        return Outcome(**json.loads(file.read_text(encoding="utf-8")))
    print(f"{name:<12} {TITLES[name]}", flush=True)
    train: dict[str, Callable[[Problem], Outcome]] = {
        "bert": train_bert,
        "from_scratch": train_from_scratch,
        "tfidf": train_tfidf,
    }
    outcome = train[name](problem)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(asdict(outcome), indent=2) + "\n", encoding="utf-8")
    return outcome


def train_bert(problem: Problem) -> Outcome:
    """Fine-tune BERT with a new classifier on top.

    Raises:
        ValueError: Its weights cannot be loaded.
    """
    args = problem.args
    set_seed(args.seed)
    try:
        model = load_model(
            args.model_name_or_path,
            AutoModelForSequenceClassification,
            new_weights=("classifier.", "bert.pooler."),
            num_labels=len(LABELS),
            id2label=ID2LABEL,
            label2id=LABEL2ID,
        )
    except ValueError as error:
        raise no_bert(args.model_name_or_path, error) from error
    return train_model(
        "bert",
        model,
        problem,
        num_train_epochs=args.bert_num_train_epochs,
        learning_rate=args.bert_learning_rate,
        per_device_train_batch_size=args.bert_batch_size,
    )


def train_from_scratch(problem: Problem) -> Outcome:
    """Train the encoder of the Transformer, the mean of its states and a linear classifier, from random weights."""
    args, tokenizer = problem.args, problem.tokenizer
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
        problem,
        num_train_epochs=args.scratch_num_train_epochs,
        learning_rate=args.scratch_learning_rate,
        per_device_train_batch_size=args.scratch_batch_size,
        warmup_steps=0.1,
        weight_decay=0.1,
    )


class _TrainingTime(TrainerCallback):
    """Notes in the log how long each epoch trains, evaluations not counted; a checkpoint carries it on."""

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.begun = time.perf_counter()

    def on_epoch_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        seconds = time.perf_counter() - self.begun
        state.log_history.append({"epoch": state.epoch, "step": state.global_step, "train_seconds": seconds})


def train_model(name: str, model: PreTrainedModel, problem: Problem, **recipe: Any) -> Outcome:
    """Train a model with `Trainer`, save it with the tokenizer, and return what it gives.

    Args:
        name: Its folder in the output folder.
        model: A classifier of texts.
        problem: Texts and tokenizer.
        **recipe: Fields of `transformers.TrainingArguments`.
    """
    folder = Path(problem.args.output_dir, name)
    metric = Accuracy()

    def score(prediction: EvalPrediction) -> dict[str, float]:
        logits = cast(np.ndarray, prediction.predictions)
        return cast(dict[str, float], metric.compute(predictions=logits.argmax(-1), references=prediction.label_ids))

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
            seed=problem.args.seed,
            bf16=bf16_is_fast(),
            use_cpu=not torch.accelerator.is_available(),
            disable_tqdm=not problem.show_progress,
            report_to="none",
            **recipe,
        ),
        train_dataset=problem.train,
        eval_dataset=problem.test,
        data_collator=DataCollatorWithPadding(problem.tokenizer),
        processing_class=problem.tokenizer,
        compute_metrics=score,
        callbacks=[_TrainingTime()],
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
        confidence_interval(accuracy, len(problem.test)),
        model.num_parameters(),
        seconds,
        len(problem.train) * recipe["num_train_epochs"] / seconds,
        evaluations[-1]["eval_samples_per_second"],
        sum(file.stat().st_size for file in folder.glob("*.safetensors")) / 1e6,
        [entry["eval_accuracy"] for entry in evaluations],
        log,
    )


def train_tfidf(problem: Problem) -> Outcome:
    """Fit a logistic regression of the TF-IDF weights of the tokens."""
    classifier = make_pipeline(
        TfidfVectorizer(analyzer=list, min_df=2, sublinear_tf=True), LogisticRegression(max_iter=1000)
    )
    start = time.perf_counter()
    classifier.fit(problem.train["input_ids"][:], problem.train["labels"][:])
    trained = time.perf_counter()
    predictions = classifier.predict(problem.test["input_ids"][:])
    ended = time.perf_counter()
    references = problem.test["labels"][:]
    score = cast(dict[str, float], Accuracy().compute(predictions=predictions, references=references))
    learned = (classifier[0].idf_, classifier[1].coef_, classifier[1].intercept_)
    return Outcome(
        "tfidf",
        score["accuracy"],
        confidence_interval(score["accuracy"], len(references)),
        sum(each.size for each in learned),
        trained - start,
        len(problem.train) / (trained - start),
        len(references) / (ended - trained),
        sum(each.nbytes for each in learned) / 1e6,
    )


def confidence_interval(accuracy: float, number: int) -> tuple[float, float]:
    """Return the 95 % interval of an accuracy measured on that many texts (Wilson 1927)."""
    interval = binomtest(round(accuracy * number), number).proportion_ci(confidence_level=0.95, method="wilson")
    return float(interval.low), float(interval.high)


# After training


def classify(folder: Path, text: str) -> dict[str, Any]:
    """Return label and score that a saved classifier gives a text through `pipeline("text-classification")`."""
    (answer,) = pipeline("text-classification", model=str(folder))(text)
    return answer


def table(outcomes: list[Outcome]) -> str:
    """Return the outcomes as a table in Markdown, the notebook's figures in its last row."""
    lines = [
        "| model | accuracy (95 % interval) | parameters | training | texts/s training | texts/s inference | size |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for each in outcomes:
        low, high = each.interval
        lines.append(
            f"| {TITLES[each.name]} | {each.accuracy:.2%} ({low:.2%} to {high:.2%}) | {each.parameters / 1e6:.2f} M "
            f"| {each.training_seconds / 60:.1f} min | {each.training_samples_per_second:.1f} "
            f"| {each.inference_samples_per_second:.1f} | {each.megabytes:.1f} MB |"
        )
    epochs = ", ".join(f"{accuracy:.3%}" for accuracy in NOTEBOOK_ACCURACY)
    lines.append(
        f"| the notebook's bert-base, its GPU, 25,000 texts | {epochs} after epochs 1 to 3 | 109.48 M "
        f"| {NOTEBOOK_SECONDS / 60:.1f} min with evaluations | {NOTEBOOK_SAMPLES_PER_SECOND} | | |"
    )
    return "\n".join(lines)


def save(results: dict[str, Any], outcomes: list[Outcome], args: ComparisonArguments) -> None:
    """Write the JSON, the table and, where matplotlib is installed, the pictures."""
    folder = Path(args.output_dir)
    (folder / "results.json").write_text(json.dumps(results, indent=2) + "\n", encoding="utf-8")
    (folder / "table.md").write_text(table(outcomes) + "\n", encoding="utf-8")
    if not find_spec("matplotlib"):
        return
    from .figures import plot_accuracies, plot_learning_curves  # matplotlib is optional

    names = [TITLES[each.name] for each in outcomes]
    plot_accuracies(
        names,
        [each.accuracy for each in outcomes],
        [each.interval for each in outcomes],
        folder / "accuracy.png",
        reference=("bert-base in the notebook", NOTEBOOK_ACCURACY[-1]),
    )
    curves = {TITLES[each.name]: each.log_history for each in outcomes if each.log_history}
    if curves:
        levels = {TITLES[each.name]: each.accuracy for each in outcomes if not each.log_history}
        plot_learning_curves(curves, folder / "learning_curves.png", levels=levels)


__all__ = ["MODELS", "ComparisonArguments", "Outcome", "compare_classifiers"]
