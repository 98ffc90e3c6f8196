"""Translations that receive a signal at a chosen moment, in processes forked from one that has imported everything."""

import multiprocessing
import os
import resource
import signal
import sys
from itertools import count
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch

import hf_vanilla_transformer.inference.fingerprint  # noqa: F401 - imported before a process is forked
from hf_vanilla_transformer.cli import translate  # noqa: F401 - as above
from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.inference import line_output
from processes import print_to, surroundings

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([__name__])

# A translation takes a second; one that hangs is killed after this many.
LIMIT = 600

# Python's audit events that change a folder.
FILE_EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree")


class Moment(NamedTuple):
    """The `number`-th event of a run; events precede changes of files named like the output, and lines."""

    number: int
    sent: signal.Signals = signal.SIGKILL


def start(words: list[str], log: Path, moment: Moment | None = None, limit: int = 0, **world: str) -> BaseProcess:
    """Start `translate` with the options `words`; `world` is the environment of one of several processes.

    The log gets its output, and "events: n" if it ends by itself. `limit`, the maximum bytes of a file or 0, simulates
    a full disk.
    """
    process = FORKS.Process(target=_translate, args=(words, log, moment, limit, world))
    # The first process starts the fork server, which needs PYTHONPATH to find this module, and the resource tracker,
    # which warns of semaphores left behind by killed processes.
    with mock.patch.dict(os.environ, {**surroundings(), "PYTHONWARNINGS": "ignore::UserWarning"}):
        process.start()
    return process


def end(process: BaseProcess) -> int:
    """Wait for a process and return its exit status, negative for a signal."""
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        raise AssertionError("a translation hangs")
    assert process.exitcode is not None
    return process.exitcode


def _translate(words: list[str], log: Path, moment: Moment | None, limit: int, world: dict[str, str]) -> None:
    print_to(log)
    os.environ.update(world)
    torch.set_num_threads(1)
    if limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    events = watch(words[words.index("--output") + 1], moment)
    main(["translate", *words])
    print(f"events: {next(events) - 1}", flush=True)


def watch(output: str, moment: Moment | None) -> Any:
    """Count the events of this process, and send it the signal at the moment."""
    numbers = count(1)

    def event() -> None:
        if next(numbers) == (moment and moment.number):
            os.kill(os.getpid(), moment.sent)

    def audit(name: str, arguments: tuple[Any, ...]) -> None:
        if name in FILE_EVENTS and str(arguments[0]).startswith(output):
            event()

    written = line_output._Chunks.write

    def write(self: Any, line: str) -> None:
        event()
        written(self, line)

    line_output._Chunks.write = write  # type: ignore[method-assign]
    sys.addaudithook(audit)
    return numbers


if __name__ == "__main__":
    # Started by a launcher with arguments KILLED_RANK EVENT OPTIONS...
    rank, number, *options = sys.argv[1:]
    torch.set_num_threads(1)
    if os.environ["RANK"] == rank:
        watch(options[options.index("--output") + 1], Moment(int(number)))
    main(["translate", *options])
