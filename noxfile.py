"""Run the fast tests at the bounds of the supported versions, in separate environments: `make test-matrix`.

`make test-newest` runs them with the newest release of everything, beyond the bounds.
"""

import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import nox

RESULTS = Path("build", "matrix")
DOCUMENT = Path("docs", "reliability.md")
BEGIN, END = "<!-- table of make test-matrix -->\n", "<!-- end of the matrix -->\n"
PINS = Path("constraints.txt").read_text(encoding="utf-8")
# The bounds of pyproject.toml.
LOWEST, NEWEST = "5.17.0", "5.24.0"
LOWEST_TORCH, NEWEST_TORCH = "2.11.0", "2.15.0"
PINNED, PINNED_TORCH = (re.search(rf"^{name}==(\S+)", PINS, re.M).group(1) for name in ("transformers", "torch"))
# PyPI's builds of torch, several GB each, are for CUDA; they also run without a driver.
CELLS = [
    ("3.11", LOWEST, f"{PINNED_TORCH}+cpu"),
    ("3.11", PINNED, f"{PINNED_TORCH}+cpu"),
    ("3.11", NEWEST, "2.14.1"),
    ("3.12", LOWEST, LOWEST_TORCH),
    ("3.13", NEWEST, NEWEST_TORCH),
]
# Their releases follow from those of transformers and torch.
UNPINNED = ("transformers", "huggingface_hub", "hf-xet", "setuptools", "torch")

nox.options.envdir = "build/nox"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False
# pyenv runs only the versions selected for a folder; missing ones do no harm.
os.environ.setdefault("PYENV_VERSION", ":".join(dict.fromkeys(python for python, *_ in CELLS)))


def result_path(*cell: str) -> Path:
    return RESULTS / f"{'-'.join(cell)}.json"


@nox.session
@nox.parametrize("python, transformers, torch", CELLS)
def tests(session: nox.Session, transformers: str, torch: str) -> None:
    """Run the fast tests."""
    pins = Path(session.create_tmp(), "constraints.txt")
    pins.write_text("".join(line for line in PINS.splitlines(keepends=True) if line.split("==")[0] not in UNPINNED))
    requirements = (".[dev]", f"transformers=={transformers}", f"torch=={torch}")
    session.install("--constraint", str(pins), "--editable", *requirements)
    path = result_path(str(session.python), transformers, torch)
    report = path.with_suffix(".xml")
    arguments = ("-q", "-n", os.environ.get("JOBS", "auto"), "-m", "not slow", f"--junitxml={report}")
    try:
        session.run("python", "-m", "pytest", *arguments, env={"HF_HUB_OFFLINE": "1"})
    finally:
        if report.exists():
            suite = ElementTree.parse(report).find("testsuite").attrib
            counts = {name: int(suite[name]) for name in ("tests", "skipped", "failures", "errors")}
            path.write_text(json.dumps(counts), encoding="utf-8")


def without_versions(requirements: list[str], extras: dict[str, list[str]]) -> Iterator[str]:
    """Yield the names of requirements with their extras, expanding this project's own extras."""
    for requirement in requirements:
        found = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", requirement)
        if found.group(1) == "hf-vanilla-transformer":
            for extra in found.group(2).split(","):
                yield from without_versions(extras[extra], extras)
        else:
            yield found.group()


@nox.session(default=False)
def newest(session: nox.Session) -> None:
    """Run the fast tests, or those given, with the newest release of everything; list deviations from the pins."""
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = {*without_versions([*project["dependencies"], *extras["dev"]], extras)}
    torch = os.environ.get("TORCH", "torch")
    session.install("--upgrade", "--upgrade-strategy", "eager", torch, *sorted(names - {"torch"}))
    session.install("--no-deps", "--editable", ".")
    try:
        tests = session.posargs or ("-m", "not slow")
        session.run("python", "-m", "pytest", "-q", "-n", os.environ.get("JOBS", "auto"), *tests)
    finally:
        installed = session.run("python", "-m", "pip", "list", "--format=freeze", silent=True)
        pins = dict(line.split("==") for line in PINS.splitlines() if "==" in line)
        for name, _, release in (line.partition("==") for line in installed.splitlines()):
            if release.partition("+")[0] != (pinned := pins.get(name, release)):
                session.log(f"differs from constraints.txt: {name} {pinned} -> {release}")


@nox.session(venv_backend="none")
def table(session: nox.Session) -> None:
    """Write the results into docs/reliability.md."""
    lines = ["| Python | transformers | torch | passed | skipped | failed |\n|---|---|---|---:|---:|---:|\n"]
    for cell in CELLS:
        if (path := result_path(*cell)).exists():
            counts = json.loads(path.read_text(encoding="utf-8"))
            failed = counts["failures"] + counts["errors"]
            passed = counts["tests"] - counts["skipped"] - failed
            lines.append(f"| {' | '.join(cell)} | {passed:,} | {counts['skipped']} | {failed} |\n")
        else:
            lines.append(f"| {' | '.join(cell)} | not run | | |\n")
    text = DOCUMENT.read_text(encoding="utf-8")
    new = re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: f"{BEGIN}{''.join(lines)}{END}", text, flags=re.S)
    DOCUMENT.write_text(new, encoding="utf-8")
