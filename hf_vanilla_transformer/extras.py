"""The packages of this package's extras, by its metadata."""

import re
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, requires

NAME = "hf-vanilla-transformer"

# A requirement: its package, the package's own extras, its versions, and the extra of ours that it belongs to.
_REQUIREMENT = re.compile(r"([\w.-]+) *(\[[^\]]*\])? *\(?([^;)]*)\)? *(?:;.*extra *== *['\"]([\w-]+)['\"])?")


def requirements(extra: str | None) -> list[str]:
    """List the requirements of an extra, or of the package itself, such as `datasets>=4.0`.

    Raises:
        PackageNotFoundError: The package runs from a folder in which nothing was installed.
    """
    return list(dict.fromkeys(_requirements(extra)))


def install_command(extra: str) -> str:
    """Return the command that installs the missing packages of this package and an extra, or else the extra's.

    In a folder in which nothing was installed, the command installs what is in the folder.
    """
    try:
        own, packages = ([re.split("[<>=!~]", text)[0] for text in requirements(name)] for name in (None, extra))
    except PackageNotFoundError:
        return f'pip install ".[{extra}]"'
    missing = [package for package in own + packages if not _is_installed(package.partition("[")[0])]
    return " ".join(("pip install", *(f'"{name}"' if "[" in name else name for name in missing or packages)))


def _requirements(extra: str | None) -> Iterator[str]:
    for text in requires(NAME) or ():
        match = _REQUIREMENT.match(text)
        if match is None or match[4] != extra:
            continue
        package, extras, versions, _ = match.groups()
        if package != NAME:
            yield f"{package}{extras or ''}{versions.strip()}"
            continue
        for own in (extras or "").strip("[]").split(","):
            yield from _requirements(own.strip())


def _is_installed(package: str) -> bool:
    try:
        distribution(package)
    except PackageNotFoundError:
        return False
    return True
