"""Interactive `vanilla-transformer translate` on a pseudo-terminal."""

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time

import pytest

from hf_vanilla_transformer.cli import prompt
from hf_vanilla_transformer.cli.options import Terminated
from translators import save_translator

# Timeout in seconds, far beyond any answer.
PATIENCE = 300


class Terminal:
    """A program with a pseudo-terminal as standard input, error and, unless piped, output."""

    def __init__(self, *words, pipe=False):
        self.control, terminal = pty.openpty()
        command = [sys.executable, "-m", "hf_vanilla_transformer", "translate", *words]
        environment = {**os.environ, "TERM": "dumb", "OMP_NUM_THREADS": "1"}
        output = subprocess.PIPE if pipe else terminal
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=output, stderr=terminal, env=environment, start_new_session=True
        )
        os.close(terminal)
        self.shown = ""

    def read_until(self, text):
        """Return the output up to this text."""
        end = time.monotonic() + PATIENCE
        while text not in self.shown:
            assert select.select([self.control], [], [], end - time.monotonic())[0], self.shown
            try:
                self.shown += os.read(self.control, 4096).decode()
            except OSError:  # the program has ended
                break
        before, found, self.shown = self.shown.partition(text)
        assert found, before
        return before.replace("\r\n", "\n")

    def type(self, text):
        os.write(self.control, text.encode())

    def interrupt(self):
        """Send SIGINT, like Ctrl-C on a terminal, until there is output.

        readline misses a signal that arrives just before it waits for a key.
        """
        self.process.send_signal(signal.SIGINT)
        while not select.select([self.control], [], [], 5)[0]:
            self.process.send_signal(signal.SIGINT)

    def end(self):
        output, _ = self.process.communicate(timeout=PATIENCE)
        os.close(self.control)
        return self.process.returncode, output


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    save_translator("pair", folder, num_beams=4)
    return str(folder)


@pytest.fixture
def start():
    """Start `Terminal` programs, killed after the test."""
    started = []

    def start(*words, **options):
        started.append(Terminal(*words, **options))
        return started[-1]

    yield start
    for terminal in started:
        terminal.process.kill()
        terminal.process.wait()


@pytest.mark.slow
def test_sentences_are_answered_until_the_end(folder, tmp_path, start):
    terms = tmp_path / "terms.tsv"
    terms.write_text("cat\tgato\nstreet\tcalle ancha\n")
    terminal = start("--model", folder, "--glossary", str(terms), "--num_hypotheses", "3")
    terminal.read_until("> ")
    terminal.type("a cat\n")
    answer = terminal.read_until("> ").split("\n")
    listed = [re.fullmatch(r" *(-\d+\.\d{3})  (.*\bgato\b.*)", line) for line in answer if "gato" in line]
    assert len(listed) == 3 and all(listed)
    scores = [float(found[1]) for found in listed]
    assert scores == sorted(scores, reverse=True)
    # A blank line, then one canceled with Ctrl-C.
    terminal.type("   \n")
    assert terminal.read_until("> ").strip() == ""
    terminal.type("the stre")
    terminal.read_until("the stre")
    terminal.interrupt()
    terminal.read_until("> ")
    terminal.type("the street\n")
    assert terminal.read_until("> ").count("calle ancha") == 3
    terminal.type("\x04")
    assert terminal.end() == (0, None)


@pytest.mark.slow
def test_a_pipe_gets_answers_only(folder, start):
    terminal = start("--model", folder, "--format", "json", pipe=True)
    for line in ("a red house\n", "\n", "we see a cat\n", "\x04"):
        terminal.read_until("> ")
        terminal.type(line)
    status, output = terminal.end()
    assert status == 0
    rows = [json.loads(line) for line in output.decode().splitlines()]
    assert [row["source"] for row in rows] == ["a red house", "we see a cat"]


def test_ctrl_c_gives_up_an_answer_and_sigterm_ends_the_program(monkeypatch, capsys):
    lines = iter(["one", KeyboardInterrupt, "two", "three", "four"])

    def typed():
        line = next(lines)
        if line is KeyboardInterrupt:
            raise line
        return line

    def answer(line):
        if line == "one":
            raise KeyboardInterrupt
        if line == "two":
            raise ValueError("too long")
        if line == "four":
            raise Terminated
        return line.upper()

    monkeypatch.setattr(prompt, "_read_line", typed)
    with pytest.raises(Terminated):
        prompt.answer_lines(answer)
    printed = capsys.readouterr()
    assert printed.out == "THREE\n" and printed.err == "\n\nerror: too long\n"
