"""Changes that a resumed run may make: none, harmless ones, or intended ones."""

import json
import re
import shutil
from dataclasses import fields
from pathlib import Path

import pytest
from transformers import Seq2SeqTrainingArguments

from experiments import TINY, arguments, train, write_splits
from hf_vanilla_transformer.data.arguments import DataArguments
from hf_vanilla_transformer.data.fingerprint import data_fingerprint
from hf_vanilla_transformer.data.splits import load_parallel_text
from hf_vanilla_transformer.pretrained.loading import load_model
from hf_vanilla_transformer.training import ModelArguments, VanillaTransformerTrainingArguments, train_translation
from hf_vanilla_transformer.training.checkpoints import MANIFEST, trained_with
from hf_vanilla_transformer.training.resuming import FIXED, FREE, MEANT
from parallel_text import tsv, write
from trainers import assert_same_weights, id_pairs, losses, text_pairs, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

OPTIONS = {"max_steps": 4, "eval_strategy": "no", "save_strategy": "steps", "save_steps": 2, "logging_steps": 1}


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A finished run of four steps and the options that name its text; no test changes its folder."""
    folder = tmp_path_factory.mktemp("begun")
    files = write_splits(folder)
    train(folder / "run", **files, **OPTIONS)
    return folder / "run", {**files, **OPTIONS}


def resume(begun, folder, **changes):
    run, options = begun
    shutil.copytree(run, folder)
    return train(folder, **{**options, **changes, "resume_from_checkpoint": "last"})


def content(folder):
    return {path: path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


class TestTable:
    KINDS = (ModelArguments, DataArguments, VanillaTransformerTrainingArguments)

    # Given by another field or by the text, or without effect on weights.
    NEITHER = frozenset(
        "preset config_overrides train_source_file train_target_file train_file validation_source_file "
        "validation_target_file validation_file test_source_file test_target_file test_file corpora "
        "train_weight monolingual_target reverse_model source_column target_column feature_columns dataset_name "
        "dataset_config_name toy_corpus bf16_if_fast cache_dir synthetic_dir resume_with_changes trust_remote_code "
        "test_dataset_name preprocessing_num_workers".split()
    )

    def test_every_argument_of_ours_is_in_one_class(self):
        inherited = {each.name for each in fields(Seq2SeqTrainingArguments)}
        names = {each.name for kind in self.KINDS for each in fields(kind)} - inherited
        for name in sorted(names):
            kinds = sum(name in kind for kind in (FIXED, MEANT, FREE, self.NEITHER))
            assert kinds == 1, f"{name} is in {kinds} classes of change"


REFUSED = {
    "width": (
        {"config_overrides": TINY.replace("d_model=16", "d_model=32")},
        "`config_overrides` d_model=32 (was 16)",
    ),
    "preset": ({"preset": "small", "config_overrides": None}, "`config_overrides` d_model=256 (was 16)"),
    "vocabulary": ({"vocab_size": 290}, "`vocab_size` 290 (was 8000)"),
    "algorithm": ({"tokenizer_algorithm": "character"}, "`tokenizer_algorithm` character (was word)"),
}
MEANT_CHANGES = {
    "dropout": ({"config_overrides": f"{TINY},dropout=0.3"}, "`config_overrides` dropout=0.3 (was 0.1)"),
    "rate": ({"learning_rate": 0.1}, "`learning_rate` 0.1 (was 0.00790569)"),
    "two": ({"seed": 7, "muon": True}, "`muon` True (was False), `seed` 7 (was 42)"),
    "weight": ({"train_weight": 2}, "directions, weights, tags or `sampling_temperature` of the corpora"),
}


class TestExperiment:
    @pytest.mark.slow
    @pytest.mark.parametrize(("changes", "shown"), [*REFUSED.values(), *MEANT_CHANGES.values()], ids=str)
    def test_another_training_is_refused_before_anything_is_written(self, begun, tmp_path, changes, shown):
        run, options = begun
        before = content(run)
        given = {**options, **changes, "resume_from_checkpoint": "last"}
        with pytest.raises(ValueError, match="`resume_from_checkpoint` .*was trained differently: ") as refusal:
            train_translation(*arguments(run, **given))
        assert shown in str(refusal.value) and content(run) == before

    @pytest.mark.parametrize("changes", [changes for changes, _ in REFUSED.values()], ids=REFUSED)
    def test_model_and_vocabulary_stay_even_so(self, begun, changes):
        run, options = begun
        given = {**options, **changes, "resume_from_checkpoint": "last", "resume_with_changes": True}
        with pytest.raises(
            ValueError, match="its model and vocabulary cannot change, so leave that out, or train from scratch"
        ):
            train_translation(*arguments(run, **given))

    @pytest.mark.slow
    def test_what_is_meant_takes_effect(self, begun, tmp_path, caplog):
        changes = {"seed": 7, "muon": True, "max_tokens": 200, "lr_scheduler_type": "constant", "learning_rate": 0.01}
        changes |= {"config_overrides": f"{TINY},dropout=0.3", "warmup_steps": 1, "max_steps": 8}
        resume(begun, tmp_path / "run", **changes, resume_with_changes=True)
        log = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
        assert [each["learning_rate"] for each in log if each.get("step", 0) > 4 and "loss" in each] == [0.01] * 4
        assert load_model(tmp_path / "run").config.dropout == 0.3
        record = trained_with(tmp_path / "run" / "checkpoint-8")
        assert (record["seed"], record["muon"], record["max_tokens"]) == (7, True, 200)
        # Kept from the first session, in which they were given.
        assert record["tokenizer_algorithm"] == "word" and record["min_frequency"] == 1
        said = "resuming checkpoint-4 with .*max_tokens 200 .was 400.*in a different order; the optim"
        assert re.search(said, caplog.text)

    @pytest.mark.slow
    def test_other_text(self, begun, tmp_path, caplog):
        """Whatever file it is in."""
        run, options = begun
        pairs = [line.split("\t") for line in Path(options["train_file"]).read_text().splitlines()]
        exchanged = write(tmp_path / "exchanged.tsv", tsv([(target, source) for source, target in pairs]))
        shorter = write(tmp_path / "shorter.tsv", tsv(pairs[:-1]))
        for file, shown in (
            (exchanged, "training text with source and target swapped"),
            (shorter, r"training text of 79 pairs, \w+/\w+ \(was of 80 pairs, \w+/\w+\)"),
        ):
            given = {**options, "train_file": file, "resume_from_checkpoint": "last"}
            with pytest.raises(ValueError, match=f"was trained differently: {shown}; repeat its command"):
                train_translation(*arguments(run, **given))
        results = resume(begun, tmp_path / "run", train_file=shorter, max_steps=5, resume_with_changes=True)
        assert results["train_pairs"] == 79 and "training text of 79 pairs" in caplog.text
        copied = write(tmp_path / "copied.tsv", Path(options["train_file"]).read_text())
        assert resume(begun, tmp_path / "copy", train_file=copied)["steps"] == 4

    @pytest.mark.slow
    def test_what_is_no_matter_is_taken_over_and_said(self, begun, tmp_path, caplog):
        changes = {"max_steps": 5, "eval_strategy": "steps", "eval_steps": 2, "dataloader_num_workers": 1}
        assert resume(begun, tmp_path / "run", **changes)["steps"] == 5
        (line,) = [each for each in caplog.messages if each.startswith("resuming")]
        assert line == (
            "resuming checkpoint-4 with dataloader_num_workers 1 (was 0), eval_steps 2 (was None), "
            "eval_strategy steps (was no), load_best_model_at_end True (was False), max_steps 5 (was 4)"
        )

    def test_intervals_that_changed(self, begun, tmp_path, caplog):
        """Fractions refer to the run's new length; `Trainer` would keep the intervals of the checkpoint."""
        changes = {"max_steps": 10, "eval_strategy": "steps", "eval_steps": 0.3, "save_steps": 0.3, "logging_steps": 5}
        resume(begun, tmp_path / "run", **changes)
        log = json.loads((tmp_path / "run" / "trainer_state.json").read_text())["log_history"]
        steps = {name: [each["step"] for each in log if name in each] for name in ("eval_loss", "loss")}
        # Each evaluation logs the loss too.
        assert steps == {"eval_loss": [6, 9, 10], "loss": [1, 2, 3, 4, 5, 6, 9, 10]}
        assert "do not match" not in caplog.text

    @pytest.mark.parametrize("steps", [4, 3])
    def test_a_complete_run_says_so(self, begun, tmp_path, caplog, steps):
        assert resume(begun, tmp_path / "run", max_steps=steps)["steps"] == 4
        assert f"the run was complete: 4 steps of {steps}; to train longer, raise `max_steps`" in caplog.text
        assert ("max_steps 3 (was 4)" in caplog.text) == (steps == 3)

    def test_a_checkpoint_of_an_earlier_release(self, begun, tmp_path, caplog):
        run, options = begun
        shutil.copytree(run, tmp_path / "run")
        (tmp_path / "run" / "checkpoint-4" / MANIFEST).unlink()
        given = {**options, "seed": 7, "max_steps": 5, "resume_from_checkpoint": "last"}
        assert train(tmp_path / "run", **given)["steps"] == 5
        assert "checkpoint-4 has no record of its settings, so changes go unnoticed" in caplog.text

    @pytest.mark.slow
    def test_the_same_batch_in_other_parts(self, begun, tmp_path, caplog):
        changes = {"max_tokens": 200, "gradient_accumulation_steps": 2, "max_steps": 5}
        assert resume(begun, tmp_path / "run", **changes)["steps"] == 5
        assert "max_tokens 200 (was 400); the current epoch continues in a different order" in caplog.text

    @pytest.mark.slow
    def test_another_number_of_processes(self, begun, tmp_path):
        """A run of two processes, resumed in one that accumulates twice as many batches."""
        run, options = begun
        for accumulated in (1, 2):
            folder = shutil.copytree(run, tmp_path / str(accumulated))
            manifest = folder / "checkpoint-4" / MANIFEST
            made = json.loads(manifest.read_text())
            made["trained_with"] |= {"processes": 2}
            # As earlier versions wrote it.
            del made["checksum"]
            manifest.write_text(json.dumps(made))
            given = {**options, "gradient_accumulation_steps": accumulated, "resume_from_checkpoint": "last"}
            if accumulated == 2:
                assert train(folder, **given)["steps"] == 4
            else:
                with pytest.raises(ValueError, match=r"was trained differently: processes 1 \(was 2\); repeat"):
                    train_translation(*arguments(folder, **given))

    def test_no_path_and_no_token_is_recorded(self, begun):
        run, options = begun
        assert str(run.parent) not in (run / "checkpoint-4" / MANIFEST).read_text()


