import io
import os
import signal
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
import torch

from hf_vanilla_transformer.cli import options
from hf_vanilla_transformer.cli.options import OneLineParser, Terminated, one_line_errors
from hf_vanilla_transformer.inference import translation
from tables import looped


@pytest.fixture(autouse=True)
def _empty_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))


@looped(
    ("words", "message"),
    [
        ((), "the following arguments are required: --model"),
        (("--model",), "argument --model: expected at least one argument"),
        (("--model", "m", "--num_beams", "two"), "invalid int value: 'two'"),
        (("--model", "m", "--format", "xml"), "invalid choice: 'xml'"),
        (("--model", "m", "--bf16", "maybe"), "argument --bf16: maybe is neither true nor false"),
        (("--model", "m", "--bf16", "true", "extra"), "extra belongs to no option"),
        (
            ("--model", "m", "--max", "3"),
            "ambiguous option: --max could match --max_new_tokens, --max_source_length, --max_tokens;",
        ),
        (("-m", "m"), "unknown option -m"),
        (("--ouput", "x"), "unknown option --ouput; did you mean --output?; --help lists the options"),
        (("--zzz",), "unknown option --zzz; --help lists the options"),
    ],
)
def test_mistakes_of_arguments(words, message, refusal):
    assert message in refusal("translate", *words)


@looped(
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
        (("--hub-token", "hf_", "abc"), "<secret> belongs to no option"),
        (("--push_to_hub", "--hub_token=hf_abc", "--zzz"), "unknown option --zzz"),
    ],
)
def test_no_mistake_shows_a_secret(words, message, refusal):
    shown = refusal("train", *words)
    assert message in shown and "abc" not in shown


def test_a_secret_that_is_not_given_hides_nothing(capsys):
    parser = OneLineParser("program")
    parser.add_argument("--hub_token")
    parser.parse_args([])
    with pytest.raises(SystemExit):
        parser.error("not None")
    assert "error: not None;" in capsys.readouterr().err


@looped("option", ["--max_source_length", "--max-source-length", "--max_so", "--max-so"])
def test_spellings_of_an_option(option):
    parser = OneLineParser("program")
    parser.add_argument("--max_source_length", type=int)
    parser.add_argument("--max_tokens", type=int)
    for words in ([option, "-3"], [f"{option}=-3"]):
        assert parser.parse_args(words).max_source_length == -3


def test_words_after_two_dashes_are_values():
    parser = OneLineParser("program")
    parser.add_argument("words", nargs="*")
    assert parser.parse_args(["--", "--zzz"]).words == ["--zzz"]


@looped(("text", "value"), [("true", True), ("Yes", True), ("0", False), ("f", False)])
def test_switches(text, value):
    parser = OneLineParser("program")
    parser.add_argument("--bf16", **options.SWITCH)
    assert parser.parse_args(["--bf16", text]).bf16 is value
    assert parser.parse_args([f"--bf16={text}"]).bf16 is value
    assert parser.parse_args(["--bf16"]).bf16 is True and parser.parse_args([]).bf16 is False


def test_advanced_options_are_in_the_long_help_only():
    for shows_all in (False, True):
        parser = OneLineParser("program", "What it does.", shows_all=shows_all)
        parser.more_description = lambda: "\nMore."
        parser.add_argument("--plain", required=True, help="an option")
        parser.add_argument_group("rare").add_argument("--rare", help=parser.advanced("another"))
        parser.add_help_options()
        shown = parser.format_help()
        assert shown.startswith("usage: program --plain PLAIN [options]\n\nWhat it does.\n") and "--plain" in shown
        assert [text in shown for text in ("rare:", "--rare", "More.")] == [shows_all] * 3


