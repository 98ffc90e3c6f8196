"""scripts/imdb_bert_baseline.py: three classifiers on the same texts, their table, figures and JSON."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from transformers import AutoModelForSequenceClassification, Trainer, pipeline

from hf_vanilla_transformer import VanillaTransformerForSequenceClassification
from imdb.comparison import NOTEBOOK_SENTENCE


@pytest.fixture(scope="module")
def compared(run: Callable[..., None], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    run(folder / "run", "--compare")
    return folder / "run"


def results_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


@pytest.mark.slow
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
        # All 48 reviews of every epoch, over the training time alone.
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
    # 12 of 48 reviews have 16 words, but 12 tokens hold only 10.
    assert data["truncated"] == {"train": 0.25, "test": 0.25}
    assert data["train"] == data["test"] == 48
    assert results_of(compared)["notebook"]["accuracy"][-1] == 0.93748
    for picture in ("accuracy.png", "learning_curves.png"):
        assert imread(compared / picture).std() > 0.05


def test_bert_alone_by_default(run: Callable[..., None], tmp_path: Path):
    run(tmp_path / "run", "--bert_num_train_epochs", "1", "--max_train_samples", "8")
    assert [each["name"] for each in results_of(tmp_path / "run")["outcomes"]] == ["bert"]
    assert (tmp_path / "run" / "learning_curves.png").is_file()


def test_a_run_is_not_overwritten_and_a_finished_one_is_read(compared: Path, run: Callable[..., None], refused):
    before = results_of(compared)
    assert "already holds a run of bert, from_scratch, tfidf" in refused(run, compared, "--compare")
    run(compared, "--compare", "--resume")
    assert results_of(compared) == before
    message = refused(run, compared, "--compare", "--resume", "--max_train_samples", "20")
    assert "max_train_samples" in message and "was None, is 20" in message
    assert results_of(compared) == before


def test_an_interrupted_run_goes_on_from_its_last_epoch(
    compared: Path, run: Callable[..., None], tmp_path: Path, monkeypatch, capsys
):
    arguments = ("--models", "from_scratch")
    evaluate, calls = Trainer.evaluate, []

    def interrupted(self: Trainer, *args: Any, **kwargs: Any) -> Any:
        calls.append(self.state.epoch)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return evaluate(self, *args, **kwargs)

    monkeypatch.setattr(Trainer, "evaluate", interrupted)
    with pytest.raises(SystemExit) as stop:
        run(tmp_path / "run", *arguments)
    assert stop.value.code == 130 and "--resume continues" in capsys.readouterr().err
    run(tmp_path / "run", *arguments, "--resume")
    # One epoch, the interrupted one, and the remaining two.
    assert calls == [1.0, 2.0, 2.0, 3.0]
    whole, resumed = results_of(compared)["outcomes"][1], results_of(tmp_path / "run")["outcomes"][0]
    assert resumed["epochs"] == whole["epochs"]
    timed = [entry for entry in resumed["log_history"] if "train_seconds" in entry]
    assert [entry["epoch"] for entry in timed] == [1.0, 2.0, 3.0]
    assert resumed["training_seconds"] == pytest.approx(sum(entry["train_seconds"] for entry in timed))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--models", "svm"), "--models: invalid choice: 'svm' (choose from"),
        (("--max_length", "33"), "--max_length 33 exceeds the 32 positions"),
        (("--train_file", "x.jsonl"), "--train_file and --test_file belong together"),
    ],
)
def test_bad_arguments_end_in_one_line(run: Callable[..., None], tmp_path: Path, arguments, message, refused):
    assert message in refused(run, tmp_path / "run", *arguments)


def test_a_bad_row_ends_in_one_line_and_leaves_nothing_trained(run: Callable[..., None], tmp_path: Path, refused):
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text('{"text": "film", "label": 3}\n', encoding="utf-8")
    assert "train.jsonl, line 1: the label is 3" in refused(run, tmp_path / "run", "--dataset_name", str(tmp_path))
    assert [path.name for path in (tmp_path / "run").iterdir()] == ["arguments.json"]
