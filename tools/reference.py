"""Write the reference pages of the command line and of HTTP: `python -m tools.reference`.

Both pages are generated from the program, so they agree with it. A test fails if they are out of date.
"""

from __future__ import annotations

import inspect
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from indknn.cli.app import app
from indknn.server.app import create_app
from indknn.server.schemas import PROBLEMS, completed
from indknn.settings import ServerOptions, Settings
from indknn.store import Store

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
NOTE = "<!-- Written by `python -m tools.reference`. Do not edit. -->\n"


def command_line() -> str:
    """Every command with its help and its options."""
    context = click.Context(app, info_name="indknn")
    lines = [
        "# Command line reference",
        "",
        NOTE,
        "[The command line](../cli.md) explains how the commands work together.",
        "",
    ]
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        lines += _command(command, click.Context(command, info_name=name, parent=context), 2)
    return "\n".join(lines).rstrip() + "\n"


def _command(command: click.Command, context: click.Context, level: int) -> Iterator[str]:
    yield f"{'#' * level} {context.command_path}"
    yield ""
    yield from _words(command.help or "")
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _command(below, click.Context(below, info_name=name, parent=context), level + 1)
        return
    yield f"```text\n{' '.join([context.command_path, *command.collect_usage_pieces(context)])}\n```"
    yield ""
    options = [one for one in command.params if isinstance(one, click.Option) and not one.hidden]
    if options:
        yield from ("| option | default | what it does |", "|---|---|---|")
        yield from (_option(one, context) for one in options)
        yield ""


def _words(text: str) -> Iterator[str]:
    """The help of a command in Markdown. Examples become code blocks."""
    for part in inspect.cleandoc(text).split("\n\n"):
        if not part.startswith("\b"):
            yield from (_plain(part), "")
            continue
        first, _, rest = part.removeprefix("\b\n").partition("\n")
        yield from (_plain(first), "", "```console", inspect.cleandoc(rest), "```", "")


def _option(one: click.Option, context: click.Context) -> str:
    names = ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts))
    kind = "" if one.is_flag else f" {_cell(one.metavar or one.make_metavar(context))}"
    default = one.get_default(context, call=False)
    shown = f"`{default}`" if one.show_default and default is not None and not callable(default) else ""
    required = "**required**" if one.required else shown
    return f"| {names}{kind} | {required} | {_cell(one.help or '')} |"


def _plain(text: str) -> str:
    return text.replace("<", "&lt;").replace("*", "\\*")


def _cell(text: str) -> str:
    return _plain(" ".join(text.split())).replace("|", "\\|")


def http() -> str:
    """Every route with its parameters, body and answer, from the OpenAPI document of the server."""
    document = openapi()
    lines = ["# HTTP reference", "", NOTE, "[The HTTP service](../http-api.md) explains how the routes work together."]
    lines += ["A running server has this page as `/openapi.json`.", "", document["info"]["description"], ""]
    lines += [f"Any route may answer with one of these errors: {', '.join(map(str, PROBLEMS))}.", ""]
    for path, methods in document["paths"].items():
        for method, facts in methods.items():
            lines += _route(method.upper(), path, facts, document)
    return "\n".join(lines).rstrip() + "\n"


def openapi() -> dict[str, Any]:
    """The OpenAPI document of a server with a small store of three features."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "people.store"
        with Store.create(path, Settings(3, ("healthy", "ill"), tau=0.5)) as store:
            served = create_app(store, options=ServerOptions(name="people"))
            document = completed(served.app.openapi(), served.service)
            served.service.close()
    return document


def _route(method: str, path: str, facts: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    yield from (f"## {method} {path}", "", _plain(facts.get("description") or facts.get("summary", "")), "")
    named = facts.get("parameters", [])
    if named:
        yield from ("| parameter | in | kind |", "|---|---|---|")
        for one in named:
            needed = ", required" if one.get("required") else ""
            yield f"| `{one['name']}` | {one['in']}{needed} | {_cell(_kind(one['schema']))} |"
        yield ""
    for kind, content in facts.get("requestBody", {}).get("content", {}).items():
        yield from _content(f"Body, `{kind}`", content, document)
    answers = {str(status): answer for status, answer in facts["responses"].items()}
    for kind, content in answers["200"].get("content", {}).items():
        yield from _content(f"Answer, `{kind}`", content, document)


def _content(title: str, content: dict[str, Any], document: dict[str, Any]) -> Iterator[str]:
    schema = _resolved(content.get("schema", {}), document)
    if "properties" in schema or "example" in content:
        yield from (f"{title}:", "")
    if "properties" in schema:
        yield from ("| field | kind | what it is |", "|---|---|---|")
        for name, one in schema["properties"].items():
            needed = ", required" if name in schema.get("required", ()) else ""
            one = _resolved(one, document)  # noqa: PLW2901
            yield f"| `{name}` | {_cell(_kind(one))}{needed} | {_cell(one.get('description', ''))} |"
            for below, two in _resolved(one.get("items", {}), document).get("properties", {}).items():
                about = _cell(_resolved(two, document).get("description", ""))
                yield f"| `{name}[].{below}` | {_cell(_kind(_resolved(two, document)))} | {about} |"
        yield ""
    if "example" in content:
        yield from ("```json", json.dumps(content["example"], indent=1, ensure_ascii=False), "```", "")


def _resolved(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return document["components"]["schemas"][name] if name else schema


def _kind(schema: dict[str, Any]) -> str:
    """The type of a field in a few words. It uses only what does not depend on the version of a library."""
    if "enum" in schema:
        return "one of " + ", ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kinds = [one.get("type", "object") for one in schema.get("anyOf", [schema])]
    flat = [name for kind in kinds for name in (kind if isinstance(kind, list) else [kind])]
    return " or ".join(dict.fromkeys(flat))


PAGES = {"cli.md": command_line, "http.md": http}


def main() -> None:
    """Write both pages."""
    for name, make in PAGES.items():
        (FOLDER / name).write_text(make())


if __name__ == "__main__":
    sys.exit(main())
