"""After training: the choice between model and average, and the samples."""

from types import SimpleNamespace

import datasets
import pytest
from transformers import AutoTokenizer

from experiments import assert_equal_weights, sentences, weights
from hf_vanilla_transformer import VanillaTransformerMultilingualTokenizer
from hf_vanilla_transformer.data.corpora import Part
from hf_vanilla_transformer.data.encoding import LengthLimits
from hf_vanilla_transformer.data.reading import PART_COLUMN
from hf_vanilla_transformer.data.tokenizer_training import train_tokenizer
from hf_vanilla_transformer.pretrained.languages import recorded_pivots
from hf_vanilla_transformer.pretrained.loading import load_model
from hf_vanilla_transformer.training import evaluation
from hf_vanilla_transformer.training.arguments import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.callbacks import METRICS
from hf_vanilla_transformer.training.checkpoints import average_checkpoints, last_checkpoints
from hf_vanilla_transformer.training.evaluation import Evaluation
from hf_vanilla_transformer.training.text_splits import TextSplits
from translators import SHARED, build, save_translator

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def words():
    """A tokenizer with one token per word."""
    return train_tokenizer(["w"], algorithm="whitespace")


def pairs_of(rows):
    sources, targets = zip(*rows, strict=True)
    return datasets.Dataset.from_dict({"source": sources, "target": targets})


def test_tokenized_text_is_scored_as_it_is(finished, monkeypatch):
    """By the choice of the model and by the test."""
    monkeypatch.setattr(Evaluation, "translations", lambda *args: ["It may rain tomorrow."])
    pairs = pairs_of([("x", "It may rain tomorrow .")])
    text = TextSplits(pairs_of(sentences(3)), validation=pairs, test=pairs)
    found = {}
    for tokenize in ("13a", "none"):
        args = VanillaTransformerTrainingArguments(str(finished), bleu_tokenize=tokenize, use_cpu=True)
        evaluated = Evaluation(text, AutoTokenizer.from_pretrained(finished), args)
        _, test, _ = evaluated.score_test(SimpleNamespace(generation_config=None))
        for name in ("bleu", "lowercase_bleu"):
            assert f"tok:{tokenize}|" in test[f"test_{name}_signature"]
        _, entries = evaluated.choose_model()
        found[tokenize] = test["test_bleu"]
        assert {entries[f"validation_{name}_bleu"] for name in ("trained", "averaged")} == {test["test_bleu"]}
    assert found["13a"] == pytest.approx(100) and found["none"] < 70


