"""The report: summaries on the screen, and results that survive later failures."""

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import arguments, sentences
from hf_vanilla_transformer.training import report
from hf_vanilla_transformer.training.arguments import VanillaTransformerTrainingArguments
from hf_vanilla_transformer.training.evaluation import Results, Sample
from hf_vanilla_transformer.training.metrics import METRIC_NAMES
from hf_vanilla_transformer.training.model_card import TEMPLATE
from hf_vanilla_transformer.training.setup import set_up
from parallel_text import tsv, write
from trainers import TOKENIZER, trainable_model

pytestmark = pytest.mark.usefixtures("one_thread")

SCORES = {
    **{key: 12.345 for key in METRIC_NAMES},
    **{f"{key}_signature": f"{key}:1" for key in METRIC_NAMES},
    "exact_match": 50.0,
}


def summary(folder, **options):
    """The start summary of a run with these arguments."""
    model_args, data_args, args = arguments(folder, **options)
    return report.start_summary(set_up(model_args, data_args, args))


def results_of(speed=120.0, test=True, skipped=0, fault=None, **entries):
    facts = {"train_runtime": 90.0, "parameters": 9000, "steps": 6, "skipped_steps": skipped}
    facts |= {"train_tokens_per_second": speed} if speed else {}
    facts |= {f"test_{name}": value for name, value in SCORES.items()} if test else {}
    facts |= {"chosen_model": "averaged", "directions": [], "sample_split": "test" if test else "train", **entries}
    translations = ["one\u2028line"] if test else None
    return Results(facts, trainable_model(), [Sample("w1 w2", "w2 w1", "w1")], translations, fault)


