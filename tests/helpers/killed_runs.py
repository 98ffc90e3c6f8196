"""Run the training command, kill it at a chosen moment, and compare what it leaves behind.

Each run is a process forked from one that has imported everything, so that it starts quickly.
"""

import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import sys
from difflib import unified_diff
from fnmatch import fnmatchcase
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.distributed as dist
from torch.optim.optimizer import register_optimizer_step_post_hook

import hf_vanilla_transformer.training.visualization  # noqa: F401 - imported before a run is forked
from hf_vanilla_transformer.cli.main import PROGRAM, main
from hf_vanilla_transformer.training import experiment  # noqa: F401 - as above
from processes import leave, print_to, surroundings, worlds

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])

# A run takes seconds; one that hangs is killed after this many.
LIMIT = 600

# Python's audit events for file changes; "open" counts only for writing.
FILE_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")

# Functions whose calls are events too: writers in C++ and Rust, and phases of a run.
PACKAGE = "hf_vanilla_transformer.training"
FUNCTIONS = (
    "torch:save",
    "transformers.modeling_utils:safe_save_file",
    f"{PACKAGE}.trainer:VanillaTransformerTrainer.prediction_step",
    f"{PACKAGE}.trainer:VanillaTransformerTrainer._load_best_model",
    f"{PACKAGE}.checkpoints:load_model",
    f"{PACKAGE}.evaluation:Evaluation.translations",
)

# JSON entries that depend on time, including the checksums of trainer_state.json and of the manifest.
TIMES = re.compile(r".*_runtime|.*_per_second|seconds|trainer_state\.json|checksum")
# Text in a model card that depends on time.
CARD_TIMES = re.compile(r"[\d.]+ minutes|\(\d+ source and target tokens per second")


class Moment(NamedTuple):
    """The `number`-th event that matches a pattern, such as "step", "call load_model" or "open */README.md".

    With `size`, the run is then killed as soon as it writes beyond that many bytes of a file. `end` is the signal.
    """

    number: int
    pattern: str = "*"
    size: int | None = None
    end: signal.Signals = signal.SIGKILL


class Runs:
    """Runs of one command in `folder`; `log` has their output, `events` the events of the last run."""

    def __init__(self, parent: Path, processes: int = 1, **options: object) -> None:
        parent.mkdir()
        self.folder, self.log, self._trace = parent / "run", parent / "log.txt", parent / "events.txt"
        self.processes = processes
        self.words = ["train", *(f"--{name}={value}" for name, value in options.items())]
        self.words += [f"--output_dir={self.folder}", "--use_cpu=true", "--resume_from_checkpoint=last"]

    @property
    def events(self) -> list[str]:
        return self._trace.read_text().splitlines()

    def start_over(self) -> None:
        """Delete the traces of all runs."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.log.unlink(missing_ok=True)

    def run(self, moment: Moment | None = None) -> bool:
        """Run the command; return whether it was killed at the moment, in all of its processes."""
        self._trace.unlink(missing_ok=True)
        environments: list[dict[str, str]] = worlds(self.processes) if self.processes > 1 else [{}]
        # multiprocessing's resource tracker warns of semaphores left behind by killed runs.
        quiet = {"PYTHONWARNINGS": "ignore::UserWarning"}
        with mock.patch.dict(os.environ, {**surroundings(), **quiet}):
            runs = [FORKS.Process(target=_run, args=(self, each, moment)) for each in environments]
            for run in runs:
                run.start()
        # Only the first process gets killed at the moment; the others follow.
        runs[0].join(LIMIT)
        interrupted = moment is not None and runs[0].exitcode == 128 + moment.end
        killed = interrupted or runs[0].exitcode in (-signal.SIGKILL, -signal.SIGXFSZ)
        for run in runs[1:]:
            if not killed:
                run.join(LIMIT)
            run.kill()
            run.join()
        assert killed or not any(run.exitcode for run in runs), self.log.read_text()
        return killed

    def content(self) -> dict[str, str | bytes]:
        """Return the content of all files in the folder by path, without times."""
        files = sorted(path for path in self.folder.rglob("*") if path.is_file())
        return {str(path.relative_to(self.folder)): _content(path) for path in files}


def differences(expected: dict[str, str | bytes], found: dict[str, str | bytes]) -> list[str]:
    """Return how two contents differ: file names, and lines of text files."""
    report = []
    for name in sorted({*expected, *found}):
        one, other = expected.get(name), found.get(name)
        if one != other:
            report.append(f"{name} {'differs' if one and other else 'is new' if other else 'is missing'}")
        if one != other and isinstance(one, str) and isinstance(other, str):
            report += list(unified_diff(one.splitlines(), other.splitlines(), lineterm="", n=0))[2:12]
    return report


def _content(path: Path) -> str | bytes:
    content = path.read_bytes()
    if path.suffix == ".json":
        return json.dumps(_without_times(json.loads(content)), indent=1)
    return CARD_TIMES.sub("TIME", content.decode()) if path.name == "README.md" else content


def _without_times(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_times(each) for each in value]
    if isinstance(value, dict):
        return {name: None if TIMES.fullmatch(name) else _without_times(each) for name, each in value.items()}
    return value


def _run(runs: Runs, environment: dict[str, str], moment: Moment | None) -> None:
    print_to(runs.log)
    os.environ.update(environment)
    # Workers of data loaders fork, as they do by default on Linux.
    multiprocessing.set_start_method("fork", force=True)
    torch.set_num_threads(1)
    sys.argv = [PROGRAM, *runs.words]
    if environment.get("RANK", "0") == "0":
        _watch(str(runs.folder), runs._trace, moment)
    main()
    if dist.is_initialized():
        leave()


def _watch(folder: str, trace: Path, moment: Moment | None) -> None:
    """Log the events of this process, and kill it at the moment."""
    own, seen, lines = os.getpid(), 0, trace.open("w", buffering=1)

    def on_event(kind: str, args: tuple[Any, ...]) -> None:
        nonlocal seen
        # Data loader workers inherit the hook.
        if kind not in ("step", "call", *FILE_EVENTS) or os.getpid() != own:
            return
        what = str(args[0]) if args else ""
        # `shutil.rmtree` uses names relative to the folder that it deletes.
        if kind in FILE_EVENTS and not what.startswith(folder) and kind not in ("os.remove", "os.rmdir"):
            return
        if kind == "open" and not args[2] & (os.O_WRONLY | os.O_RDWR):
            return
        event = f"{kind} {what.removeprefix(folder)}".strip()
        lines.write(f"{event}\n")
        if moment and fnmatchcase(event, moment.pattern):
            seen += 1
            if seen == moment.number:
                _die(moment)

    for name in FUNCTIONS:
        _announce(name)
    register_optimizer_step_post_hook(lambda *_: sys.audit("step"))
    sys.addaudithook(on_event)


def _announce(name: str) -> None:
    """Report calls of a function as events."""
    owner, _, attribute = name.replace(":", ".").rpartition(".")
    function = resolve_name(name)

    def announced(*args: Any, **kwargs: Any) -> Any:
        sys.audit("call", attribute)
        return function(*args, **kwargs)

    setattr(resolve_name(owner), attribute, announced)


def _die(moment: Moment) -> None:
    if moment.size is None:
        os.kill(os.getpid(), moment.end)
    else:
        # Python ignores SIGXFSZ; its default action ends the process in the middle of the write, as SIGKILL would.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (moment.size, moment.size))
