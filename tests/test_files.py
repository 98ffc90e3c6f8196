import gzip
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from tokenizers.models import BPE

from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.files import (
    SCRATCH,
    atomic_folder,
    atomic_update,
    atomic_write,
    check_output_file,
    check_output_folder,
    disk_errors,
    read_json_object,
    read_json_records,
    read_lines,
)
from parallel_text import write
from tables import looped


@pytest.mark.parametrize("name", ["x.en", "x.en.gz"])
def test_reads_lines_at_newlines_only(tmp_path, name):
    path = write(tmp_path / name, "\ufeffone\x85still one\r\n\ntwo\u2028\x0c\nlast")
    assert list(read_lines(path)) == ["one\x85still one", "", "two\u2028\x0c", "last"]


@looped("text", ["one\r", "one\rtwo\n", "one\rtwo\r\nthree\rfour", "one\nt\rwo", "", "\r"])
def test_carriage_returns_inside_lines_stay(tmp_path, text):
    expected = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
    assert list(read_lines(write(tmp_path / "x.en", text))) == expected


def test_knows_gzip_by_its_first_bytes(tmp_path):
    assert list(read_lines(write(tmp_path / "x.en", gzip.compress(b"one\ntwo\n")))) == ["one", "two"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.en", b"good\nb\xe4d\n", r"x\.en, line 2: byte 0xe4 at position 2 is not UTF-8.*iconv -f WINDOWS-1252"),
        ("x.en", gzip.compress(b"some text\n" * 50, mtime=0)[:-12], r"x\.en: incomplete or damaged gzip file"),
        ("x.en", b"one\rtwo\rthree\r", r"x\.en: lines end in carriage returns alone, as on old Macs"),
        ("x.en", b"one\rtwo", r"x\.en: lines end in carriage returns alone"),
        ("x.gz", None, r"x\.gz: cannot be read \(No such file"),
    ],
)
def test_names_the_fault(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message):
        list(read_lines(tmp_path / name))


TEXTS = {
    "Latin": "Ein Mädchen – «läuft».\nZwei\n",
    "Cyrillic": "Девочка бежит по улице.\nДва\n",
    "Chinese": "2 个女孩 在跑。\n两\n",
    "one word": "Mann\nFrau\n",
}


@looped("zipped", [False, True])
@looped("text", TEXTS.values())
@looped("encoding", ["UTF-16", "UTF-16LE", "UTF-16BE", "UTF-32", "UTF-32LE", "UTF-32BE"])
def test_names_another_encoding(tmp_path, encoding, text, zipped):
    content = text.encode(encoding)
    (tmp_path / "x.en").write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(DataError, match=rf"x\.en is {encoding}, not UTF-8; convert it: iconv -f {encoding} -t UTF-8"):
        list(read_lines(tmp_path / "x.en"))


@looped("text", ["a\0b c\n", "\x1b[1mfett\x1b[0m, und Text\n", "\0\n", "\x01\n", "", "\n", "é\n", *TEXTS.values()])
def test_takes_utf_8_for_what_it_is(tmp_path, text):
    (tmp_path / "x.en").write_bytes(text.encode())
    assert "".join(read_lines(tmp_path / "x.en", keep_ends=True)) == text


def test_names_standard_input(tmp_path, monkeypatch):
    damaged = write(tmp_path / "x", gzip.compress(b"some text")[:-4])
    with open(damaged) as stream, pytest.raises(DataError, match="^standard input: incomplete or damaged gzip file"):
        monkeypatch.setattr(sys, "stdin", stream)
        list(read_lines("-"))


def test_refuses_a_gz_name_over_plain_text(tmp_path):
    (tmp_path / "x.gz").write_text("plain\n")
    with pytest.raises(DataError, match="incomplete or damaged gzip file"):
        list(read_lines(tmp_path / "x.gz"))


# Outputs