class TestStart:
    def test_a_first_pair_that_may_be_a_header(self, files, tmp_path):
        text = summary(tmp_path / "model", **files)
        source, target = sentences()[0]
        assert f"first pair   {source!r} -> {target!r} (if train.tsv has a header, set source_column" in text
        assert text.count("first pair") == 3 and "no evaluation" not in text
        columns = {"source_column": "0", "target_column": "1"}
        text = summary(tmp_path / "named", train_file=files["train_file"], **columns)
        assert "first pair" not in text and "validation   none, so no evaluation" in text

    @pytest.mark.parametrize(
        ("options", "parts"),
        [
            (
                {"max_tokens": 0, "gradient_accumulation_steps": 2},
                ["read 80, kept 80", "8 sentences x 2 accumulated x 1 processes", "steps        10, 5 per epoch"],
            ),
            # Rounded up, as `Trainer` does.
            ({"max_tokens": 0, "num_train_epochs": 0.55}, ["steps        6, 10 per epoch"]),
            (
                {"streaming": True, "max_steps": 40},
                ["train        streamed\n", "steps        40\n", "validation   read 12, kept 12"],
            ),
        ],
        ids=["batches of sentences", "a part of an epoch", "a stream"],
    )
    def test_batches_and_steps(self, files, tmp_path, options, parts):
        text = summary(tmp_path / "model", **files, **options)
        assert [part for part in parts if part not in text] == []

    def test_a_long_warmup_is_warned_of_and_the_advice_taken(self, files, tmp_path):
        text = summary(tmp_path / "model", **files, max_steps=8, warmup_steps=4000)
        (warning,) = [line for line in text.split("\n") if line.startswith("warning")]
        assert warning.endswith(
            "warmup_steps 4000 is more than half of the 8 steps, so the learning rate peaks at 7.9e-06; with "
            "warmup_steps 2, it peaks at 0.0079"
        )
        text = summary(tmp_path / "advised", **files, max_steps=8, warmup_steps=2)
        assert "learning     up to 0.00791 after 2 steps" in text and "warning" not in text

    def test_the_advice_keeps_a_given_rate(self, tmp_path):
        args = VanillaTransformerTrainingArguments(str(tmp_path), learning_rate=0.5, warmup_steps=100)
        advice = report.warmup_advice(args, 16, 100, 40)
        assert advice.endswith("learning rate peaks at 0.2; with warmup_steps 10, it peaks at 0.5")

    @pytest.mark.parametrize(
        ("pairs", "odd"),
        [
            ([("ant bee", "ANT BEE")] * 200, "199 of 200 pairs (99.5%) have the same text as an earlier pair"),
            # Each letter once, so that the tokenizer learns none of them.
            ([(f"ant {i}", chr(945 + i)) for i in range(9)], "9 of 9 pairs (100.0%) have a target of mostly unknown"),
            (sentences(), ""),
        ],
    )
    def test_text_that_cannot_be_meant(self, tmp_path, pairs, odd):
        file = write(tmp_path / "train.tsv", tsv(pairs))
        text = summary(tmp_path / "model", train_file=file, min_frequency=2)
        assert text.count("`vanilla-transformer inspect` shows them") == bool(odd) and odd in text

    def test_each_of_several_corpora_of_one_direction(self, tmp_path):
        odd = write(tmp_path / "odd.tsv", tsv([(source, source) for source, _ in sentences()]))
        path = tmp_path / "list.yaml"
        path.write_text(f"corpora: [{{file: {odd}}}, {{file: {write(tmp_path / 'x.tsv', tsv(sentences()))}}}]")
        shown = summary(tmp_path / "model", corpora=str(path))
        assert shown.count("(`vanilla-transformer inspect` shows them)") == 1

    def test_targets_that_need_several_tokenizers_of_bleu(self, tmp_path):
        file = write(tmp_path / "x.tsv", tsv([("a b c d e", "A B C D E")] * 9))
        entries = (f"{{file: {file}, source_lang: en, target_lang: {code}}}" for code in ("de", "zh"))
        path = tmp_path / "list.yaml"
        path.write_text(f"corpora: [{', '.join(entries)}]\nvalidation: [{{file: {file}}}]")
        shown = summary(tmp_path / "model", corpora=str(path), source_lang="en", target_lang="de")
        assert "best model   by BLEU on the validation pairs" in shown

    def test_copies_on_purpose(self, files, tmp_path):
        assert "inspect" not in summary(tmp_path / "model", **files, train_weight=3)

    @pytest.mark.parametrize(
        ("targets", "options", "line"),
        [
            (["A B C D"], {}, "best model   by BLEU (13a) on the validation pairs"),
            (["ANT"], {}, "best model   by chrF2 on the validation pairs; not by BLEU: 1 of 1 references have fewer"),
            (["ANT"], {"metric_for_best_model": "loss"}, "best model   by loss on the validation pairs"),
            (["ANT"], {"metric_for_best_model": "bleu"}, "warning      BLEU (13a) chooses the best model, but 1 of 1"),
        ],
    )
    def test_the_metric_of_the_best_model(self, files, tmp_path, targets, options, line):
        file = write(tmp_path / "val.tsv", tsv([("ant", target) for target in targets]))
        assert line in summary(tmp_path / "model", train_file=files["train_file"], validation_file=file, **options)


class TestEnd:
    @pytest.mark.parametrize(
        ("given", "end"),
        [
            ({"chosen_model": "trained", "chosen_model_metric": "bleu"}, "trained weights of checkpoint-9, by loss)"),
            ({"chosen_model_metric": "chrf"}, "the averaged weights, by chrF2)"),
        ],
    )
    def test_what_chose_the_model(self, given, end):
        best = {"best_checkpoint": "checkpoint-9", "best_checkpoint_metric": "loss", "averaged_checkpoints": 2}
        assert report.end_summary(results_of(**best, **given), "my-model").endswith(end)

    def test_a_score_that_says_little(self):
        results = results_of(fault="9 of 9 references are short")
        assert "note         BLEU says little about this text: 9 of 9 references" in report.end_summary(results, "x")

    def test_with_scores(self):
        looping = report.end_summary(results_of(test_loops=3, test_empty_outputs=0), "my-model")
        assert "of 1 translations, 3 loop" in looping and "empty" not in looping
        text = report.end_summary(results_of(), "my-model")
        assert text.startswith("translations of test pairs\n\nsource       w1 w2\nreference    w2 w1\n")
        rows = [line.split() for line in text.splitlines() if line.startswith("test ")]
        assert rows[0] == ["test", "BLEU", "12.35", "bleu:1"] and rows[-2] == ["test", "TER", "12.35", "ter:1"]
        assert rows[-1] == ["test", "exact", "match", "50.00", "%"] and len(rows) == len(METRIC_NAMES) + 1
        assert "training     1.5 minutes, 120 tokens per second" in text
        assert text.endswith("model        my-model (the averaged weights)")

    def test_error_rates(self):
        scores = {"test_wer": 30.0, "test_wer_signature": "sources:9", "test_ser": 8.0, "test_ser_signature": "x:1"}
        scores |= {"test_exact_match": 70.0, "target_notation": "whitespace"}
        results = results_of(test=False)
        results = replace(results, entries=results.entries | scores, translations=["K AE T"])
        text = report.end_summary(results, "my-model")
        assert text.startswith("outputs of train pairs\n\nsource       w1 w2\nreference    w2 w1\noutput       w1\n")
        rows = [line.split() for line in text.splitlines() if line.startswith("test ")]
        assert rows == [
            ["test", "WER", "30.00", "sources:9"], ["test", "SER", "8.00", "x:1"],
            ["test", "exact", "match", "70.00", "%"],
        ]  # fmt: skip  # a table
        assert "translation" not in text and "BLEU" not in text

    def test_of_a_stream_without_test_pairs(self):
        text = report.end_summary(results_of(speed=None, test=False), "my-model")
        assert "translations of train pairs" in text and "\ntest" not in text and "minutes\n" in text