class TestChoice:
    @pytest.mark.parametrize(
        ("metric", "trained", "averaged", "chosen"),
        [
            ("bleu", {"bleu": 2.0}, {"bleu": 1.0}, "trained"),
            ("bleu", {"bleu": 1.0}, {"bleu": 2.0}, "averaged"),
            ("bleu", {"bleu": 1.0}, {"bleu": 1.0}, "averaged"),
            ("chrf", {"chrf": 2.0}, {"bleu": 9.0, "chrf": 1.0}, "trained"),
            ("loss", {"bleu": 2.0}, {"chrf": 9.0, "bleu": 1.0}, "averaged"),
            # Of one word.
            ("auto", {"bleu": 2.0}, {"chrf": 9.0, "bleu": 1.0}, "averaged"),
            ("bleu", {"chrf": 9.0}, {"chrf": 2.0}, "trained"),
            ("bleu", {"exact_match": 9.0}, {"exact_match": 2.0}, "trained"),
            ("wer", {"wer": 9.0}, {"wer": 10.0}, "trained"),
            ("wer", {"wer": 9.0, "ser": 3.0}, {"wer": 9.0, "ser": 2.0}, "averaged"),
            ("wer", {"wer": 9.0, "ser": 2.0}, {"wer": 9.0, "ser": 3.0}, "trained"),
            ("ser", {"wer": 9.0, "ser": 2.0}, {"ser": 2.5}, "trained"),
        ],
    )
    def test_the_better_one_on_validation(self, finished, monkeypatch, metric, trained, averaged, chosen):
        scores = {"trained": dict.fromkeys(METRICS, 0.0) | trained, "averaged": dict.fromkeys(METRICS, 0.0) | averaged}
        found = iter(scores.values())
        monkeypatch.setattr(Evaluation, "translations", lambda *args: [""])
        monkeypatch.setattr(evaluation, "scores_by_direction", lambda *args: next(found))
        options = {"metric_for_best_model": metric, "average_last_checkpoints": 2, "use_cpu": True}
        args = VanillaTransformerTrainingArguments(str(finished), **options)
        text = TextSplits(pairs_of(sentences(3)), validation=pairs_of([("a", "b")]))
        model, entries = Evaluation(text, AutoTokenizer.from_pretrained(finished), args).choose_model()
        assert entries["chosen_model"] == chosen and entries["averaged_checkpoints"] == 2
        assert all(entries[f"validation_{name}_{each}"] == scores[name][each] for name in scores for each in METRICS)
        averaged = average_checkpoints(last_checkpoints(finished, 2)).state_dict()
        # The folder holds the average if that was better.
        trained = weights(finished)
        assert_equal_weights(model.state_dict(), averaged if chosen == "averaged" else trained)

    @pytest.mark.parametrize(
        ("options", "chosen"),
        [({}, "averaged"), ({"average_last_checkpoints": 0}, "trained"), ({"save_strategy": "no"}, "trained")],
    )
    def test_without_validation_pairs(self, finished, options, chosen):
        args = VanillaTransformerTrainingArguments(str(finished), use_cpu=True, **options)
        text = TextSplits(pairs_of(sentences(3)))
        _, entries = Evaluation(text, AutoTokenizer.from_pretrained(finished), args).choose_model()
        averaged = {"averaged_checkpoints": 2 + 1} if chosen == "averaged" else {}
        assert entries == {**averaged, "chosen_model": chosen}


def samples_of(text, tokenizer, *limits):
    return Evaluation(text, tokenizer, None, *limits).choose_samples()


class TestTunedSearch:
    """Of prose that people write in sentences."""

    @staticmethod
    def evaluated(folder, **options):
        sources = [f"x {i}" for i in range(1100)]
        pairs = datasets.Dataset.from_dict({"source": sources, "target": ["a small cat sleeps here"] * len(sources)})
        args = VanillaTransformerTrainingArguments(str(folder), use_cpu=True, **{"tune_search": True, **options})
        return Evaluation(TextSplits(pairs, validation=pairs), AutoTokenizer.from_pretrained(folder), args)

    def test_it_is_judged_by_some_validation_pairs(self, finished, monkeypatch, tmp_path):
        model, tried = load_model(finished), []

        def translated(self, model, sources, directions, **options):
            tried.append((len(sources), options))
            return ["a small cat sleeps here" if options.get("length_penalty") == 1.5 else "a cat"] * len(sources)

        monkeypatch.setattr(Evaluation, "_translated", translated)
        tuned = self.evaluated(finished).tune_search(model)
        assert tried[0] == (500, {}) and tuned.keys() == {"length_penalty"} and tuned["length_penalty"].pairs == 500
        model.save_pretrained(tmp_path)
        assert load_model(tmp_path).generation_config.length_penalty == 1.5
        tried.clear()
        assert self.evaluated(finished, final_length_penalty=1.0).tune_search(model) == {} and len(tried) == 1

    def test_else_nothing_is_translated(self, finished, monkeypatch):
        monkeypatch.setattr(Evaluation, "_translated", None)
        assert self.evaluated(finished, tune_search=False).tune_search(load_model(finished)) == {}


