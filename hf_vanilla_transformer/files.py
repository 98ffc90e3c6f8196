"""Reading text, JSON and YAML with errors that name file and line; atomic writes of files and folders."""

import codecs
import errno
import gzip
import json
import os
import re
import shutil
import stat
import sys
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import BufferedReader, TextIOWrapper
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from .errors import DataError, one_line

# Byte order marks. UTF-32 comes first: in little-endian order, its mark starts with that of UTF-16.
BYTE_ORDER_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
# Bytes read to detect the encoding.
HEAD = 4096
# Candidate encodings of text without a byte order mark.
UNMARKED = ("UTF-32LE", "UTF-32BE", "UTF-16LE", "UTF-16BE")
# For text written as one line: readers would split at these characters.
LINE_ENDS_TO_SPACES = str.maketrans("\r\n", "  ")

StrPath = str | os.PathLike[str]
# Maximum size of settings or a vocabulary, whose parsing takes several times that. The largest tokenizers have 40 MB.
MAX_JSON_BYTES = 2**28
# Files in a folder that a model is loaded from.
MODEL_FILES = ("*.safetensors", "*.bin", "onnx/*.onnx", "*config*.json", "*token*.json", "*vocab*")
STANDARD_OUTPUT = ("-", "/dev/stdout", "/dev/fd/1")
# Subfolder for partial writes and deletions; never read. Uploads to the Hub skip names that begin with an underscore.
SCRATCH = "_partial"

# No space, quota exceeded, file too large, disk failed or became read-only.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)
# Parts of torch's messages about failed writes: its source file, or a C++ stream error.
TORCH_WRITE_ERRORS = ("inline_container.cc", "iostream error")


@contextmanager
def open_input(path: StrPath) -> Iterator[BinaryIO]:
    """Open a file for reading bytes, decompressing gzip; "-" is standard input.

    Read and decompression errors inside the `with` block become DataErrors too.
    """
    name = _name(path)
    try:
        with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as raw:
            zipped = cast(BufferedReader, raw).peek(2)[:2] == b"\x1f\x8b" or str(path).endswith(".gz")
            yield cast(BinaryIO, gzip.GzipFile(fileobj=raw) if zipped else raw)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name}: incomplete or damaged gzip file ({error}); fetch or compress it again") from error
    except OSError as error:
        raise DataError(f"{name}: cannot be read ({error.strerror or error}); check the path") from error


def _name(path: StrPath) -> StrPath:
    return "standard input" if path == "-" else path


