"""Checkpoints under damage, full disks, signals and concurrent runs: nothing is lost, and no damaged one is loaded."""

import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments import TINY, write_splits
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.training.callbacks import EarlyStopping
from hf_vanilla_transformer.training.checkpoints import (
    MANIFEST,
    checkpoint_fault,
    complete_checkpoints,
    newest_checkpoint,
)
from processes import run_in_two, surroundings
from reliability import FULL, cases
from trainers import At, assert_same_weights, id_pairs, save_inside, trainable_model, trainer_of

pytestmark = pytest.mark.usefixtures("one_thread")

RUN = {"save_strategy": "steps", "save_steps": 2, "max_steps": 6, "logging_steps": 1}
DAMAGES = ("cut", "removed", "emptied", "flipped")


def run(folder, seed=0, **options):
    return trainer_of(folder, trainable_model(seed), train=id_pairs(30), **{**RUN, **options})


def resumed(folder, **options):
    """Resume a run from its last checkpoint, with other initial weights; return the trainer."""
    trainer = run(folder, seed=7, **options)
    trainer.train(resume_from_checkpoint=True)
    return trainer


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run."""
    trainer = run(tmp_path_factory.mktemp("whole"))
    trainer.train()
    return trainer


@pytest.fixture
def copy(whole, tmp_path):
    """A function that copies the folder of `whole` with hard links, for damage."""

    def copy_to(name):
        shutil.copytree(whole.args.output_dir, tmp_path / name, copy_function=os.link)
        return tmp_path / name

    return copy_to


def damage(file, kind, generator):
    """Damage a file without changing its hard links."""
    content = bytearray(file.read_bytes())
    file.unlink()
    if kind == "cut":
        content = content[: generator.randrange(1, len(content))]
    elif kind == "flipped":
        content[generator.randrange(len(content))] ^= 1 << generator.randrange(8)
    if kind != "removed":
        file.write_bytes(b"" if kind == "emptied" else content)


class TestDamage:
    def test_one_file(self, whole, copy, caplog, tried):
        """The checkpoint is skipped with a reason that names the file, unless only its manifest is missing."""
        files = sorted(path.name for path in Path(whole.args.output_dir, "checkpoint-6").iterdir())
        assert len(files) >= 9
        tries = [(file, kind, seed) for seed in range(cases(1, 12)) for file in files for kind in DAMAGES]
        for file, kind, seed in tries:
            case = f"{file} {kind}, seed {seed}"
            folder = copy(case)
            damage(folder / "checkpoint-6" / file, kind, random.Random(case))
            caplog.clear()
            found = newest_checkpoint(folder)
            if (file, kind) == (MANIFEST, "removed"):
                assert found == str(folder / "checkpoint-6"), case
            else:
                assert found == str(folder / "checkpoint-4"), case
                skips = re.search(rf"skipping .*checkpoint-6: .*{re.escape(file)}", caplog.text)
                assert skips or file == MANIFEST, case
            # The other checkpoints are unchanged, so a few resumed runs suffice.
            if not seed and (FULL or kind == "cut") and file in ("model.safetensors", "optimizer.pt", MANIFEST):
                assert_same_weights(resumed(folder).model, whole.model)
            shutil.rmtree(folder)
        tried("one file of the last checkpoint cut, removed, emptied or with a flipped bit", len(tries))

    def test_several_checkpoints(self, whole, copy, tried):
        number = cases(6, 60)
        for seed in range(number):
            generator, folder = random.Random(seed), copy(f"seed {seed}")
            for checkpoint in generator.sample(sorted(folder.iterdir()), 2):
                file = generator.choice([path for path in sorted(checkpoint.iterdir()) if path.name != MANIFEST])
                damage(file, generator.choice(DAMAGES), generator)
            assert len(complete_checkpoints(folder)) == 1, f"seed {seed}"
            if seed < cases(2, 20):
                assert_same_weights(resumed(folder).model, whole.model)
            shutil.rmtree(folder)
        tried("two of three checkpoints damaged, and the run resumed", number)

    def test_without_a_manifest(self, whole, copy, tried):
        """Truncated, missing and empty files of `Trainer` are found, and flipped bits in torch's files."""
        files = ("model.safetensors", "optimizer.pt", "scheduler.pt", "rng_state.pth", "trainer_state.json")
        tries = [
            (file, kind, seed)
            for seed in range(cases(2, 40))
            for file in files
            for kind in DAMAGES
            # The other formats have no checksum.
            if kind != "flipped" or file.endswith(("pt", "pth"))
        ]
        silent = 0
        for file, kind, seed in tries:
            case = f"{file} {kind}, seed {seed}, no manifest"
            folder = copy(case)
            checkpoint = folder / "checkpoint-6"
            (checkpoint / MANIFEST).unlink()
            damage(checkpoint / file, kind, random.Random(case))
            fault = checkpoint_fault(checkpoint)
            if fault is None:
                # A flipped bit in the archive's padding or names.
                assert kind == "flipped", case
                silent += 1
                try:
                    assert_same_weights(resumed(folder, max_steps=7).model, self.one_step_more(whole))
                except ValueError as error:
                    assert str(checkpoint) in str(error) and "\n" not in str(error), case
            else:
                assert file.split(".")[0] in fault or "no weights" in fault, case
            shutil.rmtree(folder)
        assert silent < len(tries) / 4
        tried("one file of a checkpoint without a manifest damaged", len(tries))

    def one_step_more(self, whole):
        if not hasattr(self, "_longer"):
            folder = Path(whole.args.output_dir).with_name("longer")
            shutil.copytree(whole.args.output_dir, folder, dirs_exist_ok=True)
            type(self)._longer = resumed(folder, max_steps=7).model
        return self._longer