class TestFiles:
    @pytest.fixture
    def experiment(self, tmp_path):
        log = [{"step": 1, "loss": 3.0}]
        state = SimpleNamespace(log_history=log, save_to_json=lambda path: Path(path).touch())
        args = SimpleNamespace(output_dir=str(tmp_path), label_smoothing_factor=0.1, metric_for_best_model="bleu")
        trainer = SimpleNamespace(state=state, args=args)
        return SimpleNamespace(trainer=trainer, tokenizer=TOKENIZER)

    @pytest.fixture
    def warnings(self, monkeypatch):
        messages = []
        monkeypatch.setattr(report.logger, "warning", messages.append)
        return messages

    def test_all(self, experiment, tmp_path):
        report.save_results(results_of(), experiment.trainer)
        assert (tmp_path / "test_translations.txt").read_text(encoding="utf-8") == "one line\n"
        written = {path.name for path in tmp_path.iterdir()}
        assert {"config.json", "model.safetensors", "all_results.json", "trainer_state.json"} <= written

    @pytest.mark.parametrize(
        ("name", "broken"),
        [
            ("training_curve.png", "hf_vanilla_transformer.training.visualization.plot_training_curve"),
            ("attention.png", "hf_vanilla_transformer.training.report.cross_attention"),
        ],
    )
    def test_a_picture_that_fails(self, experiment, tmp_path, monkeypatch, warnings, name, broken):
        def fail(*args, **kwargs):
            raise RuntimeError("no\nfont")

        monkeypatch.setattr(broken, fail)
        report.save_pictures(results_of(), experiment)
        assert warnings == [f"{name} could not be written (RuntimeError: no font)"]
        assert {"training_curve.png", "attention.png"} - set(os.listdir(tmp_path)) == {name}

    def test_no_pictures_without_matplotlib(self, experiment, tmp_path, monkeypatch, warnings):
        monkeypatch.setattr(report, "find_spec", lambda name: None)
        report.save_pictures(results_of(), experiment)
        assert warnings == [] and list(tmp_path.iterdir()) == []

    def test_a_card_that_fails(self, tmp_path, warnings):
        _, data_args, args = arguments(tmp_path / "model", train_file="x.tsv")
        report.save_card(results_of(), data_args, args, tmp_path / "none.md")
        assert len(warnings) == 1 and warnings[0].startswith("the model card could not be written (")


@pytest.mark.parametrize("skipped", [0, 2])
def test_skipped_steps_are_reported(tmp_path, skipped):
    results = results_of(skipped=skipped)
    _, data_args, args = arguments(tmp_path, train_file="x.tsv")
    report.save_card(results, data_args, args, TEMPLATE)
    card = (tmp_path / "README.md").read_text()
    assert ("skipped      2 of 6 steps: loss or" in report.end_summary(results, "my-model")) == bool(skipped)
    assert ("6 steps (2 skipped, because loss or gradient was not finite), 1.5 minutes" in card) == bool(skipped)
    assert ("6 steps, 1.5 minutes" in card) == (not skipped)
