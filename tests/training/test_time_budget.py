"""A time budget: speed, measured with a clock that the tests set, decides the length of training."""

import json
import math
from functools import wraps

import pytest

from experiments import MODEL, history, set_up, train
from hf_vanilla_transformer.training import VanillaTransformerTrainer, VanillaTransformerTrainingArguments, auto_preset
from hf_vanilla_transformer.training.auto_preset import Tier
from hf_vanilla_transformer.training.checkpoints import newest_checkpoint, trained_with
from hf_vanilla_transformer.training.evaluation import Evaluation
from hf_vanilla_transformer.training.report import start_summary
from hf_vanilla_transformer.training.time_budget import Costs, TimeBudget, possible_steps
from processes import run_in_two
from trainers import At, Killed, kill

pytestmark = pytest.mark.usefixtures("one_thread")

# Resets what `arguments` sets to "not given".
OPEN = {"num_train_epochs": None, "warmup_steps": None}
MINUTES = 10
OPTIONS = {**OPEN, "time_budget": MINUTES, "lr_scheduler_type": "cosine", "average_last_checkpoints": 2}
OPTIONS |= {"final_num_beams": 1, "logging_steps": 1}


class Clock:
    """Time that passes only in the work named here; seconds by name."""

    def __init__(self, patch):
        self.seconds = 0.0
        self.costs = {"training_step": 10.0, "prediction_step": 2.0, "results": 70.0}
        patch.setattr(TimeBudget, "clock", staticmethod(lambda: self.seconds))
        for owner, name in ((VanillaTransformerTrainer, "training_step"), (Evaluation, "results")):
            patch.setattr(owner, name, self.timed(getattr(owner, name), name))
        name = "prediction_step"
        patch.setattr(VanillaTransformerTrainer, name, self.timed(getattr(VanillaTransformerTrainer, name), name))

    def timed(self, work, name):
        @wraps(work)
        def timed(*args, **kwargs):
            self.seconds += self.costs[name]
            return work(*args, **kwargs)

        return timed


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def at(patch, step, action):
    """Call a function in the given step of later runs."""
    start = VanillaTransformerTrainer.__init__

    def started(self, *args, **kwargs):
        start(self, *args, **kwargs)
        self.add_callback(At(step, action))

    patch.setattr(VanillaTransformerTrainer, "__init__", started)


def cosine(step, steps, warmup):
    """Share of the peak learning rate with which a step is made."""
    if step <= warmup:
        return (step - 1) / warmup
    return (1 + math.cos(math.pi * (step - 1 - warmup) / (steps - warmup))) / 2


class TestPossibleSteps:
    @pytest.mark.parametrize(
        ("seconds", "costs", "eval_steps", "expected"),
        [
            (100, Costs(1, 0, 10), 0.1, (90, 0.1)),
            (100, Costs(1, 1, 10), 0.1, (80, 0.1)),
            # Slow evaluations are fewer.
            (100, Costs(1, 6, 10), 0.1, (72, 1 / 3)),
            (100, Costs(1, 20, 10), 0.1, (50, 1 / 2)),
            # Given values stay.
            (100, Costs(1, 2, 10), 0.05, (50, 0.05)),
            (100, Costs(1, 10, 10), 20, (60, 20)),
            (5, Costs(1, 1, 10), 0.1, (1, 1 / 2)),
        ],
    )
    def test_fill_the_time(self, seconds, costs, eval_steps, expected):
        assert possible_steps(seconds, costs, eval_steps) == expected


