"""Translate the documents of a folder to themselves, and count those that come back the same.

A model that copies stands in for one that translates, so whatever differs was lost or damaged by taking the document
apart:

    python scripts/measure_documents.py docs/

Markdown and HTML count as the same if they are rendered the same, Markdown with the packages mdit-py-plugins or, with
`--mkdocs`, pymdown-extensions.
"""

import argparse
import re
from collections import Counter
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from itertools import zip_longest
from os.path import commonprefix
from pathlib import Path
from typing import Any

from hf_vanilla_transformer.documents import Segment, kind_of, open_document
from hf_vanilla_transformer.documents.html_parser import INLINE
from hf_vanilla_transformer.errors import DataError


class _Page(HTMLParser):
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
    page = _Page()
    page.feed(html)
    page.close()
    return [part for part in page.shown if part[1] != ""]


def _markdown_it() -> Callable[[str], str]:
    """Return a renderer of CommonMark, tables and MyST, which renders directives as the Markdown in them."""
    from markdown_it import MarkdownIt
    from mdit_py_plugins import admon, colon_fence, deflist, dollarmath, footnote, myst_role

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    for plugin in (admon.admon_plugin, colon_fence.colon_fence_plugin, deflist.deflist_plugin):
        parser.use(plugin)
    parser.use(dollarmath.dollarmath_plugin).use(footnote.footnote_plugin).use(myst_role.myst_role_plugin)
    plain = parser.renderer.rules["fence"]

    def fence(tokens: Any, index: int, *others: Any) -> str:
        is_directive = tokens[index].type == "colon_fence" or tokens[index].info.strip().startswith("{")
        return parser.render(tokens[index].content) if is_directive else plain(tokens, index, *others)

    parser.renderer.rules |= {"fence": fence, "colon_fence": fence}
    return parser.render


def _mkdocs() -> Callable[[str], str]:
    from markdown import Markdown

    names = "admonition abbr attr_list def_list footnotes md_in_html tables pymdownx.details pymdownx.superfences"
    names += " pymdownx.tabbed pymdownx.arithmatex pymdownx.keys pymdownx.mark pymdownx.tasklist pymdownx.emoji"
    parser = Markdown(extensions=names.split())
    return lambda text: parser.reset().convert(text)


def copied(segment: Segment) -> str:
    return segment.fill(segment.text, [(index, index) for index in range(len(segment.text.split()))])


def outcomes(folder: Path, render: Callable[[str], str]) -> Iterator[tuple[str, Path, str]]:
    """Yield the kind, path and outcome of each document; `render` renders Markdown."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        if not (kind := kind_of(path)):
            continue
        content = path.read_bytes()
        try:
            document = open_document(content, kind, name=str(path))
        except DataError as error:
            yield kind, path, f"refused: {error}"
            continue
        rendered = bytes(document.render(map(copied, document.segments)))
        if rendered == content:
            yield kind, path, "same bytes"
        elif kind in ("html", "markdown"):
            pages = (
                shown(render(page.decode()) if kind == "markdown" else page.decode()) for page in (content, rendered)
            )
            yield kind, path, _comparison(*pages)
        else:
            yield kind, path, "differs"


def _comparison(before: list[tuple[str, object]], after: list[tuple[str, object]]) -> str:
    for old, new in zip_longest(before, after):
        if old != new:
            common = len(commonprefix((str(old), str(new))))
            return f"differs: {str(old)[max(common - 40, 0) :][:99]} became {str(new)[max(common - 40, 0) :][:99]}"
    return "same when rendered"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder of documents, searched recursively")
    parser.add_argument("--mkdocs", action="store_true", help="render Markdown as MkDocs does")
    arguments = parser.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    for kind, path, outcome in outcomes(arguments.folder, _mkdocs() if arguments.mkdocs else _markdown_it()):
        counts[kind, outcome.partition(":")[0]] += 1
        if not outcome.startswith("same"):
            print(f"{path}: {outcome}")
    for (kind, outcome), count in sorted(counts.items()):
        print(f"{kind}: {outcome}: {count}")


if __name__ == "__main__":
    main()
