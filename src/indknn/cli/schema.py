"""`indknn schema`: makes schemas from a public sample, from noisy counts that people pay for, or by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import click

from indknn.cli.options import JSON, STORE, WITNESS, StorePlace, class_names, show
from indknn.core.targets import as_bounds
from indknn.errors import IndKNNError, InvalidInputError
from indknn.place import Place
from indknn.store import Store
from indknn.store.table_counts import SHARE, earlier_counts, pay_for_counts, price_of, refuse_if_late
from indknn.tables.counts import schema_from
from indknn.tables.infer import TEMPLATE, Inferred, check, infer, likely_labels
from indknn.tables.read import Columns, read_table
from indknn.tables.schema import is_yaml, read_schema, schema_text
from indknn.types import GRID

_PUBLIC = click.argument("public", type=click.Path(path_type=Path))
_USUAL = {"label": "y", "owner": "owner", "record_id": "record_id", "expires": "expires", "epsilon": None}
_PROMISED = click.option("--owner-epsilon", "epsilon", help="Column of what the owner is promised, if less.")


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
@click.option("--no-label", is_flag=True, help="The sample has no label, and no column of it is one.")
@click.option("--owner", help="Column of the owner, even if the sample lacks it. Default: owner, if there is one.")
@click.option("--record-id", "record_id", help="The same for your own ids. Default: record_id, if there is one.")
@click.option(
    "--expires", help="The same for the dates from which rows take no part. Default: expires, if there is one."
)
@_PROMISED
@click.option("--extractor", help="The model for columns of text: its name or its folder.")
@click.option("--classes", help="The labels that can occur, as a,b,c. Default: the labels of a public sample.")
@click.option("--target", type=click.Choice(["class", "number"]), default="class", help="What the label is.")
@click.option("--bounds", type=(float, float), help="The lowest and highest number. Default: those of a public sample.")
@click.option("--paid", type=StorePlace(), metavar="STORE", help="The file is private: charge its people in STORE.")
@click.option("--yes", is_flag=True, help="With --paid: charge without asking.")
@WITNESS
def infer_command(
    public: Path,
    out: Path | None,
    no_label: bool,
    extractor: str | None,
    classes: str | None,
    target: str,
    bounds: tuple[float, float] | None,
    paid: Place | None,
    yes: bool,
    witness: Path | None,
    **named: str | None,
) -> None:
    """Make a schema from a PUBLIC sample: csv, tsv, JSON lines, parquet, Arrow or Excel.

    Bounds, knots and lists of categories are taken from the sample and become public. Never give it private rows,
    except with --paid. About 1,000 rows are enough. Read the schema before you use it, and correct it with an editor.
    The sample need not say whose rows they are: name the columns of your private tables with --owner and --record-id.
    If the label is a number, say --target number.

    If you have no public sample, use --paid STORE with the file of private records that you are going to add. STORE is
    a new store without a schema. Then the schema is made from noisy counts. Everybody in the file pays for them once:
    5% of the part of their budget that is for what all analysts see. The names of the columns become public.

    \b
    Examples:
      indknn schema infer public.csv --label income --owner person -o schema.yaml
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
    roles = _roles(table := read_table(public), named, no_label, private=paid is not None)
    _refuse_bounds(target, bounds, private=paid is not None)
    given, source = None if classes is None else class_names(classes), "public rows" if paid is None else "rows"
    if paid is None:
        found = infer(table, extractor=extractor, target=target, classes=given, bounds=bounds, **roles)
    else:
        found = _paid(table, roles, given or (), paid, yes, witness)
        if bounds is not None:
            found = replace(found, schema=replace(found.schema, bounds=as_bounds(bounds)))
    if out is None:
        _print(found)
        return
    out.write_text(schema_text(found.schema, as_yaml=is_yaml(out), notes=found.notes), encoding="utf-8")
    click.echo(f"{out}: {len(found.schema.used)} columns, from {len(next(iter(table.values()))):,} {source}")
    for note in found.notes:
        click.echo(f"  {note}")


def _print(found: Inferred) -> None:
    try:
        text = schema_text(found.schema, as_yaml=True, notes=found.notes)
    except IndKNNError:  # no pyyaml
        text = schema_text(found.schema, as_yaml=False)
    click.echo(text, nl=False)


