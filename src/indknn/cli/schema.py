"""`indknn schema`: what the columns of a table are, from a public sample or by hand."""

from __future__ import annotations

from pathlib import Path

import click

from indknn.cli.options import JSON, show
from indknn.errors import IndKNNError, InvalidInputError
from indknn.tables import infer, read_schema
from indknn.tables.check import check
from indknn.tables.files import read_table
from indknn.tables.template import TEMPLATE
from indknn.tables.written import is_yaml, schema_text

_PUBLIC = click.argument("public", type=click.Path(path_type=Path))
_USUAL = {"label": "y", "owner": "owner", "record_id": "record_id"}


@click.group("schema")
def schema_group() -> None:
    """Say what the columns of your tables are, so that rows become vectors by public means.

    \b
    Example:
      indknn schema infer public.csv --label diagnosis --owner patient -o schema.yaml
      indknn schema check schema.yaml public.csv
      indknn init patients.store --schema schema.yaml
      indknn add patients.store visits.csv
    """


@schema_group.command("infer")
@_PUBLIC
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write the schema here (yaml or json).")
@click.option("--label", help="Column of the label. Default: y, if there is one.")
@click.option("--owner", help="Column of the owner. Default: owner, if there is one.")
@click.option("--record-id", "record_id", help="Column of your own ids. Default: record_id, if there is one.")
@click.option("--extractor", help="The model for columns of text: its name or its folder.")
def infer_command(public: Path, out: Path | None, extractor: str | None, **named: str | None) -> None:
    """Make a schema from a PUBLIC sample: csv, JSON lines, parquet or Arrow.

    Bounds, knots and lists of categories are taken from the sample and become public. Never give it private rows. Some
    1,000 rows are enough. Read the schema before you use it, and correct it with an editor.

    \b
    Examples:
      indknn schema infer public.csv --label income -o schema.yaml
      indknn schema infer tickets.jsonl --label topic --extractor all-MiniLM-L6-v2 -o schema.json
    """
    if out is not None and out.exists():
        raise InvalidInputError(f"{out} exists already; it may hold your corrections, so it is not overwritten")
    table = read_table(public)
    roles = {role: named[role] or (usual if usual in table else None) for role, usual in _USUAL.items()}
    found = infer(table, extractor=extractor, **roles)
    if out is None:
        try:
            text = schema_text(found.schema, as_yaml=True, notes=found.notes)
        except IndKNNError:  # no pyyaml
            text = schema_text(found.schema, as_yaml=False)
        click.echo(text, nl=False)
        return
    out.write_text(schema_text(found.schema, as_yaml=is_yaml(out), notes=found.notes), encoding="utf-8")
    used = found.schema.used
    click.echo(f"{out}: {len(used)} columns, from {len(next(iter(table.values()))):,} public rows")
    for note in found.notes:
        click.echo(f"  {note}")


@schema_group.command("template")
def template_command() -> None:
    """Print a schema with comments, to fill in by hand.

    \b
    Example:
      indknn schema template > schema.yaml
    """
    click.echo(TEMPLATE, nl=False)


@schema_group.command("check")
@click.argument("schema", type=click.Path(path_type=Path))
@_PUBLIC
@JSON
@click.pass_context
def check_command(ctx: click.Context, schema: Path, public: Path, in_json: bool) -> None:
    """Check a schema against a PUBLIC sample. Exit code 1 if something does not fit.

    It tells which columns are missing or clipped, which outweigh all others, and which labels are not listed.

    \b
    Example:
      indknn schema check schema.yaml public.csv
    """
    found = list(check(read_schema(schema), read_table(public)))
    facts = [{"ok": one.ok, "what": one.what, "found": one.seen} for one in found]
    show(facts, in_json, *(f"{'ok  ' if one.ok else 'BAD '} {one.what:<24}{one.seen}" for one in found))
    ctx.exit(0 if all(one.ok for one in found) else 1)
