import re
import signal
import socket
import threading
import urllib.request

import pytest
from fastapi.testclient import TestClient

from hf_vanilla_transformer.cli import serve
from hf_vanilla_transformer.cli.options import OneLineParser
from servers import ask, running_server
from translators import save_translator

RUNNING = re.compile("vanilla_transformer_running_requests ")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve") / "tiny"
    save_translator("shared", folder)
    return folder


def running(url):
    """Return the number of requests in progress."""
    with urllib.request.urlopen(f"{url}/metrics") as answer:
        figures = answer.read().decode()
    return float(next(line.split()[1] for line in figures.splitlines() if RUNNING.match(line)))


# Takes longer than the signal tests; the tiny model never ends a sentence.
LONG = {"text": ["a red house", "no"], "max_new_tokens": 1024}


def ask_meanwhile(url):
    """Send a slow request; return the thread waiting for the answer, and the list that will hold it."""
    answers = []

    def wait():
        try:
            answers.append(ask(f"{url}/v1/translations", LONG))
        except OSError as error:
            answers.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    while thread.is_alive() and not running(url):
        pass
    return thread, answers


@pytest.mark.slow
def test_a_signal_finishes_what_is_running_and_takes_nothing_new(folder):
    with running_server("--model", f"en-es={folder}") as (process, url):
        assert ask(f"{url}/languages") == (200, [{"code": "en", "name": "English", "targets": ["es"]}])
        thread, answers = ask_meanwhile(url)
        process.send_signal(signal.SIGTERM)
        while ask(f"{url}/health")[0] == 200:
            pass
        assert ask(f"{url}/health") == (503, {"status": "draining"})
        status, answer = ask(f"{url}/v1/translations", {"text": "a cat"})
        assert (status, answer) == (503, {"error": "the server is shutting down; try another one"})
        thread.join()
        status, answer = answers[0]
        assert status == 200 and len(answer["translations"]) == len(LONG["text"])
        assert process.wait() == 0
        assert "Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_a_second_signal_ends_at_once(folder):
    with running_server("--model", folder) as (process, url):
        thread, answers = ask_meanwhile(url)
        process.send_signal(signal.SIGINT)
        while ask(f"{url}/health")[0] == 200:
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 128 + signal.SIGTERM
        thread.join()
        assert isinstance(answers[0], OSError)


def test_mistakes_are_one_line(folder, refusal, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"--port {port} cannot be used" in refusal("serve", "--model", folder, "--port", port)
    for words, message in [
        (("--model", tmp_path / "none"), "none cannot be loaded"),
        (("--model", f"=x{folder}"), "lacks a name or a folder"),
        (("--model", f"en-es={folder}", f"en-es={folder}"), "two models are called en-es"),
        (("--model", folder, "--max_queue", "0"), "--max_queue is 0; it must be positive"),
        (("--model", folder, "--port", "99999"), "--port 99999 cannot be used"),
        (("--model", folder, "--backend", "transformers", "--quantization", "int8"), "--quantization needs --backend"),
        (("--model", folder, "--bf16", "--quantization", "int8"), "--bf16 needs --backend transformers"),
        (("--model", folder, "--backend", "ctranslate2"), "holds no model.bin"),
    ]:
        port = () if "--port" in words else ("--port", "0")
        assert message in refusal("serve", *words, *port)


def test_the_key_comes_from_the_environment_and_is_not_shown(folder, monkeypatch, capsys):
    parser = OneLineParser()
    serve.add_arguments(parser)
    seen = []
    monkeypatch.setenv(serve.KEY_VARIABLE, "open sesame")
    monkeypatch.setattr("hf_vanilla_transformer.serving.server.serve", lambda *arguments: seen.extend(arguments))
    serve.run(parser.parse_args(["--model", str(folder), "--port", "0", "--cors_origin", "https://example.org"]))
    application, engine, _ = seen
    engine.close()
    assert capsys.readouterr().out == "tiny: any languages\n"
    with TestClient(application) as client:
        assert "sesame" not in client.get("/openapi.json").text
        assert client.post("/translate", json={"q": "a", "source": "en", "target": "es"}).status_code == 401