class TestRun:
    def test_ends_in_time(self, tmp_path, files, clock, capsys):
        results = train(tmp_path / "model", **files, **OPTIONS)
        assert 0.9 * MINUTES < results["minutes_used"] <= MINUTES == results["time_budget"]
        assert results["minutes_used"] == clock.seconds / 60
        printed, steps = capsys.readouterr().out, results["steps"]
        assert f"budget       {steps} steps (" in printed and ", 0.1 per second, 10 evaluations of 2 sec" in printed
        assert f"time         {results['minutes_used']:.1f} of 10 minutes" in printed
        # The first of ten would have been at step 5, before the decision.
        assert len(history(tmp_path / "model", "eval_loss")) == 9
        assert f"| `max_steps` | {steps} |" in (tmp_path / "model" / "README.md").read_text()

        # The schedule is that of the decided length.
        record = trained_with(newest_checkpoint(tmp_path / "model"))
        warmup, peak = record["warmup_steps"], record["learning_rate"]
        assert steps == record["max_steps"] and warmup == steps // 10 and peak == pytest.approx((16 * 1000) ** -0.5)
        rates = history(tmp_path / "model", "learning_rate")
        # The length was corrected, by one step, at step 28.
        assert len(rates) == steps and all(
            rate == pytest.approx(peak * cosine(step, steps, warmup), abs=1e-9) for step, rate in rates if step > 28
        )
        state = json.loads((tmp_path / "model" / "trainer_state.json").read_text())
        assert state["max_steps"] == steps and state["num_train_epochs"] == math.ceil(state["epoch"])

    def test_given_settings_stay(self, tmp_path, files, clock):
        given = {"warmup_steps": 20, "learning_rate": 0.02, "eval_strategy": "steps", "eval_steps": 15}
        train(tmp_path / "model", **files, **{**OPTIONS, **given})
        record = trained_with(newest_checkpoint(tmp_path / "model"))
        assert {name: record[name] for name in given} == given and record["save_steps"] == 15
        assert {step for step, _ in history(tmp_path / "model", "eval_loss")} > {15, 30}

    def test_a_stream_needs_no_max_steps(self, tmp_path, files, clock):
        results = train(tmp_path / "model", **files, **OPTIONS, streaming=True)
        assert 0.9 * MINUTES < results["minutes_used"] <= MINUTES and results["epoch"] == 1

    @pytest.mark.parametrize("seconds", [20.0, pytest.param(5.0, marks=pytest.mark.slow)])
    def test_the_length_is_corrected_once(self, tmp_path, files, clock, monkeypatch, capsys, seconds):
        at(monkeypatch, 20, lambda **kwargs: clock.costs.update(training_step=seconds))
        results = train(tmp_path / "model", **files, **OPTIONS)
        decided, corrected = (
            int(line.split()[1]) for line in capsys.readouterr().out.split("\n") if line.startswith("budget   ")
            if " steps (" in line
        )  # fmt: skip  # one condition a line
        assert (corrected < decided) == (seconds > 10) and results["steps"] == corrected
        assert 0.8 * MINUTES < results["minutes_used"] <= 1.05 * MINUTES
        last = history(tmp_path / "model", "learning_rate")[-1][1]
        assert last < 0.01 * (16 * 1000) ** -0.5

    def test_one_that_is_too_short_is_warned_of(self, tmp_path, files, clock, caplog):
        clock.costs["prediction_step"] = 600.0
        results = train(tmp_path / "model", **files, **OPTIONS)
        assert results["steps"] == 9 and "`time_budget` 10 will probably be exceeded" in caplog.text


