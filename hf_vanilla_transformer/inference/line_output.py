"""Output of one line for each line of input, by one process or several, that can be resumed.

Until all lines are finished, OUTPUT.partial/ holds those of process i of n in `i-of-n.lines`. `i-of-n.journal` holds
the settings, and then a digest of each finished line and its source: what is resumed is what was begun.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from hashlib import blake2b
from itertools import cycle, islice
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from filelock import FileLock, Timeout

from ..errors import DataError, one_line
from ..files import atomic_write, replaceable

LINES = ".lines"

# Seconds between two looks at whether the other processes are done.
POLL_INTERVAL = 0.05


class Share:
    """The lines of this process: of every `size` chunks, the one whose number is its rank.

    Attributes:
        rank: Number of this process, from 0.
        size: Number of processes.
        chunk_size: Lines in a chunk.
        num_lines: Lines of all processes, once all are read.
    """

    def __init__(self, chunk_size: int):
        if chunk_size < 1:
            raise ValueError(f"`chunk_size` is {chunk_size}; it must be at least 1")
        # As torchrun and `accelerate launch` set them.
        self.rank, self.size = (int(os.environ.get(*name)) for name in (("RANK", "0"), ("WORLD_SIZE", "1")))
        self.chunk_size = chunk_size
        self.num_lines = 0
        self.name = self.name_of(self.rank)

    def name_of(self, rank: int) -> str:
        return f"{rank + 1}-of-{self.size}"

    def of(self, lines: Iterable[str]) -> Iterator[str]:
        """Yield the lines of this process."""
        for self.num_lines, line in enumerate(lines, start=1):
            if (self.num_lines - 1) // self.chunk_size % self.size == self.rank:
                yield line

    def device(self, name: str | None) -> str | None:
        """Return the device of this process: each has its own accelerator unless one is named by its index."""
        if self.size == 1 or name == "cpu" or ":" in (name or ""):
            return name
        import torch

        accelerator = torch.accelerator.current_accelerator(check_available=True)
        kind = name or (accelerator.type if accelerator else None)
        return f"{kind}:{os.environ.get('LOCAL_RANK', self.rank)}" if kind else None


class LineOutput:
    """Lines being written.

    Attributes:
        sources: The sources of the lines that are still to be written.
    """

    def __init__(self, sources: Iterator[str], lines: BinaryIO, journal: BinaryIO | None = None):
        self.sources = sources
        self._lines, self._journal = lines, journal

    def write(self, source: str, line: str) -> None:
        """Write the line of the next source at once."""
        data = f"{line}\n".encode()
        if self._journal:
            self._journal.write(_digest(source, data))
            self._journal.flush()
        self._lines.write(data)
        self._lines.flush()


@contextmanager
def line_output(
    path: str,
    sources: Iterable[str],
    settings: Mapping[str, Any],
    share: Share,
    resume: bool,
    again: str = "repeat the command with --resume",
) -> Iterator[LineOutput]:
    """Open an output; it appears once it has a line for each source. Finished lines outlast an interruption.

    Args:
        path: The output, "-" for standard output, which like a pipe or a device is written to directly.
        sources: Lines of the input of all processes.
        settings: What decides the lines besides their sources, as JSON values.
        share: The share of this process.
        resume: Continue after the lines that an interrupted run has finished.
        again: How to continue an interrupted run, for messages.

    Raises:
        DataError: There are finished lines but `resume` is false, they were made of other sources or with other
            settings, or another process is writing them.
    """
    own = share.of(sources)
    if not replaceable(path):
        with atomic_write(path) as stream:
            yield LineOutput(own, stream)
        return
    target = Path(os.path.realpath(path))
    folder = target.with_name(f"{target.name}.partial")
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); name another file") from error
    with _locked(folder / f"{share.name}.lock"):
        part = _Part(folder, share)
        part.begin(settings, own, resume)
        try:
            with part.lines.open("ab") as lines, part.journal.open("ab") as journal, _finished_together(share):
                yield LineOutput(own, lines, journal)
            if share.rank == 0:
                part.merge().replace(target)
        except BaseException as error:
            if not part.num_finished():
                part.delete()
            elif advised := _with_advice(error, f"finished lines are kept in {folder}; to go on, {again}", folder):
                raise advised from error
            raise
        if share.rank == 0:
            part.delete_all()


class _Part:
    """The finished lines of this process."""

    def __init__(self, folder: Path, share: Share):
        self.folder, self.share = folder, share
        self.lines, self.journal = (folder / f"{share.name}{ending}" for ending in (LINES, ".journal"))

    def num_finished(self) -> int:
        """Return the number of lines in whole chunks: only from there on would the same sentences share a batch."""
        if not (self.lines.is_file() and self.journal.is_file()):
            return 0
        with self.lines.open("rb") as lines, self.journal.open("rb") as journal:
            counts = [sum(line.endswith(b"\n") for line in file) for file in (lines, journal)]
        # The journal begins with the settings.
        return min(counts[0], counts[1] - 1) // self.share.chunk_size * self.share.chunk_size

    def begin(self, settings: Mapping[str, Any], sources: Iterator[str], resume: bool) -> None:
        """Prepare the files for the next line, and take the sources of finished lines."""
        for path in self.folder.glob(f"*-of-*{LINES}"):
            size = path.name.removesuffix(LINES).rpartition("-of-")[2]
            if size != str(self.share.size):
                self._refuse(f"was begun with WORLD_SIZE={size}, not {self.share.size}; start as many processes")
        count = self.num_finished()
        if not count:
            self.lines.write_bytes(b"")
            self.journal.write_bytes(f"{json.dumps(settings)}\n".encode())
        elif not resume:
            self._refuse("holds the finished lines of an interrupted run; go on with --resume")
        else:
            self._resume(settings, sources, count)

    def _resume(self, settings: Mapping[str, Any], sources: Iterator[str], count: int) -> None:
        """Check the first lines, and cut off what follows them."""
        with self.lines.open("r+b") as lines, self.journal.open("r+b") as journal:
            try:
                begun = dict(json.loads(journal.readline()))
            except (ValueError, TypeError):
                self._refuse(f"holds a damaged {self.journal.name}; restore it")
            for name, value in settings.items():
                if begun.get(name) != value:
                    self._refuse(f"was begun {_described(name, begun.get(name))}; repeat that command with --resume")
            for _ in range(count):
                source = next(sources, None)
                if source is None or journal.readline() != _digest(source, lines.readline()):
                    number = self.share.num_lines + (source is None)
                    self._refuse(f"does not fit line {number} of the input, which has changed; restore it")
            for file in (lines, journal):
                file.truncate(file.tell())
        print(f"resuming after {count} finished lines", file=sys.stderr)

    def _refuse(self, problem: str) -> NoReturn:
        raise DataError(f"{self.folder} {problem}, or delete that folder to start again")

    def merge(self) -> Path:
        """Return a file of the lines of all processes, in the order of the input."""
        if self.share.size == 1:
            return self.lines
        merged, count = self.folder / "merged", 0
        with ExitStack() as stack, merged.open("wb") as file:
            names = [self.share.name_of(rank) for rank in range(self.share.size)]
            parts = [stack.enter_context((self.folder / f"{name}{LINES}").open("rb")) for name in names]
            for part in cycle(parts):
                chunk = list(islice(part, self.share.chunk_size))
                file.writelines(chunk)
                count += len(chunk)
                if len(chunk) < self.share.chunk_size:
                    break
        if count != self.share.num_lines:
            self._refuse(f"holds {count} lines for {self.share.num_lines} of the input, which has changed; restore it")
        return merged

    def delete_all(self) -> None:
        """Delete the files of all processes; a folder of this name may hold others."""
        with suppress(OSError):
            for path in self.folder.glob("[0-9]*-of-[0-9]*.*"):
                path.unlink()
            self.folder.rmdir()

    def delete(self) -> None:
        """Delete the files of this process."""
        for path in (self.lines, self.journal):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            # Other processes may have lines in it.
            (self.folder / f"{self.share.name}.lock").unlink()
            self.folder.rmdir()


def _digest(source: str, line: bytes) -> bytes:
    """Return a line of the journal."""
    return f"{blake2b(source.encode() + line, digest_size=8).hexdigest()}\n".encode()


def _described(setting: str, value: Any) -> str:
    if setting in ("model", "glossary", "rerank_model") and value is not None:
        return f"with another {setting}"
    # A length penalty of 0 is a value.
    return f"without --{setting}" if value is None or value is False else f"with --{setting} {value}"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    try:
        with FileLock(path, timeout=0):
            yield
    except Timeout:
        raise DataError(f"{path.parent} is being written by another process; wait for its end") from None


@contextmanager
def _finished_together(share: Share) -> Iterator[None]:
    """Let the first process go on only after all others; their launcher ends all if it loses one."""
    if share.size == 1:
        yield
        return
    from torch.distributed import DistError, rendezvous

    try:
        # Only the key-value store that processes find each other by.
        store, *_ = next(rendezvous("env://"))
        yield
        if share.rank:
            store.set(f"finished {share.name}", "")
        while not share.rank and not store.check([f"finished {share.name_of(rank)}" for rank in range(1, share.size)]):
            time.sleep(POLL_INTERVAL)
    except DistError as error:
        raise DataError(f"the other processes cannot be reached ({one_line(error)})") from error


def _with_advice(error: BaseException, advice: str, folder: Path) -> BaseException | None:
    """Return an error that says how to go on, unless the program has no words for it."""
    if isinstance(error, KeyboardInterrupt):
        return type(error)(advice)
    if isinstance(error, OSError) and not error.filename:
        return DataError(f"{folder} cannot be written ({error.strerror}); {advice}")
    return DataError(f"{one_line(error)}; {advice}") if isinstance(error, (ValueError, OSError)) else None


__all__ = ["LineOutput", "Share", "line_output"]
