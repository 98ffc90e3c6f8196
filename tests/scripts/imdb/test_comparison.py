"""scripts/imdb_bert_baseline.py: three classifiers on one split, their table, pictures, JSON, and what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from matplotlib.image import imread
from transformers import AutoModelForSequenceClassification, Trainer, pipeline

from hf_vanilla_transformer import VanillaTransformerForSequenceClassification
from imdb.classification import (
    NOTEBOOK_SENTENCE,
    ComparisonArguments,
    confidence_interval,
    load_bert_tokenizer,
    tokenize,
)
from imdb.labelled_text import LabelledTextArguments, load_labelled_text
from reviewers import save_bert, save_reviews
from tiny import tiny_model

# Small enough for seconds, and long enough to learn that "good" is good.
QUICK = (
    "--bert_num_train_epochs 8 --bert_learning_rate 0.01 --bert_batch_size 8 --scratch_num_train_epochs 3 "
    "--scratch_learning_rate 0.01 --scratch_batch_size 8 --max_length 12 "
    "--scratch_config_overrides d_model=16,encoder_layers=1,encoder_ffn_dim=16,dropout=0.0"
).split()


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_reviews(tmp_path_factory.mktemp("reviews"))


@pytest.fixture(scope="module")
def run(load_script: Callable[[str], ModuleType], bert: Path, reviews: Path) -> Callable[..., None]:
    """Run the program on the reviews."""
    main = load_script("imdb_bert_baseline").main

    def start(output: Path, *arguments: str, model: Path = bert) -> None:
        main(
            ["--model_name_or_path", str(model), "--dataset_name", str(reviews), "--output_dir", str(output)]
            + [*QUICK, *arguments]
        )

    return start


@pytest.fixture(scope="module")
def compared(run: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    run(folder / "run", "--compare")
    return folder / "run"


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def test_three_classifiers_learn_and_are_measured_alike(compared: Path):
    outcomes = {each["name"]: each for each in results_of(compared)["outcomes"]}
    assert list(outcomes) == ["bert", "from_scratch", "tfidf"]
    for name, each in outcomes.items():
        assert each["accuracy"] > 0.9, f"{name} has not learned"
        low, high = each["interval"]
        assert low < each["accuracy"] <= high <= 1
        for figure in ("parameters", "training_seconds", "training_samples_per_second", "megabytes"):
            assert each[figure] > 0
        assert each["inference_samples_per_second"] > 0
    assert [len(outcomes[name]["epochs"]) for name in outcomes] == [8, 3, 0]
    assert outcomes["bert"]["accuracy"] == outcomes["bert"]["epochs"][-1]


def test_parameters_size_and_speed_are_those_of_the_saved_model(compared: Path):
    for each in results_of(compared)["outcomes"][:2]:
        model = AutoModelForSequenceClassification.from_pretrained(compared / each["name"])
        assert each["parameters"] == model.num_parameters()
        assert each["megabytes"] == (compared / each["name"] / "model.safetensors").stat().st_size / 1e6
        # The 48 reviews in every epoch, in the time of the epochs alone.
        epochs = len(each["epochs"])
        assert each["training_samples_per_second"] == pytest.approx(48 * epochs / each["training_seconds"])


def test_saved_models_answer_with_label_names(compared: Path):
    results = results_of(compared)
    for name in ("bert", "from_scratch"):
        classify = pipeline("text-classification", model=str(compared / name))
        assert classify("a good film")[0]["label"] == "POSITIVE"
        assert classify("a bad film")[0]["label"] == "NEGATIVE"
        assert results["sentence"][name]["label"] == classify(NOTEBOOK_SENTENCE)[0]["label"]
    scratch = AutoModelForSequenceClassification.from_pretrained(compared / "from_scratch")
    assert isinstance(scratch, VanillaTransformerForSequenceClassification)


def test_table_pictures_and_the_facts_of_the_data(compared: Path):
    table = (compared / "table.md").read_text(encoding="utf-8")
    for text in ("BERT, fine-tuned", "from scratch", "TF-IDF", "92.436%, 93.424%, 93.748%", "25.118"):
        assert text in table
    assert len({line.count("|") for line in table.splitlines()}) == 1
    data = results_of(compared)["data"]
    # 12 of 48 reviews have 16 words, where 12 tokens have room for 10.
    assert data["truncated"] == {"train": 0.25, "test": 0.25}
    assert data["train"] == data["test"] == 48
    assert results_of(compared)["notebook"]["accuracy"][-1] == 0.93748
    for picture in ("accuracy.png", "learning_curves.png"):
        assert imread(compared / picture).std() > 0.05


def test_every_classifier_sees_the_same_tokens(bert: Path, reviews: Path):
    splits = load_labelled_text(LabelledTextArguments(dataset_name=str(reviews)))
    args = ComparisonArguments(model_name_or_path=str(bert), max_length=12)
    tokenizer = load_bert_tokenizer(args)
    ids, cut = tokenize(splits, tokenizer, 12)
    whole = tokenizer(splits["train"]["text"][:])["input_ids"]
    assert [row[:11] + [3] if len(row) > 12 else row for row in whole] == ids["train"]["input_ids"][:]
    assert cut["train"] == sum(len(row) > 12 for row in whole) / len(whole)
    assert ids["train"]["labels"][:] == splits["train"]["label"][:]
    lengths = [len(row) for row in ids["test"]["input_ids"][:]]
    assert lengths == sorted(lengths, reverse=True)
    assert sum(ids["test"]["labels"][:]) == sum(splits["test"]["label"][:])


def test_bert_alone_by_default(run: Callable[..., None], tmp_path: Path):
    run(tmp_path / "run", "--bert_num_train_epochs", "1", "--max_train_samples", "8")
    assert [each["name"] for each in results_of(tmp_path / "run")["outcomes"]] == ["bert"]
    assert (tmp_path / "run" / "learning_curves.png").is_file()


def test_a_run_is_not_overwritten_and_a_finished_one_is_read(compared: Path, run: Callable[..., None], capsys):
    before = results_of(compared)
    with pytest.raises(SystemExit) as stop:
        run(compared, "--compare")
    assert stop.value.code == 2
    assert "already holds a run of bert, from_scratch, tfidf" in capsys.readouterr().err
    run(compared, "--compare", "--resume")
    assert results_of(compared) == before
    with pytest.raises(SystemExit):
        run(compared, "--compare", "--resume", "--max_train_samples", "20")
    assert "--max_train_samples was None, is 20" in capsys.readouterr().err
    assert results_of(compared) == before


def test_an_interrupted_run_goes_on_from_its_last_epoch(run: Callable[..., None], tmp_path: Path, monkeypatch, capsys):
    arguments = ("--models", "from_scratch")
    run(tmp_path / "whole", *arguments)
    evaluate, calls = Trainer.evaluate, []

    def interrupted(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        calls.append(self.state.epoch)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "evaluate", interrupted)
    with pytest.raises(SystemExit) as stop:
        run(tmp_path / "run", *arguments)
    assert stop.value.code == 130 and "--resume goes on" in capsys.readouterr().err
    run(tmp_path / "run", *arguments, "--resume")
    # One epoch, the interrupted one, and the two that were left.
    assert calls == [1.0, 2.0, 2.0, 3.0]
    whole, resumed = (results_of(tmp_path / name)["outcomes"][0] for name in ("whole", "run"))
    assert resumed["epochs"] == whole["epochs"]
    timed = [entry for entry in resumed["log_history"] if "train_seconds" in entry]
    assert [entry["epoch"] for entry in timed] == [1.0, 2.0, 3.0]
    assert resumed["training_seconds"] == pytest.approx(sum(entry["train_seconds"] for entry in timed))


@pytest.fixture
def no_bert(tmp_path: Path) -> dict[str, Path]:
    folders = {name: tmp_path / name for name in ("empty", "translator", "missing")}
    folders["empty"].mkdir()
    tiny_model().save_pretrained(folders["translator"])
    return folders


@pytest.mark.parametrize(
    ("name", "reason"), [("empty", ""), ("missing", ""), ("translator", "type 'vanilla_transformer', not 'bert'")]
)
def test_a_folder_that_is_no_bert_is_named(
    run: Callable[..., None], no_bert: dict[str, Path], name: str, reason: str, tmp_path: Path, capsys
):
    with pytest.raises(SystemExit) as stop:
        run(tmp_path / "run", model=no_bert[name])
    message = capsys.readouterr().err
    assert stop.value.code == 2 and message.count("\n") == 1
    assert f"--model_name_or_path {no_bert[name]}: no BERT can be loaded from it" in message and reason in message


def test_a_bert_without_weights_is_named(run: Callable[..., None], bert: Path, tmp_path: Path, capsys):
    for file in bert.iterdir():
        if file.suffix != ".safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    with pytest.raises(SystemExit):
        run(tmp_path / "run", model=tmp_path)
    assert f"--model_name_or_path {tmp_path}: no BERT can be loaded" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--models", "svm"), "--models svm is unknown; use bert, from_scratch, tfidf"),
        (("--max_length", "33"), "--max_length 33 is more than the 32 positions"),
        (("--max_length", "1"), "--max_length 1 is too small"),
        (("--scratch_preset", "huge"), "unknown preset 'huge'"),
        (("--scratch_config_overrides", "d_model=15"), "d_model"),
        (("--train_file", "x.jsonl"), "--train_file and --test_file belong together"),
    ],
)
def test_bad_arguments_end_in_one_line(
    run: Callable[..., None], tmp_path: Path, arguments: tuple[str, ...], message: str, capsys
):
    with pytest.raises(SystemExit) as stop:
        run(tmp_path / "run", *arguments)
    error = capsys.readouterr().err
    assert stop.value.code == 2 and message in error and "Traceback" not in error


def test_a_bad_row_ends_in_one_line_and_leaves_nothing_trained(run: Callable[..., None], tmp_path: Path, capsys):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text('{"text": "film", "label": 3}\n', encoding="utf-8")
    with pytest.raises(SystemExit):
        run(tmp_path / "run", "--dataset_name", str(tmp_path))
    assert "train.jsonl, line 1: the label is 3" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["arguments.json"]


def test_interval_is_wilsons():
    # The worked example of 81 of 263 (Newcombe 1998, table I): 0.2553 to 0.3662.
    assert confidence_interval(81 / 263, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