class TestResuming:
    @pytest.mark.parametrize("streaming", [False, pytest.param(True, marks=pytest.mark.slow)])
    def test_keeps_length_and_schedule(self, tmp_path, files, clock, monkeypatch, streaming):
        options = {**files, **OPTIONS, "streaming": streaming, "save_steps": 10, "eval_steps": 10}
        with monkeypatch.context() as patch, pytest.raises(Killed):
            at(patch, 25, kill)
            train(tmp_path / "model", **options)
        recorded = trained_with(newest_checkpoint(tmp_path / "model"))
        clock.costs["training_step"] = 99.0
        results = train(tmp_path / "model", **options, resume_from_checkpoint="last")
        assert results["steps"] == recorded["max_steps"]
        rates = history(tmp_path / "model", "learning_rate")
        assert [rate for step, rate in rates if step > 8] == pytest.approx(
            [
                recorded["learning_rate"] * cosine(step, results["steps"], recorded["warmup_steps"])
                for step, _ in rates if step > 8
            ]
        )  # fmt: skip  # one loop a line

    @pytest.mark.parametrize(("max_tokens", "dropout"), [(400, 0.3), (50, 0.1)])
    def test_keeps_the_dropout_that_follows_from_the_epochs(
        self, tmp_path, files, clock, monkeypatch, capsys, max_tokens, dropout
    ):
        monkeypatch.setattr(auto_preset, "tier_of", lambda corpus: Tier(1e9, 0, "tiny", 300, {}, {"warmup_steps": 5}))
        options = {**files, **OPTIONS, "save_steps": 10, "eval_steps": 10, "max_tokens": max_tokens}
        model = {**MODEL, "preset": "auto"}
        with monkeypatch.context() as patch, pytest.raises(Killed):
            at(patch, 25, kill)
            train(tmp_path / "model", model, **options)
        assert f" per second, dropout {dropout}, " in capsys.readouterr().out
        assert trained_with(newest_checkpoint(tmp_path / "model"))["config_overrides dropout"] == dropout
        with monkeypatch.context() as patch:
            at(patch, 25, lambda model, **kwargs: used.append(model.config.dropout))
            used = []
            train(tmp_path / "model", model, **options, resume_from_checkpoint="last")
        assert used == [dropout]
        longer = {**options, "time_budget": 3 * options["time_budget"]}
        train(tmp_path / "model", model, **longer, resume_from_checkpoint="last")
        assert trained_with(newest_checkpoint(tmp_path / "model"))["config_overrides dropout"] == dropout

    def test_another_budget_is_measured_again(self, tmp_path, files, clock):
        before = train(tmp_path / "model", **files, **OPTIONS)
        options = {**files, **OPTIONS, "time_budget": 5, "resume_from_checkpoint": "last"}
        after = train(tmp_path / "model", **options)
        assert after["steps"] > before["steps"] + 15


class TestArguments:
    @pytest.mark.parametrize(
        ("options", "named"),
        [
            ({"max_steps": 5}, "`max_steps`"),
            ({"num_train_epochs": 20.0}, "`num_train_epochs`"),
            ({"max_steps": 5, "num_train_epochs": 3}, "`max_steps` and `num_train_epochs`"),
        ],
    )
    def test_another_length_is_refused(self, tmp_path, options, named):
        with pytest.raises(ValueError, match=f"^`time_budget` sets the number of steps; leave it or {named} out$"):
            VanillaTransformerTrainingArguments(str(tmp_path), time_budget=5, **options)

    @pytest.mark.parametrize("minutes", [0, -1, math.inf, math.nan])
    def test_the_range(self, tmp_path, minutes):
        with pytest.raises(ValueError, match="^`time_budget` is .* must be"):
            VanillaTransformerTrainingArguments(str(tmp_path), time_budget=minutes)

    def test_the_summary(self, tmp_path, files):
        text = start_summary(set_up(tmp_path / "model", **files, **OPTIONS))
        assert "budget       10 minutes, which will set the number of steps once their speed is measured\n" in text
        assert "after 4000 steps, or a tenth of all, then cosine\n" in text
        options = {**OPTIONS, "preset": "auto", "max_tokens": None, "lr_scheduler_type": None}
        text = start_summary(set_up(tmp_path / "auto", {}, **files, **options))
        assert "\n  num_train_epochs 10 minutes, as given\n" in text


PROGRAM = """
import os
import sys
from pathlib import Path
from hf_vanilla_transformer.training.time_budget import TimeBudget
from processes import leave
from trainers import trainer_of
rank, now = int(os.environ["RANK"]), 0.0
def clock():
    global now
    now += 7.0 + 5 * rank
    return now
TimeBudget.clock = staticmethod(clock)
trainer = trainer_of(sys.argv[1], num_train_epochs=None, time_budget=2, eval_strategy="no", save_strategy="no")
trainer.train()
Path(sys.argv[1], f"steps-{rank}").write_text(f"{trainer.state.max_steps} {trainer.state.global_step}")
leave()
"""


@pytest.mark.slow
def test_all_processes_go_by_the_clock_of_the_first(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    run_in_two(program, tmp_path)
    decided, taken = (tmp_path / "steps-0").read_text().split()
    assert decided == taken and (tmp_path / "steps-1").read_text() == f"{decided} {taken}"