class TestFullDisk:
    def test_while_a_checkpoint_is_saved(self, whole, tmp_path, small_files, tried):
        """In a full run, every file is once the one that exceeds the limit."""
        sizes = sorted(path.stat().st_size for path in Path(whole.args.output_dir, "checkpoint-4").iterdir())
        generator, number = random.Random(0), cases(3, 30)
        limits = [size - 1 for size in sizes if size > 300]
        limits = limits if FULL else generator.sample(limits, 2)
        limits += [generator.randrange(100, sizes[-1]) for _ in range(number - len(limits))]
        for limit in limits:
            folder = tmp_path / str(limit)
            trainer = run(folder)
            save_inside(trainer, 4, small_files(limit))
            with pytest.raises(DataError) as stop:
                trainer.train()
            message = str(stop.value)
            assert message.startswith(f"{folder / 'checkpoint-4'}: cannot be written (") and "\n" not in message, limit
            assert message.endswith("continue with `resume_from_checkpoint=last`"), limit
            assert [path.name for path in folder.iterdir()] == ["checkpoint-2"], limit
            assert_same_weights(resumed(folder).model, whole.model)
            shutil.rmtree(folder)
        tried("a checkpoint that the disk has no room for", len(limits))

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can mount a small disk")
    def test_a_small_disk(self, whole, tmp_path, tried):
        size = sum(path.stat().st_size for path in Path(whole.args.output_dir, "checkpoint-2").iterdir())
        disk = tmp_path / "disk"
        disk.mkdir()
        mount = ["mount", "-t", "tmpfs", "-o"]
        if subprocess.run([*mount, "size=1m", "tmpfs", disk], capture_output=True).returncode:
            pytest.skip("this machine does not allow mounting")
        generator, number = random.Random(0), cases(2, 20)
        try:
            for _ in range(number):
                room = int(size * generator.uniform(1.3, 2.9)) >> 10
                subprocess.run([*mount, f"remount,size={room}k", "tmpfs", disk], check=True)
                with pytest.raises(DataError, match="cannot be written .*; make room, and continue with"):
                    run(disk / "run").train()
                assert complete_checkpoints(disk / "run"), f"{room} kB"
                assert all(path.name.startswith("checkpoint-") for path in (disk / "run").iterdir()), f"{room} kB"
                subprocess.run([*mount, "remount,size=100m", "tmpfs", disk], check=True)
                assert_same_weights(resumed(disk / "run").model, whole.model)
                shutil.rmtree(disk / "run")
        finally:
            subprocess.run(["umount", disk], check=True)
        tried("a disk that fills up while training, and the run resumed with more room", number)


def history(trainer):
    """The losses of a run, in training and in evaluation."""
    log = trainer.state.log_history
    return [(name, each["step"], each[name]) for name in ("loss", "eval_loss") for each in log if name in each]