@looped(
    ("message", "shown"),
    [
        ("`max_tokens` is 5", "--max_tokens is 5"),
        ("needs `trust_remote_code=True`", "needs --trust_remote_code"),
        ("set `num_beams=4`", "set --num_beams 4"),
        ("`norm_position` is 'pre'", "`norm_position` is 'pre'"),
        ("the model's `max_tokens` is 3", "the model's `max_tokens` is 3"),
        ("two\nlines of `hf auth login`", "two lines of `hf auth login`"),
        ("", "ValueError"),
    ],
)
def test_arguments_in_messages_become_options(message, shown, capsys):
    parser = OneLineParser("program")
    for name in ("max_tokens", "num_beams", "trust_remote_code"):
        parser.add_argument(f"--{name}")
    with pytest.raises(SystemExit), one_line_errors(parser):
        raise ValueError(message)
    assert capsys.readouterr().err == f"program: error: {shown}\n"


@pytest.mark.parametrize(
    ("interrupt", "advice", "shown"),
    [
        (KeyboardInterrupt(), None, "interrupted\n"),
        (KeyboardInterrupt(), "start again", "interrupted; start again\n"),
        (KeyboardInterrupt("go on"), "start again", "interrupted; go on\n"),
        (Terminated("go on"), "start again", "terminated; go on\n"),
    ],
)
def test_ctrl_c_and_sigterm_end_in_one_line(interrupt, advice, shown, capsys):
    with pytest.raises(SystemExit) as stop, one_line_errors(OneLineParser("program"), advice):
        raise interrupt
    assert stop.value.code == (143 if isinstance(interrupt, Terminated) else 130)
    assert capsys.readouterr().err == shown


FORKS_A_WORKER = """
import os, signal
from hf_vanilla_transformer.cli.options import OneLineParser, one_line_errors
with one_line_errors(OneLineParser("program")):
    worker = os.fork()
    if not worker:
        os.kill(os.getpid(), signal.SIGTERM)
        os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1]))
"""


class TestSigterm:
    def test_it_is_raised(self, capsys):
        with pytest.raises(SystemExit) as stop, one_line_errors(OneLineParser("program")):
            os.kill(os.getpid(), signal.SIGTERM)
            pytest.fail("the signal was ignored")
        assert stop.value.code == 143 and capsys.readouterr().err == "terminated\n"
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL

    def test_a_handler_of_the_caller_stays(self):
        handled = []
        signal.signal(signal.SIGTERM, lambda *_: handled.append(True))
        try:
            with one_line_errors(OneLineParser("program")):
                os.kill(os.getpid(), signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        assert handled == [True]

    @pytest.mark.slow
    def test_a_forked_worker_only_ends(self):
        done = subprocess.run([sys.executable, "-c", FORKS_A_WORKER], capture_output=True, text=True)
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{-signal.SIGTERM}\n", "")


def test_memory_that_runs_out(monkeypatch, refusal):
    def exhausted(*args, **options):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(translation, "load", lambda *args: (None, SimpleNamespace(init_kwargs={})))
    monkeypatch.setattr(translation, "translate_lines", exhausted)
    message = refusal("translate", "--model", "m", "--max_tokens", "77")
    assert message == "vanilla-transformer translate: error: out of memory; lower --max_tokens 77\n"


class TestImporting:
    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_the_handler_of_a_signal_comes_back(self, number):
        before = signal.getsignal(number)
        with options.importing():
            assert signal.getsignal(number) is not before
        assert signal.getsignal(number) is before

    def test_in_another_thread(self):
        done = []

        def work():
            with options.importing():
                done.append(True)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert done

    @pytest.mark.parametrize("words, package", [((), "sacrebleu"), (("serve",), "uvicorn")])
    def test_a_missing_package(self, words, package):
        message = f"has no package nowhere; activate .* pip install .*{package}"
        with pytest.raises(ImportError, match=message), options.importing(*words):
            import nowhere  # noqa: F401  # it is not there

    def test_another_fault(self):
        with pytest.raises(ImportError, match="cannot import name"), options.importing():
            from math import nothing  # noqa: F401  # it is not there
