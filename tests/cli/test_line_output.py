"""Interrupted translations: what is kept, what is resumed, what is refused."""

import json
import os
from collections import deque
from itertools import islice
from pathlib import Path

import pytest
import torch
from filelock import FileLock

from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.inference import line_output as module
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
    """A command with an input whose seventh line cannot be read."""
    monkeypatch.chdir(tmp_path)
    write_input([*LINES[:6], b"\xff", *LINES[7:]])
    return [
        "translate",
        "--model",
        str(model),
        "--input",
        "in",
        "--output",
        "out",
        "--chunk_size",
        "2",
        "--device=cpu",
    ]


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


def kept():
    return Path("out.partial", "1-of-1.lines").read_bytes()


def test_finished_lines_are_kept_and_resumed(command, expected, refusal, capsys):
    Path("out").write_text("from before")
    message = refusal(*command)
    assert "in, line 7: byte 0xff" in message
    assert message.endswith("out.partial; to go on, repeat the command with --resume\n")
    assert names() == ["in", "out", "out.partial"] and Path("out").read_text() == "from before"
    assert kept() == b"".join(expected.splitlines(keepends=True)[:6])
    write_input(LINES)
    assert "out.partial holds the finished lines of an interrupted run; go on with --resume, or delete" in refusal(
        *command
    )
    # The batch size changes no translation, and the message of memory that runs out asks to lower it.
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


def test_what_follows_the_last_whole_chunk_is_done_again(command, expected, refusal):
    refusal(*command)
    write_input(LINES)
    with open("out.partial/1-of-1.lines", "ab") as lines, open("out.partial/1-of-1.journal", "ab") as journal:
        lines.write(b"whole\nhal")
        journal.write(b"0123456789abcdef\n0123456789abcdef\n0123")
    main([*command, "--resume"])
    assert Path("out").read_bytes() == expected


def test_files_of_others_are_kept(command, expected, refusal):
    Path("out.partial").mkdir()
    Path("out.partial", "notes").touch()
    write_input(LINES)
    main(command)
    assert Path("out").read_bytes() == expected and [path.name for path in Path("out.partial").iterdir()] == ["notes"]


@pytest.mark.parametrize("settings", [b"\0\0", b"[1]"])
def test_a_damaged_journal(command, refusal, settings):
    refusal(*command)
    journal = Path("out.partial", "1-of-1.journal")
    journal.write_bytes(settings + b"\n" + journal.read_bytes().split(b"\n", 1)[1])
    assert "out.partial holds a damaged 1-of-1.journal; restore it, or delete that folder" in refusal(
        *command, "--resume"
    )


def test_a_length_penalty_of_zero_is_named(command, refusal):
    refusal(*command, "--length_penalty", "0")
    assert "was begun with --length_penalty 0.0; repeat that command" in refusal(*command, "--resume")


@pytest.mark.parametrize("ending", ["lines", "journal"])
def test_files_that_were_cut(command, expected, refusal, ending, capsys):
    """As after a loss of power: the shorter of the two counts."""
    refusal(*command)
    write_input(LINES)
    path = Path("out.partial", f"1-of-1.{ending}")
    os.truncate(path, path.stat().st_size - 1)
    main([*command, "--resume"])
    assert capsys.readouterr().err.endswith("resuming after 4 finished lines\n")
    assert Path("out").read_bytes() == expected


def test_other_settings_are_refused(command, refusal, model, tmp_path):
    refusal(*command)
    before = kept()
    for changed, message in (
        (["--num_beams", "2"], "was begun without --num_beams; repeat that command with --resume, or delete"),
        (["--chunk_size", "3"], "was begun with --chunk_size 2"),
        (["--format", "json"], "was begun with --format text"),
    ):
        assert message in refusal(*command, "--resume", *changed)
    save_translator("shared", tmp_path / "other", max_new_tokens=5)
    assert "was begun with another model" in refusal(*command, "--resume", "--model", "other")
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
    message = refusal(*command, "--resume")
    assert f"out.partial does not fit line {number} of the input, which has changed; restore it, or delete" in message
    assert kept() == before


def test_a_finished_line_that_was_changed_is_refused(command, refusal):
    refusal(*command)
    path = Path("out.partial", "1-of-1.lines")
    path.write_bytes(b"x" + path.read_bytes())
    assert "does not fit line 1 of the input" in refusal(*command, "--resume")


def test_two_at_once_are_refused(command, refusal):
    refusal(*command)
    with FileLock("out.partial/1-of-1.lock"):
        for resume in ("true", "false"):
            assert "out.partial is being written by another process; wait" in refusal(*command, "--resume", resume)