class TestTrainer:
    """Checks for users of the trainer without an experiment."""

    OPTIONS = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "learning_rate": 0.01}
    EVALUATED = {**OPTIONS, "eval_strategy": "steps", "eval_steps": 2, "eval_dataset": id_pairs(8, 1)}

    @pytest.fixture
    def checkpoint(self, tmp_path):
        trainer_of(tmp_path, **self.OPTIONS).train()
        return str(tmp_path / "checkpoint-2")

    @pytest.mark.parametrize(
        ("model", "data", "options", "shown"),
        [
            ({}, {}, {"seed": 7}, "`seed` 7 (was 42)"),
            ({}, {"seed": 3}, {}, "training data of 60 pairs, "),
            ({"dropout": 0.5}, {}, {}, "`config_overrides` dropout=0.5 (was 0.1)"),
            ({"d_model": 32}, {}, {}, "`config_overrides` d_model=32 (was 16)"),
        ],
    )
    def test_another_training_is_refused(self, checkpoint, tmp_path, model, data, options, shown):
        before = content(tmp_path)
        trainer = trainer_of(tmp_path, trainable_model(**model), id_pairs(**data), **{**self.OPTIONS, **options})
        with pytest.raises(ValueError, match=re.escape(f"was trained differently: {shown}")):
            trainer.train(resume_from_checkpoint=checkpoint)
        assert content(tmp_path) == before

    def test_the_optimizer_has_the_settings_of_the_arguments(self, checkpoint, tmp_path):
        changes = {"learning_rate": 0.02, "weight_decay": 0.1, "adam_beta2": 0.9, "resume_with_changes": True}
        trainer = trainer_of(tmp_path, **{**self.OPTIONS, **changes})
        trainer.train(resume_from_checkpoint=checkpoint)
        groups = trainer.optimizer.param_groups
        assert {group["weight_decay"] for group in groups} == {0.1, 0.0}
        assert {(*group["betas"], group["initial_lr"]) for group in groups} == {(0.9, 0.9, 0.02)}
        # Two of four warm-up steps were taken at the other rate.
        rates = [entry["learning_rate"] for entry in trainer.state.log_history if "loss" in entry]
        assert rates == pytest.approx([0.0, 0.0025, 0.01, 0.015])
        assert all(state["step"] == 4 for state in trainer.optimizer.state.values())

    def test_a_longer_run_follows_its_own_schedule(self, checkpoint, tmp_path):
        options = {**self.OPTIONS, "lr_scheduler_type": "linear", "warmup_steps": 0, "seed": 1}
        trainer_of(tmp_path / "short", **options).train()
        longer = trainer_of(tmp_path / "short", **{**options, "max_steps": 8})
        longer.train(resume_from_checkpoint=True)
        rates = [entry["learning_rate"] for entry in longer.state.log_history if "loss" in entry]
        assert rates == pytest.approx([0.01, 0.0075, 0.005, 0.0025, 0.005, 0.00375, 0.0025, 0.00125])

    def test_another_schedule_of_another_kind(self, checkpoint, tmp_path):
        options = {**self.EVALUATED, "lr_scheduler_type": "reduce_lr_on_plateau", "metric_for_best_model": "loss"}
        options["resume_with_changes"] = True
        trainer = trainer_of(tmp_path / "there", **options)
        trainer.train(resume_from_checkpoint=checkpoint)
        back = trainer_of(tmp_path / "back", **{**self.OPTIONS, "resume_with_changes": True, "max_steps": 6})
        back.train(resume_from_checkpoint=str(tmp_path / "there" / "checkpoint-4"))
        assert losses(back, 4)[0] > 0

    def test_an_equal_checkpoint_of_nothing_changed_is_the_same_bits(self, checkpoint, tmp_path):
        """Arguments that may change do not affect the weights."""
        whole = trainer_of(tmp_path / "whole", **self.OPTIONS)
        whole.train()
        resumed = trainer_of(tmp_path / "resumed", trainable_model(seed=3), **{**self.OPTIONS, "logging_steps": 2})
        resumed.train(resume_from_checkpoint=checkpoint)
        assert_same_weights(whole.model, resumed.model)

    def test_another_metric_chooses_anew(self, tmp_path):
        options = {**self.EVALUATED, "load_best_model_at_end": True, "predict_with_generate": False}
        first = trainer_of(tmp_path, **options, metric_for_best_model="loss")
        first.train()
        assert first.state.best_metric > 0.5
        options |= {"max_steps": 6, "metric_for_best_model": "score", "greater_is_better": True}
        second = trainer_of(tmp_path, **options, compute_metrics=lambda _: {"score": 0.5})
        second.train(resume_from_checkpoint=True)
        assert second.state.best_metric == 0.5 and second.state.best_global_step == 6

    def test_a_metric_that_gave_way_is_no_change(self, tmp_path, caplog):
        """Without the default metric, the loss decides in each session."""
        trainer = trainer_of(tmp_path, **self.EVALUATED, predict_with_generate=False)
        trainer.train()
        assert trainer.args.metric_for_best_model == "loss"
        trainer.args.max_steps = 6
        trainer.train(resume_from_checkpoint=True)
        assert "resuming checkpoint-4 with max_steps 6 (was 4)\n" in caplog.text + "\n"


class TestFingerprint:
    def test_it_is_of_the_content(self, tmp_path):
        rows = text_pairs()
        found = data_fingerprint(rows, ("source", "target", "alignment"))
        assert found["pairs"] == len(rows) and found.keys() == {"pairs", "source", "target"}
        assert data_fingerprint(rows.select(range(len(rows))), ("source", "target")) == found
        # Such as a dataset whose rows a transform creates.
        assert data_fingerprint(rows, ("input_ids", "labels")) == {"pairs": len(rows)}
        for other in (rows.select(range(1, len(rows))), rows.select(range(len(rows) - 1, -1, -1))):
            assert data_fingerprint(other, ("source", "target")) != found

    def test_a_stream_is_known_by_its_first_pairs(self, tmp_path):
        file = write(tmp_path / "pairs.tsv", tsv([(f"a {i}", f"b {i}") for i in range(1500)]))
        streams = [load_parallel_text(DataArguments(train_file=file, streaming=True))["train"] for _ in range(2)]
        one, other = (data_fingerprint(stream, ("source", "target")) for stream in streams)
        assert one == other and one["pairs"] is None and one["source"] != one["target"]
