"""The page at /docs: routes and their fields, from the application's OpenAPI schema.

FastAPI's own page loads its scripts from another site. This one has none, and works without network.
"""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem; }
pre, code { font: .9em/1.5 ui-monospace, monospace; }
pre { overflow-x: auto; border: 1px solid #8886; border-radius: 6px; padding: .75rem; }
.fields { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884; }
"""


def docs_page(schema: Mapping[str, Any]) -> str:
    """Return the page of an OpenAPI schema as HTML."""
    title = escape(schema["info"]["title"])
    routes = (
        part
        for path, methods in schema["paths"].items()
        for method, route in methods.items()
        for part in _route(schema, method.upper(), path, route)
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta name="viewport" content="width=device-width"><style>{STYLE}</style></head><body>'
        f"<h1>{title}</h1><p>{escape(schema['info']['description'])} The same for programs: "
        f'<a href="openapi.json">openapi.json</a>.</p>{"".join(routes)}</body></html>'
    )


def _route(schema: Mapping[str, Any], method: str, path: str, route: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section><h2><code>{method} {escape(path)}</code></h2><p>{escape(route.get('description', ''))}</p>"
    contents = route.get("requestBody", {}).get("content", {})
    if contents:
        body = _resolve(schema, next(iter(contents.values()))["schema"])
        yield f"<h3>Request</h3><p>{escape(', '.join(contents))}</p>{_fields(schema, body)}"
        for example in body.get("examples", ()):
            command = f"curl http://127.0.0.1:8000{path} --json '{json.dumps(example)}'"
            yield f"<pre>{escape(command)}</pre>"
    answer = route["responses"].get("200", {}).get("content", {}).get("application/json", {}).get("schema", {})
    for name, part in _answers(schema, answer):
        yield f"<h3>{escape(name)}</h3>{_fields(schema, part)}"
    yield "</section>"


def _answers(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects of an answer by their names, the outermost first."""
    resolved = _resolve(schema, part)
    if "properties" in resolved:
        yield resolved["title"], resolved
    inner = [*resolved.get("properties", {}).values(), *part.get("anyOf", ()), part.get("items")]
    for each in filter(None, inner):
        yield from _answers(schema, each)


def _fields(schema: Mapping[str, Any], part: Mapping[str, Any]) -> str:
    required = part.get("required", ())
    rows = "".join(
        f"<tr><th scope='row'><code>{escape(name)}</code></th><td>{escape(_type(schema, field))}</td>"
        f"<td>{'required' if name in required else ''}</td><td>{escape(field.get('description', ''))}</td></tr>"
        for name, field in part.get("properties", {}).items()
    )
    return f"<div class='fields'><table>{rows}</table></div>"


def _type(schema: Mapping[str, Any], field: Mapping[str, Any]) -> str:
    """Return the type of a field in words."""
    if "anyOf" in field:
        return " or ".join(_type(schema, each) for each in field["anyOf"] if each.get("type") != "null")
    if "enum" in field:
        return " or ".join(map(str, field["enum"]))
    if "$ref" in field:
        return _resolve(schema, field)["title"]
    if field.get("type") == "array":
        return f"list of {_type(schema, field['items'])}" if "items" in field else "list"
    if field.get("type") == "object":
        return "object"
    return field.get("type", "any")


def _resolve(schema: Mapping[str, Any], part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a part refers to, or itself."""
    if "$ref" not in part:
        return part
    return schema["components"]["schemas"][part["$ref"].rpartition("/")[2]]


__all__ = ["docs_page"]