def names(trainer):
    return [path.name for path in complete_checkpoints(trainer.args.output_dir)]


def interrupt(trainer, step):
    """Train up to a step, and interrupt there as with Ctrl-C."""
    trainer.add_callback(At(step, lambda **kwargs: os.kill(os.getpid(), signal.SIGINT)))
    with pytest.raises(KeyboardInterrupt):
        trainer.train()


def check_same_run(again, expected, case):
    """Check that two runs have the same weights, losses and checkpoints."""
    assert history(again) == history(expected) and names(again) == names(expected), case
    assert_same_weights(again.model, expected.model)


def scored(trainer, scores, patience):
    """A trainer with early stopping whose evaluations return a given score for each step."""
    trainer.compute_metrics = lambda prediction: {"score": scores[trainer.state.global_step]}
    trainer.add_callback(EarlyStopping(patience))
    return trainer


def best_of(trainer):
    state = trainer.state
    checkpoint = state.best_model_checkpoint and Path(state.best_model_checkpoint).name
    return checkpoint, state.best_global_step, state.best_metric, state.global_step


class TestSignals:
    OPTIONS = (
        {},
        {"gradient_accumulation_steps": 2},
        {"dataloader_num_workers": 1},
        {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True, "max_steps": 9},
        {"eval_strategy": "epoch", "max_steps": 9, "save_total_limit": 1},
        {"eval_strategy": "steps", "eval_steps": 3, "save_total_limit": 2},
    )

    @pytest.mark.slow
    def test_at_every_step(self, tmp_path, tried):
        """The resumed run has the weights, losses and checkpoints of an uninterrupted one."""
        count = 0
        for number, options in enumerate(self.OPTIONS):
            defaults = {"metric_for_best_model": "loss", "load_best_model_at_end": False}
            options = {**RUN, **defaults, "eval_dataset": id_pairs(8, seed=1), **options}
            expected = run(tmp_path / f"{number}", **options)
            expected.train()
            steps = range(1, options["max_steps"] + 1)
            for step in steps if FULL else [3 + number % 3]:
                folder = tmp_path / f"{number}-{step}"
                interrupt(run(folder, **options), step)
                assert newest_checkpoint(folder) == str(folder / f"checkpoint-{step}"), (options, step)
                check_same_run(resumed(folder, **options), expected, (options, step))
                count += 1
        tried("Ctrl-C at a step of training, and the run resumed", count)

    @pytest.mark.slow
    def test_at_best_steps_without_a_scheduled_checkpoint(self, tmp_path, tried):
        """Best checkpoint, early stop and final model are as without interruption, even if the folder moves."""
        count = 0
        # The first seeds have best steps before and after the first scheduled checkpoint.
        for seed in range(4, 4 + cases(2, 20)):
            generator = random.Random(seed)
            every, limit, patience = generator.choice([2, 3, 4]), generator.choice([1, 2, 6]), generator.choice([2, 9])
            scores = [generator.random() for _ in range(9)]
            options = {**RUN, "max_steps": 8, "save_steps": every, "save_total_limit": limit, "eval_strategy": "steps"}
            options |= {"eval_steps": 1, "eval_dataset": id_pairs(8, seed=1), "metric_for_best_model": "score"}
            expected = scored(run(tmp_path / f"{seed}", **options), scores, patience)
            expected.train()
            last = expected.state.global_step
            for step in (n for n in range(1, last + 1) if n % every and scores[n] > max(scores[1:n], default=0)):
                case, folder = f"seed {seed}, step {step}", tmp_path / f"{seed}-{step}"
                interrupt(scored(run(folder, **options), scores, patience), step)
                moved = folder.rename(tmp_path / f"{case}, moved") if step % 2 else folder
                again = scored(run(moved, seed=7, **options), scores, patience)
                again.train(resume_from_checkpoint=True)
                assert best_of(again) == best_of(expected), case
                check_same_run(again, expected, case)
                count += 1
        tried("Ctrl-C at a best step without a scheduled checkpoint, and the run resumed", count)


