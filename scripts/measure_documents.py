"""Check on your own files that documents are read and written without loss: each is "translated" into itself.

    python scripts/measure_documents.py my-documents

Prints a table with a row for each format, then the files that did not come back, with the reason:

- equal: each byte is that of the file.
- filled in: the same but for missing translations, which PO and XLIFF have room for.
- spaces: the same but for white space.
- changed: anything else, with the first line that differs.
- refused: files that are not read, with the message.
"""

import re
from argparse import ArgumentParser
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from _imports import importing

with importing():
    from hf_vanilla_transformer.documents import Segment, kind_of, open_document
    from hf_vanilla_transformer.errors import DataError, one_line

RESULTS = ("equal", "filled in", "spaces", "changed", "refused")
# Lines that a translation replaces, and the encoding that templates leave open.
REPLACED = re.compile(rb'\s*(msgstr(\[\d+\])? ""|<target[ />].*|.*charset=CHARSET.*)\s*')


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path, help="folder with documents, also in folders within")
    folder = parser.parse_args().folder
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (kind := kind_of(path)):
            result, reason = measured(path, kind)
            counts[kind][result] += 1
            reasons += [f"{result}: {path}{reason}"] * (result in RESULTS[2:])
    print(f"| format | files | {' | '.join(RESULTS)} |\n|---|{'---:|' * (len(RESULTS) + 1)}")
    for kind, results in sorted(counts.items()):
        print(f"| {kind} | {results.total()} | {' | '.join(str(results[result]) for result in RESULTS)} |")
    print(*reasons, sep="\n")


def measured(path: Path, kind: str) -> tuple[str, str]:
    """Return the result for a file, and the reason."""
    content = path.read_bytes()
    try:
        document = open_document(content, kind, name=path.name)
        rendered = document.render(map(unchanged, document.segments))
    except DataError as error:
        return "refused", f": {one_line(error)}"
    assert isinstance(rendered, bytes)
    if rendered == content:
        return "equal", ""
    lines = iter(rendered.splitlines())
    lost = next((line for line in content.splitlines() if not REPLACED.fullmatch(line) and line not in lines), None)
    if lost is None and kind in ("po", "xliff"):
        return "filled in", ""
    if rendered.split() == content.split():
        return "spaces", ""
    return "changed", f": {next(differences(content, rendered))}"


def unchanged(segment: Segment) -> str:
    return segment.fill(segment.text, [(word, word) for word in range(len(segment.text.split()))])


def differences(old: bytes, new: bytes) -> Iterator[str]:
    for number, (before, after) in enumerate(zip(old.splitlines(), new.splitlines(), strict=False), start=1):
        if before.split() != after.split():
            yield f"line {number}: {before!r} -> {after!r}"
    yield "the last lines"


if __name__ == "__main__":
    with importing():
        main()
