"""Write the table in docs/reliability.md from pytest's reports of the reliability tests.

python tests/reliability/table.py docs/reliability.md REPORT.xml ...
"""

import platform
import re
import sys
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

BEGIN, END = "<!-- table of make test-reliability -->\n", "<!-- end of the table -->\n"
HEADER = "| part | what was tried | cases | what was lost |\n|---|---|---:|---|\n"


class Row(NamedTuple):
    part: str
    what: str
    lost: str


def rows_of(reports: list[str]) -> dict[Row, int]:
    """Return the number of cases by row; raises ValueError if a test failed."""
    counts: dict[Row, int] = {}
    for case in chain.from_iterable(ElementTree.parse(report).iter("testcase") for report in reports):
        name = f"{case.get('classname')}.{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            raise ValueError(f"{name} failed; the table is written only if all tests pass")
        part = (case.get("classname") or "").partition("reliability.test_")[2].partition(".")[0].replace("_", " ")
        for each in case.iter("property"):
            if each.get("name") == "tried":
                count, what, lost = str(each.get("value")).split("|")
                row = Row(part, what, lost)
                counts[row] = counts.get(row, 0) + int(count)
    return counts


def with_table(text: str, counts: dict[Row, int]) -> str:
    """Replace the table in a document."""
    lines = [f"| {row.part} | {row.what} | {count:,} | {row.lost} |\n" for row, count in sorted(counts.items())]
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "datasets", "tokenizers"))
    caption = f"\n{sum(counts.values()):,} cases; Python {platform.python_version()}, {versions}.\n"
    table = f"{BEGIN}{HEADER}{''.join(lines)}{caption}{END}"
    return re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", lambda _: table, text, flags=re.DOTALL)


def main(document: str, *reports: str) -> None:
    path = Path(document)
    path.write_text(with_table(path.read_text(encoding="utf-8"), rows_of(list(reports))), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
