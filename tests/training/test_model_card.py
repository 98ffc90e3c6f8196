"""The model card: data, samples, languages and hyperparameters of a run, and no secrets."""

import sys

import pytest
from huggingface_hub import ModelCard

from experiments import arguments
from hf_vanilla_transformer.training.model_card import TEMPLATE, check_template, write_model_card
from hf_vanilla_transformer.training.results import ModelChoice, Results, Sample, TrainingResults
from parallel_text import write

FACTS = TrainingResults({"train": 80}, seconds=90.0, loss=2.0, epoch=2.0, parameters=9000, steps=6)


def card_of(folder, samples=(), split="train", template=TEMPLATE, **options):
    """Write the card of a made-up run, and return it."""
    _, data_args, args = arguments(folder, **{"train_file": "somewhere/train.tsv", **options})
    folder.mkdir(exist_ok=True)
    results = Results(FACTS, ModelChoice("trained", None), None, split, list(samples))
    return ModelCard.load(write_model_card(results, data_args, args, template))


def example(text):
    """The code block of a card, which must be Python."""
    (code,) = [block.split("```")[0] for block in text.split("```python\n")[1:]]
    compile(code, "README.md", "exec")
    return code


def test_of_a_finished_run(finished):
    card = ModelCard.load(finished / "README.md")
    card_data = card.data.to_dict()
    assert card_data["language"] == ["en", "xx"] and card_data["pipeline_tag"] == "translation"
    (bleu, _) = card_data["model-index"][0]["results"][0]["metrics"]
    assert bleu["type"] == "bleu" and f"| BLEU | {bleu['value']:.2f} |" in card.text
    assert "| train | 80 |" in card.text and "| `warmup_steps` | 10 |" in card.text
    assert "\n\n\n" not in card.text and "{{" not in card.text and "{%" not in card.text
    example(card.text)


def test_any_text_is_quoted(tmp_path):
    text = card_of(tmp_path / "model", [Sample(r'C\C="C" | *x* \'', "$1 `b`", "")]).text
    assert r'"C\\C=\"C\" | *x* \\' in example(text)


def test_without_samples(tmp_path):
    text = card_of(tmp_path / "model").text
    assert 'tokenizer(["..."]' in example(text) and "```text" not in text and "No test pairs were given" in text


@pytest.mark.parametrize(
    ("split", "label"),
    [
        ("train", "Some of the training pairs, which the model has seen:"),
        ("validation", "Some of the validation pairs, by which the model was chosen:"),
        ("test", "Some of the test pairs:"),
    ],
)
def test_where_samples_are_from(tmp_path, split, label):
    options = {"max_steps": 2, "max_tokens": 0}
    card = card_of(tmp_path / "model", [Sample("a  b", "A B", "C")], split, **options).text
    assert f"\n{label}\n\n```text\nsource:      a b\n" in card
    # No language was given.
    assert "trained\non train.tsv." in card and "language to" not in card
    assert "| `max_steps` | 2 |" in card and "num_train_epochs" not in card
    assert "| `per_device_train_batch_size` | 8 |" in card and "max_tokens" not in card.split("```sh")[0]
    assert "\n\n\n" not in card


def test_only_codes_are_languages(tmp_path):
    card = card_of(tmp_path / "model", source_lang="English", target_lang="pt-BR")
    assert card.data.to_dict()["language"] == ["pt-BR"] and "translate English to pt-BR on train.tsv" in card.text


@pytest.mark.parametrize(
    "words",
    [["--hub_token", "hf_secret"], ["--hub_token=hf_secret"], ["--hub-token", "hf_secret"], ["--hub_tok=hf_secret"]],
)
def test_no_secrets(tmp_path, monkeypatch, words):
    monkeypatch.setattr(sys, "argv", ["train.py", *words, "--api_key", "hf_secret", "--max_tokens", "400"])
    command = card_of(tmp_path / "model", hub_token="hf_secret").text.split("```sh\n")[1]
    assert "hf_secret" not in command and "<secret>" in command and "--max_tokens 400" in command


@pytest.mark.parametrize(
    ("program", "command"),
    [
        ("scripts/train_translation.py", "python scripts/train_translation.py --seed 1"),
        ("/x/hf_vanilla_transformer/__main__.py", "python -m hf_vanilla_transformer --seed 1"),
        ("/x/bin/vanilla-transformer", "vanilla-transformer --seed 1"),
    ],
)
def test_the_command(tmp_path, monkeypatch, program, command):
    monkeypatch.setattr(sys, "argv", [program, "--seed", "1"])
    assert f"```sh\n{command}\n```" in card_of(tmp_path / "model").text


@pytest.mark.parametrize("content", [None, "{% if %}", b"\xff"], ids=["missing", "no Jinja", "no UTF-8"])
def test_templates_that_cannot_be_read(tmp_path, content):
    if content:
        write(tmp_path / "card.md", content)
    with pytest.raises(ValueError, match="card.md: not a readable template of the model card"):
        check_template(tmp_path / "card.md")


def test_another_template(tmp_path):
    template = write(tmp_path / "card.md", "---\n{{ card_data }}\n---\n# {{ model_name }}\n")
    assert card_of(tmp_path / "model", template=template).text.strip() == "# model"
