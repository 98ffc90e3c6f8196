"""Training that is killed at any moment and restarted with the same command gives the same bits as uninterrupted."""

import json
import random
import signal

import pytest

from experiments import MODEL, write_splits
from killed_runs import Moment, Runs, differences
from reliability import cases

# 15 steps in 5 epochs, with checkpoints also within epochs, which are rotated, averaged and compared.
OPTIONS = {**MODEL, "max_tokens": 400, "warmup_steps": 10, "num_train_epochs": 5, "logging_steps": 3}
OPTIONS |= {"eval_strategy": "steps", "eval_steps": 2, "average_last_checkpoints": 2}

NOISE = "items=0.5,typos=0.5,lower=0.5,punctuation=0.5"

STREAM, WORKERS = {"streaming": True, "max_steps": 15}, {"dataloader_num_workers": 2}
BPE = {"tokenizer_algorithm": "bpe", "vocab_size": 300}
VARIANTS = {
    "checkpoints after epochs": {"eval_strategy": "epoch"},
    "a stream": STREAM,
    "two workers": WORKERS,
    "a stream and two workers": {**STREAM, **WORKERS},
    "accumulated batches": {"gradient_accumulation_steps": 2, "num_train_epochs": 8},
    "early stopping": {"early_stopping_patience": 2, "num_train_epochs": 20},
    "two checkpoints kept, none averaged": {"average_last_checkpoints": 0, "save_total_limit": 2},
    "noise": {**BPE, "augment": NOISE},
    "noise, a stream and two workers": {**BPE, **STREAM, **WORKERS, "augment": NOISE},
    "two BPE vocabularies": {**BPE, "separate_vocabularies": True},
}

# Moments to kill a run at; `make test` tries only the first ones.
MOMENTS = {
    "writing a checkpoint's optimizer": Moment(3, "call safe_save_file", size=30_000),
    "putting the average in its place": Moment(2, "os.rename */config.json"),
    "saving the tokenizer": Moment(1, "open */tokenizer_config.json"),
    "before the first checkpoint": Moment(1, "step"),
    "between checkpoints": Moment(5, "step"),
    "evaluating": Moment(3, "call prediction_step"),
    "writing a checkpoint's configuration": Moment(1, "open /_partial/checkpoint-4/config.json"),
    "writing a checkpoint's weights": Moment(3, "call safe_save_file", size=5_000),
    "writing a checkpoint's manifest": Moment(1, "open /_partial/checkpoint-6/manifest.json"),
    "before a checkpoint gets its name": Moment(1, "os.rename /_partial/checkpoint-8"),
    "before the last old checkpoint loses its name": Moment(1, "os.rename /checkpoint-12"),
    "deleting files of an old checkpoint": Moment(3, "os.remove *.bin"),
    "after deleting an old checkpoint": Moment(1, "os.rmdir *checkpoint-2"),
    "loading the best checkpoint": Moment(1, "call _load_best_model"),
    "putting the trained model in its place": Moment(1, "os.rename */config.json"),
    "averaging checkpoints": Moment(2, "call load_model"),
    "translating the test pairs": Moment(3, "call translations"),
    "writing the results": Moment(1, "open */all_results.json"),
    "writing a picture": Moment(1, "open */training_curve.png", size=2_000),
    "writing the model card": Moment(1, "open */README.md"),
}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_splits(tmp_path_factory.mktemp("pairs"))


class Uninterrupted:
    """An uninterrupted run, whose result killed runs of the same command must reproduce."""

    def __init__(self, folder, pairs, **options):
        self.runs = Runs(folder, **{**OPTIONS, **pairs, **options})
        assert not self.runs.run()
        self.content, self.events = self.runs.content(), len(self.runs.events)

    def check_killed(self, *moments):
        """Kill a new run and its continuations, let the last one finish, and compare."""
        self.runs.start_over()
        assert self.runs.run(moments[0]), f"{moments[0]} never came: {self.runs.log.read_text()[-2000:]}"
        for moment in moments[1:]:
            self.runs.run(moment)
        assert not self.runs.run()
        self.check_content(f"killed at {moments}")

    def check_content(self, what):
        differing = differences(self.content, self.runs.content())
        assert not differing, "\n".join([what, *differing, self.runs.log.read_text()[-2000:]])

    def best_steps(self):
        """Steps with the lowest evaluation loss so far."""
        history = json.loads(self.content["trainer_state.json"])["log_history"]
        losses = [(entry["step"], entry["eval_loss"]) for entry in history if "eval_loss" in entry]
        return [step for i, (step, loss) in enumerate(losses) if all(loss < other for _, other in losses[:i])]

    def check_killed_at_random(self, number):
        """Kill `number` runs at random events, and every second one again."""
        for seed in range(number):
            generator = random.Random(seed)
            self.check_killed(*(Moment(generator.randint(1, self.events)) for _ in range(1 + seed % 2)))
        return number


@pytest.fixture(scope="module")
def uninterrupted(pairs, tmp_path_factory):
    return Uninterrupted(tmp_path_factory.mktemp("run") / "runs", pairs)


@pytest.mark.slow
def test_random_moments(uninterrupted, tried):
    number = uninterrupted.check_killed_at_random(cases(1, 30))
    tried("kill -9 at a random moment of training, the same command again: every file is the same", number)


@pytest.mark.slow
def test_chosen_moments(uninterrupted, tried):
    moments = list(MOMENTS.values())[: cases(2, len(MOMENTS))]
    for moment in moments:
        uninterrupted.check_killed(moment)
    tried("kill -9 at a chosen moment of training, the same command again: every file is the same", len(moments))


@pytest.mark.slow
def test_interrupted(pairs, tmp_path, tried):
    """Every step is evaluated, but only every third saved; some of the others are the best so far."""
    options = {"eval_steps": 1, "save_steps": 3, "metric_for_best_model": "loss", "learning_rate": 0.1}
    run = Uninterrupted(tmp_path / "runs", pairs, **options)
    best_steps = [step for step in run.best_steps() if step % 3]
    assert len(best_steps) > 1
    moments = [Moment(step, "step", end=end) for step in best_steps for end in (signal.SIGINT, signal.SIGTERM)]
    moments = random.Random(0).sample(moments, cases(1, len(moments)))
    for moment in moments:
        run.check_killed(moment)
    tried("Ctrl-C or SIGTERM at a best step without a scheduled checkpoint, and the run resumed", len(moments))


@pytest.mark.slow
def test_after_the_end(uninterrupted, tried):
    """The folder has a finished run, whichever test ran before."""
    assert not uninterrupted.runs.run()
    assert "step" not in uninterrupted.runs.events
    uninterrupted.check_content("run again")
    tried("the command of a finished training again: no further step, every file is the same", 1)


@pytest.mark.slow
@pytest.mark.parametrize("kind", VARIANTS)
def test_variants(kind, pairs, tmp_path, tried):
    number = Uninterrupted(tmp_path / "runs", pairs, **VARIANTS[kind]).check_killed_at_random(cases(1, 6))
    tried(f"kill -9 at a random moment of training with {kind}: every file is the same", number)


@pytest.mark.slow
def test_two_processes(pairs, tmp_path, tried):
    number = Uninterrupted(tmp_path / "runs", pairs, processes=2).check_killed_at_random(cases(1, 6))
    tried("kill -9 at a random moment of training in two processes: every file is the same", number)
