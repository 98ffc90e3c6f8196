"""Check on your own files that documents are read and written without loss: each is "translated" into itself.

    python scripts/measure_documents.py my-documents

Prints a table with a row for each format, then the files that did not come back, with the reason:

- equal: each byte is that of the file.
- rendered: Markdown (by markdown-it-py and mdit-py-plugins, or as MkDocs does) and HTML that show the same.
- filled in: the same but for missing translations, which PO and XLIFF have room for.
- spaces: the same but for white space.
- changed: anything else, with the first line that differs.
- refused: files that are not read, with the message.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from _imports import importing

with importing():
    from hf_vanilla_transformer.cli.options import OneLineParser, one_line_errors
    from hf_vanilla_transformer.documents import Segment, kind_of, open_document
    from hf_vanilla_transformer.documents.html_parser import INLINE
    from hf_vanilla_transformer.errors import DataError, one_line

RESULTS = ("equal", "rendered", "filled in", "spaces", "changed", "refused")
# Lines that a translation replaces, and the encoding that templates leave open.
REPLACED = re.compile(rb'\s*(msgstr(\[\d+\])? ""|<target[ />].*|.*charset=CHARSET.*)\s*')


class Page(HTMLParser):
    """What a browser shows: tags and text, with white space collapsed."""

    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[str, object]] = []
        self._depth_of_pre = 0
        self._after_space = True

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._depth_of_pre += tag in ("pre", "textarea")
        self._add_tag(tag, [(name, " ".join((value or "").split())) for name, value in attributes])

    def handle_endtag(self, tag: str) -> None:
        self._depth_of_pre -= tag in ("pre", "textarea") and self._depth_of_pre > 0
        self._add_tag(f"/{tag}", [])

    def handle_data(self, data: str) -> None:
        if not self._depth_of_pre:
            data = re.sub(r"[ \t\r\n\f]+", " ", data)
            data = data[1:] if self._after_space and data.startswith(" ") else data
            if data.startswith(" ") and (last := self._last_text()) is not None:
                # Where the space is among inline tags does not show.
                self.shown[last] = "", f"{self.shown[last][1]} "
                data = data[1:]
                self._after_space = True
        if data:
            self._after_space = data.endswith(" ")
            previous = self.shown.pop()[1] if self.shown and self.shown[-1][0] == "" else ""
            self.shown.append(("", f"{previous}{data}"))

    def _add_tag(self, tag: str, attributes: list[tuple[str, str]]) -> None:
        if tag.strip("/") not in INLINE or tag == "br":
            if self._after_space and not self._depth_of_pre:
                self._strip()
            self._after_space = True
        self.shown.append((tag, attributes))

    def _strip(self) -> None:
        """Remove the space at the end of a block."""
        if (last := self._last_text()) is not None:
            self.shown[last] = "", str(self.shown[last][1]).removesuffix(" ")

    def _last_text(self) -> int | None:
        return next((index for index in range(len(self.shown) - 1, -1, -1) if self.shown[index][0] == ""), None)


def shown(html: str) -> list[tuple[str, object]]:
    """Return the tags and texts of a page."""
    page = Page()
    page.feed(html)
    page.close()
    return [part for part in page.shown if part[1] != ""]


def markdown_renderer() -> Callable[[str], str]:
    """Return a renderer of CommonMark, tables and MyST, which renders directives as the Markdown in them."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins import admon, colon_fence, deflist, dollarmath, footnote, myst_role

    parser: Any = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for plugin in (admon.admon_plugin, colon_fence.colon_fence_plugin, deflist.deflist_plugin):
        parser.use(plugin)
    parser.use(dollarmath.dollarmath_plugin).use(footnote.footnote_plugin).use(myst_role.myst_role_plugin)
    plain = parser.renderer.rules["fence"]

    def fence(tokens: Any, index: int, *others: Any) -> str:
        is_directive = tokens[index].type == "colon_fence" or tokens[index].info.strip().startswith("{")
        return str(parser.render(tokens[index].content) if is_directive else plain(tokens, index, *others))

    parser.renderer.rules |= {"fence": fence, "colon_fence": fence}
    return lambda text: str(parser.render(text))


def mkdocs_renderer() -> Callable[[str], str]:
    from markdown import Markdown

    names = "admonition abbr attr_list def_list footnotes md_in_html tables pymdownx.details pymdownx.superfences"
    names += " pymdownx.tabbed pymdownx.arithmatex pymdownx.keys pymdownx.mark pymdownx.tasklist pymdownx.emoji"
    parser = Markdown(extensions=names.split())
    return lambda text: parser.reset().convert(text)


def main(argv: list[str] | None = None) -> None:
    """Measure and print; invalid input exits with status 2 and one line on standard error."""
    parser = OneLineParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="Folder with documents, also in folders within.")
    parser.add_argument(
        "--mkdocs", action="store_true", help="Render Markdown with pymdown-extensions, as MkDocs does."
    )
    parser.add_help_options()
    with one_line_errors(parser):
        arguments = parser.parse_args(argv)
        if not arguments.folder.is_dir():
            raise ValueError(f"{arguments.folder} is no folder; name one with documents")
        with importing():
            renderer = mkdocs_renderer() if arguments.mkdocs else markdown_renderer()
        measure(arguments.folder, renderer)


def measure(folder: Path, render_markdown: Callable[[str], str]) -> None:
    """Print the table and the files that did not come back."""
    render: dict[str, Callable[[str], str]] = {"html": str, "markdown": render_markdown}
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    reasons = []
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (kind := kind_of(path)):
            result, reason = measured(path, kind, render.get(kind))
            counts[kind][result] += 1
            reasons += [f"{result}: {path}{reason}"] * (result in RESULTS[3:])
    print(f"| format | files | {' | '.join(RESULTS)} |\n|---|{'---:|' * (len(RESULTS) + 1)}")
    for kind, results in sorted(counts.items()):
        print(f"| {kind} | {results.total()} | {' | '.join(str(results[result]) for result in RESULTS)} |")
    print(*reasons, sep="\n")


def measured(path: Path, kind: str, render: Callable[[str], str] | None) -> tuple[str, str]:
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
    if render and shown(render(rendered.decode())) == shown(render(content.decode())):
        return "rendered", ""
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
    main()
