"""Commands that add, replace and remove records."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from indknn.cli.options import (
    FILE,
    JSON,
    OWNER,
    RECEIPT,
    STORE,
    WITNESS,
    column_options,
    columns,
    many,
    records_of,
    show,
    stages_on_terminal,
    with_named_columns,
    write_receipt,
)
from indknn.core.advice import about_labels, tell
from indknn.core.inputs import EACH_ROW
from indknn.errors import InvalidInputError
from indknn.place import Place
from indknn.store import Store
from indknn.store.change import Synced
from indknn.tables.read import ROWS, Named, Split, is_table_file, labels_in, naming, pieces, read_table
from indknn.tables.schema import Schema


@click.command("add")
@STORE
@FILE
@column_options
@click.option("--each-row", is_flag=True, help="Every row is a new person, without an owner. For an empty store.")
@WITNESS
@JSON
def add(store: Place, file: Path, each_row: bool, witness: Path | None, in_json: bool, **given: Any) -> None:
    """Add the records of a file, all of them or none.

    FILE is npz (arrays X, y, owners, record_ids, expires, epsilons), or a table: csv or tsv (with , ; | or tabs between
    the columns), JSON lines, parquet, Arrow or Excel. Text files may be gzipped. A column may hold a list of features.
    If the store has a schema, the schema names the columns. The options can name those that it does not name.

    Owners are texts. A number becomes the text of its digits, so 17 and "17" are one person in every file. Record ids
    are your own ids, and optional. A row whose record id was added before replaces that record. A row that has expired
    already is not kept.

    \b
    Examples:
      indknn add patients.store features.npz
      indknn add patients.store visits.csv --label diagnosis --owner patient --record-id visit
    """
    named = columns(**given)
    with Store(store, witness=witness) as opened:
        known = _labels_of_draft(opened, file, named)
        with stages_on_terminal(not in_json) as count, naming(file) as at:
            found = pieces_of(file, named, opened.schema)
            added = opened.add_batches(_records(found, file, each_row, count, at), known)
        if known is not None:
            tell(about_labels())
        engine = opened.engine
        records, owners = len(engine.shard), engine.ledger.n_owners
    facts = {"added": added.added, "replaced": added.replaced, "unchanged": added.unchanged, "expired": added.expired}
    told = [f"added {added.added:,}", *(f"{word} {n:,}" for word, n in list(facts.items())[1:] if n)]
    words = f"{', '.join(told)}; now {records_of(records, owners)}"
    show({**facts, "records": records, "owners": owners}, in_json, words)


@click.command("sync")
@STORE
@FILE
@column_options
@click.option("--delete-missing", is_flag=True, help="Forget the records whose ids are not in FILE.")
@click.option("--yes", is_flag=True, help="With --delete-missing: forget without asking.")
@WITNESS
@JSON
def sync(
    store: Place, file: Path, delete_missing: bool, yes: bool, witness: Path | None, in_json: bool, **given: Any
) -> None:
    """Bring a store in step with a table, completely or not at all. Run it every night.

    New rows are added, changed rows replace their records, and equal rows stay as they are. Rows are found by their
    record ids, so every row needs one. With --delete-missing, records whose ids are not in FILE are forgotten. The
    counts are shown first, and the command asks. Records without an id stay. If a record id has another owner than
    before, nothing is changed: forget that record first.

    A second run with the same file changes nothing. No run costs anybody budget or gives any back.

    \b
    Examples:
      indknn sync patients.store visits.csv --owner patient --record-id visit
      indknn sync patients.store visits.csv --record-id visit --delete-missing
    """
    named = columns(**given)
    with Store(store, witness=witness) as opened:
        known = _labels_of_draft(opened, file, named)

        def run(agreed: Callable[[Synced], bool] | None) -> Synced:
            with stages_on_terminal(not in_json) as count, naming(file) as at:
                found = _records(pieces_of(file, named, opened.schema), file, False, count, at)
                return opened.sync_batches(found, known, delete_missing=delete_missing, agreed=agreed)

        shown = run(lambda counts: not (delete_missing and counts.missing) or yes)
        if delete_missing and shown.missing and not yes:
            click.echo(f"{_counted(shown)}. The missing records are forgotten.", err=True)
            click.confirm("go on?", abort=True, err=True)
            if run(lambda counts: counts == shown) != shown:
                raise InvalidInputError(f"{file} has changed since its rows were counted: nothing was changed")
        if known is not None:
            tell(about_labels())
        engine = opened.engine
        records, owners = len(engine.shard), engine.ledger.n_owners
    facts = {**asdict(shown), "forgotten": shown.missing if delete_missing else 0}
    words = f"{_counted(shown)}{', forgotten' if facts['forgotten'] else ''}; "
    words += f"now {records_of(records, owners)}"
    left = f"{shown.nameless:,} records have no record id and stay as they are"
    show({**facts, "records": records, "owners": owners}, in_json, words, *([left] if shown.nameless else []))


def _counted(found: Synced) -> str:
    counts = asdict(found)
    return ", ".join(f"{word} {counts[word]:,}" for word in ("added", "replaced", "unchanged", "missing"))


def _labels_of_draft(opened: Store, file: Path, named: Named) -> Any:
    """The labels in the file, if they are the first that the store sees and nobody has listed them."""
    if not opened.draft or opened.settings.classes or opened.settings.numeric:
        return None
    return labels_in(pieces_of(file, named, opened.schema), file)


def pieces_of(file: Path, named: Named, schema: Schema | None, rows: int = ROWS) -> Iterator[Split]:
    """The rows of a file, split by the schema of the store, or else by the names of the columns."""
    return pieces(file, named.split if schema is None else with_named_columns(schema).split, rows)


def _records(
    found: Iterator[Split], file: Path, each_row: bool, count: Callable[[str, int, int | None], None], at: list[int]
) -> Iterator[Any]:
    for piece in found:
        at[0] = piece.first
        if piece.y is None:
            raise InvalidInputError(f"{file} has no labels: an array y, or a column named by --label{piece.hints[0]}")
        if each_row and piece.owners is not None:
            raise InvalidInputError(f"{file} names owners, so --each-row is not for it")
        if piece.owners is None and not each_row:
            where = "an array owners, or a column named by --owner"
            hint = piece.hints[1] or "; or --each-row, if every row is a new person"
            raise InvalidInputError(f"{file} has no owners: {where}{hint}")
        who = EACH_ROW if each_row else piece.owners
        yield piece.features, piece.y, who, piece.record_ids, piece.expires, piece.epsilons
        count("records", piece.first + len(piece), None)


@click.command("forget")
@STORE
@click.argument("owners", nargs=-1, metavar="[OWNER]...")
@click.option(
    "--file",
    "listed",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Also forget the people in this file: a text file with one name per line, or a table with a column of owners.",
)
@OWNER
@click.option("--record-id", "record_ids", multiple=True, metavar="ID", help="Remove the record with this id of yours.")
@RECEIPT
@WITNESS
@JSON
def forget(
    store: Place,
    owners: tuple[str, ...],
    listed: Path | None,
    owner: str,
    record_ids: tuple[str, ...],
    receipt: Path | None,
    witness: Path | None,
    in_json: bool,
) -> None:
    """Remove every record of these people, or single records, all or none. Prints a receipt.

    What people spent stays in the ledger, under a keyed hash of their name.

    \b
    Examples:
      indknn forget patients.store patient-17 --receipt receipt.json
      indknn forget patients.store --file left.txt
      indknn forget patients.store --record-id visit-4711 --record-id visit-4712
    """
    if not owners and listed is None and not record_ids:
        raise InvalidInputError("name whom to forget: OWNER..., --file FILE or --record-id ID")
    with Store(store, witness=witness) as opened:
        people = [*owners, *([] if listed is None else _people_in(listed, owner, opened.schema))]
        facts = opened.forget(list(dict.fromkeys(people)), record_ids=record_ids)
    write_receipt(receipt, facts)
    show(
        facts,
        in_json,
        f"forgotten: {many(facts['owners_forgotten'], 'person', 'people')}, {many(facts['records'], 'record')}, "
        f"at {facts['at']}",
        *([facts["held"]] if "held" in facts else []),
        facts["released"],
        f"audit trail: entry with hash {facts['audit_hash']}",
    )


@click.command("expire")
@STORE
@WITNESS
@JSON
def expire(store: Place, witness: Path | None, in_json: bool) -> None:
    """Erase the records that have expired, as if they had been forgotten.

    They take no part from the moment of their dates, whether or not they were erased. Every command that opens a store
    for writing erases some of them, and a server erases them while nobody waits. This command erases all of them.

    \b
    Example:
      indknn expire patients.store
    """
    with Store(store, witness=witness) as opened:
        before = len(opened.engine.shard)
        erased = opened.expire()
        left = len(opened.engine.shard)
    show({"erased": erased, "records": left}, in_json, f"erased {erased:,} of {before:,} records, which had expired")


@click.command("hold")
@STORE
@click.argument("owners", nargs=-1, metavar="[OWNER]...")
@click.option("--release", is_flag=True, help="End the hold. What was due meanwhile is erased now. Prints a receipt.")
@RECEIPT
@WITNESS
@JSON
def hold(
    store: Place, owners: tuple[str, ...], release: bool, receipt: Path | None, witness: Path | None, in_json: bool
) -> None:
    """Put people under a legal hold, or list who is.

    From now on their records take no part, and nothing erases their bytes: neither the dates of records nor forget.
    Only for the curator: do not show it to analysts.

    \b
    Examples:
      indknn hold patients.store patient-17
      indknn hold patients.store
      indknn hold patients.store patient-17 --release --receipt receipt.json
    """
    with Store(store, witness=witness) as opened:
        if release:
            facts = opened.release_hold(owners)
            write_receipt(receipt, facts)
            erased, people = many(facts["records"], "record"), many(facts["owners_forgotten"], "person", "people")
            words = f"released; erased what was due: {erased}, {people}"
            show(facts, in_json, words, f"audit trail: entry with hash {facts['audit_hash']}")
            return
        if owners:
            opened.hold(owners)
        held = opened.holds
    show(
        {"held": held}, in_json, f"under a hold: {many(len(held), 'person', 'people')}", *(f"  {name}" for name in held)
    )


def _people_in(file: Path, owner: str, schema: Schema | None) -> list[Any]:
    """The people in a file: the owners of a table, or one name per line."""
    if file.suffix == ".txt":
        lines = file.read_text(encoding="utf-8-sig").split("\n")  # not splitlines: a name may hold other ends of lines
        people: list[Any] = [name for line in lines if (name := line.removesuffix("\r"))]
    elif is_table_file(file):
        said = click.get_current_context().get_parameter_source("owner") is click.core.ParameterSource.COMMANDLINE
        named, table = owner if said or schema is None else schema.owner or owner, read_table(file)
        if named not in table:
            raise InvalidInputError(f"{file}: no column {named!r}, only {', '.join(table)}; name it by --owner")
        people = table[named]
    else:
        raise InvalidInputError(f"{file} must be a text file that ends in .txt, or a table")
    if not people:
        raise InvalidInputError(f"{file} names nobody")
    return people