def test_one_of_several_inputs_and_standard_input(kept, monkeypatch):
    with pytest.raises(DataError, match="`output` k is the input hard"):
        check_output_file("k", ["folder/other", "hard"], "output")
    with Path("k").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(DataError, match="`output` hard is the input -"):
            check_output_file("hard", ["-"], "output")
    check_output_file("new", ["-", "k", "missing"], "output")
    check_output_file("-", ["k"], "output")
    with pytest.raises(DataError, match=f"`output` no/x: there is no folder {kept / 'no'}; create it first"):
        check_output_file("no/x", ["k"], "output")
    with pytest.raises(DataError, match="`output`  is a directory; name a file"):
        check_output_file("", ["k"], "output")


def test_standard_output_that_goes_on_to_the_input(kept, monkeypatch):
    """As with `>> k`, where each line written would be read as another line to translate."""
    for output in ("-", "/dev/stdout"):
        with Path("hard").open("a") as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", file)
            with pytest.raises(DataError, match=f"`output` {output} is the input k and would replace it"):
                check_output_file(output, ["new", "k"], "output")
            check_output_file(output, ["new"], "output")


def test_a_file_that_cannot_be_written_is_named(kept):
    Path("loop").symlink_to("loop")
    check_output_file("loop", ["k", "loop"], "output")
    name = "x" * 250
    with pytest.raises(DataError, match=f"^{name}: cannot be written .File name too long"), atomic_write(name):
        pytest.fail("there is nothing to write to")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/tty"])
def test_devices_may_be_both(device):
    check_output_file(device, [device, "-"], "output")


@pytest.mark.parametrize("path", ["-", "/dev/stdout"])
def test_what_follows_in_a_file_is_kept(path, tmp_path, monkeypatch):
    """As with `>> file`."""
    with (tmp_path / "log").open("a") as log:
        log.write("first ")
        log.flush()
        monkeypatch.setattr(sys, "stdout", log)
        with atomic_write(path) as file:
            file.write(b"second")
    assert (tmp_path / "log").read_text() == "first second"


