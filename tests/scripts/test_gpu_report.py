"""The GPU report, as far as it can be tested without a GPU: time limits, files, and that all options exist."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.arguments import BenchmarkArguments
from hf_vanilla_transformer.cli import train
from hf_vanilla_transformer.cli.options import OneLineParser, dataclass_parser, parse_dataclasses
from hf_vanilla_transformer.data.arguments import DataArguments
from paths import ROOT, SCRIPTS
from tables import looped

# Programs that take --output_dir, like the real parts.
RESULT = "import sys; from pathlib import Path; folder = Path(sys.argv[2]); folder.mkdir(); "
RESULT += "(folder / 'results.json').write_text('[1, 2]'); print('measured', flush=True)"
WAIT = "import time; time.sleep(600)"
FAKES = {
    "prints": RESULT,
    "fails": "import sys; print('a reason', file=sys.stderr); sys.exit(3)",
    # Has a child process, which could outlive it.
    "waits": f"{RESULT}; import subprocess; subprocess.Popen([sys.executable, '-c', '{WAIT}', folder]); {WAIT}",
    "deaf": f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); {WAIT}",
}


@pytest.fixture
def output(tmp_path, monkeypatch):
    """The output folder, whose parent also holds the temporary folder named in the commands of all processes."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path / "report"


