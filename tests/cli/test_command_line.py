"""What every script does with mistakes on its command line, without its packages, and with Ctrl-C."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_vanilla_transformer.cli.main import main
from hf_vanilla_transformer.errors import DataError
from hf_vanilla_transformer.files import atomic_write, check_output_file
from hf_vanilla_transformer.inference import translation
from paths import SCRIPTS

NAMES = sorted(path.stem for path in SCRIPTS.glob("[a-z]*.py"))
EVERY_SCRIPT = pytest.mark.parametrize("name", NAMES)
# An option of each, misspelt.
MISSPELT = {
    "average_checkpoints": ("--chekpoints", "--checkpoints"),
    "benchmark": ("--ouput_dir", "--output_dir"),
    "convert_checkpoint": ("--sorce", "--source"),
    "evaluate_translation": ("--reference_files", "--references"),
    "export_model": ("--quantisation", "--quantization"),
    "imdb_bert_baseline": ("--ouput_dir", "--output_dir"),
    "onnx_translate": ("--ouput", "--output"),
    "push_to_hub": ("--repoid", "--repo_id"),
    "reproduce_tutorials": ("--ouput_dir", "--output_dir"),
    "train_tokenizer": ("--source_file_s", "--source_files"),
    "train_translation": ("--train_sourcefile", "--train_source_file"),
    "translate": ("--ouput", "--output"),
}


@pytest.fixture
def fail(load_script, monkeypatch, capsys):
    """Run a script with arguments that it refuses, and return its one line."""

    def run(name, *words):
        script = load_script(name)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
        with pytest.raises(SystemExit) as stop:
            script.main()
        printed = capsys.readouterr()
        assert stop.value.code == 2 and printed.out == "" and printed.err.count("\n") == 1
        assert printed.err.startswith(f"{name}.py: error: ")
        return printed.err

    return run


@EVERY_SCRIPT
def test_an_unknown_option_is_named_with_the_nearest(name, fail):
    wrong, right = MISSPELT[name]
    assert f"unknown option {wrong}; did you mean {right}?" in fail(name, wrong, "x")
    assert f"unknown option {wrong}; did you mean {right}?" in fail(name, f"{wrong}=x")
    assert "unknown option --zzz; --help lists the options" in fail(name, "--zzz")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "the following arguments are required: --model"),
        (("--model",), "argument --model: expected one argument"),
        (("--model", "m", "--num_beams", "two"), "invalid int value: 'two'"),
        (("--model", "m", "--format", "xml"), "invalid choice: 'xml'"),
        (("--model", "m", "--bf16", "maybe"), "argument --bf16: maybe is neither true nor false"),
        (("--model", "m", "extra"), "extra belongs to no option"),
        (("--model", "m", "--max", "3"), "ambiguous option: --max could match --max_source_length, --max_tokens;"),
        (("-m", "m"), "unknown option -m"),
    ],
)
def test_other_mistakes_of_arguments(words, message, fail):
    assert message in fail("translate", *words)


@pytest.mark.parametrize("name", ["train_translation", "imdb_bert_baseline", "reproduce_tutorials", "benchmark"])
def test_arguments_that_contradict_each_other(name, fail, tmp_path):
    first = {"reproduce_tutorials": ("copy",), "benchmark": ("train",)}.get(name, ())
    fail(name, *first, "--output_dir", str(tmp_path), "--validation_split_size", "-3")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hub_tken", "hf_abc"), "unknown option --hub_tken; did you mean --hub_token?"),
        (("--hub_tken=hf_abc",), "unknown option --hub_tken; did you mean --hub_token?"),
        (("--hub=hf_abc",), "ambiguous option: --hub could match --hub_"),
        (("--hub_token:hf_abc",), "unknown option --hub_token; did you mean --hub_token?"),
        (("--hub_tokenhf_abc",), "unknown option --hub_token; did you mean --hub_token?"),
        (("-hub_token=hf_abc",), "unknown option -hub_token; did you mean --hub_token?"),
        (("--hub_tken hf_abc",), "--hub_tken belongs to no option"),
        (("hub_token=hf_abc",), "hub_token belongs to no option"),
        (("\N{EM DASH}hub_token=hf_abc",), "\N{EM DASH}hub_token belongs to no option"),
        (("--hub_token", "hf_", "abc"), "<secret> belongs to no option"),
        (("--push_to_hub", "--hub_token=hf_abc", "--zzz"), "unknown option --zzz"),
    ],
)
def test_no_mistake_shows_a_secret(words, message, fail):
    shown = fail("train_translation", *words)
    assert message in shown and "abc" not in shown


def test_a_line_of_an_argument_file_is_not_shown(fail, tmp_path):
    (tmp_path / "x.yaml").write_text("seed: 1\nhub_token: hf_abc: 1\n")
    shown = fail("train_translation", str(tmp_path / "x.yaml"))
    assert "x.yaml cannot be read: line 2: mapping values are not allowed here" in shown and "abc" not in shown


def test_a_beginning_of_an_option_stands_for_it(load_script, capsys):
    with pytest.raises(SystemExit):
        load_script("translate").main(["--mod", "/nope", "--inp", "x", "--length=-1", "--num_b", "2"])
    assert "model /nope cannot be loaded" in capsys.readouterr().err


# As programs


def run(name, *options, **environment):
    script = SCRIPTS / f"{name}.py"
    return subprocess.run(
        [sys.executable, *options, str(script)], capture_output=True, text=True, env={**os.environ, **environment}
    )


@EVERY_SCRIPT
def test_outside_the_environment(name):
    """-S leaves site-packages out, -E PYTHONPATH."""
    done = run(name, "-S", "-E")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert f"{name}.py: error: {sys.executable} has no package " in done.stderr
    assert "activate the environment" in done.stderr and "pip install" in done.stderr


@EVERY_SCRIPT
def test_ctrl_c_while_importing_ends_quietly(name, tmp_path):
    for package in ("torch", "transformers", "datasets", "numpy", "hf_vanilla_transformer"):
        (tmp_path / f"{package}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = run(name, PYTHONPATH=str(tmp_path))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_ctrl_c_later_ends_in_one_line(monkeypatch, capsys):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(translation, "load", interrupted)
    with pytest.raises(SystemExit) as stop:
        main(["translate", "--model", "m"])
    assert stop.value.code == 130 and capsys.readouterr().err == "interrupted\n"


# Outputs


def test_what_follows_in_a_file_is_kept(tmp_path):
    """As after `>> file`."""
    program = """
