"""The fast tests at the bounds of the supported versions, each in an environment of its own: `make test-matrix`.

`make test-newest` runs them with the newest releases of everything, beyond the bounds.
"""

import json
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import nox

RESULTS = Path("build", "matrix")
DOCUMENT = Path("docs", "reliability.md")
BEGIN, END = "<!-- table of make test-matrix -->\n", "<!-- end of the matrix -->\n"
PINS = Path("constraints.txt").read_text(encoding="utf-8")
PINNED = re.search(r"^transformers==(\S+)", PINS, re.MULTILINE).group(1)
# The bounds of pyproject.toml.
LOWEST, NEWEST, LOWEST_TORCH = "5.17.0", "5.24.0", "2.11.0"
# Libraries of which another transformers may need other releases.
HUB = ("transformers", "huggingface_hub", "hf-xet")
# TORCH=torch==2.13.0 takes the build with CUDA, several GB for each environment.
TORCH = os.environ.get("TORCH") or re.search(r"^torch==\S+", PINS, re.MULTILINE).group() + "+cpu"
CELLS = [("3.11", LOWEST), ("3.11", PINNED), ("3.11", NEWEST), ("3.12", NEWEST), ("3.13", NEWEST)]
CODE = ("hf_vanilla_transformer", "scripts", "tests")

nox.options.envdir = "build/nox"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False
# pyenv starts only the versions chosen for a folder; those that it lacks do no harm.
os.environ.setdefault("PYENV_VERSION", ":".join(dict.fromkeys(python for python, _ in CELLS)))


def record(python: str, transformers: str, **values: object) -> None:
    RESULTS.mkdir(parents=True, exist_ok=True)
    path = RESULTS / f"{python}-{transformers}.json"
    path.write_text(json.dumps({"python": python, "transformers": transformers, **values}), encoding="utf-8")


@nox.session
@nox.parametrize("python, transformers", CELLS)
def tests(session: nox.Session, transformers: str) -> None:
    """Run the fast tests."""
    python = str(session.python)
    record(python, transformers, note="did not get as far as the tests")
    cache = {"PYTHONPYCACHEPREFIX": session.create_tmp()}
    session.run("python", "-W", "error", "-m", "compileall", "-q", "-f", *CODE, env=cache)
    try:
        session.install("--no-deps", "--only-binary=:all:", TORCH)
    except nox.command.CommandFailed:
        note = f"compiles without warnings; no tests: {TORCH} cannot be had for Python {python}"
        record(python, transformers, note=note)
        session.skip(note)
    pins = Path(session.create_tmp(), "constraints.txt")
    unpinned = () if transformers == PINNED else HUB
    pins.write_text("".join(line for line in PINS.splitlines(keepends=True) if line.split("==")[0] not in unpinned))
    session.install("--constraint", str(pins), "--editable", ".[dev]", f"transformers=={transformers}", TORCH)
    report = RESULTS / f"{python}-{transformers}.xml"
    arguments = ("-q", "-n", os.environ.get("JOBS", "auto"), "-m", "not slow", f"--junitxml={report}")
    try:
        session.run("python", "-m", "pytest", *arguments, env={"HF_HUB_OFFLINE": "1"})
    finally:
        if report.exists():
            suite = ElementTree.parse(report).find("testsuite").attrib
            counts = {name: int(suite[name]) for name in ("tests", "skipped", "failures", "errors")}
            record(python, transformers, torch=TORCH.partition("==")[2], **counts)


def without_versions(requirements: list[str], extras: dict[str, list[str]]) -> Iterator[str]:
    """Yield the names of requirements with their extras; those of this project's extras in their place."""
    for requirement in requirements:
        found = re.match(r"([\w.-]+)(?:\[([\w,]+)\])?", requirement)
        if found.group(1) == "hf-vanilla-transformer":
            for extra in found.group(2).split(","):
                yield from without_versions(extras[extra], extras)
        else:
            yield found.group()


@nox.session(default=False)
def newest(session: nox.Session) -> None:
    """Run the fast tests, or those given, with the newest release of everything; list what is newer than the pins."""
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
                session.log(f"not as in constraints.txt: {name} {pinned} -> {release}")


@nox.session(venv_backend="none")
def torch_bound(session: nox.Session) -> None:
    """Type-check against the sources of the oldest torch, whose compiled part is not needed for that."""
    folder = RESULTS / "torch"
    pip = (sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:")
    session.run(*pip, "--dest", str(folder), f"torch=={LOWEST_TORCH}")
    for wheel in folder.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            sources = [name for name in archive.namelist() if re.match(r"torch/.*\.(pyi?|typed)$", name)]
            archive.extractall(folder, sources)
        wheel.unlink()
    # Only how the library uses torch is of interest, not what mypy thinks of torch.
    settings = f"""[mypy]
        files = hf_vanilla_transformer, scripts
        mypy_path = scripts:{folder}
        explicit_package_bases = True
        ignore_missing_imports = True
        [mypy-torch.*]
        follow_imports = silent
        ignore_errors = True
    """
    configuration = RESULTS / "mypy.ini"
    configuration.write_text(re.sub(r"^ +", "", settings, flags=re.MULTILINE), encoding="utf-8")
    session.run(sys.executable, "-m", "mypy", f"--config-file={configuration}", f"--cache-dir={RESULTS / 'mypy'}")
    record("any", "any", note=f"type-checks against the sources of torch {LOWEST_TORCH}: no newer name or argument")


@nox.session(venv_backend="none")
def table(session: nox.Session) -> None:
    """Write the results into docs/reliability.md."""
    lines = ["| Python | transformers | torch | passed | skipped | failed |\n|---|---|---|---:|---:|---:|\n"]
    for python, transformers in [*CELLS, ("any", "any")]:
        path = RESULTS / f"{python}-{transformers}.json"
        cell = json.loads(path.read_text()) if path.exists() else {"note": f"no interpreter python{python} was found"}
        if "note" in cell:
            lines.append(f"| {python} | {transformers} | {cell['note']} | | | |\n")
        else:
            failed = cell["failures"] + cell["errors"]
            passed = cell["tests"] - cell["skipped"] - failed
            row = f"| {python} | {transformers} | {cell['torch']} | {passed:,} | {cell['skipped']} | {failed} |\n"
            lines.append(row)
    text = DOCUMENT.read_text(encoding="utf-8")
    new = re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: f"{BEGIN}{''.join(lines)}{END}", text, flags=re.S)
    DOCUMENT.write_text(new, encoding="utf-8")
