import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import hf_vanilla_transformer
from hf_vanilla_transformer.cli import serve
from hf_vanilla_transformer.cli.main import COMMANDS, ROUTINES_VARIABLES, limit_routines, main
from hf_vanilla_transformer.cli.options import OneLineParser
from paths import ROOT, SCRIPTS
from tables import looped

SCORED = ("--predictions", "text", "--references", "text")
HEAVY = ("torch", "transformers", "datasets", "numpy")


def run(*words, **environment):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **environment}
    return subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)


def test_help_lists_the_commands(capsys):
    main(["--help"])
    printed = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n  {command:10}  " in printed
    main(["--help-all"])
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("option", ["-h", "--he", "--hel", "--help-a", "--help_all"])
def test_spellings_of_help(option, capsys):
    main([option])
    assert capsys.readouterr().out.startswith("usage: vanilla-transformer COMMAND [options]\n")
    with pytest.raises(SystemExit, match="^0$"):
        main(["translate", option])
    shown = capsys.readouterr().out
    assert shown.startswith("usage: vanilla-transformer translate ")
    assert ("--chunk_size" in shown) is option.startswith("--help")


@pytest.mark.parametrize(
    "words",
    [
        (str(SCRIPTS / "recipes" / "demo.yaml"), "--help"),
        ("absent.yaml", "--help"),
        ("--learning_rate", "1", "--help"),
        ("--help", "--zzz"),
        ("--output_dir", "--help"),
    ],
)
def test_help_wins_over_everything_else(words, capsys):
    with pytest.raises(SystemExit, match="^0$"):
        main(["train", *words])
    shown = capsys.readouterr().out
    assert "--train_source_file" in shown and "--adam_beta1" not in shown


def test_help_after_two_dashes_is_a_value(refusal):
    assert "are required: --model" in refusal("translate", "--", "--help")


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--help",), ("--version",), ("train", "--help"), ("evaluate", *SCORED)])
@pytest.mark.parametrize("output", ["closed pipe", "none"])
def test_nobody_reads_the_output(words, output, tmp_path):
    (tmp_path / "text").write_text("a cat\n")
    command = [sys.executable, "-m", "hf_vanilla_transformer", *words]
    read, write = os.pipe()
    os.close(read)
    close = partial(os.close, 1) if output == "none" else None
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, stdout=write, stderr=subprocess.PIPE, preexec_fn=close, cwd=tmp_path, env=environment, text=True
        )
    finally:
        os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


def test_version(capsys):
    main(["--version"])
    assert capsys.readouterr().out == f"vanilla-transformer {hf_vanilla_transformer.__version__}\n"


@looped(
    ("words", "message"),
    [
        ([], "no command given; --help lists the commands"),
        (["tran"], "unknown command tran; did you mean train?; --help lists the commands"),
        (["--zzz"], "unknown option --zzz; the command comes first; --help lists the commands"),
        (["-help"], "unknown option -help; did you mean --help?; the command comes first; --help lists the commands"),
        (["--hub_token=hf_abc"], "unknown option --hub_token; the command comes first; --help lists the commands"),
    ],
)
def test_unknown_commands(words, message, refusal):
    assert refusal(*words) == f"vanilla-transformer: error: {message}\n"


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_imports_nothing_heavy(command):
    done = run("-X", "importtime", "-m", "hf_vanilla_transformer", *[command] * bool(command), "--help")
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.returncode == 0 and done.stdout.startswith(f"usage: vanilla-transformer {command}")
    assert "hf_vanilla_transformer.cli.main" in imported and not imported.intersection(HEAVY)