from hf_vanilla_transformer.files import atomic_write
with atomic_write("/dev/stdout") as file:
    file.write(b"second")
"""
    with (tmp_path / "log").open("ab") as log:
        log.write(b"first ")
        log.flush()
        subprocess.run([sys.executable, "-c", program], stdout=log, check=True)
    assert (tmp_path / "log").read_text() == "first second"


@pytest.fixture
def kept(tmp_path, monkeypatch):
    """A file to read, under several names."""
    monkeypatch.chdir(tmp_path)
    Path("k").write_text("a cat\n")
    Path("folder").mkdir()
    Path("symbolic").symlink_to("k")
    os.link("k", "hard")
    return tmp_path


OTHER_NAMES = pytest.mark.parametrize("other", ["k", "./folder/../k", "symbolic", "hard", "absolute"])


@OTHER_NAMES
@pytest.mark.parametrize("name", ["translate", "onnx_translate"])
def test_an_output_that_is_the_input_is_refused_before_anything_is_read(name, other, kept, fail):
    other = str(kept / "k") if other == "absolute" else other
    for source, target in (("k", other), (other, "k")):
        message = fail(name, "--model", "nope", "--input", source, "--output", target)
        assert f"--output {target} is the input {source} and would replace it" in message
    assert (kept / "k").read_text() == "a cat\n"


@OTHER_NAMES
def test_scores_do_not_replace_what_is_scored(other, kept, fail):
    other = str(kept / "k") if other == "absolute" else other
    Path("references").write_text("a cat\n")
    for first, second in (("k", "references"), ("references", "k")):
        message = fail("evaluate_translation", "--predictions", first, "--references", second, "--json", other)
        assert f"--json {other} is the input k and would replace it" in message
    assert (kept / "k").read_text() == "a cat\n"


def test_one_of_several_inputs_and_standard_input(kept, monkeypatch):
    with pytest.raises(DataError, match="--output k is the input hard"):
        check_output_file("k", ["folder/other", "hard"], "--output")
    with Path("k").open() as file:
        monkeypatch.setattr(sys, "stdin", file)
        with pytest.raises(DataError, match="--output hard is the input -"):
            check_output_file("hard", ["-"], "--output")
    check_output_file("new", ["-", "k", "missing"], "--output")
    check_output_file("-", ["k"], "--output")


def test_standard_output_that_goes_on_to_the_input(kept, monkeypatch):
    """As after `>> k`, where each line written would be one more to translate."""
    for output in ("-", "/dev/stdout"):
        with Path("hard").open("a") as file, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", file)
            with pytest.raises(DataError, match=f"--output {output} is the input k and would replace it"):
                check_output_file(output, ["new", "k"], "--output")
            check_output_file(output, ["new"], "--output")


@pytest.mark.parametrize("name", ["translate", "onnx_translate"])
def test_a_program_whose_output_is_appended_to_its_input(name, kept):
    script = SCRIPTS / f"{name}.py"
    with Path("k").open("ab") as output:
        words = [sys.executable, str(script), "--model", "nope", "--input", "hard"]
        done = subprocess.run(words, stdout=output, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and "--output - is the input hard and would replace it" in done.stderr


def test_a_file_that_cannot_be_written_is_named(kept):
    Path("loop").symlink_to("loop")
    check_output_file("loop", ["k", "loop"], "--output")
    name = "x" * 250
    with pytest.raises(DataError, match=f"^{name}: cannot be written .File name too long"), atomic_write(name):
        pytest.fail("there is nothing to write to")


@pytest.mark.parametrize("device", ["/dev/null", "/dev/tty"])
def test_devices_may_be_both(device):
    check_output_file(device, [device, "-"], "--output")


@pytest.mark.parametrize("name", ["translate", "onnx_translate"])
def test_a_folder_that_is_not_there_is_named(name, kept, fail):
    message = fail(name, "--model", "nope", "--input", "k", "--output", "nodir/x")
    assert f"--output nodir/x: there is no folder {kept / 'nodir'}; make it first" in message
