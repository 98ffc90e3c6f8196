"""The model card: data, samples, languages and hyperparameters of a run, and no secrets."""

import re
import sys
from pathlib import Path

import huggingface_hub
import pytest
import yaml
from huggingface_hub import ModelCard

from experiments import arguments
from hf_vanilla_transformer.training.evaluation import Results, Sample
from hf_vanilla_transformer.training.model_card import (
    TEMPLATE,
    add_spread,
    check_template,
    write_model_card,
)
from hub_server import hub_of_this_process
from parallel_text import write
from paths import ROOT
from tables import looped

FACTS = {
    "train_pairs": 80,
    "train_runtime": 90.0,
    "epoch": 2.0,
    "parameters": 9000,
    "steps": 6,
    "chosen_model": "trained",
    "directions": [],
}


def card_of(folder, samples=(), split="train", template=TEMPLATE, directions=(), **options):
    """Write the card of a made-up run, and return it."""
    _, data_args, args = arguments(folder, **{"train_file": "somewhere/train.tsv", **options})
    folder.mkdir(exist_ok=True)
    results = Results({**FACTS, "sample_split": split, "directions": directions}, None, list(samples))
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
    bleu, *_ = card_data["model-index"][0]["results"][0]["metrics"]
    assert bleu["type"] == "bleu" and f"| BLEU | {bleu['value']:.2f} |" in card.text
    assert "| train | 80 |" in card.text and "| `warmup_steps` | 10 |" in card.text
    assert "| `dropout` | 0.1 |" in card.text
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
    of_several = card_of(tmp_path / "many", [Sample("a", "b", "c", "en to de")], split, **options).text
    assert "```text\ndirection:   en to de\nsource:      a\nreference:   b\ntranslation: c\n```" in of_several
    # No language was given.
    assert "trained\non train.tsv." in card and "language to" not in card
    assert "| `max_steps` | 2 |" in card and "num_train_epochs" not in card
    assert "| `per_device_train_batch_size` | 8 |" in card and "max_tokens" not in card.split("```sh")[0]
    assert "\n\n\n" not in card


def test_extras_are_listed_where_they_are_used(tmp_path):
    plain = card_of(tmp_path / "plain").text
    assert "| `optim` | adamw_torch" in plain
    assert not re.search("`muon`|`augment`|`ema_decay`|`guided_alignment", plain)
    card = card_of(tmp_path / "extra", muon=True, ema_decay=0.999).text
    assert "| `muon` | True |" in card and "| `ema_decay` | 0.999 |" in card
    assert not re.search("`optim`|`augment`", card)
    guided = card_of(tmp_path / "guided", guided_alignment="somewhere/links.txt").text
    assert "| `guided_alignment` | links.txt |" in guided and "| `guided_alignment_weight` | 0.1 |" in guided


def test_only_codes_are_languages(tmp_path):
    card = card_of(tmp_path / "model", directions=[["English", "pt-BR"]])
    assert card.data.to_dict()["language"] == ["pt-BR"] and "translate English to pt-BR on train.tsv" in card.text


def test_where_it_is_found_on_the_hub(tmp_path):
    card = card_of(tmp_path / "model", dataset_name="me/pairs", train_file=None, test_dataset_name="me/test")
    data = card.data.to_dict()
    # The Hub's code example for transformers' translation is one for a version before 5.
    assert data["library_name"] == "hf_vanilla_transformer" and data["pipeline_tag"] == "translation"
    assert data["datasets"] == ["me/pairs", "me/test"] and "base_model" not in data
    oldest = re.search(r"transformers (\S+) or newer", card.text)[1]
    assert f'"transformers>={oldest},' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def test_the_models_it_was_made_from(tmp_path):
    _, data_args, args = arguments(tmp_path / "model", train_file="train.tsv")
    (tmp_path / "model").mkdir()
    results = Results({**FACTS, "sample_split": "train"}, None, [])
    path = write_model_card(results, data_args, args, starts_from="me/small")
    assert ModelCard.load(path).data.base_model == ["me/small"]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"corpora": "lists/x.yaml"}, "train.tsv and the corpora of x.yaml"),
        ({"corpora": "lists/x.yaml", "train_file": None}, "the corpora of x.yaml"),
        ({"corpora": "{folder}/corpora.json"}, "train.tsv and synthetic pairs"),
    ],
)
def test_corpora_are_named(tmp_path, options, named):
    given = options | {"corpora": options["corpora"].format(folder=tmp_path)}
    assert f"\non {named}." in str(card_of(tmp_path, **given))


