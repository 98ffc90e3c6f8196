"""What training records about its text, and the proof of its rules."""

import json

import datasets
import pytest
from transformers import GenerationConfig

from experiments import set_up
from hf_vanilla_transformer.inference.ctranslate2 import check_settings
from hf_vanilla_transformer.inference.preparation import Preparation
from hf_vanilla_transformer.pretrained.loading import load_model
from hf_vanilla_transformer.pretrained.text_facts import facts_of
from hf_vanilla_transformer.text.facts import ENTRY
from hf_vanilla_transformer.training.proof import HeldOut, prove_rules
from hf_vanilla_transformer.training.text_facts import TrainingText, long_targets, supported_noise
from hf_vanilla_transformer.training.text_splits import TextSplits, TokenizedSplits
from parallel_text import tsv, write

pytestmark = pytest.mark.usefixtures("one_thread")


def run_on(folder, pairs, **options):
    files = {"train_file": write(folder / "train.tsv", tsv(pairs)), "source_lang": "en", "target_lang": "de"}
    return set_up(folder / "run", **files | {"max_steps": 2, "eval_strategy": "no"} | options)


def facts_on(folder, pairs, **options):
    experiment = run_on(folder, pairs, **options)
    return facts_of(experiment.trainer.model.generation_config, experiment.tokenizer)


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("several", [False, True])
def test_the_model_knows_its_training_text(tmp_path, streaming, several):
    long = "Ants run. Bees fly. Cats sleep all day." if several else "Ants and bees and cats and dogs."
    pairs = [(long if i % 2 == 0 else f"Ant has {i}.", "ANT BEE CAT DOG EEL " * (1 + i % 3)) for i in range(40)]
    experiment = run_on(tmp_path, pairs, streaming=streaming)
    experiment.trainer.save_model(tmp_path / "model")
    settings = load_model(tmp_path / "model").generation_config
    facts = facts_of(settings, experiment.tokenizer)
    lengths = [len(experiment.tokenizer(source)["input_ids"]) for source, _ in pairs]
    assert facts.source_length == max(lengths) and facts.target_lengths[-1][0] == max(lengths)
    assert facts.has_capitals and facts.usual_case == "sentence" and facts.repeats == 3
    assert ("sentences" in facts.active) is not several and "numbers" not in facts.active
    assert ENTRY in GenerationConfig.from_pretrained(tmp_path / "model").to_diff_dict()
    # Exports keep them too.
    check_settings(settings.to_dict())
    assert ENTRY in json.loads((tmp_path / "model" / "generation_config.json").read_text())


def test_how_the_training_sources_are_written(tmp_path):
    sources = ["Ant’s “bee” '12'", *["Ant’s bee", "An Ant, Ant, ant"] * 300]
    facts = facts_on(tmp_path, [(source, "ANT — BEE") for source in sources])
    assert facts.marks == "'’" and facts.spellings == {"": "Ant"}
    assert facts.words == {"": "Ant ant bee"} and facts.lookalikes == {"": ""}


@pytest.mark.parametrize("streaming", [False, True])
def test_frequent_words_and_their_lookalikes(tmp_path, streaming):
    pairs = [(f"The dogs run {number}" if number % 700 else "A dgos", "Hunde") for number in range(1, 2001)]
    facts = facts_on(tmp_path, pairs, streaming=streaming)
    assert facts.words == {"": "The dogs run"} and facts.lookalikes == {"": "dgos"}


def test_text_in_which_case_matters_is_read_as_it_is(tmp_path):
    """As in SMILES, where lower-case letters are atoms in rings."""
    pairs = [("CCC" if i % 4 == 0 else "c1ccccc1CO", "CCC") for i in range(40)]
    experiment = run_on(tmp_path, pairs, tokenizer_algorithm="character")
    preparation = Preparation(experiment.trainer.model, experiment.tokenizer)
    assert not preparation.rules & {"upper_case", "title_case", "lower_case", "mentions", "placeholders", "spaces"}
    for text in ("CCC", "c1ccccc1", "CC(=O)[C-]#N.N#CCO"):
        assert preparation.sentence(text).input_text == text and preparation.sentence(text).restore("Cc")[0] == "Cc"