def test_what_cannot_be_resumed_or_shared(command, refusal, monkeypatch, expected):
    to_standard_output = [*command[:5], *command[7:]]
    assert "--resume needs --output FILE" in refusal(*to_standard_output, "--resume")
    assert "--resume needs --output FILE" in refusal(*command, "--resume", "--output", "/dev/null")
    assert "--chunk_size is 0; it must be at least 1" in refusal(*command, "--chunk_size", "0")
    Path("out.partial").touch()
    assert "out: cannot be written (File exists)" in refusal(*command)
    Path("out.partial").unlink()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert "2 processes need --output FILE" in refusal(*to_standard_output)
    assert "standard input cannot be dealt out to 2 processes" in refusal(*command, "--input", "-")
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert "MASTER_ADDR" in refusal(*command) and names() == ["in"]
    monkeypatch.delenv("WORLD_SIZE")
    refusal(*command)
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "out.partial was begun with WORLD_SIZE=1, not 2; start as many processes" in refusal(*command, "--resume")


def test_lines_are_finished_once_they_are_written(tmp_path, monkeypatch):
    """Ctrl-C between a line and its digest, a full disk, and an error without words."""
    for error, words in (
        (KeyboardInterrupt(), "^finished lines are kept"),
        (
            OSError(28, "No space left on device"),
            r"out.partial cannot be written \(No space left on device\); finished",
        ),
        (ValueError("two\nlines"), "^two lines; finished"),
        (RuntimeError("of torch"), "^of torch$"),
    ):
        for number in range(3):
            with (
                pytest.raises(DataError if isinstance(error, OSError | ValueError) else type(error), match=words),
                line_output(str(tmp_path / "out"), iter("abcdef"), {}, Share(1), resume=number > 0) as output,
            ):
                assert next(output.sources) == "abc"[number]
                output.write("abc"[number], "x")
                raise error
        with line_output(str(tmp_path / "out"), iter("abcd"), {}, Share(1), resume=True) as output:
            deque((output.write(source, "x") for source in output.sources), maxlen=0)
        assert (tmp_path / "out").read_text() == "x\n" * 4 and len(list(tmp_path.iterdir())) == 1


class TestShares:
    def share(self, monkeypatch, rank, size, chunk_size):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(size))
        return Share(chunk_size)

    @pytest.mark.parametrize(
        ("size", "chunk_size", "count"), [(1, 3, 7), (2, 3, 17), (3, 1, 5), (3, 2, 12), (4, 5, 2)]
    )
    def test_dealt_out_and_put_together(self, monkeypatch, tmp_path, size, chunk_size, count):
        lines = [f"{number}" for number in range(count)]
        for rank in range(size):
            share = self.share(monkeypatch, rank, size, chunk_size)
            mine = list(share.of(iter(lines)))
            assert all(int(line) // chunk_size % size == rank for line in mine) and share.num_lines == count
            (tmp_path / f"{share.name}.lines").write_text("".join(f"{line}\n" for line in mine))
        first = self.share(monkeypatch, 0, size, chunk_size)
        deque(first.of(lines), maxlen=0)
        merged = module._Part(tmp_path, first).merge()
        assert merged.read_text().split() == lines
        if size > 1:
            (tmp_path / f"1-of-{size}.lines").write_text("")
            with pytest.raises(DataError, match="of the input, which has changed"):
                module._Part(tmp_path, first).merge()

    def test_lines_are_read_as_they_are_needed(self, monkeypatch):
        endless = iter(lambda: "line", None)
        assert list(islice(self.share(monkeypatch, 1, 2, 4).of(endless), 3)) == ["line"] * 3

    def test_each_has_a_device(self, monkeypatch):
        share = self.share(monkeypatch, 5, 8, 1)
        monkeypatch.setenv("LOCAL_RANK", "1")
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda"))
        devices = [share.device(name) for name in (None, "cuda", "cuda:0", "cpu")]
        assert devices == ["cuda:1", "cuda:1", "cuda:0", "cpu"]
        assert self.share(monkeypatch, 0, 1, 1).device(None) is None
        monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available: None)
        assert share.device(None) is None


def test_the_journal_is_small_and_readable(command, refusal):
    refusal(*command)
    settings, *digests = Path("out.partial", "1-of-1.journal").read_text().splitlines()
    assert json.loads(settings)["chunk_size"] == 2 and len(json.loads(settings)["model"]) == 64
    assert len(digests) == 6 and {len(digest) for digest in digests} == {16}
