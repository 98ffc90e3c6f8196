"""Losses, gradients, weights and metrics that are NaN or infinite."""

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from transformers import Seq2SeqTrainer

from faults import NUMBERS, spoil_gradients, spoil_losses
from hf_vanilla_transformer.training import trainer_optimizer
from hf_vanilla_transformer.training.callbacks import EarlyStopping
from trainers import EVALUATING, SAVING, TOKENIZER, At, id_pairs, losses, token_stream, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

# With this learning rate, the first step is finite, but the resulting weights are not.
DIVERGING = {**SAVING, "save_steps": 1, "optim": "sgd", "learning_rate": 1e30, "lr_scheduler_type": "constant"}


def copy_of(trainer):
    """Weights and state of the optimizer."""
    states = trainer.optimizer.state_dict()["state"].values()
    tensors = [*trainer.model.state_dict().values(), *(each for state in states for each in state.values())]
    return [tensor.clone() for tensor in tensors]


class TestStopping:
    def test_names_the_step(self, tmp_path):
        trainer = trainer_of(tmp_path, **DIVERGING)
        with pytest.raises(ValueError, match=r"^step 2: (loss|gradient norm) is (nan|inf) \(.*\): training") as stop:
            trainer.train()
        remedy = "start again with a `learning_rate` below 1e+30, or `max_grad_norm=1`"
        assert f"; {remedy}; the last checkpoint is {tmp_path / 'checkpoint-1'}" in str(stop.value)
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-1"]
        assert all(weight.isfinite().all() for weight in trainer.model.parameters())

    @pytest.mark.parametrize(
        ("value", "accumulation", "tokens"),
        [(math.nan, 1, 128), (math.inf, 3, 128), (-math.inf, 1, 0), (math.nan, 3, 0)],
    )
    def test_names_the_batch_of_a_loss(self, tmp_path, monkeypatch, value, accumulation, tokens):
        """A bad batch in the second epoch, whose order differs from the first."""
        data, seen = id_pairs(), []
        options = {"max_tokens": tokens, "gradient_accumulation_steps": accumulation, "num_train_epochs": 3}
        trainer = trainer_of(tmp_path, train=data, **options)
        per_epoch = len(trainer.get_train_dataloader())
        steps = -(-per_epoch // accumulation)
        spoil_losses(monkeypatch, [per_epoch + accumulation + min(1, accumulation - 1)], value)
        collate = trainer.data_collator
        trainer.data_collator = lambda rows: seen.append(rows) or collate(rows)
        with pytest.raises(ValueError, match=rf"^step {steps + 2}: loss is {value} \(") as stop:
            trainer.train()
        place = str(stop.value).split("(")[1].split(")")[0]
        assert ("micro-batch 2 of 3" in place) == (accumulation == 3)
        batch = seen[per_epoch + accumulation + min(1, accumulation - 1)]
        assert f"{len(batch)} pairs" in place
        longest = max((row["input_ids"] for row in batch), key=len)
        assert f"longest source {TOKENIZER.decode(longest, skip_special_tokens=True)!r}" in place
        if tokens:
            rows = [int(row) for row in place.split("rows ")[1].split(", longest")[0].split(" and")[0].split(", ")]
            assert [data[row]["input_ids"] for row in rows] == [row["input_ids"] for row in batch][: len(rows)]

    def test_names_the_pairs_of_a_stream(self, tmp_path, monkeypatch):
        spoil_losses(monkeypatch, [3], math.nan)
        with pytest.raises(ValueError, match=r"^step 4: loss is nan \(\d+ pairs?, longest source 'w"):
            trainer_of(tmp_path, train=token_stream(), max_steps=6).train()

    @pytest.mark.parametrize("max_grad_norm", [0.0, 1.0])
    def test_a_gradient(self, tmp_path, max_grad_norm):
        trainer = trainer_of(tmp_path, max_grad_norm=max_grad_norm, gradient_accumulation_steps=2)
        spoil_gradients(trainer.model.model.encoder.layers[0].fc1.weight, [3], math.inf, element=7)
        trainer.add_callback(At(1, lambda **kwargs: before.extend(copy_of(trainer))))
        before = []
        with pytest.raises(ValueError, match=r"^step 2: gradient norm is (inf|nan) \(\d+ pairs, rows"):
            trainer.train()
        # The step was not taken.
        assert all(map(torch.equal, before, copy_of(trainer)))

    @pytest.mark.parametrize("limit", [3, 1000])
    def test_steps_may_be_checked_later(self, tmp_path, monkeypatch, limit):
        """As on an accelerator: nothing is logged or saved before the check, and the message names the step."""
        monkeypatch.setattr(trainer_optimizer, "SYNCHRONOUS_DEVICES", ())
        monkeypatch.setattr(trainer_optimizer, "MAX_UNCHECKED", limit)
        options = {**DIVERGING, "save_steps": 5, "logging_steps": 5, "logging_first_step": False}
        trainer = trainer_of(tmp_path, **options)
        with pytest.raises(ValueError, match=r"^step 2: "):
            trainer.train()
        assert trainer.state.global_step == (2 if limit == 3 else 5)
        assert losses(trainer) == [] and not list(tmp_path.glob("checkpoint-*"))
        # Without checkpoints, at the end.
        last = trainer_of(tmp_path, **{**DIVERGING, "save_strategy": "no", "logging_strategy": "no"})
        with pytest.raises(ValueError, match=r"^step 2: "):
            last.train()

    def test_weights_that_are_not_finite_are_not_saved(self, tmp_path):
        def poison(model, **kwargs):
            model.model.encoder.layers[0].fc1.weight.data[0, 0] = math.nan

        trainer = trainer_of(tmp_path, **SAVING)
        trainer.add_callback(At(4, poison))
        with pytest.raises(ValueError, match=r"^step 4: .*1 of 512 numbers in model\.encoder\.layers\.0\.fc1\.weight"):
            trainer.train()
        with pytest.raises(ValueError, match="fc1"):
            trainer.save_model(tmp_path / "final")
        assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
        saved = load_file(tmp_path / "checkpoint-2/model.safetensors")
        assert all(weight.isfinite().all() for weight in saved.values())

    def test_a_scaler_skips_infinite_gradients_itself(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Seq2SeqTrainer, "_get_grad_norm", lambda *args, **kwargs: torch.tensor(math.inf))
        trainer = trainer_of(tmp_path, max_steps=3)
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", enabled=False)
        assert trainer.train().global_step == 3
        spoil_losses(monkeypatch, [1], math.inf)
        with pytest.raises(ValueError, match="step 2: loss is inf"):
            trainer.train()
        trainer.accelerator.scaler = None
        with pytest.raises(ValueError, match="step 1: gradient norm is inf"):
            trainer.train()


class TestSkipping:
    @pytest.mark.parametrize(
        ("kind", "max_grad_norm", "value"),
        [("loss", 0.0, math.nan), ("loss", 1.0, math.inf), ("gradient", 0.0, -math.inf), ("gradient", 1.0, math.nan)],
    )
    def test_the_step_changes_nothing(self, tmp_path, monkeypatch, caplog, kind, max_grad_norm, value):
        """The second micro-batch of the third step is bad."""
        options = {"on_nonfinite": "skip", "max_grad_norm": max_grad_norm, "weight_decay": 0.1}
        trainer = trainer_of(tmp_path, max_steps=5, gradient_accumulation_steps=2, **options)
        if kind == "loss":
            spoil_losses(monkeypatch, [5], value)
        else:
            spoil_gradients(trainer.model.lm_head.weight, [5], value, element=3)
        states = {}
        for step in (2, 3, 4):
            trainer.add_callback(At(step, lambda step=step, **kwargs: states.update({step: copy_of(trainer)})))
        trainer.train()
        assert all(map(torch.equal, states[2], states[3])) and not all(map(torch.equal, states[3], states[4]))
        assert trainer.state.global_step == 5 and trainer.run_record.skipped_steps == 1
        log = {entry["step"]: entry for entry in trainer.state.log_history}
        assert log[3]["skipped_steps"] == 1 and not {"loss", "grad_norm"} & log[3].keys()
        assert all(math.isfinite(log[step]["loss"]) and "skipped_steps" not in log[step] for step in (1, 2, 4))
        (message,) = [text for text in caplog.messages if "skipped" in text]
        assert message.startswith("step 3: ") and message.endswith("skipped (1 so far)")

    def test_the_logged_loss_is_of_steps_taken(self, tmp_path, monkeypatch):
        whole = trainer_of(tmp_path, trainable_model(dropout=0.0), max_steps=4, learning_rate=1e-12)
        whole.train()
        spoil_losses(monkeypatch, [2], math.nan)
        options = {"on_nonfinite": "skip", "logging_steps": 4, "logging_first_step": False}
        trainer = trainer_of(tmp_path, trainable_model(dropout=0.0), max_steps=4, learning_rate=1e-12, **options)
        trainer.train()
        taken = [loss for step, loss in enumerate(losses(whole)) if step != 2]
        assert losses(trainer) == [pytest.approx(sum(taken) / 3, abs=1e-5)]

    def test_the_count_survives_resuming(self, tmp_path, monkeypatch):
        options = {**SAVING, "on_nonfinite": "skip"}
        spoil_losses(monkeypatch, [1, 8], math.nan)
        trainer_of(tmp_path, **{**options, "max_steps": 4}).train()
        resumed = trainer_of(tmp_path, trainable_model(seed=7), **{**options, "max_steps": 8})
        resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
        # Passes 4 to 7 were those of the second session.
        assert (resumed.run_record.skipped_steps, resumed.run_record.skipped_in_a_row) == (1, 0)
        spoil_losses(monkeypatch, [0, 1], math.nan)
        again = trainer_of(tmp_path, trainable_model(seed=7), **{**options, "max_steps": 10})
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
        assert (again.run_record.skipped_steps, again.run_record.skipped_in_a_row) == (3, 2)

    def test_too_many_in_a_row_stop(self, tmp_path, monkeypatch):
        monkeypatch.setattr(trainer_optimizer, "MAX_SKIPPED_IN_A_ROW", 3)
        spoil_losses(monkeypatch, [1, 2, 4, 5, 6], math.nan)
        trainer = trainer_of(tmp_path, max_steps=20, on_nonfinite="skip")
        with pytest.raises(ValueError, match=r"^step 7: loss is nan \(.*\), after 2 skipped steps: training has"):
            trainer.train()

    def test_bad_weights_stop_at_once(self, tmp_path):
        def poison(model, **kwargs):
            model.lm_head.weight.data[5, 5] = math.inf

        trainer = trainer_of(tmp_path, on_nonfinite="skip")
        trainer.add_callback(At(2, poison))
        with pytest.raises(ValueError, match=r"^step 2: 1 of \d+ numbers in .* are NaN or infinite.*: training has"):
            trainer.train()
        assert trainer.state.global_step == 2

    def test_with_a_scaler(self, tmp_path, monkeypatch):
        """As with fp16 on a GPU: the scaler has recorded its own checks, and keeps updating its scale."""
        trainer = trainer_of(tmp_path, max_steps=4, on_nonfinite="skip")
        spoil_losses(monkeypatch, [1, 2], math.inf)
        scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        trainer.accelerator.scaler, trainer.accelerator.native_amp = scaler, True
        monkeypatch.setattr(trainer.accelerator.state, "_mixed_precision", "fp16")
        states = {}
        for step in (1, 3, 4):
            trainer.add_callback(At(step, lambda step=step, **kwargs: states.update({step: copy_of(trainer)})))
        trainer.train()
        assert trainer.run_record.skipped_steps == 2 and scaler.get_scale() == 2.0
        assert all(map(torch.equal, states[1], states[3])) and not all(map(torch.equal, states[3], states[4]))


class TestEvaluation:
    def options(self, scorer=None, **options):
        scored = {"eval_dataset": id_pairs(8), "compute_metrics": scorer, "max_steps": 8}
        return {**EVALUATING, **scored, **options}

    def test_a_loss_stops(self, tmp_path, monkeypatch):
        trainer = trainer_of(tmp_path, **self.options())
        monkeypatch.setattr(trainer, "_mean_loss", lambda: math.nan)
        with pytest.raises(ValueError, match="^step 2: eval_loss is nan: training has diverged"):
            trainer.train()
        assert not list(tmp_path.glob("checkpoint-*"))
        # Outside of training, NaN is returned as it is.
        assert math.isnan(trainer.evaluate()["eval_loss"])

    def test_no_checkpoint_is_best_by_it(self, tmp_path, monkeypatch, caplog):
        trainer = trainer_of(tmp_path, **self.options(on_nonfinite="skip", metric_for_best_model="loss"))
        values = iter([math.nan, 2.0, -math.inf, 3.0])
        monkeypatch.setattr(trainer, "_mean_loss", lambda: next(values))
        trainer.train()
        assert trainer.state.best_metric == 2.0 and trainer.state.best_global_step == 4
        assert "step 2: eval_loss is nan, so this is not the best model" in caplog.messages
        assert "step 6: eval_loss is -inf" in caplog.messages

    @pytest.mark.parametrize("value", NUMBERS)
    def test_a_metric_chooses_nothing_and_stops_early(self, tmp_path, caplog, value):
        options = self.options(lambda prediction: {"bleu": value}, metric_for_best_model="bleu")
        trainer = trainer_of(tmp_path, **options)
        trainer.add_callback(EarlyStopping(early_stopping_patience=3))
        trainer.train()
        assert trainer.state.best_model_checkpoint is None and trainer.state.best_metric is None
        assert trainer.state.global_step == 6
        assert sum(f"eval_bleu is {value}, so this is not the best model" in text for text in caplog.messages) == 3
        # JSON has no NaN.
        assert "best_metric" in json.loads((tmp_path / "checkpoint-6/trainer_state.json").read_text())