def test_items_that_training_showed_are_left_to_the_model(tmp_path):
    pairs = [
        (f"We saw {2 if i % 9 else 1000 + i} dogs.", "Zwei Hunde." if i % 9 else f"{1000 + i}.") for i in range(600)
    ]
    pairs += [("We saw dogs.", "Hunde.")] * 12_000
    experiment = run_on(tmp_path, pairs, augment="items=0.5")
    facts = facts_of(experiment.trainer.model.generation_config, experiment.tokenizer)
    assert list(facts.items) == ["2"]
    assert "numbers" not in facts.active
    preparation = Preparation(experiment.trainer.model, experiment.tokenizer, rules=["numbers"])
    assert preparation.sentence("We saw 2 dogs.").text == "We saw 2 dogs."
    assert preparation.sentence("We saw 377 dogs.").text == "We saw ⟦1⟧ dogs."


def test_long_targets(tmp_path):
    pairs = [("ant", "bee " * (80 if i % 4 == 0 else 1)) for i in range(40)]
    experiment = run_on(tmp_path, pairs, tokenizer_algorithm="word", max_length_ratio=200)
    assert long_targets(experiment.ids) == 10
    assert experiment.trainer.model.generation_config.max_length == 512
    ids = datasets.Dataset.from_dict({"input_ids": [[1] * 3, [1] * 3], "labels": [[1] * 52, [1] * 53]})
    assert long_targets(TokenizedSplits(ids, None, {})) == 1


def test_default_noise_is_what_the_pairs_support():
    def noise(*pair, augment="default"):
        columns = dict(zip(("source", "target"), ([text] * 40 for text in pair), strict=True))
        return supported_noise(augment, TrainingText(TextSplits(datasets.Dataset.from_dict(columns))).evidence)

    assert noise("The dogs see us.", "Hunde sehen uns.")[0] == "default"
    augment, faults = noise("The dogs see 376 of us.", "Hunde sehen dreihundert.")
    assert augment == "lower=0.05,typos=0.05,punctuation=0.05" and "numbers" in faults["items"]
    wanted = noise("The dogs see 376 of us.", "Hunde sehen dreihundert.", augment="default,items=0.1,copies=0.5")
    assert wanted == ("default,items=0.1,copies=0.5", {})
    assert noise("CC(C)N", "CC", augment="default,copies=0.5")[0] == "copies=0.5"
    assert noise("CC(C)N", "CC")[0] == "none" and noise("CC(C)N", "CC", augment="typos=0.1") == ("typos=0.1", {})


def test_a_rule_that_does_not_help_is_off(tmp_path):
    """Proved on held-out pairs, as they are and in other cases."""
    pairs = [(f"The dogs see {i}.", f"Hunde sehen {i}.") for i in range(3)] + [
        ("The dogs see us.", "Hunde sehen uns.")
    ] * 99
    experiment = run_on(tmp_path, pairs)
    model, tokenizer = experiment.trainer.model, experiment.tokenizer
    before = facts_of(model.generation_config, tokenizer)
    assert {"numbers", "upper_case", "lower_case", "emoji"} <= before.active
    asked = []

    def translate(chosen, raw=False):
        """Pairs as they are and emoji do better raw, other changes prepared; title case makes no difference."""
        asked.extend(pair.source for pair in chosen)
        is_good = [pair.rule == "title_case" or raw == (pair.rule in ("", "emoji")) for pair in chosen]
        return [pair.target if good else "x" for pair, good in zip(chosen, is_good, strict=True)]

    held_out = [HeldOut(f"The dogs see {i}.", f"Hunde sehen {i}.", None) for i in range(700, 740)]
    held_out += [HeldOut("The dogs see us.", "Hunde.", None), HeldOut("The “dogs” see us.", "Hunde.", None)] * 4
    facts = prove_rules(model, tokenizer, held_out, translate)
    # Too few sources have typographic marks.
    assert before.active - facts.active == {"numbers", "title_case", "emoji"} and "marks" in facts.active
    assert facts.rules["emoji"].why == "changes 10 held-out sources, by -100.0 chrF on average"
    assert facts == facts_of(model.generation_config, tokenizer)
    # What no rule changes is not translated.
    assert "The dogs see us." not in asked and "THE DOGS SEE US." in asked


def test_a_proof_ends(tmp_path):
    """Though sources of nothing but items are copied whether or not the rule for text without letters acts."""
    pairs = [("The dogs see us again.", "Hunde sehen uns wieder.")] * 600 + [("1900", "1900")] * 20
    experiment = run_on(tmp_path, pairs, augment="items=0.1")
    model, tokenizer = experiment.trainer.model, experiment.tokenizer
    assert "no_letters" in facts_of(model.generation_config, tokenizer).active
    held_out = [HeldOut(str(year), str(year), None) for year in range(1950, 1960)]
    facts = prove_rules(model, tokenizer, held_out, lambda chosen, **_: [pair.target for pair in chosen])
    assert "no_letters" not in facts.active