def test_no_secrets(tmp_path, monkeypatch):
    words = ["train.py", "--hub_tok=hf_secret", "--api_key", "hf_secret", "--max_tokens", "400"]
    monkeypatch.setattr(sys, "argv", words)
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
    with pytest.raises(ValueError, match="card.md: not a readable model card template"):
        check_template(tmp_path / "card.md")


def test_another_template(tmp_path):
    template = write(tmp_path / "card.md", "---\n{{ card_data }}\n---\n# {{ model_name }}\n")
    assert card_of(tmp_path / "model", template=template).text.strip() == "# model"


VALUES = {"bleu": 12.345, "lowercase_bleu": 13.4, "chrf": 23.4, "chrfpp": 22.1, "ter": 61.2}
SCORES = {**VALUES, **{f"{key}_signature": f"{key}:1|tok:none" for key in VALUES}, "exact_match": 50.0}
TESTED = Results({**FACTS, **{f"test_{name}": value for name, value in SCORES.items()}}, None, [], [])


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hub that checks cards as the Hub's specification says."""
    if int(huggingface_hub.__version__.partition(".")[0]) < 2:
        pytest.skip("huggingface_hub 1 has cards checked by the public Hub, whatever the endpoint")
    with hub_of_this_process(monkeypatch, tmp_path / "home") as hub:
        yield hub


class TestOnTheHub:
    CARDS = sorted((ROOT / "model_cards").glob("*.md"))
    RECIPES = sorted((ROOT / "scripts" / "recipes").glob("*.yaml"))

    @pytest.mark.parametrize("path", CARDS, ids=lambda path: path.stem)
    def test_cards_of_recipes_are_valid(self, hub, path):
        ModelCard.load(path).validate()

    @looped("recipe", RECIPES)
    def test_every_recipe_has_a_card_that_it_would_write(self, recipe):
        """The table has the recipe's values, and its scores are for the recipe's languages."""
        settings = yaml.safe_load(recipe.read_text(encoding="utf-8"))
        entries = [settings]
        if "corpora" in settings:
            entries = yaml.safe_load((ROOT / settings["corpora"]).read_text(encoding="utf-8"))["corpora"]
        languages = list(
            dict.fromkeys(entry[key] for entry in entries for key in ("source_lang", "target_lang") if key in entry)
        )
        card = ModelCard.load(ROOT / "model_cards" / f"{'-'.join([recipe.stem, *languages])}.md")
        assert (card.data.language or []) == languages
        assert card.data.eval_results and f"scripts/recipes/{recipe.name}" in card.text
        table = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", card.text, re.M))
        for name, value in settings.items():
            if name in table:
                assert float(table[name]) == value if isinstance(value, float) else table[name] == str(value), name

    def test_a_finished_run_is_valid(self, hub, finished):
        ModelCard.load(finished / "README.md").validate()

    @pytest.mark.parametrize(
        "options",
        [{}, {"dataset_name": "me/data", "train_file": None}, {"train_file": "a b (c).tsv", "source_lang": "English",
         "target_lang": "pt-BR"}],
        ids=["files", "a dataset", "any name"],
    )  # fmt: skip  # a table
    def test_measured_cards_are_valid(self, hub, tmp_path, options):
        _, data_args, args = arguments(tmp_path / "model", **{"train_file": "train.tsv", **options})
        (tmp_path / "model").mkdir()
        card = ModelCard.load(write_model_card(TESTED, data_args, args))
        card.validate()
        assert [(each.metric_type, each.metric_value) for each in card.data.eval_results] == [
            ("bleu", 12.35), ("bleu", 13.4), ("chrf", 23.4), ("chrf", 22.1), ("ter", 61.2)
        ]  # fmt: skip  # a table
        for row in ("| BLEU, lower-cased | 13.40 | `lowercase_bleu:1\\|tok:none` |", "| exact match | 50.0 % | |"):
            assert row in card.text.splitlines()


