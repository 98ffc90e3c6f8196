"""Mutation testing: apply one small change to the library at a time, which a fast test must detect.

python tests/reliability/mutation.py [--count 200] [--seed 0] [--seconds 60]

`make mutation` runs this in a clone of the repository, whose files it changes, with the fast tests' `.coverage` and
`tests.xml`. A mutant meets only tests that execute its statement: those of its own module, then the others, fastest
first, up to `--seconds` of recorded time. Finally, all tests that killed a mutant must pass without mutants.
"""

import argparse
import ast
import contextlib
import difflib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

PACKAGE = Path("hf_vanilla_transformer")
FOLDERS = ("model", "data", "training", "conversion")
# Calls that only emit messages.
MESSAGES = {"warn", "warning", "warning_once", "info", "debug", "error", "exception", "print"}
# Decorators without effect at run time.
TYPING_ONLY = {"override", "overload", "abstractmethod", "final"}


class Mutant(NamedTuple):
    path: Path
    line: int
    operator: str
    source: str


def uninteresting(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes that are not mutated: annotations, errors, warnings, logs, `__all__`."""
    for node in ast.walk(tree):
        match node:
            case ast.arg(annotation=ast.expr() as annotation) | ast.AnnAssign(annotation=annotation):
                yield annotation
            case ast.FunctionDef(returns=returns, decorator_list=decorators):
                yield from [returns] if returns else []
                yield from (each for each in decorators if ast.unparse(each).split(".")[-1] in TYPING_ONLY)
            case ast.Raise() | ast.If(test=ast.Name("TYPE_CHECKING")) | ast.Assign(targets=[ast.Name("__all__")]):
                yield node
            case ast.Call(func=ast.Attribute(attr=name) | ast.Name(id=name)) if name in MESSAGES:
                yield node


class Place(NamedTuple):
    """A place in a file for one kind of change, such as another operator, with the candidate changes."""

    path: Path
    line: int
    changes: list[tuple[str, int]]


def places(path: Path) -> Iterator[Place]:
    """All places of a file, except uninteresting ones."""
    from cosmic_ray import plugins
    from cosmic_ray.ast import ast_nodes, get_ast

    source = path.read_text(encoding="utf-8")
    excluded = [
        ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        for node in uninteresting(ast.parse(source))
    ]
    found: dict[tuple, list[tuple[str, int]]] = {}
    nodes = list(ast_nodes(get_ast(source)))
    for name in sorted(plugins.operator_names()):
        if plugins.get_operator(name).arguments():
            continue
        operator = plugins.get_operator(name)()
        positions = (start for node in nodes for start, _ in operator.mutation_positions(node))
        for occurrence, (line, column) in enumerate(positions):
            # A decorator starts with its `@`, one column before its expression.
            at = (line, column + name.endswith("RemoveDecorator"))
            if not any(begin <= at < end for begin, end in excluded):
                found.setdefault((at, name.split("_")[0]), []).append((name, occurrence))
    for (at, _), changes in sorted(found.items()):
        yield Place(path, at[0], changes)


def mutant_of(place: Place, rng: random.Random) -> Mutant | None:
    """Draw a change of a place at random that gives a different, valid program; None if there is none."""
    from cosmic_ray import plugins
    from cosmic_ray.mutating import mutate_code

    source = place.path.read_text(encoding="utf-8")
    for name, occurrence in rng.sample(place.changes, len(place.changes)):
        try:
            changed = mutate_code(source, plugins.get_operator(name)(), occurrence)
            with warnings.catch_warnings(action="error"):
                different = ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
                compile(changed, place.path, "exec")
        # Python rejects the change or warns of it; cosmic-ray cannot replace exceptions with dotted names.
        except (SyntaxError, AttributeError):
            continue
        if different:
            return Mutant(place.path, place.line, name.removeprefix("core/"), changed)
    return None


def draw(count: int, seed: int) -> list[Mutant]:
    """Draw mutants from all places of the four folders, sorted by folder, file and line."""
    rng = random.Random(seed)
    files = [path for folder in FOLDERS for path in sorted((PACKAGE / folder).glob("*.py"))]
    population = [place for path in files for place in places(path)]
    rng.shuffle(population)
    drawn = islice(filter(None, (mutant_of(place, rng) for place in population)), count)
    return sorted(drawn, key=lambda mutant: (files.index(mutant.path), mutant.line, mutant.operator))


def statement_lines(source: str, line: int) -> tuple[range, bool]:
    """The lines of the statement at a line (of a compound one, its head), and whether it is in a function."""
    found, inside = range(line, line + 1), False
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or 0):
            body = getattr(node, "body", None)
            found = range(node.lineno, body[0].lineno if body and line < body[0].lineno else node.end_lineno + 1)
            inside |= isinstance(node, ast.FunctionDef) and body[0].lineno <= line
    return found, inside


class Recorded:
    """The recorded run of the fast tests: which tests execute a line, and how long each takes."""

    def __init__(self) -> None:
        from coverage import CoverageData

        self.data = CoverageData(".coverage")
        self.data.read()
        self.seconds: dict[str, float] = {}
        self.slowest: dict[str, float] = {}
        for case in ElementTree.parse("tests.xml").iter("testcase"):
            self.seconds[f"{case.get('classname')}.{case.get('name')}"] = float(case.get("time") or 0)
        for test in {context.partition("|")[0] for context in self.data.measured_contexts()} - {""}:
            file = test.partition("::")[0]
            self.slowest[file] = max(self.slowest.get(file, 0), self.time(test))

    def time(self, test: str) -> float:
        file, _, name = test.partition("::")
        return self.seconds.get(f"{file.removesuffix('.py').replace('/', '.')}.{name.replace('::', '.', 1)}", 1.0)

    def tests(self, path: Path, line: int, seconds: float) -> list[str]:
        """The tests that a mutant meets; outside functions, where imports execute it, all tests of its file."""
        lines, inside = statement_lines(path.read_text(encoding="utf-8"), line)
        by_line = self.data.contexts_by_lineno(str(path.resolve()))
        chosen = [by_line.get(each, []) for each in lines] if inside else by_line.values()
        files: dict[str, list[str]] = {}
        for test in sorted({context.partition("|")[0] for each in chosen for context in each} - {""}):
            files.setdefault(test.partition("::")[0], []).append(test)
        own = f"tests/{path.parent.name}/test_{path.stem.removesuffix('_vanilla_transformer')}.py"
        selected, total = [], 0.0
        for file in sorted(files, key=lambda file: (file != own, self.slowest[file])):
            # The first test of a file also runs its fixtures, which may train a model.
            total += self.slowest[file]
            for test in sorted(files[file], key=self.time):
                total += self.time(test)
                if selected and file != own and total > seconds:
                    return selected
                selected.append(test)
        return selected


class FirstFailure:
    """A pytest plugin that records the first failing test or file."""

    def __init__(self) -> None:
        self.nodeid = ""

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.nodeid = self.nodeid or report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def run(tests: list[str], scratch: Path, limit: float) -> str:
    """Run tests in a fork of this warm process; return the first failure, or ""."""
    import pytest

    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    outcome = scratch / "outcome"
    child = os.fork()
    if child == 0:
        os.setsid()
        os.environ["TMPDIR"] = str(scratch)
        tempfile.tempdir = None
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(quiet, stream)
        failure = FirstFailure()
        # Other libraries' pytest plugins are already imported, which pytest warns of.
        options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        code = pytest.main([*options, *tests], plugins=[failure])
        outcome.write_text(failure.nodeid or (f"pytest exits with {code}" if code else ""))
        os._exit(0)
    end = time.monotonic() + limit
    while not (ended := os.waitpid(child, os.WNOHANG)[0]) and time.monotonic() < end:
        time.sleep(0.05)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    if not ended:
        os.waitpid(child, 0)
        return "a time-out"
    return outcome.read_text() if outcome.exists() else "a crash"


def killer(mutant: Mutant, tests: list[str], scratch: Path, limit: float) -> str:
    """Return the first failure with the mutant, or ""."""
    original = mutant.path.read_text(encoding="utf-8")
    mutant.path.write_text(mutant.source, encoding="utf-8")
    try:
        return run(tests, scratch, limit) if tests else ""
    finally:
        mutant.path.write_text(original, encoding="utf-8")


def warm_up(scratch: Path) -> None:
    """Import what every test needs before forking, except the library, which each fork imports anew."""
    os.environ |= {"HF_HOME": str(scratch / "hub"), "HF_HUB_OFFLINE": "1", "MPLBACKEND": "Agg"}
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd(), "PYTHONDONTWRITEBYTECODE": "1"}
    sys.path.insert(0, os.getcwd())
    sys.dont_write_bytecode = True
    import datasets  # noqa: F401
    import sacrebleu  # noqa: F401
    import torch._dynamo  # noqa: F401
    import transformers.generation
    import transformers.models.marian.modeling_marian
    import transformers.trainer_seq2seq  # noqa: F401


def difference(mutant: Mutant) -> tuple[str, str]:
    """The changed lines before and after, each joined into one line."""
    before, after = mutant.path.read_text(encoding="utf-8").splitlines(), mutant.source.splitlines()
    changed = list(difflib.unified_diff(before, after, n=0, lineterm=""))[2:]
    old, new = (" ".join(line[1:].strip() for line in changed if line[0] == sign) for sign in "-+")
    return old, new


def table(results: Sequence[tuple[Mutant, str]]) -> str:
    """The counts for each folder, in Markdown."""
    lines = ["| folder | mutants | killed | survived |\n|---|---:|---:|---:|\n"]
    for folder in (*FOLDERS, "all"):
        killers = [killer for mutant, killer in results if folder in ("all", mutant.path.parent.name)]
        killed = sum(map(bool, killers))
        share = f" ({killed / len(killers):.1%})" if killers else ""
        lines.append(f"| {folder} | {len(killers)} | {killed}{share} | {len(killers) - killed} |\n")
    return "".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="number of mutants (default: 200)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw (default: 0)")
    parser.add_argument("--seconds", type=float, default=60, help="recorded time of tests per mutant (default: 60)")
    options = parser.parse_args()
    if subprocess.check_output(["git", "status", "--porcelain", "--untracked-files=no"]):
        raise SystemExit("the checkout has changes, which mutants could overwrite; run `make mutation`, in a clone")
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        scratch = Path(folder, "run")
        warm_up(scratch)
        recorded = Recorded()
        results: list[tuple[Mutant, str]] = []
        for mutant in draw(options.count, options.seed):
            tests = recorded.tests(mutant.path, mutant.line, options.seconds)
            # Generous, for a busy machine: only an endless loop should time out.
            results.append((mutant, killer(mutant, tests, scratch, limit=600 + 10 * options.seconds)))
            before, after = difference(mutant)
            verdict = f"killed by {results[-1][1]}" if results[-1][1] else f"SURVIVED {len(tests)} tests"
            print(f"{mutant.path}:{mutant.line} {verdict}\n- {before}\n+ {after}", flush=True)
        killers = sorted({killer for _, killer in results if "::" in killer})
        if failed := run(killers, scratch, limit=3600):
            raise SystemExit(f"no verdict: {failed} also fails without mutants")
    print("\n" + table(results))


if __name__ == "__main__":
    main()