def test_a_file_appears_only_once_it_is_complete(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError), atomic_write(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    with atomic_write(path) as file:
        file.write(b"new")
    assert path.read_text() == "new" and list(tmp_path.iterdir()) == [path]


def test_a_pipe_is_written_to_directly(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    with atomic_write(tmp_path / "pipe") as file:
        file.write(b"text")
    assert os.read(reader, 9) == b"text"
    os.close(reader)


def test_a_folder_appears_only_once_it_is_complete(tmp_path):
    path = tmp_path / "new" / "folder"
    with pytest.raises(RuntimeError), atomic_folder(path) as folder:
        (folder / "half").touch()
        raise RuntimeError
    assert not path.parent.exists()
    with atomic_folder(path) as folder:
        (folder / "file").touch()
        assert not path.exists()
    assert [file.name for file in path.iterdir()] == ["file"] and list(path.parent.iterdir()) == [path]
    with pytest.raises(DataError, match=f"`output_dir` {path} exists and is not an empty folder"), atomic_folder(path):
        pytest.fail("there is something in it")


class TestUpdate:
    @pytest.fixture
    def folder(self, tmp_path):
        for name in ("config", "weights"):
            (tmp_path / name).write_text("old")
        return tmp_path

    def update(self, folder):
        with atomic_update(folder, last="config") as partial:
            for name in ("config", "weights"):
                (partial / name).write_text("new")
            (partial / "templates").mkdir()
            (partial / "templates" / "one").write_text("new")

    def test_replaces_the_files(self, folder):
        for _ in range(2):
            self.update(folder)
        files = {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}
        assert files == {"config": "new", "weights": "new", "templates/one": "new"}
        assert not (folder / SCRATCH).exists()

    def test_killed_in_between(self, folder, monkeypatch):
        """At any moment, either all files are old, all are new, or the configuration is missing."""
        replace, seen = Path.replace, []

        def look(source, target):
            old = {name: (folder / name) for name in ("config", "weights")}
            seen.append({name: path.exists() and path.read_text() for name, path in old.items()})
            return replace(source, target)

        monkeypatch.setattr(Path, "replace", look)
        self.update(folder)
        assert len(seen) == 3 and not any(state["config"] for state in seen) and seen[-1]["weights"] == "new"

    def test_what_fails_changes_nothing(self, folder):
        with pytest.raises(KeyError), atomic_update(folder, last="config") as partial:
            (partial / "config").write_text("new")
            raise KeyError
        assert {path.name: path.read_text() for path in folder.iterdir()} == {"config": "old", "weights": "old"}


class TestDiskErrors:
    def save(self, library, folder):
        if library == "safetensors":
            save_file({"weight": torch.zeros(50_000)}, folder / "x")
        elif library == "torch":
            torch.save(torch.zeros(50_000), folder / "x")
        elif library == "tokenizers":
            Tokenizer(BPE({f"t{i}": i for i in range(5_000)}, [])).save(str(folder / "x"))
        else:
            (folder / "x").write_text("x" * 100_000)

    @pytest.mark.parametrize("library", ["safetensors", "torch", "tokenizers", "python"])
    def test_one_line_whoever_writes(self, tmp_path, library, small_files):
        with small_files(1000), pytest.raises(DataError) as stop, disk_errors(tmp_path, "make room"):
            self.save(library, tmp_path)
        reason = "the disk is full or failed" if library == "torch" else "File too large"
        assert str(stop.value) == f"{tmp_path}: cannot be written ({reason}); make room"

    def test_other_errors_stay(self, tmp_path):
        with pytest.raises(FileNotFoundError), disk_errors(tmp_path, "make room"):
            (tmp_path / "none").read_text()

    def test_outputs_name_themselves(self, tmp_path, small_files):
        with small_files(1000), pytest.raises(DataError, match="out: cannot be written .* or name another file"):
            with atomic_write(tmp_path / "out") as file:
                file.write(b"x" * 100_000)
        with small_files(1000), pytest.raises(DataError, match="folder: cannot be written .* another `output_dir`"):
            with atomic_folder(tmp_path / "folder") as folder:
                (folder / "out").write_bytes(b"x" * 100_000)
        assert not list(tmp_path.iterdir())


def test_an_output_folder_may_be_new_or_empty(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        assert check_output_folder(tmp_path / name) == tmp_path / name
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(DataError, match=f"`output_dir` {path} exists and is not an empty folder"):
            check_output_folder(path)
    with pytest.raises(DataError, match="cannot be created: Not a directory"), atomic_folder(tmp_path / "file" / "x"):
        pytest.fail("there is no place for it")


# JSON


def test_json_records(tmp_path):
    path = write(tmp_path / "x.jsonl", '\n{"a": 1}\n\n2\n')
    assert list(read_json_records(path)) == [(f"{path}, line 2", {"a": 1}), (f"{path}, line 4", 2)]
    path = write(tmp_path / "x.json.gz", '\n[{"a": 1},\n 2]')
    assert list(read_json_records(path)) == [(f"{path}, row 1", {"a": 1}), (f"{path}, row 2", 2)]
    with pytest.raises(DataError, match="a JSON array cannot be streamed"):
        next(read_json_records(path, streaming=True))
    with pytest.raises(DataError, match="deep.json: not JSON"):
        next(read_json_records(write(tmp_path / "deep.json", "[" * 100_000)))
    assert list(read_json_records(write(tmp_path / "empty.json", " \n"))) == []


def test_json_object(tmp_path):
    assert read_json_object(write(tmp_path / "x.json", '{"a": 1}'), "x") == {"a": 1}
    with pytest.raises(DataError, match=f"{tmp_path} holds no y.json; fetch it"):
        read_json_object(tmp_path / "y.json", "fetch it")
    for content, message in (
        ("{", "cannot be read \\(Exp.*\\)"),
        (b"\xff", "cannot be read"),
        ("[]", "is not a JSON object"),
        ("[" * 100_000, "cannot be read"),
    ):
        with pytest.raises(DataError, match=f"x.json {message}.*; save it again$"):
            read_json_object(write(tmp_path / "x.json", content), "save it again")
