"""The interface as one plain page, from what OpenAPI says of it; nothing of it comes from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any


def page(api: Mapping[str, Any]) -> str:
    """An HTML page of an OpenAPI description."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(api['info']['title'])}</title>\n"
        '<link rel="stylesheet" href="static/style.css">\n</head>\n<body class="reference">\n'
        f"<h1>{escape(api['info']['title'])}</h1>\n<p>{escape(api['info'].get('description', ''))}</p>\n"
        '<p>For machines: <a href="openapi.json">openapi.json</a></p>\n'
        f"{''.join(_routes(api))}\n<h2>Answers</h2>\n{''.join(_models(api))}\n</body>\n</html>\n"
    )


def _routes(api: Mapping[str, Any]) -> Iterator[str]:
    for path, methods in api["paths"].items():
        for method, told in methods.items():
            rows = "".join(map(_parameter, told.get("parameters", ())))
            yield (
                f"<h2><code>{method.upper()} {escape(path)}</code></h2>\n"
                f"<p>{escape(told.get('description', ''))} Answers {_answer(told)}.</p>\n"
                + (f"<table>\n{rows}</table>\n" if rows else "")
            )


def _parameter(told: Mapping[str, Any]) -> str:
    schema = told["schema"]
    default = f", default {escape(str(schema['default']))}" if schema.get("default") is not None else ""
    return (
        f"<tr><th><code>{escape(told['name'])}</code></th><td>{escape(_type(schema))}{default}</td>"
        f"<td>{escape(told.get('description', ''))}</td></tr>\n"
    )


def _answer(told: Mapping[str, Any]) -> str:
    content = told["responses"]["200"].get("content", {})
    schema = content.get("application/json", {}).get("schema", {})
    return _link(schema) if "$ref" in schema else escape(", ".join(content))


def _models(api: Mapping[str, Any]) -> Iterator[str]:
    for name, model in api["components"]["schemas"].items():
        rows = "".join(
            f"<tr><th><code>{escape(field)}</code></th><td>{_shown(schema)}</td></tr>\n"
            for field, schema in model.get("properties", {}).items()
        )
        said = escape(model.get("description", ""))
        yield f'<h3 id="{escape(name)}">{escape(name)}</h3>\n<p>{said}</p>\n<table>\n{rows}</table>\n'


def _shown(schema: Mapping[str, Any]) -> str:
    inner = schema.get("items", schema)
    if "$ref" in inner:
        return f"{_link(inner)}{'[]' if inner is not schema else ''}"
    return escape(_type(schema))


def _type(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "const" in schema:
        return str(schema["const"])
    if schema.get("type") == "array" and "items" in schema:
        return f"{_type(schema['items'])}[]"
    return str(schema.get("type", "any"))


def _link(schema: Mapping[str, Any]) -> str:
    name = escape(str(schema["$ref"]).rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>'
