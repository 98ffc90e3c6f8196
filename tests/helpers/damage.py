"""Seeded damage to files, and a child process with bounded memory to use them in."""

import json
import multiprocessing
import resource
import string
import tempfile
import warnings
from collections.abc import Callable, Iterator
from copy import deepcopy
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random
from typing import Any

import torch
import transformers

# Maximum length of a message, with room for a folder's name.
LONGEST_MESSAGE = 1200
# Bytes that a child may allocate beyond its initial memory.
MEMORY = 3 * 2**29
# A child hangs if it finishes no case in this many seconds.
PATIENCE = 120.0

HOSTILE = (
    None, True, False, -1, 0, 1, 2, 7, 2**31, 2**63, 10**9, 10**20, -(10**20), 0.5, -0.5, 1e308, float("nan"),
    float("inf"), "", "8", "é", "\ud800", "\0", "\n", "../../elsewhere", "x" * 100_000, [], {}, [[]], [None],
    {"": None}, [0, 1, 2], ["a", "a"], {"type": "WordLevel"}, {"0": 1}, [[0] * 3] * 3,
)  # fmt: skip  # a table, not an expression


def damaged_bytes(random: Random, data: bytes) -> bytes:
    """Flip, truncate, insert, repeat, zero or replace bytes."""
    at, end = sorted(random.randrange(len(data) + 1) for _ in range(2))
    end = min(end, at + random.choice((1, 2, 8, 100, len(data))))
    noise = random.randbytes(random.choice((1, 2, 8, 100)))
    kinds: tuple[Callable[[], bytes], ...] = (
        lambda: data[:at] + bytes(byte ^ 1 << random.randrange(8) for byte in data[at : at + 1]) + data[at + 1 :],
        lambda: data[:at],
        lambda: data[at:],
        lambda: data[:at] + data[end:],
        lambda: data[:at] + noise + data[at:],
        lambda: data[:at] + noise + data[at + len(noise) :],
        lambda: data[:end] + data[at:],
        lambda: data[:at] + bytes(end - at) + data[end:],
        lambda: b"",
        lambda: data + noise,
        lambda: noise,
    )
    return random.choice(kinds)()


def damaged_json(random: Random, data: bytes, values: tuple[Any, ...] = HOSTILE) -> bytes:
    """Replace, remove, rename, repeat or copy values, at any depth."""
    content = json.loads(data)
    for _ in range(random.choice((1, 1, 1, 2, 3))):
        _damage_value(random, content, values)
    text = json.dumps(content, ensure_ascii=random.random() < 0.5)
    if random.random() < 0.02:
        text = text.replace("{", '{"a": ' + "[" * 20_000 + "]" * 20_000 + ", ", 1)
    return text.encode(errors="surrogatepass")


def _damage_value(random: Random, content: Any, values: tuple[Any, ...]) -> None:
    places = [(holder, key) for holder in _holders(content) for key in _keys(holder)]
    # Most values are vocabulary entries, so pick the others as often.
    shallow = [place for place in places if len(place[0]) < 20]
    if not places:
        return
    holder, key = random.choice(random.choice((places, shallow or places)))
    other, other_key = random.choice(shallow or places)
    kind = random.randrange(8)
    if kind == 0:
        del holder[key]
    elif kind == 1 and isinstance(holder, dict):
        holder[random.choice((f"{key}_", str(key)[:-1], "x" * 100_000, "", str(other_key)))] = holder.pop(key)
    elif kind == 2:
        holder[key] = json.loads(json.dumps(other[other_key]))
    elif kind == 3 and isinstance(holder, list):
        holder.append(holder[key])
    elif kind == 4 and type(holder[key]) is int:
        holder[key] += random.choice((-1, 1, 1000, 10**9))
    elif kind == 5 and isinstance(holder[key], str):
        holder[key] += random.choice((*string.punctuation, " ", "\n"))
    else:
        holder[key] = deepcopy(random.choice(values))


def _holders(content: Any) -> Iterator[Any]:
    if isinstance(content, (dict, list)):
        yield content
        for value in content.values() if isinstance(content, dict) else content:
            yield from _holders(value)


def _keys(holder: Any) -> Any:
    return list(holder) if isinstance(holder, dict) else range(len(holder))