def test_the_search_as_tuned(tmp_path, monkeypatch):
    tuned = {"length_penalty": {"value": 1.5}, "no_repeat_ngram_size": {"value": 4}}
    monkeypatch.setitem(FACTS, "tuned_search", tuned)
    card = card_of(tmp_path / "model").text
    assert "| `final_length_penalty` | 1.5, tuned |" in card and "| `no_repeat_ngram_size` | 4, tuned |" in card


class TestOfSequences:
    """Targets that are words, symbols or SMILES."""

    @looped(("notation", "ser"), [("whitespace", "per"), ("character", "cer"), ("smiles", "ser")])
    def test_no_word_of_translation(self, tmp_path, notation, ser):
        scores = {"wer": 30.0, "wer_signature": "sources:9", "ser": 8.0, "ser_signature": "x", "exact_match": 70.0}
        entries = {**FACTS, **{f"test_{name}": value for name, value in scores.items()}, "target_notation": notation}
        entries |= {"sample_split": "test", "directions": [("en", "phones")]}
        _, data_args, args = arguments(tmp_path / notation, train_file="train.tsv")
        (tmp_path / notation).mkdir()
        results = Results(entries, None, [Sample("cat", "K AE T", "K AE D")], ["K AE D"])
        card = ModelCard.load(write_model_card(results, data_args, args))
        data = card.data
        assert data.pipeline_tag == "text-generation" and "text2text-generation" in data.tags
        assert [(each.task_type, each.metric_type, each.metric_value) for each in data.eval_results] == [
            ("text2text-generation", "wer", 30.0), ("text2text-generation", ser, 8.0)
        ]  # fmt: skip  # a table
        assert "to map en to phones" in card.text and "output:      K AE D" in card.text
        assert "| WER | 30.00 | `sources:9` |" in card.text and "BLEU" not in card.text
        words = re.findall(r".*translat.*", str(card), re.IGNORECASE)
        assert all("`vanilla-transformer translate`" in line for line in words)

    def test_several_directions(self, tmp_path):
        scores = {"wer": 30.0, "wer_signature": "sources:9", "ser": 8.0, "ser_signature": "x", "exact_match": 70.0}
        entries = FACTS | {"sample_split": "test", "target_notation": "whitespace"}
        for suffix in ("", "_en-ipa", "_de-ipa"):
            entries |= {f"test_{name}{suffix}": value for name, value in scores.items()}
        _, data_args, args = arguments(tmp_path / "model", train_file="train.tsv")
        (tmp_path / "model").mkdir()
        text = ModelCard.load(write_model_card(Results(entries, None, [], ["K"]), data_args, args)).text
        assert (
            "| direction | WER | SER | exact match |\n|---|---:|---:|---:|\n| en-ipa | 30.00 | 8.00 | 70.0 % |" in text
        )


class TestSpread:
    RUNS = tuple({f"test_{key}": value + seed for key, value in SCORES.items() if key in {*VALUES, "exact_match"}}
                 for seed in (0, 3))  # fmt: skip  # one expression

    def test_is_added_once(self, tmp_path):
        card = card_of(tmp_path / "model").text
        path = Path(write(tmp_path / "card.md", card))
        for runs in (self.RUNS[:1], self.RUNS, self.RUNS):
            add_spread(path, runs)
        text = path.read_text(encoding="utf-8")
        section = text.split("## Over several seeds\n\n")[1].split("\n\n")[0].splitlines()
        assert section[0] == "| on the test pairs | mean of 2 runs | lowest | highest |"
        assert section[2] == "| BLEU | 13.85 | 12.35 | 15.35 |"
        assert section[-1] == "| exact match, % | 51.50 | 50.00 | 53.00 |"
        assert text.replace("\n".join(["## Over several seeds", "", *section, "", ""]), "") == card

    def test_needs_the_section_before_which_it_stands(self, tmp_path):
        with pytest.raises(ValueError, match="card.md: no section `## Training`; use a card that training wrote"):
            add_spread(write(tmp_path / "card.md", "# A card of another kind\n"), self.RUNS)
