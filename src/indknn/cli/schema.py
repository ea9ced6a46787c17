"""`indknn schema`: makes schemas from a public sample, from noisy counts that people pay for, or by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from indknn.cli.options import JSON, STORE, WITNESS, StorePlace, class_names, show
from indknn.errors import IndKNNError, InvalidInputError
from indknn.place import Place
from indknn.store import Store
from indknn.store.table_counts import SHARE, earlier_counts, pay_for_counts, price_of, refuse_if_late
from indknn.tables.counts import schema_from
from indknn.tables.infer import TEMPLATE, Inferred, check, infer
from indknn.tables.read import Columns, read_table
from indknn.tables.schema import is_yaml, read_schema, schema_text
from indknn.types import GRID

_PUBLIC = click.argument("public", type=click.Path(path_type=Path))
_USUAL = {"label": "y", "owner": "owner", "record_id": "record_id"}


@click.group("schema")
def schema_group() -> None:
    """Make and check schemas. A schema is a public description of columns that turns rows of a table into vectors.

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
@click.option("--classes", help="The labels that can occur, as a,b,c. Default: the labels of a public sample.")
@click.option("--paid", type=StorePlace(), metavar="STORE", help="The file is private: charge its people in STORE.")
@click.option("--yes", is_flag=True, help="With --paid: charge without asking.")
@WITNESS
def infer_command(
    public: Path,
    out: Path | None,
    extractor: str | None,
    classes: str | None,
    paid: Place | None,
    yes: bool,
    witness: Path | None,
    **named: str | None,
) -> None:
    """Make a schema from a PUBLIC sample: csv, tsv, JSON lines, parquet, Arrow or Excel.

    Bounds, knots and lists of categories are taken from the sample and become public. Never give it private rows,
    except with --paid. About 1,000 rows are enough. Read the schema before you use it, and correct it with an editor.

    If you have no public sample, use --paid STORE with the file of private records that you are going to add. STORE is
    a new store without a schema. Then the schema is made from noisy counts. Everybody in the file pays for them once:
    5% of the part of their budget that is for what all analysts see. The names of the columns become public.

    \b
    Examples:
      indknn schema infer public.csv --label income -o schema.yaml
      indknn schema infer tickets.jsonl --label topic --extractor all-MiniLM-L6-v2 -o schema.json

    \b
    Without a public sample:
      indknn init patients.store
      indknn schema infer visits.csv --paid patients.store --owner patient --label diagnosis -o schema.yaml
      indknn schema adopt patients.store schema.yaml
      indknn add patients.store visits.csv
    """
    if out is not None and out.exists():
        raise InvalidInputError(f"{out} exists already; it may hold your corrections, so it is not overwritten")
    table = read_table(public)
    roles = {role: named[role] or (usual if usual in table else None) for role, usual in _USUAL.items()}
    for name in filter(None, roles.values()):
        if name not in table:
            raise InvalidInputError(f"column {name!r} is missing: the table has only {', '.join(table)}")
    if paid is None:
        found, source = infer(table, extractor=extractor, **roles), "public rows"
        if classes is not None:
            found = replace(found, schema=replace(found.schema, classes=class_names(classes)))
    else:
        found, source = _paid(table, roles, () if classes is None else class_names(classes), paid, yes, witness), "rows"
    if out is None:
        try:
            text = schema_text(found.schema, as_yaml=True, notes=found.notes)
        except IndKNNError:  # no pyyaml
            text = schema_text(found.schema, as_yaml=False)
        click.echo(text, nl=False)
        return
    out.write_text(schema_text(found.schema, as_yaml=is_yaml(out), notes=found.notes), encoding="utf-8")
    click.echo(f"{out}: {len(found.schema.used)} columns, from {len(next(iter(table.values()))):,} {source}")
    for note in found.notes:
        click.echo(f"  {note}")


def _paid(
    table: Columns, roles: dict[str, str | None], classes: tuple[Any, ...], paid: Place, yes: bool, witness: Path | None
) -> Inferred:
    """Make a schema from noisy counts. People pay for them now, unless they were paid for before."""
    owner = roles["owner"]
    if owner is None:
        raise InvalidInputError("--paid needs --owner, the column of the owners, because the owners are charged")
    columns = {name: values for name, values in table.items() if name not in roles.values()}
    with Store(paid, witness=witness) as opened:
        counts = earlier_counts(opened)
        if counts is None:
            refuse_if_late(opened)
            price, B = price_of(opened.settings), opened.settings.budget
            part = f"{SHARE:.0%} of the part of it that is for what all analysts see"
            click.echo(f"everybody in the file pays up to {price:.4g} of their budget of {B:.4g}: {part}", err=True)
            if not yes:
                click.confirm("charge them?", abort=True, err=True)
            counts = pay_for_counts(opened, columns, table[owner])
        else:
            click.echo("paid for before: nobody is charged again", err=True)
    if counts.names != tuple(columns):
        raise InvalidInputError(f"the counts in {paid} are of other columns: {', '.join(counts.names)}")
    return schema_from(counts.names, counts.cells / GRID, counts.scale / GRID, classes=classes, **roles)


@schema_group.command("adopt")
@STORE
@click.argument("schema", type=click.Path(path_type=Path))
@WITNESS
@JSON
def adopt_command(store: Place, schema: Path, witness: Path | None, in_json: bool) -> None:
    """Give a schema to a store that has no records yet. This is possible only once.

    \b
    Example:
      indknn schema adopt patients.store schema.yaml
    """
    read = read_schema(schema)
    with Store(store, witness=witness) as opened:
        opened.adopt(read)
    facts = {"store": str(store), "columns": len(read.used), "features": read.n_features}
    show(facts, in_json, f"{store}: {len(read.used)} columns, {read.n_features} features")


@schema_group.command("template")
def template_command() -> None:
    """Print a schema with comments that you can fill in.

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
    """Check a schema against a PUBLIC sample. The exit code is 1 if something does not fit.

    It shows which columns are missing or clipped, which outweigh all others, and which labels are not listed.

    \b
    Example:
      indknn schema check schema.yaml public.csv
    """
    found = list(check(read_schema(schema), read_table(public)))
    facts = [{"ok": one.ok, "what": one.what, "found": one.seen} for one in found]
    show(facts, in_json, *(f"{'ok  ' if one.ok else 'BAD '} {one.what:<24}{one.seen}" for one in found))
    ctx.exit(0 if all(one.ok for one in found) else 1)