def damaged_safetensors(random: Random, data: bytes) -> bytes:
    """Damage the header (missing, swapped or renamed tensors, other shapes, types or offsets), its length or data."""
    size = int.from_bytes(data[:8], "little")
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    names = [name for name in header if name != "__metadata__"]
    for name in random.sample(names, min(len(names), random.choice((1, 1, 1, 2, 5)))):
        tensor, kind = header[name], random.randrange(9)
        if kind == 0:
            del header[name]
        elif kind == 1:
            header[random.choice((f"x.{name}", name[:-1], name.replace("0", "7"), "x" * 100_000))] = header.pop(name)
        elif kind == 2:
            shape = tensor["shape"]
            tensor["shape"] = random.choice(([], shape[::-1], [*shape, 1], [10**12], [2**62, 4], [0], [-1]))
        elif kind == 3:
            tensor["dtype"] = random.choice(("F64", "F16", "BF16", "I64", "BOOL", "F8_E4M3", "Nothing"))
        elif kind == 4:
            tensor["data_offsets"] = random.choice(([0, 4], [4, 0], [0, 10**15], [-4, 0], tensor["shape"]))
        elif kind == 5:
            header[name] = random.choice((None, [], "x", {"dtype": "F32"}))
        elif kind == 6:
            # Well-formed, but the tensor is stored under another name.
            header = {{name: f"{name}.moved"}.get(key, key): value for key, value in header.items()}
        elif kind == 7:
            other = random.choice(names)
            if other in header and name in header:
                header[name], header[other] = header[other], header[name]
        else:
            first, last = tensor["data_offsets"]
            body = body[:first] + random.choice((b"\xff", b"\0", b"\x7f")) * (last - first) + body[last:]
    text = json.dumps(header).encode()
    length = random.choice((len(text),) * 12 + (len(text) + 8, 10**8, 2**63, 0))
    return length.to_bytes(8, "little") + text + body


def outcomes(worker: Callable[[range], Iterator[str]], count: int, kinds: int) -> int:
    """Try `count` cases of each of `kinds` kinds; return their number after checking every outcome."""
    found = try_in_child(worker, range(count))
    assert [outcome for outcome in found if outcome.startswith("fault")] == []
    assert len(found) == count * kinds and {*found} == {"right", "refused"}
    return len(found)


def try_in_child(worker: Callable[..., Iterator[str]], *arguments: Any) -> list[str]:
    """Run a generator in a child with bounded memory and return its items; a hang or crash names the last one."""
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_send_all, args=(sender, worker, arguments))
    child.start()
    sender.close()
    lines: list[str] = []
    try:
        while receiver.poll(PATIENCE):
            lines.append(receiver.recv())
        raise AssertionError(f"no case finished for {PATIENCE:g} s after {len(lines)}: {lines[-1:]}")
    except EOFError:
        child.join()
    finally:
        child.kill()
    assert child.exitcode == 0, f"the child ended with {child.exitcode} after {len(lines)}: {lines[-1:]}"
    return lines


def _send_all(sender: Connection, worker: Callable[..., Iterator[str]], arguments: Any) -> None:
    for line in worker(*arguments):
        sender.send(line)
    sender.close()


class DamagedFiles:
    """Files in a folder, some of which are damaged in each case.

    Subclasses damage a file (`damaged`), use the folder (`use`), and check error messages (`fault_of_message`).
    """

    def __init__(self, kind: str, folder: Path):
        self.kind, self.folder = kind, folder
        self.whole = {file.name: file.read_bytes() for file in folder.iterdir()}

    def try_case(self, number: int) -> str:
        """Damage, use and restore the files; return "right", "refused", or "fault: ..." with the case."""
        random = Random(f"{self.kind} {number}")
        damaged = {name: self.damaged(random, name) for name in self.names(random)}
        for name, data in damaged.items():
            (self.folder / name).unlink() if data is None else (self.folder / name).write_bytes(data)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fault, outcome = self.use(damaged), "right"
        except ValueError as error:
            fault, outcome = self.fault_of_message(str(error), [*damaged]), "refused"
        # No other exception may reach the user, not even a library's panic.
        except BaseException as error:
            fault = outcome = f"{type(error).__name__}: {str(error)[:300]}"
        for name in damaged:
            (self.folder / name).write_bytes(self.whole[name])
        return f"fault: {self.kind} {number}, {[*damaged]}: {fault}" if fault else outcome

    def names(self, random: Random) -> list[str]:
        """Return the files to damage."""
        return [random.choice(sorted(self.whole))]

    damaged: Callable[[Random, str], bytes | None]
    # Returns the fault of a wrong result.
    use: Callable[[dict[str, bytes | None]], str | None]

    def fault_of_message(self, message: str, names: list[str]) -> str | None:
        """Return the fault of an unacceptable message."""
        if "\n" in message or len(message) > LONGEST_MESSAGE:
            return f"a message of {len(message)} characters: {message[:300]}"
        return None


def try_kinds(damaged: Callable[[str, Path], Any], numbers: range, kinds: tuple[str, ...]) -> Iterator[str]:
    """Yield the outcome of every case, with a folder per kind and bounded memory."""
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    root = "/dev/shm" if Path("/dev/shm").is_dir() else None
    for kind in kinds:
        with tempfile.TemporaryDirectory(dir=root) as folder:
            case = damaged(kind, Path(folder))
            limit_memory()
            for number in numbers:
                yield case.try_case(number)


def limit_memory() -> None:
    """Limit the address space of this process to its present size plus `MEMORY`."""
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    _, largest = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, largest))
