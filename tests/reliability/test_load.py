"""Translations of many lines, and interrupted ones: no line is lost, duplicated or moved."""

import random
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
import torch

from hf_vanilla_transformer import VanillaTransformerConfig, VanillaTransformerForConditionalGeneration
from killed_translations import Moment, end, start
from paths import ROOT
from processes import ACCELERATE_LAUNCH, run_python, surroundings, worlds
from reliability import cases
from translators import ENGLISH, SHARED

pytestmark = pytest.mark.usefixtures("one_thread")

SEED = 20170612
CHUNK_SIZE = 4
ADVICE = "finished lines are kept in {}; to continue, repeat the command with --resume\n"
WORDS = " ".join(ENGLISH).split()


def sentences(count, seed=SEED):
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=drawn.randrange(7))) for _ in range(count)]


class Translation:
    """A command with its own folder."""

    def __init__(self, folder, model, lines, *options):
        folder.mkdir()
        self.folder, self.log = folder, folder / "log"
        (folder / "in").write_text("".join(f"{line}\n" for line in lines))
        self.output = folder / "out"
        self.partial = folder / "out.partial"
        self.words = ["--model", str(model), "--input", str(folder / "in"), "--output", str(self.output)]
        self.words += ["--chunk_size", str(CHUNK_SIZE), "--device", "cpu", *options]

    def run(self, moment=None, resume=True, limit=0):
        """Run the command; return its exit status and output."""
        self.log.write_bytes(b"")
        words = [*self.words, "--resume"] if resume else self.words
        status = end(start(words, self.log, moment, limit))
        return status, self.log.read_text()

    def run_all(self, size, killed=None, moment=None):
        """Run it in several processes like a launcher: if one fails, terminate the others."""
        self.log.write_bytes(b"")
        processes = [
            start([*self.words, "--resume"], self.log, moment if rank == killed else None, **world)
            for rank, world in enumerate(worlds(size))
        ]
        if killed is not None:
            processes[killed].join(600)
            if processes[killed].exitcode:
                for process in processes:
                    process.terminate()
        return [end(process) for process in processes], self.log.read_text()

    def events(self):
        """Run it to its end; return its output file and number of events."""
        status, printed = self.run()
        assert status == 0, printed
        return self.output.read_bytes(), int(printed.rpartition("events: ")[2])

    def check_kept(self, expected, case):
        """Check that the finished lines are the first ones, and that no partial file has the output's name."""
        if self.output.exists():
            assert self.output.read_bytes() == expected, case
            return
        chunks = sorted(self.partial.glob("*.lines"), key=lambda path: int(path.name.partition("-")[0]))
        assert expected.startswith(b"".join(path.read_bytes() for path in chunks)), case

    def start_over(self):
        shutil.rmtree(self.partial, ignore_errors=True)
        self.output.unlink(missing_ok=True)

    def check_finished(self, expected, case):
        assert self.output.read_bytes() == expected, case
        assert {path.name for path in self.folder.iterdir()} == {"in", "out", "log"}, case

    def finish(self, expected, case):
        """Resume it to its end, and return its output."""
        status, printed = self.run()
        assert status == 0, (case, printed)
        self.check_finished(expected, case)
        return printed


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A minimal model with short, varied translations."""
    torch.manual_seed(SEED)
    config = VanillaTransformerConfig(
        vocab_size=len(SHARED), d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=1,
        decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, tie_word_embeddings=False,
        share_encoder_decoder_embeddings=False, lm_head_bias=True, position_embedding_type="learned",
        max_position_embeddings=8,
    )  # fmt: skip  # one field a line would fill the screen
    model = VanillaTransformerForConditionalGeneration(config)
    model.lm_head.bias.data[:] = torch.where(torch.arange(len(SHARED)) < 4, -9.0, 0.0)
    model.lm_head.bias.data[model.config.eos_token_id] = 2.0
    model.lm_head.weight.data *= 3
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    SHARED.save_pretrained(folder)
    return folder


def moments(events, count, seed=SEED):
    """Return `count` moments: among the first and last events, where files appear and vanish, and random ones."""
    ends = [*range(1, 12), *range(events - 8, events + 1)]
    drawn = random.Random(seed)
    drawn.shuffle(ends)
    return [*ends[: count // 3], *(drawn.randrange(1, events + 1) for _ in range(count - count // 3))]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--format", "json", "--num_beams", "2", "--num_hypotheses", "2")])
def test_killed_and_resumed(tmp_path, model, options, tried):
    translation = Translation(tmp_path / "run", model, sentences(39), *options)
    expected, events = translation.events()
    count = cases(2, 60)
    for number in moments(events, count):
        case = f"killed at event {number} of {events}"
        translation.start_over()
        status, printed = translation.run(Moment(number), resume=False)
        assert status == -signal.SIGKILL, (case, printed)
        translation.check_kept(expected, case)
        translation.finish(expected, case)
    tried("kill -9 of translate at a random moment, then --resume: the same bytes", count)


@pytest.mark.slow
def test_killed_again_and_again(tmp_path, model, tried):
    translation = Translation(tmp_path / "run", model, sentences(39))
    expected, events = translation.events()
    drawn, count = random.Random(SEED + 1), cases(1, 8)
    for number in range(count):
        translation.start_over()
        kills = []
        while len(kills) < 30:
            kills.append(drawn.randrange(1, events // 2))
            status, printed = translation.run(Moment(kills[-1]))
            case = f"seed {SEED + 1}, case {number}: killed at events {kills}"
            translation.check_kept(expected, case)
            if status == 0:
                break
            assert status == -signal.SIGKILL, (case, printed)
        else:
            assert translation.run()[0] == 0, case
        translation.check_finished(expected, case)
    tried("kill -9 of translate up to 30 times in a run, each time --resume: the same bytes", count)


@pytest.mark.parametrize(
    ("number", "status", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_ctrl_c_and_sigterm(tmp_path, model, number, status, word, tried):
    translation = Translation(tmp_path / "run", model, sentences(39))
    expected, events = translation.events()
    drawn, count = random.Random(SEED + 2), cases(1, 20)
    # The last events come after all lines are written.
    for event in [drawn.randrange(1, events - 20) for _ in range(count)]:
        case = f"{word} at event {event} of {events}"
        translation.start_over()
        found, printed = translation.run(Moment(event, number))
        assert found == status and printed.count("\n") == 1, (case, printed)
        kept = translation.partial.exists()
        assert printed == (f"{word}; {ADVICE.format(translation.partial)}" if kept else f"{word}\n"), case
        translation.check_kept(expected, case)
        assert ("resuming after " in translation.finish(expected, case)) == kept, case
    tried(f"{number.name} while translating: one line, status {status}, then --resume: the same bytes", count)


def test_full_disk(tmp_path, model, tried):
    translation = Translation(tmp_path / "run", model, sentences(39))
    expected, _ = translation.events()
    drawn, count = random.Random(SEED + 3), cases(1, 20)
    # Limits leave room for the message in the log.
    for limit in [drawn.randrange(400, len(expected)) for _ in range(count)]:
        case = f"files of at most {limit} bytes"
        translation.start_over()
        status, printed = translation.run(limit=limit)
        # Apart from remarks on the translations.
        messages = [line for line in printed.splitlines() if not line.startswith("of ")]
        assert status == 2 and len(messages) == 1 and "File too large" in messages[0], (case, printed)
        translation.check_kept(expected, case)
        if translation.partial.exists():
            assert printed.endswith(ADVICE.format(translation.partial)), (case, printed)
        translation.finish(expected, case)
    tried("disk full while translating: one line, then --resume: the same bytes", count)


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3])
def test_several_processes_of_which_one_is_killed(tmp_path, model, size, tried):
    translation = Translation(tmp_path / "run", model, sentences(39))
    expected, events = translation.events()
    translation.start_over()
    statuses, printed = translation.run_all(size)
    assert statuses == [0] * size, printed
    translation.check_finished(expected, f"{size} processes")
    drawn, count = random.Random(SEED + size), cases(1, 10)
    for _ in range(count):
        killed, number = drawn.randrange(size), drawn.randrange(1, events // (size + 1))
        case = f"process {killed + 1} of {size} killed at event {number}"
        translation.start_over()
        statuses, printed = translation.run_all(size, killed, Moment(number))
        assert statuses[killed] == -signal.SIGKILL and not translation.output.exists(), (case, statuses, printed)
        assert "Traceback" not in printed, (case, printed)
        statuses, printed = translation.run_all(size)
        assert statuses == [0] * size, (case, printed)
        translation.check_finished(expected, case)
    tried("one of several translating processes killed, then --resume: no line lost, doubled or moved", count)


@pytest.mark.slow
def test_under_accelerate_launch(tmp_path, model, tried):
    translation = Translation(tmp_path / "run", model, sentences(39))
    expected, _ = translation.events()
    program = ROOT / "tests" / "helpers" / "killed_translations.py"

    def launch(*words):
        command = [*ACCELERATE_LAUNCH, *map(str, words), *translation.words]
        return subprocess.run(command, env=surroundings(), capture_output=True, text=True)

    for killed in (0, 1):
        translation.start_over()
        done = launch(program, killed, 20)
        assert done.returncode != 0 and not translation.output.exists(), done.stderr
        assert translation.partial.exists(), done.stderr
        done = launch("-m", "hf_vanilla_transformer", "translate", "--resume")
        assert done.returncode == 0, done.stderr
        translation.check_finished(expected, f"process {killed + 1} of 2 killed")
    tried("accelerate launch of translate, one of 2 processes killed, then --resume", 2)


COPY = """
import resource, sys
from hf_vanilla_transformer.cli.main import main
main(sys.argv[1:])
with open("/proc/self/status") as file:
    print(next(line for line in file if line.startswith("VmHWM")), file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
def test_memory_stays_flat(tmp_path, model, tried):
    peaks, counts, first = [], (10_000, cases(20_000, 100_000)), []
    for count in counts:
        lines = sentences(count)
        (tmp_path / "in").write_text("".join(f"{line}\n" for line in lines))
        command = ["translate", "--model", model, "--input", tmp_path / "in", "--output", tmp_path / "out"]
        done = run_python(COPY, *command, "--max_tokens", 16384, "--device", "cpu")
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stderr.split()[-2]) / 1024)
        translations = (tmp_path / "out").read_text().split("\n")[:-1]
        assert len(translations) == count
        # Equal sentences have equal translations, so a misplaced line would show.
        meanings = dict(zip(lines, translations, strict=True))
        assert [meanings[line] for line in lines] == translations and meanings[""] == ""
        assert len(set(meanings.values())) > 20
        assert translations[: len(first)] == first
        first = translations
    print(f"peak memory: {peaks[0]:.0f} MB for {counts[0]:,} lines, {peaks[1]:.0f} MB for {counts[1]:,}")
    # Libraries use memory for every new batch shape: if the same 2,048 lines repeat, 100,000 lines take only 6 MB more
    # than 20,000.
    assert peaks[1] < peaks[0] + 128, peaks
    what = "lines translated by one command, in order; from 10,000 lines on peak memory grows by less than 128 MB"
    tried(what, counts[1])
