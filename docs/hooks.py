"""mkdocs shows files of the repository outside of docs/ as pages where they are linked.

The README becomes the home page and the notebook a page; other Markdown files become pages as they are, and code a
page with numbered lines, to which a link leads whose text is the name of a function or class. So the links of the
repository, relative to the file that they stand in, hold on the site too.
"""

import ast
import json
import re
from os.path import relpath
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
NOTEBOOK = DOCS / "quickstart.ipynb"
# Code, in which nothing is a link; or the end of a link: `](target#anchor)`, after its text.
CODE_OR_LINK = re.compile(
    r"^( *)```.*?^\1```$|(?P<text>`?[\w.]*`?)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)", re.M | re.S
)
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each file that a page links, and for those that these link."""
    pages = [README, NOTEBOOK, *(Path(file.abs_src_path or "") for file in files.documentation_pages())]
    for path in pages:
        # The list grows while it is read.
        pages += [linked for linked in _links(path) if linked not in pages and DOCS not in linked.parents]
        if file := files.get_file_from_path(_uri(path)):
            files.remove(file)
        files.append(File.generated(config, _uri(path), content=_content(path)))
    return files


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Tell mkdocs, which checks anchors, of those of numbered lines."""
    page.present_anchor_ids |= set(re.findall(r'id="(__codelineno-[^"]+)"', html))
    return html


def _links(path: Path) -> list[Path]:
    """Files of the repository that a Markdown file links."""
    if path.suffix != ".md":
        return []
    targets = [found["target"] for found in CODE_OR_LINK.finditer(path.read_text(encoding="utf-8")) if found["target"]]
    paths = [(path.parent / target).resolve() for target in targets if "://" not in target]
    return [each for each in dict.fromkeys(paths) if each.is_file()]


def _uri(path: Path) -> str:
    """Where a file stands on the site."""
    if path == README:
        return "index.md"
    if path == NOTEBOOK:
        return "quickstart.md"
    if DOCS in path.parents:
        return path.relative_to(DOCS).as_posix()
    return f"repository/{path.relative_to(ROOT).as_posix()}{'' if path.suffix == '.md' else '.md'}"


def _content(path: Path) -> str:
    """Markdown of a file, its links relative to where it stands on the site."""
    text = path.read_text(encoding="utf-8")
    if path == NOTEBOOK:
        return _notebook(json.loads(text))
    if path.suffix != ".md":
        language = LANGUAGES.get(path.suffix, "text")
        return f'# {path.name}\n\n`{path.relative_to(ROOT)}`\n\n````{language} linenums="1"\n{text}````\n'
    text = CODE_OR_LINK.sub(lambda found: _moved(found, path), text)
    # Pictures of a given width are HTML.
    return text.replace('src="docs/', 'src="') if path == README else text


def _moved(found: re.Match[str], path: Path) -> str:
    target = (path.parent / (found["target"] or "")).resolve()
    if not found["target"] or "://" in found["target"] or not target.is_file():
        return found[0]
    anchor = found["anchor"] or ""
    if target.suffix == ".py" and (line := line_of(found["text"].strip("`"), target)):
        anchor = f"#__codelineno-0-{line}"
    return f"{found['text']}]({relpath(_uri(target), Path(_uri(path)).parent)}{anchor})"


def line_of(name: str, path: Path) -> int | None:
    """Line of a module on which a function, a class, a method or a constant is defined."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    line = None
    for part in name.split("."):
        nodes = [node for node in body if part in _names(node)]
        if not nodes:
            return None
        line, body = nodes[0].lineno, getattr(nodes[0], "body", [])
    return line


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    targets = (
        node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    )
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _notebook(notebook: dict) -> str:
    """Cells of a notebook as Markdown."""
    cells = ((cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"])
    return "\n\n".join(source if kind == "markdown" else f"```python\n{source}\n```" for kind, source in cells) + "\n"