class TestSamples:
    def test_none_at_all(self, words):
        blank = pairs_of([("", "b"), ("a", " ")])
        assert samples_of(TextSplits(blank.to_iterable_dataset(), test=blank), words) == ("train", [])

    @pytest.mark.parametrize("number", [1, 9, 10, 11, 95])
    def test_they_are_spread(self, number, words):
        pairs = pairs_of([(f"{i}", "x") for i in range(number)])
        split, samples = samples_of(TextSplits(pairs, validation=pairs), words)
        chosen = [int(pair["source"]) for pair in samples]
        assert split == "validation" and chosen == sorted(set(chosen)) and chosen[0] == 0
        assert len(chosen) == min(number, 10) or (number == 11 and len(chosen) == 6)
        assert chosen[-1] >= number * 0.8 - 1

    @pytest.mark.parametrize("streamed", [False, True])
    @pytest.mark.parametrize(("splits", "expected"), [(1, "train"), (2, "validation"), (3, "validation")])
    def test_blank_pairs_are_left_out(self, splits, expected, streamed, words):
        """They may come first, or alone, in any split."""
        blank = [("", "X"), (" ", ""), ("\u3000", "Y")]
        rows = [[*blank, *sentences(), ("ant", "")], [*blank, *sentences(5, 1)], blank]
        train, *held_out = map(pairs_of, rows[:splits])
        text = TextSplits(train.to_iterable_dataset() if streamed else train, *held_out)
        split, samples = samples_of(text, words)
        assert split == expected and len(samples) >= 4
        assert all(pair["source"].strip() and pair["target"].strip() for pair in samples)

    @pytest.mark.parametrize("limits", [LengthLimits(), LengthLimits(400, 400), LengthLimits(5, 5)])
    def test_long_pairs_are_left_out(self, words, limits):
        third = ("a " * 5, "b") if limits.source == 5 else ("a", "")
        pairs = pairs_of([("a " * 300, "b"), ("a", "b " * 300), third, ("c", "d")])
        assert samples_of(TextSplits(pairs), words, limits)[1] == [{"source": "c", "target": "d"}]


class TestPivots:
    """Of a model of two directions from and to English, evaluated from Spanish to German too."""

    @pytest.fixture
    def evaluated(self, monkeypatch):
        """An evaluation of es-de and es-en, and the translations of es-de by `pivot`."""
        directions = [("es", "en"), ("en", "de"), ("es", "de")]
        parts = tuple(Part(*pair, weight=0 if pair == ("es", "de") else 1) for pair in directions)
        rows = {"source": ["x"] * 302, "target": ["the small black cat sleeps"] * 302, PART_COLUMN: [0] + [2] * 301}
        pairs = datasets.Dataset.from_dict(rows)
        tokenizer = VanillaTransformerMultilingualTokenizer.from_shared(SHARED, directions[:2])
        outputs = {"none": "the small black cat", "en": "the small black cat sleeps"}
        tried = []

        def translations(self, model, pairs, pivot):
            tried.append((set(pairs[PART_COLUMN]), len(pairs), pivot))
            return [outputs[pivot]] * len(pairs)

        monkeypatch.setattr(Evaluation, "translations", translations)
        args = VanillaTransformerTrainingArguments("unused", use_cpu=True)
        return Evaluation(TextSplits(pairs, validation=pairs, parts=parts), tokenizer, args), outputs, tried

    def test_the_better_way_is_recorded(self, evaluated, tmp_path):
        evaluation, outputs, tried = evaluated
        model, _ = save_translator("multilingual", tmp_path)
        assert evaluation.choose_pivots(model) == {"es-de": "en"} == recorded_pivots(model)
        # Only the direction without training pairs.
        assert tried == [({2}, 200, "en"), ({2}, 200, "none")]
        outputs["en"] = "the cat"
        assert evaluation.choose_pivots(model) == {"es-de": ""}
        model.save_pretrained(tmp_path)
        assert recorded_pivots(load_model(tmp_path)) == {"es-de": ""}
        # If they are equal, as without validation pairs.
        outputs["en"] = outputs["none"]
        assert evaluation.choose_pivots(model) == {"es-de": "en"}

    def test_nothing_to_choose(self, evaluated, finished):
        evaluation, _, tried = evaluated
        text, args = evaluation.text, evaluation.args
        model, _ = build("multilingual")
        trained = TextSplits(text.train, validation=text.validation.select([0]), parts=text.parts)
        without = TextSplits(text.train, parts=text.parts)
        others = [Evaluation(each, evaluation.tokenizer, args) for each in (trained, without)]
        for each in (*others, Evaluation(text, SHARED, args)):
            assert each.choose_pivots(model) == {} and recorded_pivots(model) == {}
        assert not tried