@pytest.mark.slow  # starts programs that import PyTorch
class TestProgram:
    """The command itself, ended at arbitrary moments."""

    def start(self, folder, *words):
        """Start training, by default for longer than any test takes."""
        options = {"max_tokens": 400, "num_train_epochs": 100_000, "warmup_steps": 10, "output_dir": "model"}
        options |= write_splits(folder)
        command = [sys.executable, "-m", "hf_vanilla_transformer", "train", "--use_cpu"]
        command += [f"--{name}={value}" for name, value in options.items()]
        command += words or ["--preset", "tiny", "--config_overrides", TINY, "--tokenizer_algorithm", "word"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen(command, cwd=folder, env=surroundings(), start_new_session=True, **pipes)

    def await_checkpoint(self, folder):
        while not list((folder / "model").glob("checkpoint-*")):
            time.sleep(0.01)

    def finish(self, folder):
        """Resume for four more steps, to the end."""
        steps = int(str(newest_checkpoint(folder / "model")).rpartition("-")[2]) + 4
        program = self.start(folder, "--resume_from_checkpoint", "last", "--max_steps", str(steps))
        _, err = program.communicate(timeout=600)
        assert program.returncode == 0, err
        assert (folder / "model" / "all_results.json").exists()

    def test_ended_and_resumed(self, tmp_path, tried):
        generator, number = random.Random(0), cases(1, 4)
        for case in range(number):
            folder = tmp_path / str(case)
            end = signal.SIGTERM if case % 2 else signal.SIGINT
            program = self.start(folder)
            self.await_checkpoint(folder)
            time.sleep(generator.uniform(0, 1))
            program.send_signal(end)
            _, err = program.communicate(timeout=600)
            word = "terminated" if end == signal.SIGTERM else "interrupted"
            advice = "--resume_from_checkpoint last continues from the last checkpoint"
            assert (program.returncode, err.splitlines()[-1]) == (128 + end, f"{word}; {advice}"), (case, err)
            assert all(path.suffix or path.name.startswith("checkpoint-") for path in (folder / "model").iterdir())
            self.finish(folder)
        tried("the train command ended by SIGTERM or Ctrl-C, and resumed", number)

    def test_two_runs_in_one_folder(self, tmp_path, tried):
        """The second run is refused; once the first is killed, the same command resumes it."""
        number = cases(1, 2)
        for case in range(number):
            folder = tmp_path / str(case)
            first = self.start(folder)
            self.await_checkpoint(folder)
            second = self.start(folder, "--resume_from_checkpoint", "last")
            _, err = second.communicate(timeout=600)
            assert first.poll() is None and second.returncode == 2 and err.count("\n") == 1, err
            assert "another program is training in --output_dir model" in err
            os.killpg(first.pid, signal.SIGKILL)
            first.communicate()
            self.finish(folder)
        tried("a second run in the folder of a running one; the first killed, and the run resumed", number)


def train_in_two(folder, at):
    """Train in one of two processes; a signal reaches only the second."""
    resumes, step = at == "resume", 0 if at == "resume" else int(at)
    trainer = run(Path(folder), seed=7 if resumes else 0, max_tokens=64)
    if step and trainer.args.process_index == 1:
        trainer.add_callback(At(step, lambda **kwargs: os.kill(os.getpid(), signal.SIGINT)))
    try:
        trainer.train(resume_from_checkpoint=resumes or None)
    except KeyboardInterrupt:
        assert step
    if trainer.is_world_process_zero():
        trainer.model.save_pretrained(Path(folder, "end" if resumes else f"end-{step}"))
    from processes import leave

    leave()


@pytest.mark.slow  # pairs of processes that import PyTorch
def test_two_processes_stop_at_the_same_step(tmp_path, tried):
    from transformers import AutoModelForSeq2SeqLM

    run_in_two(Path(__file__), tmp_path / "whole", 0)
    whole = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "whole" / "end-0")
    steps = (3,) if not FULL else (1, 3, 4, 6)
    for step in steps:
        folder = tmp_path / str(step)
        run_in_two(Path(__file__), folder, step)
        assert newest_checkpoint(folder) == str(folder / f"checkpoint-{step}")
        run_in_two(Path(__file__), folder, "resume")
        assert_same_weights(AutoModelForSeq2SeqLM.from_pretrained(folder / "end"), whole)
    tried("a signal to one of two processes, and the run resumed", len(steps))


if __name__ == "__main__":
    train_in_two(*sys.argv[1:])
