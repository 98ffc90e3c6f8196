"""Resumable output of one line per input line, written by one or more processes.

Until all lines are finished, OUTPUT.partial/ holds a file for each finished chunk of lines. Its name has the number of
the chunk and a digest of its sources and of the settings, so that only the same job is resumed.
"""

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from filelock import FileLock, Timeout

from ..errors import DataError, one_line
from ..files import atomic_write, disk_errors, replaceable
from ..options import POSITIVE, check_range

# Seconds between polls for another process's chunk.
POLL_INTERVAL = 0.05


class Share:
    """The chunks of this process: those whose number modulo the number of processes is its rank."""

    def __init__(self, chunk_size: int):
        check_range(POSITIVE, chunk_size=chunk_size)
        # Set by torchrun and `accelerate launch`.
        self.rank, self.size = (int(os.environ.get(*name)) for name in (("RANK", "0"), ("WORLD_SIZE", "1")))
        self.chunk_size = chunk_size

    def device(self, name: str | None) -> str | None:
        """Return the device of this process: its own accelerator, unless `name` is the CPU or has an index."""
        if self.size == 1 or name == "cpu" or ":" in (name or ""):
            return name
        import torch

        accelerator = torch.accelerator.current_accelerator(check_available=True)
        kind = name or (accelerator.type if accelerator else None)
        return f"{kind}:{os.environ.get('LOCAL_RANK', self.rank)}" if kind else None


class LineOutput(NamedTuple):
    """The sources of the lines still to be written, and the function that writes these lines, in order."""

    sources: Iterator[str]
    write: Callable[[str], None]


class OtherRun(DataError):
    """The finished lines come from a run with other sources or settings."""


@contextmanager
def line_output(
    path: str,
    sources: Iterable[str],
    settings: Mapping[str, Any],
    share: Share,
    resume: bool,
    again: str = "repeat the command with --resume",
) -> Iterator[LineOutput]:
    """Open an output, which appears once it has a line for each source; finished chunks survive interruptions.

    Standard output ("-"), pipes and devices are written directly.

    Args:
        path: The output file.
        sources: Sources of all processes.
        settings: Everything else that the lines depend on, as JSON values.
        share: The chunks of this process.
        resume: Whether to keep the finished chunks of an interrupted run.
        again: How to continue, for messages.

    Raises:
        DataError: There are finished chunks but `resume` is false, they have other sources or settings, or another
            process is writing them.
    """
    if not replaceable(path):
        with atomic_write(path) as stream:

            def write(line: str) -> None:
                stream.write(f"{line}\n".encode())
                stream.flush()

            yield LineOutput(iter(sources), write)
        return
    target = Path(os.path.realpath(path))
    folder = target.with_name(f"{target.name}.partial")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); name another file") from error
    with _locked(folder / f"{share.rank}.lock"):
        chunks = _Chunks(folder, share, settings, resume)
        try:
            yield LineOutput(chunks.unfinished(sources), chunks.write)
            if share.rank == 0:
                chunks.merge(target)
        except OtherRun:
            raise
        except BaseException as error:
            chunks.scratch.unlink(missing_ok=True)
            if not any(folder.glob("*.lines")):
                chunks.clean_up()
            elif advised := _with_advice(error, f"finished lines are kept in {folder}; to continue, {again}"):
                raise advised from error
            raise
        chunks.clean_up(everything=share.rank == 0)


class _Chunks:
    """The chunks of lines, each a file in `folder` once it is finished."""

    def __init__(self, folder: Path, share: Share, settings: Mapping[str, Any], resume: bool):
        self.folder, self.share, self.settings = folder, share, json.dumps(settings).encode()
        numbered = {int(path.name.partition("-")[0]): path for path in folder.glob("[0-9]*-*.lines")}
        # Finished chunks of this process, by number.
        self.chunks = {number: path for number, path in numbered.items() if number % share.size == share.rank}
        if self.chunks and not resume:
            raise DataError(
                f"{folder} holds the finished lines of an interrupted run; continue with --resume, or delete that "
                "folder to start again"
            )
        # File and number of lines, of all chunks and of those waiting for their lines.
        self.all: list[tuple[Path, int]] = []
        self.waiting: deque[tuple[Path, int]] = deque()
        self.lines: list[str] = []
        # The file being written, before it is renamed.
        self.scratch = folder / f"{share.rank}.lines.scratch"

    def unfinished(self, sources: Iterable[str]) -> Iterator[str]:
        """Yield the sources of the chunks that this process has to write."""
        iterator, num_finished = iter(sources), 0
        while chunk := list(islice(iterator, self.share.chunk_size)):
            number = len(self.all)
            digest = blake2b(self.settings, digest_size=8)
            for source in chunk:
                digest.update(f"{source}\n".encode())
            path = self.folder / f"{number}-{digest.hexdigest()}.lines"
            self.all.append((path, len(chunk)))
            if number % self.share.size != self.share.rank:
                continue
            if self.chunks.get(number, path) != path:
                first, last = number * self.share.chunk_size + 1, number * self.share.chunk_size + len(chunk)
                raise OtherRun(
                    f"{self.folder} was started with another model, other settings or another input (lines {first} to "
                    f"{last}); repeat that command with --resume, or delete that folder to start again"
                )
            if _whole_chunk(path, len(chunk)) is not None:
                num_finished += len(chunk)
                continue
            _report(num_finished)
            num_finished = 0
            self.waiting.append(self.all[-1])
            yield from chunk
        _report(num_finished)

    def write(self, line: str) -> None:
        """Add the next line; the last line of a chunk writes the chunk's file."""
        self.lines.append(line)
        path, size = self.waiting[0]
        if len(self.lines) == size:
            with disk_errors(self.folder, "make room"):
                self.scratch.write_bytes("".join(f"{line}\n" for line in self.lines).encode())
                self.scratch.replace(path)
            self.lines.clear()
            self.waiting.popleft()

    def merge(self, target: Path) -> None:
        """Concatenate the chunks of all processes, waiting for them; if a process dies, the launcher ends all."""
        with disk_errors(self.folder, "make room"):
            with self.scratch.open("wb") as file:
                for path, size in self.all:
                    while (lines := _whole_chunk(path, size)) is None:
                        time.sleep(POLL_INTERVAL)
                    file.write(lines)
            self.scratch.replace(target)

    def clean_up(self, everything: bool = False) -> None:
        """Delete the files of all processes, or only the lock of this one; then the folder, if it is empty."""
        with suppress(OSError):
            for pattern in ("[0-9]*.lines*", "[0-9]*.lock") if everything else (f"{self.share.rank}.lock",):
                for path in self.folder.glob(pattern):
                    path.unlink()
            self.folder.rmdir()


def _whole_chunk(path: Path, size: int) -> bytes | None:
    """Return the content of a chunk's file; None if it is incomplete, as after a power loss."""
    lines = path.read_bytes() if path.is_file() else b""
    return lines if lines.count(b"\n") == size else None


def _report(num_finished: int) -> None:
    if num_finished:
        print(f"resuming after {num_finished} finished lines", file=sys.stderr)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        with FileLock(path, timeout=0):
            yield
    except Timeout:
        raise DataError(f"{path.parent} is being written by another process; wait until it ends") from None


def _with_advice(error: BaseException, advice: str) -> BaseException | None:
    """Return the error with advice appended; None for unexpected types, which keep their traceback."""
    if isinstance(error, KeyboardInterrupt):
        return type(error)(advice)
    return DataError(f"{one_line(error)}; {advice}") if isinstance(error, (ValueError, OSError)) else None