@pytest.mark.parametrize("command", ["train", "translate", "evaluate"])
def test_ctrl_c_while_importing_ends_quietly(command, tmp_path):
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    required = {"translate": ("--model", "x"), "evaluate": ("--predictions", "x", "--references", "x")}
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = run("-m", "hf_vanilla_transformer", command, *required.get(command, ()), PYTHONPATH=path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


@pytest.mark.parametrize(("given", "kept"), [(None, "64"), ("1024", "1024")])
@pytest.mark.parametrize("variable", ROUTINES_VARIABLES)
def test_a_number_of_kept_routines_that_is_given_stays(monkeypatch, variable, given, kept):
    for each in ROUTINES_VARIABLES:
        # Set it first, so that monkeypatch restores it after deletion.
        monkeypatch.setenv(each, given or "")
        if given is None:
            monkeypatch.delenv(each)
    limit_routines()
    assert os.environ[variable] == kept


def test_a_server_that_ray_starts_keeps_few_routines(monkeypatch):
    """Replicas load the application without the command; here loading fails afterwards, on the missing model."""
    for variable in ROUTINES_VARIABLES:
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    parser = OneLineParser()
    serve.add_arguments(parser)
    with pytest.raises(ValueError, match="missing"):
        serve.load_application(parser.parse_args(["--model", "missing"]))
    assert [os.environ[variable] for variable in ROUTINES_VARIABLES] == ["64", "64"]


def test_a_missing_package_is_named():
    done = run("-S", "-m", "hf_vanilla_transformer", "translate", "--model", "x")
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("vanilla-transformer translate: error: ")
    assert f"{sys.executable} has no package transformers; activate the environment" in done.stderr


class TestRegistration:
    def test_public_names(self):
        assert hf_vanilla_transformer.__all__ == sorted(hf_vanilla_transformer.__all__)
        for name in hf_vanilla_transformer.__all__:
            assert getattr(hf_vanilla_transformer, name) is not None and name in dir(hf_vanilla_transformer)
        with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
            _ = hf_vanilla_transformer.nothing

    @pytest.mark.parametrize(
        ("program", "original", "expected"),
        [
            ("-m", ["python", "-m", "hf_vanilla_transformer", "train"], True),
            ("-m", ["python", "-X", "dev", "-m", "hf_vanilla_transformer"], True),
            ("-m", ["python", "-m", "my_package", "-m", "hf_vanilla_transformer"], False),
            ("-m", ["python", "-m"], False),
            ("-m", ["python", "-Im", "hf_vanilla_transformer"], False),
            ("/my/pytest/__main__.py", ["python", "-m", "pytest", "-m", "hf_vanilla_transformer"], False),
            ("-c", ["python", "-c", "import hf_vanilla_transformer"], False),
            ("{bin}/vanilla-transformer", [], True),
            ("{bin}/vanilla-transformer.exe", [], True),
            ("link/vanilla-transformer", [], True),
            ("/elsewhere/vanilla-transformer", [], False),
            ("{bin}/vanilla-transformer.py", [], False),
            (None, [], False),
        ],
    )
    def test_only_commands_of_this_package_put_it_off(self, program, original, expected, monkeypatch, tmp_path):
        monkeypatch.chdir(tmp_path)
        folder = Path(sys.executable).parent
        Path("link").symlink_to(folder)
        monkeypatch.setattr(sys, "argv", [] if program is None else [program.format(bin=folder)])
        monkeypatch.setattr(sys, "orig_argv", original)
        assert hf_vanilla_transformer._is_command() is expected

    def test_a_program_of_scripts_says_so(self, monkeypatch):
        monkeypatch.setattr(sys.modules["__main__"], "IS_VANILLA_TRANSFORMER_COMMAND", True, raising=False)
        assert hf_vanilla_transformer._is_command()

    @pytest.mark.slow
    def test_a_public_name_makes_up_for_it(self):
        program = """
import sys
sys.argv, sys.orig_argv = ["-m"], ["python", "-m", "hf_vanilla_transformer"]
import hf_vanilla_transformer
assert "transformers" not in sys.modules
from hf_vanilla_transformer import PRESETS
from transformers import AutoConfig
print(AutoConfig.for_model("vanilla_transformer").d_model)
"""
        done = run("-c", program)
        assert done.stdout == "512\n", done.stderr
