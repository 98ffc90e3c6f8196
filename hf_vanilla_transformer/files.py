"""Text files, line by line: read with their faults named; files and folders written whole or not at all."""

import gzip
import json
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import BufferedReader
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from .errors import DataError, one_line

# Where it goes on to a file, that file may hold something already, which must stay.
STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1")


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    r"""Read the lines of a UTF-8 text file, plain or gzip.

    Lines end at "\n" only (a "\r" before it goes too), so that other separators inside a sentence, such as U+0085,
    leave the alignment of two files intact. A byte order mark is skipped.

    Args:
        path: The file, or "-" for standard input; it is gzip if its name ends in `.gz` or its first bytes say so.

    Yields:
        The lines without their ends.

    Raises:
        DataError: The file cannot be read, is cut short, or is not UTF-8.
    """
    name = "standard input" if path == "-" else path
    with open_input(path) as file:
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name}, line {number}: byte 0x{error.object[error.start]:02x} at position {error.start + 1} is "
                    "not UTF-8; convert it to UTF-8"
                ) from None
            yield text.removesuffix("\n").removesuffix("\r")


def read_json_records(path: str | os.PathLike[str], streaming: bool = False) -> Iterator[tuple[str, Any]]:
    """Read one JSON object a line, or one array of objects that fills the file.

    Args:
        path: The file, UTF-8, plain or gzip.
        streaming: Refuse an array, which cannot be read piece by piece.

    Yields:
        Where a row stands, for messages, and the row.

    Raises:
        DataError: The file cannot be read, or a line is not JSON.
    """
    lines = ((number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip())
    first = next(lines, (0, ""))
    if not first[1].lstrip().startswith("["):
        for number, line in chain([first] if first[0] else [], lines):
            yield f"{path}, line {number}", _parse_json(line, f"{path}, line {number}")
        return
    if streaming:
        raise DataError(f"{path}: a JSON array cannot be streamed; write one object a line")
    text = "\n".join(line for _, line in chain([first], lines))
    for number, row in enumerate(_parse_json(text, str(path)), start=1):
        yield f"{path}, row {number}", row


def _parse_json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: not JSON ({error}); write one object a line or one array") from None


def read_json_object(path: str | os.PathLike[str], remedy: str) -> dict[str, Any]:
    """Read a JSON file that holds one object.

    Args:
        path: The file, UTF-8.
        remedy: What to do about a file that cannot be used, for messages, such as "save it again".

    Raises:
        DataError: There is no such file, it is not JSON, or it holds something else than an object.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path.parent} holds no {path.name}; {remedy}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({one_line(error)}); {remedy}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds no JSON object; {remedy}")
    return content


@contextmanager
def open_input(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a plain or gzip file for reading bytes, and turn what goes wrong until it is closed into a DataError."""
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as raw:
            zipped = cast(BufferedReader, raw).peek(2)[:2] == b"\x1f\x8b" or str(path).endswith(".gz")
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw) if zipped else raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{path}: not a whole gzip file ({error}); fetch or compress it again") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the path") from error


def check_output_file(path: str | os.PathLike[str], inputs: Iterable[str | os.PathLike[str]], option: str) -> None:
    """Find out before anything is read whether a file can be written that is none of the inputs.

    Args:
        path: The output.
        inputs: The inputs, "-" for standard input.
        option: What the output is called in messages.

    Raises:
        DataError: It is an input, by this name or another (a link, a relative path), or its folder does not exist.
    """
    to_standard_output = str(path) in STANDARD_OUTPUT
    folder = Path(os.path.realpath(path)).parent
    if not to_standard_output and not folder.is_dir():
        raise DataError(f"{option} {path}: there is no folder {folder}; make it first")
    target = _file_status(sys.stdout if to_standard_output else path)
    for name in inputs:
        source = _file_status(sys.stdin if name == "-" else name)
        if source and target and os.path.samestat(source, target):
            raise DataError(f"{option} {path} is the input {name} and would replace it; name another file")


def _file_status(file: str | os.PathLike[str] | TextIO) -> os.stat_result | None:
    """Return the status of a file, or None for what is none: a terminal can be input and output, and loses nothing."""
    # A stream may be no file of the system's; an input that is not there is named when it is read.
    with suppress(OSError, ValueError):
        status = os.stat(file if isinstance(file, str | os.PathLike) else file.fileno())
        return status if stat.S_ISREG(status.st_mode) else None
    return None


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file for writing bytes that appears, or changes, when all of it is written, and not before.

    Standard output ("-"), a pipe or a device is written to directly: only a file can take the place of another.
    """
    if str(path) in STANDARD_OUTPUT:
        yield sys.stdout.buffer
        return
    target = Path(path)
    if target.exists() and not target.is_file():
        with target.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(target))
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        file = partial.open("xb")
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); name another file") from error
    try:
        with file:
            yield file
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def check_output_folder(name: str | os.PathLike[str]) -> Path:
    """Return an output folder, once it is sure that nothing in it would be overwritten.

    Raises:
        DataError: There is a file of this name, or a folder that is not empty.
    """
    folder = Path(name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"--output_dir {folder} exists and is not an empty folder; name another")
    return folder


@contextmanager
def atomic_folder(name: str | os.PathLike[str]) -> Iterator[Path]:
    """Hand out a folder to write to, which takes the name of the new or empty one when all of it is written.

    Raises:
        DataError: There is such a folder and it is not empty, or none can be made there.
    """
    target = check_output_folder(name).resolve()
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    new_parents = [parent for parent in partial.parents if not parent.exists()]
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"--output_dir {name} cannot be made: {error.strerror}; name another") from None
    try:
        yield partial
        partial.replace(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in new_parents:
            with suppress(OSError):
                parent.rmdir()
        raise


__all__ = [
    "atomic_folder",
    "atomic_write",
    "check_output_file",
    "check_output_folder",
    "open_input",
    "read_json_object",
    "read_json_records",
    "read_lines",
]
