"""Supported releases are the same wherever they are listed, and have an upper bound."""

import re
import tomllib

import pytest

from hf_vanilla_transformer.model.compat_vanilla_transformer import TESTED
from paths import ROOT

REQUIREMENTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
NOXFILE = (ROOT / "noxfile.py").read_text(encoding="utf-8")
PINS = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def bounds(name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    (requirement,) = [each for each in REQUIREMENTS if re.match(rf"{name}\b", each)]
    lowest, above = re.fullmatch(rf"{name}>=([\d.]+),<([\d.]+)", requirement).groups()
    return release(lowest), release(above)


def release(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")[:2]))


def in_the_matrix(names: str) -> list[tuple[int, ...]]:
    (values,) = re.findall(rf"^{names} = (.+)$", NOXFILE, re.M)
    return [release(each.strip('"')) for each in values.split(", ")]


def test_releases_are_tested_up_to_the_bounds():
    for name, (lowest, newest) in {
        "transformers": in_the_matrix("LOWEST, NEWEST"),
        "torch": in_the_matrix("LOWEST_TORCH, NEWEST_TORCH"),
    }.items():
        assert bounds(name) == (lowest, (newest[0], newest[1] + 1))
    assert [release(each) for each in re.findall(r"\d+\.\d+", TESTED)] == in_the_matrix("LOWEST, NEWEST")


@pytest.mark.parametrize("name", ["torch", "transformers"])
def test_the_pinned_release_is_within_the_bounds(name):
    lowest, above = bounds(name)
    assert lowest <= release(re.search(rf"^{name}==([\d.]+)", PINS, re.M)[1]) < above


def test_the_weekly_workflow_runs_a_target():
    (target,) = re.findall(r"run: make (\S+)", (ROOT / ".ci" / "newest.yml").read_text(encoding="utf-8"))
    assert f"\n{target}: " in (ROOT / "Makefile").read_text(encoding="utf-8")