def read_lines(path: StrPath, keep_ends: bool = False, any_unicode: bool = False) -> Iterator[str]:
    r"""Read the lines of a UTF-8 text file, plain or gzip; with `any_unicode`, also of UTF-16 and UTF-32.

    Only "\n" and "\r\n" end a line: other separators inside a sentence, such as U+0085, must not misalign two files. A
    byte order mark is skipped. A file whose lines end in "\r" alone is rejected. "-" is standard input; gzip is
    recognized by its first bytes or the extension `.gz`.
    """
    name = _name(path)
    with open_input(path) as file:
        encoding = _other_encoding(cast(BufferedReader, file).peek(HEAD)[:HEAD])
        if encoding and any_unicode:
            yield from _decoded_lines(file, encoding, name, keep_ends)
            return
        if encoding:
            raise DataError(f"{name} is {encoding}, not UTF-8; convert it: {_CONVERT.format(encoding)}")
        for number, line in enumerate(file, start=1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(
                    f"{name}, line {number}: byte 0x{error.object[error.start]:02x} at position {error.start + 1} is "
                    f"not UTF-8; convert it, from Windows-1252 or Latin-1 with {_CONVERT.format('WINDOWS-1252')}"
                ) from None
            if number == 1 and "\r" in text.rstrip("\r") and not text.endswith("\n"):
                raise DataError(
                    f"{name}: lines end in carriage returns alone, as on old Macs, so it would be a single line; "
                    "convert it: tr '\\r' '\\n' < old.txt > new.txt"
                )
            yield text if keep_ends else _without_end(text)


def _decoded_lines(file: BinaryIO, encoding: str, name: StrPath, keep_ends: bool) -> Iterator[str]:
    text = TextIOWrapper(file, encoding, newline="\n")
    try:
        for line in text:
            yield line if keep_ends else _without_end(line)
    except UnicodeDecodeError as error:
        raise DataError(f"{name} is no complete {encoding} ({one_line(error)}); export it again") from None
    finally:
        # Whoever opened the file closes it.
        text.detach()


def _without_end(line: str) -> str:
    return line.removesuffix("\n").removesuffix("\r")


_CONVERT = "iconv -f {} -t UTF-8 old.txt > new.txt"


def _other_encoding(head: bytes) -> str | None:
    """Detect UTF-16 or UTF-32 from the first bytes of a file; None if neither."""
    for mark, name in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return name
    # Without a mark, most of it is also valid UTF-8, with zero bytes from spaces, digits and Latin letters.
    if head.count(0) < max(2, len(head) / 20):
        return None
    largest = {}
    for name in UNMARKED:
        with suppress(UnicodeDecodeError):
            text = "".join(codecs.getincrementaldecoder(name)().decode(head).split())
            if text.isprintable():
                largest[name] = max(map(ord, text), default=0)
    # In the wrong byte order, code points of alphabets become large.
    return min(largest, key=largest.__getitem__, default=None)


def read_json_records(path: StrPath, streaming: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield location and content of JSON lines, or of the items of an array, which cannot be streamed."""
    lines = ((number, line) for number, line in enumerate(read_lines(path), start=1) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    if not first[1].lstrip().startswith("["):
        for number, line in chain([first], lines):
            yield f"{path}, line {number}", _parse_json(line, f"{path}, line {number}")
        return
    if streaming:
        raise DataError(f"{path}: a JSON array cannot be streamed; write one object per line")
    text = "\n".join(line for _, line in chain([first], lines))
    for number, record in enumerate(_parse_json(text, str(path)), start=1):
        yield f"{path}, row {number}", record


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"the key {name!r} occurs twice")
    return content


_JSON = json.JSONDecoder(object_pairs_hook=_object_without_duplicates)


def _parse_json(text: str, where: str) -> Any:
    try:
        return _JSON.decode(text)
    # Nesting too deep raises a RecursionError.
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: not JSON ({error}); write one object per line or a single array") from None


def read_json_object(path: StrPath, remedy: str) -> dict[str, Any]:
    """Read a JSON file that holds one object; every error ends in `remedy`, such as "save it again"."""
    path = Path(path)
    if path.is_file():
        check_json_size(path, remedy)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path.parent} holds no {path.name}; {remedy}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} cannot be read ({one_line(error)}); {remedy}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} is not a JSON object; {remedy}")
    return content


def read_yaml(path: StrPath) -> Any:
    """Read a YAML or JSON file as a tree of nodes with line numbers; scalars are strings."""
    # Slow to import.
    import yaml

    try:
        root = yaml.compose(Path(path).read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except yaml.MarkedYAMLError as error:
        # The full message quotes the line, which may hold a token.
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise DataError(f"{path} cannot be read: line {line}: {error.problem}") from None
    except RecursionError:
        raise DataError(f"{path} cannot be read: it is nested too deeply") from None
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise DataError(f"{path} cannot be read: {one_line(error)}") from error
    if root is None:
        raise DataError(f"{path} is empty")
    return root


def yaml_items(node: Any, path: StrPath) -> Iterator[tuple[str, int, Any]]:
    """Yield key, line and value of each item of a mapping from `read_yaml`."""
    line = node.start_mark.line + 1
    if node.id != "mapping":
        raise DataError(f"{path}, line {line}: not a mapping of keys to values; write `key: value`")
    seen = set()
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.id != "scalar":
            raise DataError(f"{path}, line {line}: key is not a name; write `key: value`")
        if key.value in seen:
            raise DataError(f"{path}, line {line}: {key.value} is given twice")
        seen.add(key.value)
        yield key.value, line, value


def is_yaml_null(node: Any) -> bool:
    return bool(node.id == "scalar" and node.value in ("", "null", "~"))


def check_links(folder: StrPath, pattern: str = "*") -> None:
    """Raise a DataError for links to files outside the folder: reading or sharing the folder would follow them.

    In the Hub's cache, a snapshot of a repository may link to the repository's blobs.
    """
    root = Path(folder).resolve()
    allowed = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
    for file in sorted(root.glob(pattern)):
        target = file.resolve()
        if target.is_file() and not any(map(target.is_relative_to, allowed)):
            link = Path(folder, file.relative_to(root))
            raise DataError(f"{link} is a link to {target}, outside its folder; replace it with a copy of the file")


def check_json_size(path: Path, remedy: str) -> None:
    """Raise a DataError ending in `remedy` if a JSON file is too large to be settings or a vocabulary."""
    if (size := path.stat().st_size) > MAX_JSON_BYTES:
        raise DataError(f"{path} has {size:,} bytes, more than any settings or vocabulary; {remedy}")


def check_output_file(path: StrPath, inputs: Iterable[StrPath], argument: str) -> None:
    """Check before any work that a file can be written and is not an input under another path or link.

    Among inputs, "-" is standard input and a folder stands for its `MODEL_FILES`. Errors name the `argument` that
    gave the output.
    """
    to_standard_output = str(path) in STANDARD_OUTPUT
    # An empty name resolves to the current folder.
    target = Path(os.path.realpath(path))
    if not to_standard_output and not target.parent.is_dir():
        raise DataError(f"`{argument}` {path}: there is no folder {target.parent}; create it first")
    if not to_standard_output and target.is_dir():
        raise DataError(f"`{argument}` {path} is a directory; name a file")
    # Standard output may be redirected to a file, even an input.
    output = _file_status(sys.stdout if to_standard_output else path)
    for name in chain.from_iterable(map(_files_of, inputs)):
        source = _file_status(sys.stdin if name == "-" else name)
        if source and output and os.path.samestat(source, output):
            raise DataError(f"`{argument}` {path} is the input {name} and would replace it; name another file")


def _files_of(name: StrPath) -> Iterable[StrPath]:
    if not os.path.isdir(name):
        return [name]
    return [path for pattern in MODEL_FILES for path in Path(name).glob(pattern)]


def _file_status(file: StrPath | TextIO) -> os.stat_result | None:
    """Return the status of a regular file, else None: a terminal can safely be both input and output."""
    # A stream may lack a file descriptor; a missing input is reported on reading.
    with suppress(OSError, ValueError):
        status = os.stat(file if isinstance(file, str | os.PathLike) else file.fileno())
        return status if stat.S_ISREG(status.st_mode) else None
    return None


def replaceable(path: StrPath) -> bool:
    """Whether an output is, or will be, a regular file."""
    return str(path) not in STANDARD_OUTPUT and (os.path.isfile(path) or not os.path.exists(path))


@contextmanager
def disk_errors(path: StrPath, remedy: str) -> Iterator[None]:
    """Turn disk errors of any library into a DataError that names `path` and the remedy."""
    try:
        yield
    except Exception as error:
        if reason := _disk_error(error):
            raise DataError(f"{path}: cannot be written ({reason}); {remedy}") from error
        raise


def _disk_error(error: Exception) -> str | None:
    """Return why a write failed, or None if the error is of another kind."""
    # safetensors and tokenizers, written in Rust, put errno into the message.
    quoted = re.search(r"\(os error (\d+)\)", str(error))
    number = error.errno if isinstance(error, OSError) else int(quoted[1]) if quoted else None
    if number in DISK_ERRORS:
        return os.strerror(number)
    # torch does not.
    return "the disk is full or failed" if any(text in str(error) for text in TORCH_WRITE_ERRORS) else None


@contextmanager
def atomic_write(path: StrPath) -> Iterator[BinaryIO]:
    """Open a file for writing bytes; it appears, or replaces an existing one, only once complete.

    Standard output ("-"), pipes and devices are written directly.
    """
    if not replaceable(path):
        is_standard = str(path) in STANDARD_OUTPUT
        with disk_errors("standard output" if is_standard else path, "make room"):
            with nullcontext(sys.stdout.buffer) if is_standard else open(path, "wb") as stream:
                yield stream
        return
    target = Path(os.path.realpath(path))
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        file = partial.open("xb")
    except OSError as error:
        raise DataError(f"{path}: cannot be written ({error.strerror}); name another file") from error
    try:
        with disk_errors(path, "make room, or name another file"):
            with file:
                yield file
            partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def check_output_folder(path: StrPath) -> Path:
    """Return an output folder; raise a DataError unless it is new or empty, so that nothing is overwritten."""
    folder = Path(path)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise DataError(f"`output_dir` {folder} exists and is not an empty folder; name another")
    return folder


@contextmanager
def atomic_folder(path: StrPath) -> Iterator[Path]:
    """Yield a temporary folder that becomes the new or empty folder `path` once complete."""
    target = check_output_folder(path).resolve()
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    new_parents = [parent for parent in partial.parents if not parent.exists()]
    try:
        partial.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"`output_dir` {path} cannot be created: {error.strerror}; name another") from None
    try:
        with disk_errors(path, "make room, or name another `output_dir`"):
            yield partial
            partial.replace(target)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        for parent in new_parents:
            with suppress(OSError):
                parent.rmdir()
        raise


@contextmanager
def atomic_update(path: StrPath, last: str, remedy: str = "make room") -> Iterator[Path]:
    """Yield a temporary folder whose files replace those of the folder `path` once all are written.

    Killing the program in between never leaves a loadable mixture: the file `last`, required for loading, is deleted
    first and moved in last.
    """
    folder = Path(path)
    partial = folder / SCRATCH / last
    shutil.rmtree(partial, ignore_errors=True)
    try:
        with disk_errors(path, remedy):
            partial.mkdir(parents=True)
            yield partial
            if (partial / last).exists():
                (folder / last).unlink(missing_ok=True)
            files = (file.relative_to(partial) for file in partial.rglob("*") if file.is_file())
            for file in sorted(files, key=lambda file: str(file) == last):
                (folder / file).parent.mkdir(exist_ok=True)
                (partial / file).replace(folder / file)
    finally:
        clear_scratch(folder)


def clear_scratch(folder: StrPath) -> None:
    """Delete leftovers of killed programs and failed writes in a folder."""
    shutil.rmtree(Path(folder, SCRATCH), ignore_errors=True)


def flush_to_disk(path: Path) -> None:
    """Flush a file, or the entries of a folder, so that they survive a power failure."""
    # Some systems cannot flush a folder.
    with suppress(OSError) if path.is_dir() else nullcontext():
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_line_pairs(source: str, target: str) -> Iterator[tuple[str, str]]:
    """Yield the line pairs of two files; raise a ValueError if their numbers of lines differ."""
    number = 0
    for number, (one, other) in enumerate(zip_longest(read_lines(source), read_lines(target)), start=1):
        if one is None or other is None:
            shorter, longer = (source, target) if one is None else (target, source)
            raise ValueError(
                f"{shorter} has {number - 1} lines but {longer} has more; line n of one must translate line n of the "
                "other"
            )
        yield one, other