def processes(folder):
    """Processes whose command contains a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        # The process may have ended.
        with suppress(OSError):
            found += [path] if str(folder).encode() in path.read_bytes() else []
    return found


@pytest.fixture
def script(load_script, monkeypatch):
    """The script with fake parts named after their behaviour."""
    script = load_script("gpu_report")
    monkeypatch.setattr(script, "PARTS", {name: f"-c {shlex.quote(code)}" for name, code in FAKES.items()})
    monkeypatch.setitem(script.SIZES, "cuda", dict.fromkeys(FAKES, ""))
    # Python's start-up is slow on a busy machine, and must finish before the interrupt.
    monkeypatch.setattr(script, "SECONDS", {"prints": 60, "fails": 60, "waits": 10, "deaf": 10})
    monkeypatch.setattr(script, "GRACE", 1)
    return script


def report(folder):
    return json.loads((folder / "report.json").read_text())


def test_a_failure_does_not_stop_the_others(script, output, capsys):
    assert script.main(["fails", "prints", "--output_dir", str(output)]) == 1
    found = report(output)
    assert {name: each["status"] for name, each in found.items()} == {"fails": "failed with status 3", "prints": "ok"}
    assert found["prints"]["results"] == [1, 2] and "results" not in found["fails"]
    assert (output / "fails.log").read_text() == "a reason\n"
    assert {path.name for path in output.iterdir()} == {"fails.log", "prints.log", "report.json"}
    assert capsys.readouterr().out.startswith("fails: failed with status 3, ")


@pytest.mark.slow
def test_a_part_is_interrupted_at_its_limit(script, output):
    script.main(["waits", "--output_dir", str(output)])
    found = report(output)["waits"]
    assert found["status"] == "interrupted after 10 s" and found["results"] == [1, 2]
    log = (output / "waits.log").read_text()
    assert log.startswith("measured\n") and log.endswith("KeyboardInterrupt\n")
    assert not processes(output.parent)


@pytest.mark.slow
def test_a_part_that_ignores_ctrl_c_is_killed(script, output):
    script.main(["deaf", "prints", "--output_dir", str(output)])
    assert [each["status"] for each in report(output).values()] == ["interrupted after 10 s", "ok"]
    assert not processes(output.parent)


@pytest.mark.slow
def test_time_is_shared_by_all_parts(script, output):
    script.main(["waits", "prints", "--output_dir", str(output), "--seconds", "5"])
    first, second = (each["status"] for each in report(output).values())
    assert first.startswith("interrupted after") and second == "not started: no time left"


def test_of_a_long_log_the_end_is_kept(script, output, monkeypatch):
    monkeypatch.setattr(script, "KEPT_BYTES", 4)
    script.main(["prints", "--output_dir", str(output)])
    assert (output / "prints.log").read_text() == "red\n"


def test_wheels_are_installed_for_the_parts(script, output, monkeypatch):
    calls = []
    monkeypatch.setattr(script.subprocess, "run", lambda command, **options: calls.append(command))
    monkeypatch.setattr(script, "run", lambda command, environment, *rest: calls.append(environment))
    wheel = output.parent / "one.whl"
    wheel.touch()
    script.main(["prints", "--output_dir", str(output), "--wheels", str(output.parent)])
    install, environment = calls
    assert install[-1] == wheel and environment["PYTHONPATH"].startswith(f"{install[-2]}{os.pathsep}{ROOT}")
    assert environment["TEST_DEVICE"] == "cuda" and environment["HF_HUB_OFFLINE"] == "1"


def test_a_signal_ends_the_part_that_runs(tmp_path):
    # A real part, whose imports take seconds.
    command = [sys.executable, str(SCRIPTS / "gpu_report.py"), "profile", "--device", "cpu"]
    command += ["--output_dir", str(tmp_path / "report")]
    with subprocess.Popen(command, env={**os.environ, "TMPDIR": str(tmp_path)}, stderr=subprocess.PIPE) as running:
        while len(processes(tmp_path)) < 2:
            assert running.poll() is None
            time.sleep(0.1)
        time.sleep(1)
        running.send_signal(signal.SIGTERM)
        running.communicate()
    assert running.returncode and not processes(tmp_path)


# The real parts


@pytest.fixture
def corpus(tmp_path):
    for name in ("train", "val", "test_2016_flickr"):
        for side in ("en", "de.gz"):
            (tmp_path / f"{name}.{side}").touch()
    return tmp_path


@pytest.fixture
def words(load_script, corpus, monkeypatch):
    """Return the commands of parts, without the interpreter."""

    def words(*options):
        script, commands = load_script("gpu_report"), []
        monkeypatch.setattr(script, "run", lambda command, *rest: commands.append(command) or "ok")
        assert script.main([*options, "--output_dir", str(corpus / "report")]) == 0
        assert all(command[0] == sys.executable for command in commands)
        return [command[1:] for command in commands]

    return words


@looped("device", ["cuda", "cpu"])
@looped("part", ["train", "text", "generate", "profile", "compile"])
def test_benchmarks_have_options_that_there_are(part, device, words, corpus, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    kinds = (BenchmarkArguments, DataArguments)
    parser = dataclass_parser(kinds, "")
    parser.add_argument("benchmarks", nargs="+")
    ((program, *rest),) = words(part, "--device", device, "--multi30k", str(corpus))
    chosen = parser.parse_args(rest)
    args, data_args = parse_dataclasses(kinds, chosen)
    assert program == "scripts/benchmark.py" and args.device == device
    assert chosen.benchmarks == [{"text": "train", "compile": "generate"}.get(part, part)]
    files = [f"{corpus}/train.en", f"{corpus}/train.de.gz"] if part == "text" else []
    assert list(data_args.files("train")) == files and Path(args.output_dir).name == part


# 20 seconds are reserved as grace period, and 60 for everything but steps.
@pytest.mark.parametrize(
    ("options", "steps"),
    [(["--seconds", "180"], 1200), (["--seconds", "180", "--device", "cpu"], 10), (["--max_steps", "7"], 7)],
)
def test_multi30k_is_trained_by_its_recipe(options, steps, words, corpus, monkeypatch):
    monkeypatch.chdir(ROOT)
    parser = OneLineParser()
    parser.shows_all = True
    train.add_arguments(parser)
    ((program, *rest),) = words("multi30k", "--multi30k", str(corpus), *options)
    arguments = train.parse(parser, rest)
    assert program == "scripts/train_translation.py" and steps * 0.95 - 1 <= arguments.max_steps <= steps
    assert arguments.test_source_file == f"{corpus}/test_2016_flickr.en"


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_tests_to_run_are_there(device, words):
    (command,) = words("check", "--device", device)
    paths = [word for word in command if word.startswith("tests/")]
    assert command[:2] == ["-m", "pytest"] and "tests/gpu" in paths and all((ROOT / path).exists() for path in paths)


def test_an_unknown_part_is_named(words, capsys):
    with pytest.raises(SystemExit):
        words("nothing")
    assert (
        "unknown part nothing; choose from check, train, text, generate, profile, compile," in capsys.readouterr().err
    )


def test_without_a_corpus_there_is_none_to_train_on(words):
    assert len(words()) == 6
