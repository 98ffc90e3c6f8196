"""Interrupted translations: kept lines, resuming, refusals."""

import os
from itertools import islice
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.inference.line_output import Share, line_output
from translators import ENGLISH, save_translator

pytestmark = pytest.mark.usefixtures("one_thread")

LINES = [*ENGLISH, "", *ENGLISH[:3]]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_translator("shared", folder, max_new_tokens=6)
    return folder


@pytest.fixture
def command(tmp_path, model, monkeypatch):
    """A command whose input has an unreadable seventh line."""
    monkeypatch.chdir(tmp_path)
    write_input([*LINES[:6], b"\xff", *LINES[7:]])
    return f"translate --model {model} --input in --output out --chunk_size 2 --device=cpu".split()


def write_input(lines):
    Path("in").write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))


@pytest.fixture
def expected(command, tmp_path):
    write_input(LINES)
    main([*command[:5], "--output", "whole", *command[7:]])
    whole = Path("whole").read_bytes()
    Path("whole").unlink()
    write_input([*LINES[:6], b"\xff", *LINES[7:]])
    assert whole.count(b"\n") == len(LINES) == 9
    return whole


def names():
    return sorted(path.name for path in Path().iterdir())


def parts():
    """Return the files of finished chunks, in order."""
    return sorted(Path("out.partial").glob("*.lines"), key=lambda path: int(path.name.partition("-")[0]))


def kept():
    return b"".join(path.read_bytes() for path in parts())


def test_finished_lines_are_kept_and_resumed(command, expected, refusal, capsys):
    Path("out").write_text("from before")
    message = refusal(*command)
    assert "in, line 7: byte 0xff" in message
    assert message.endswith("out.partial; to continue, repeat the command with --resume\n")
    assert names() == ["in", "out", "out.partial"] and Path("out").read_text() == "from before"
    assert kept() == b"".join(expected.splitlines(keepends=True)[:6])
    write_input(LINES)
    assert "out.partial holds the finished lines of an interrupted run; continue with --resume, or delete" in refusal(
        *command
    )
    # Batch size changes no translation, and the out-of-memory message says to lower it.
    main([*command, "--resume", "--max_tokens", "20"])
    assert capsys.readouterr().err.endswith("resuming after 6 finished lines\n")
    assert Path("out").read_bytes() == expected and names() == ["in", "out"]


def test_nothing_finished_leaves_nothing(command, refusal):
    Path("in").write_bytes(b"a cat\n\xff\n")
    message = refusal(*command, "--resume")
    assert "line 2: byte 0xff at position 1 is not UTF-8; convert it" in message
    assert names() == ["in"]


def test_resume_without_anything_to_resume(command, expected):
    write_input(LINES)
    main([*command, "--resume"])
    assert Path("out").read_bytes() == expected and names() == ["in", "out"]


def test_files_of_others_are_kept(command, expected, refusal):
    Path("out.partial").mkdir()
    Path("out.partial", "notes").touch()
    write_input(LINES)
    main(command)
    assert Path("out").read_bytes() == expected and [path.name for path in Path("out.partial").iterdir()] == ["notes"]


@pytest.mark.parametrize(("number", "said"), [(2, 4), (0, 0)])
def test_a_chunk_that_was_cut_is_done_again(command, expected, refusal, number, said, capsys):
    """As after a power failure."""
    refusal(*command)
    write_input(LINES)
    os.truncate(parts()[number], parts()[number].stat().st_size - 1)
    main([*command, "--resume"])
    assert f"resuming after {said} finished lines" in capsys.readouterr().err or not said
    assert Path("out").read_bytes() == expected


def test_other_settings_are_refused(command, refusal, model, tmp_path):
    refusal(*command)
    before = kept()
    save_translator("shared", tmp_path / "other", max_new_tokens=5)
    message = "out.partial was started with another model, other settings or another input (lines 1 to "
    for changed in (
        ["--num_beams", "2"],
        ["--chunk_size", "3"],
        ["--format", "json"],
        ["--alignments"],
        ["--length_penalty", "0"],
        ["--model", "other"],
    ):
        refused = refusal(*command, "--resume", *changed)
        assert message in refused and refused.endswith("or delete that folder to start again\n")
    assert kept() == before


@pytest.mark.parametrize(("number", "change"), [(1, "replaced"), (4, "left out"), (6, "missing")])
def test_another_input_is_refused(command, refusal, number, change):
    refusal(*command)
    before, lines = kept(), list(LINES)
    if change == "replaced":
        lines[number - 1] = "another"
    elif change == "left out":
        del lines[number - 1]
    else:
        del lines[number - 1 :]
    write_input(lines)
    first = number - 1 - (number - 1) % 2 + 1
    last = min(first + 1, len(lines))
    assert f"or another input (lines {first} to {last})" in refusal(*command, "--resume")
    assert kept() == before