def _refuse_bounds(target: str, bounds: tuple[float, float] | None, *, private: bool) -> None:
    if target != "number" and bounds is not None:
        raise InvalidInputError("--bounds are for --target number, and the target is a class")
    if private and target == "number" and bounds is None:
        raise InvalidInputError("--paid --target number needs --bounds: those of private rows are not public")


def _roles(table: Columns, named: dict[str, str | None], no_label: bool, *, private: bool) -> dict[str, str | None]:
    """The columns that were named, or else have the usual names. A private table must have all of them."""
    roles = {role: named[role] or (usual if usual in table else None) for role, usual in _USUAL.items()}
    if no_label and named["label"] is not None:
        raise InvalidInputError("--label and --no-label contradict each other")
    if no_label:
        roles["label"] = None
    elif roles["label"] is None:
        roles["label"] = _asked_label(table, [] if private else likely_labels(table))
    for name in filter(None, roles.values() if private else ()):
        if name not in table:
            raise InvalidInputError(f"column {name!r} is missing: the table has only {', '.join(table)}")
    return roles


def _asked_label(table: Columns, likely: list[str]) -> str:
    """The column of the label, which the user types. Without a terminal it must be an option."""
    if not _on_terminal():
        hint = f"{' or '.join(map(repr, likely))} may be it" if likely else f"the table has {', '.join(table)}"
        raise InvalidInputError(f"name the column of the label with --label ({hint}), or say --no-label")
    usual = likely[0] if likely else None
    return click.prompt("Which column is the label?", usual, type=click.Choice(list(table)), err=True)


def _on_terminal() -> bool:
    return sys.stdin.isatty()


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
            promised = None if roles["epsilon"] is None else table[roles["epsilon"]]
            counts = pay_for_counts(opened, columns, table[owner], promised)
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


@schema_group.command("edit")
@click.argument("target", type=StorePlace(), metavar="SCHEMA|STORE")
@click.option("--owner", help="Column of the owner.")
@click.option("--record-id", "record_id", help="Column of your own ids.")
@click.option("--expires", help="Column of the dates from which rows take no further part.")
@_PROMISED
@click.option("--ignore", "ignored", multiple=True, metavar="COLUMN", help="Ignore this column. May be repeated.")
@WITNESS
@JSON
def edit_command(
    target: Place, ignored: tuple[str, ...], witness: Path | None, in_json: bool, **named: str | None
) -> None:
    """Change which columns are the owner, the record id and the date, and which are ignored.

    SCHEMA is a file (yaml or json). The schema of a STORE can be changed only before its first records and answers.

    \b
    Examples:
      indknn schema edit schema.yaml --owner patient --record-id visit
      indknn schema edit patients.store --ignore ward
    """
    roles = {role: name for role, name in named.items() if name is not None}
    if not roles and not ignored:
        options = "--owner, --record-id, --expires, --owner-epsilon or --ignore"
        raise InvalidInputError(f"say what to change: {options}")
    if isinstance(target, Path) and (is_yaml(target) or target.suffix == ".json"):
        changed = read_schema(target).with_roles(ignored, **roles)
        target.write_text(_same_comments(target, schema_text(changed, as_yaml=is_yaml(target))), encoding="utf-8")
    else:
        with Store(target, witness=witness) as opened:
            if opened.schema is None:
                raise InvalidInputError(f"{target} has no schema; give it one with indknn schema adopt")
            changed = opened.schema.with_roles(ignored, **roles)
            opened.change_schema(changed)
    named = {"owner": changed.owner, "record_id": changed.record_id, "expires": changed.expires}
    facts = {**named, "features": changed.n_features}
    words = ", ".join(f"{role.replace('_', ' ')} {name or 'not named'}" for role, name in named.items())
    show({**facts, "columns": list(changed.used)}, in_json, f"{target}: {words}; {len(changed.used)} columns are used")


def _same_comments(file: Path, text: str) -> str:
    """The new text of a schema with the comments at the head of its file. Comments elsewhere would be lost."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True) if is_yaml(file) else []
    head = list(takewhile(lambda line: line.startswith("#") or not line.strip(), lines))
    if any(line.lstrip().startswith("#") or " #" in line for line in lines[len(head) :]):
        raise InvalidInputError(f"{file} seems to have comments, which would be lost: change it with an editor")
    return "".join(head) + text


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
