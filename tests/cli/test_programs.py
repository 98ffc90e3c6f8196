"""The programs in scripts/: invalid options, missing packages, Ctrl-C."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_vanilla_transformer.cli.main import main
from paths import ROOT, SCRIPTS

# Imports only the standard library, so that it runs before packages are installed; see
# tests/scripts/test_gpu_report.py.
STANDALONE = {"gpu_report"}
NAMES = sorted({path.stem for path in SCRIPTS.glob("[a-z]*.py")} - STANDALONE)
EVERY_PROGRAM = pytest.mark.parametrize("name", NAMES)
COMMANDS = {
    "average_checkpoints": "average",
    "convert_checkpoint": "convert",
    "evaluate_translation": "evaluate",
    "export_model": "export",
    "push_to_hub": "publish",
    "train_tokenizer": "tokenizer",
    "train_translation": "train",
    "translate": "translate",
}
# Programs that import no other packages at first.
RUNNERS = {"compare_recipes", "measure_documents"}
# A misspelled option of each, and the suggestion.
MISSPELT = {
    "average_checkpoints": ("--chekpoints", "--checkpoints"),
    "benchmark": ("--ouput_dir", "--output_dir"),
    "compare_recipes": ("--ouput_dir", "--output_dir"),
    "convert_checkpoint": ("--sorce", "--source"),
    "evaluate_translation": ("--reference_files", "--references"),
    "export_model": ("--quantisation", "--quantization"),
    "imdb_bert_baseline": ("--ouput_dir", "--output_dir"),
    "marian_baseline": ("--ouput_dir", "--output_dir"),
    "measure_documents": ("--mkdosc", "--mkdocs"),
    "onnx_translate": ("--ouput", "--output"),
    "push_to_hub": ("--repoid", "--repo_id"),
    "reproduce_tutorials": ("--ouput_dir", "--output_dir"),
    "robustness": ("--refrence", "--reference"),
    "serve_ray": ("--replica_s", "--replicas"),
    "train_tokenizer": ("--source_file_s", "--source_files"),
    "train_translation": ("--train_sourcefile", "--train_source_file"),
    "translate": ("--ouput", "--output"),
}


@pytest.fixture
def fail(load_script, monkeypatch, capsys):
    """Run a program with invalid arguments and return its one line of error."""

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


@EVERY_PROGRAM
def test_an_unknown_option_is_named_with_the_nearest(name, fail):
    wrong, right = MISSPELT[name]
    assert f"unknown option {wrong}; did you mean {right}?" in fail(name, wrong, "x")
    assert f"unknown option {wrong}; did you mean {right}?" in fail(name, f"{wrong}=x")
    assert "unknown option --zzz; --help lists the options" in fail(name, "--zzz")


@pytest.mark.parametrize("name", ["train_translation", "imdb_bert_baseline", "reproduce_tutorials", "benchmark"])
def test_arguments_that_contradict_each_other(name, fail, tmp_path):
    first = {"reproduce_tutorials": ("copy",), "benchmark": ("train",)}.get(name, ())
    fail(name, *first, "--output_dir", str(tmp_path), "--validation_split_size", "-3")


def test_a_beginning_of_an_option_stands_for_it(fail):
    words = ("--mod", "/nope", "--inp", "x", "--length=-1", "--num_b", "2")
    assert "model /nope cannot be loaded" in fail("translate", *words)


@pytest.mark.parametrize(("name", "command"), COMMANDS.items())
def test_it_runs_the_command(name, command, load_script, capsys):
    with pytest.raises(SystemExit):
        load_script(name).main(["--help"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"usage: {name}.py ") and f"    vanilla-transformer {command} --" in printed


# Output files of every program that writes one

OTHER_NAMES = pytest.mark.parametrize("other", ["k", "./folder/../k", "symbolic", "hard", "absolute"])
TRANSLATORS = pytest.mark.parametrize("name", ["translate", "onnx_translate"])


@OTHER_NAMES
@TRANSLATORS
def test_an_output_that_is_the_input_is_refused_before_anything_is_read(name, other, kept, fail):
    other = str(kept / "k") if other == "absolute" else other
    for source, target in (("k", other), (other, "k")):
        message = fail(name, "--model", "nope", "--input", source, "--output", target)
        assert f"--output {target} is the input {source} and would replace it" in message
    assert (kept / "k").read_text() == "a cat\n"


@TRANSLATORS
@pytest.mark.parametrize("file", ["onnx/encoder_model.onnx", "tokenizer.json"])
def test_an_output_that_the_model_is_loaded_from_is_refused(name, file, kept, fail):
    kept.joinpath("model", "onnx").mkdir(parents=True)
    for each in (file, "translations.txt"):
        kept.joinpath("model", each).write_text("from before")
    words = ("--model", "model", "--input", "k", "--output")
    assert f"--output model/{file} is the input model/{file} and would replace it" in fail(
        name, *words, f"model/{file}"
    )
    # Other files in the model's folder may be replaced.
    assert "would replace it" not in fail(name, *words, "model/translations.txt")
    assert kept.joinpath("model", file).read_text() == "from before"


@OTHER_NAMES
def test_scores_do_not_replace_what_is_scored(other, kept, fail):
    other = str(kept / "k") if other == "absolute" else other
    Path("references").write_text("a cat\n")
    for first, second in (("k", "references"), ("references", "k")):
        message = fail("evaluate_translation", "--predictions", first, "--references", second, "--json", other)
        assert f"--json {other} is the input k and would replace it" in message
    assert (kept / "k").read_text() == "a cat\n"


def test_an_output_that_is_appended_to_the_input(kept, monkeypatch, capsys):
    words = ["--model", "nope", "--input", "hard"]
    with Path("k").open("ab") as output:
        done = subprocess.run(
            [sys.executable, str(SCRIPTS / "onnx_translate.py"), *words],
            stdout=output,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 2 and "--output - is the input hard and would replace it" in done.stderr
    with Path("k").open("a") as output, monkeypatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "stdout", output)
        main(["translate", *words])
    assert stop.value.code == 2 and "--output - is the input hard and would replace it" in capsys.readouterr().err


@TRANSLATORS
def test_a_folder_that_is_not_there_is_named(name, kept, fail):
    message = fail(name, "--model", "nope", "--input", "k", "--output", "nodir/x")
    assert f"--output nodir/x: there is no folder {kept / 'nodir'}; create it first" in message


# In a separate process


def run(name, *options, **environment):
    script = SCRIPTS / f"{name}.py"
    return subprocess.run(
        [sys.executable, *options, str(script)], capture_output=True, text=True, env={**os.environ, **environment}
    )


@EVERY_PROGRAM
def test_outside_the_environment(name):
    """-S excludes site-packages, -E ignores PYTHONPATH."""
    done = run(name, "-S", "-E")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert f"{name}.py: error: {sys.executable} has no package " in done.stderr
    assert "activate the environment" in done.stderr and "pip install" in done.stderr


@pytest.mark.parametrize("name", [name for name in NAMES if name not in COMMANDS.keys() | RUNNERS])
def test_without_a_package_of_its_own(name):
    done = run(name, "-S", PYTHONPATH=str(ROOT))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert f"{name}.py: error: {sys.executable} has no package " in done.stderr


@EVERY_PROGRAM
def test_ctrl_c_while_importing_ends_quietly(name, tmp_path):
    """Commands import these packages later; see test_main.py."""
    packages = (
        "torch",
        "transformers",
        "datasets",
        "numpy",
        *["hf_vanilla_transformer"] * (name in COMMANDS.keys() | RUNNERS),
    )
    for package in packages:
        (tmp_path / f"{package}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = run(name, PYTHONPATH=os.pathsep.join((str(tmp_path), str(ROOT))))
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize("name", COMMANDS)
def test_help_appears_at_once(name):
    command = [sys.executable, "-X", "importtime", str(SCRIPTS / f"{name}.py"), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0 and not {"torch", "transformers"}.intersection(done.stderr.replace("|", " ").split())