def test_two_at_once_are_refused(command, refusal):
    refusal(*command)
    with FileLock("out.partial/0.lock"):
        for resume in ("true", "false"):
            assert "out.partial is being written by another process; wait" in refusal(*command, "--resume", resume)


def test_what_cannot_be_resumed_or_shared(command, refusal, monkeypatch, expected):
    to_standard_output = [*command[:5], *command[7:]]
    assert "--resume needs --output FILE" in refusal(*to_standard_output, "--resume")
    assert "--resume needs --output FILE" in refusal(*command, "--resume", "--output", "/dev/null")
    assert "--chunk_size is 0" in refusal(*command, "--chunk_size", "0")
    Path("out.partial").touch()
    assert "out: cannot be written (File exists)" in refusal(*command)
    Path("out.partial").unlink()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert "2 processes need --output FILE" in refusal(*to_standard_output)
    assert "standard input cannot be shared by 2 processes" in refusal(*command, "--input", "-")


def test_lines_are_finished_once_they_are_written(tmp_path):
    for error, words in (
        (KeyboardInterrupt(), "^finished lines are kept"),
        (OSError(28, "No space left on device"), r"No space left on device; finished lines are kept"),
        (ValueError("two\nlines"), "^two lines; finished"),
        (RuntimeError("of torch"), "^of torch$"),
    ):
        for number in range(3):
            with (
                pytest.raises(DataError if isinstance(error, OSError | ValueError) else type(error), match=words),
                line_output(str(tmp_path / "out"), iter("abcdef"), {}, Share(1), resume=number > 0) as output,
            ):
                assert next(output.sources) == "abc"[number]
                output.write("x")
                raise error
        with line_output(str(tmp_path / "out"), iter("abcd"), {}, Share(1), resume=True) as output:
            for _ in output.sources:
                output.write("x")
        assert (tmp_path / "out").read_text() == "x\n" * 4 and len(list(tmp_path.iterdir())) == 1


class TestShares:
    def share(self, monkeypatch, rank, size, chunk_size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))
        return Share(chunk_size)

    def write(self, folder, share, lines, resume=False, until=None):
        """Write the share of a process, or only its first lines, and return them."""
        written = []
        with line_output(str(folder / "out"), iter(lines), {}, share, resume) as output:
            for line in output.sources:
                if len(written) == until:
                    raise KeyboardInterrupt
                output.write(line)
                written.append(line)
        return written

    @pytest.mark.parametrize(
        ("size", "chunk_size", "num_lines"), [(1, 3, 7), (2, 3, 17), (3, 1, 5), (3, 2, 12), (4, 5, 2)]
    )
    def test_dealt_out_and_put_together(self, monkeypatch, tmp_path, size, chunk_size, num_lines):
        lines = [f"{number}" for number in range(num_lines)]
        # Rank 0 waits for the others, so it comes last.
        for rank in reversed(range(size)):
            mine = self.write(tmp_path, self.share(monkeypatch, rank, size, chunk_size), lines)
            assert mine == [line for line in lines if int(line) // chunk_size % size == rank]
        assert (tmp_path / "out").read_text().split() == lines
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_resumed_by_fewer_processes(self, monkeypatch, tmp_path):
        lines = [f"{number}" for number in range(9)]
        self.write(tmp_path, self.share(monkeypatch, 1, 2, 2), lines)
        with pytest.raises(KeyboardInterrupt):
            self.write(tmp_path, self.share(monkeypatch, 0, 2, 2), lines, until=3)
        assert self.write(tmp_path, self.share(monkeypatch, 0, 1, 2), lines, resume=True) == ["4", "5", "8"]
        assert (tmp_path / "out").read_text().split() == lines

    def test_lines_are_read_as_they_are_needed(self, monkeypatch, tmp_path):
        endless = iter(lambda: "line", None)
        with (
            pytest.raises(KeyboardInterrupt),
            line_output(str(tmp_path / "out"), endless, {}, self.share(monkeypatch, 1, 2, 4), False) as output,
        ):
            assert list(islice(output.sources, 3)) == ["line"] * 3
            raise KeyboardInterrupt

    def test_each_has_a_device(self, monkeypatch):
        share = self.share(monkeypatch, 5, 8, 1)
        monkeypatch.setenv("LOCAL_RANK", "1")
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
        devices = [share.device(name) for name in (None, "cuda", "cuda:0", "cpu")]
        assert devices == ["cuda:1", "cuda:1", "cuda:0", "cpu"]
        assert self.share(monkeypatch, 0, 1, 1).device(None) is None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
        assert share.device(None) is None
