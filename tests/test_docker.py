"""The files in docker/, without building them: copied files exist, and commands parse."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from hf_vanilla_transformer.cli import serve
from hf_vanilla_transformer.cli.options import OneLineParser
from paths import ROOT

DOCKERFILE = ROOT / "docker" / "Dockerfile"
COMPOSE = ROOT / "docker" / "compose.yaml"


def instructions(name: str) -> list[str]:
    """Return the arguments of each instruction with this name."""
    return re.findall(rf"^{name} (.+)$", DOCKERFILE.read_text(encoding="utf-8"), re.MULTILINE)


def services() -> dict:
    return yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]


def parsed(words: list[str]):
    parser = OneLineParser(prog="serve")
    serve.add_arguments(parser)
    return parser.parse_args(words)


def entry_point() -> list[str]:
    program, command, *options = json.loads(instructions("ENTRYPOINT")[0])
    assert (program, command) == ("vanilla-transformer", "serve")
    return options


def test_the_image_serves_all_addresses_of_its_own_network_as_another_user():
    arguments = parsed([*entry_point(), *json.loads(instructions("CMD")[0])])
    assert arguments.host == "0.0.0.0" and arguments.model == ["/model"]
    assert instructions("EXPOSE") == [str(arguments.port)]
    assert instructions("USER") == ["1000"] and "--uid 1000" in instructions("RUN")[0]


def test_all_that_the_image_copies_exists_and_is_sent_to_docker():
    sent = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    copied = {name.removeprefix("./") for line in instructions("COPY") for name in line.split()[:-1]}
    assert copied == sent and all((ROOT / name).exists() for name in copied)


def test_the_image_has_the_pinned_packages():
    installs = [line for line in instructions("RUN") if "pip install" in line]
    assert len(installs) == 2 and all("--constraint constraints.txt" in line for line in installs)
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    extras = re.search(r'"\.\[(.+)\]"', installs[1])[1].split(",")
    known = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert "\ntorch==" in pinned and all(f"\n{extra} = [" in known for extra in extras)


def test_the_health_check_asks_the_route_of_the_application():
    words = json.loads(instructions("HEALTHCHECK")[0].partition("CMD ")[2])
    assert words[:2] == ["python", "-c"] and "http://127.0.0.1:8000/health" in words[2]
    compile(words[2], "HEALTHCHECK", "exec")


@pytest.mark.parametrize("name", ["cpu", "cuda"])
def test_services_run_the_image_with_options_that_exist(name):
    service = services()[name]
    arguments = parsed([*entry_point(), *service["command"]])
    assert arguments.model == [service["volumes"][0].split(":")[-2]] == ["/model"]
    # Reachable only from this machine.
    assert service["ports"] == ["127.0.0.1:${PORT:-8000}:8000"]
    assert (COMPOSE.parent / service["build"]["context"] / service["build"]["dockerfile"]).resolve() == DOCKERFILE
    assert set(service["build"].get("args", {})) <= {line.partition("=")[0] for line in instructions("ARG")}
    assert serve.KEY_VARIABLE in service["environment"]


@pytest.mark.parametrize("file", [DOCKERFILE, COMPOSE], ids=lambda file: file.name)
def test_the_commands_of_the_comments_name_files_that_exist(file: Path):
    comments = [line[1:].strip() for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    commands = [shlex.split(line) for line in comments if line.startswith("docker ")]
    assert commands
    for words in commands:
        if "-f" in words:
            assert (ROOT / words[words.index("-f") + 1]).is_file()
