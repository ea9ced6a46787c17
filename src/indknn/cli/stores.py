"""Commands that make or change a durable store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from indknn.cli.files import (
    FORMATS,
    ROWS,
    Answers,
    Columns,
    Piece,
    answers_in,
    as_json,
    class_names,
    digest,
    labels_in,
    naming,
    pieces,
    table_pieces,
)
from indknn.cli.labels import as_stored
from indknn.cli.options import (
    FEATURES,
    FILE,
    JSON,
    LABEL,
    OWNER,
    RECORD,
    STORE,
    WITNESS,
    columns,
    parameter_options,
    refuse_column_options,
    show,
)
from indknn.cli.progress import counting
from indknn.cli.train import public_rows
from indknn.core.advice import about_answers, about_labels, tell
from indknn.core.files import private_file
from indknn.core.inputs import EACH_ROW
from indknn.errors import InvalidInputError
from indknn.ledger.figures import guarantee
from indknn.place import Place
from indknn.settings import PARAMETERS, Settings
from indknn.store import Store
from indknn.store.backup import backup
from indknn.tables.advice import Outside
from indknn.tables.files import read_pieces
from indknn.tables.schema import Schema
from indknn.tables.written import read_schema, to_plain

_BATCH = 256


@click.command("init")
@STORE
@parameter_options(*(name for name, described in PARAMETERS.items() if described.kind is not tuple))
@click.option("--classes", help=f"{PARAMETERS['classes'].help} As a,b,c. Without it: {PARAMETERS['classes'].none}.")
@click.option("--schema", type=click.Path(path_type=Path), help="A file that describes the columns (indknn schema).")
@click.option(
    "--public",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A file of unlabelled public rows that resemble the records but belong to nobody in the store. A thousand "
    "rows make the shared model better. Without it: the queries of the first request are used.",
)
@FEATURES
@JSON
def init(
    store: Place,
    in_json: bool,
    classes: str | None,
    schema: Path | None,
    public: Path | None,
    features: str | None,
    **values: Any,
) -> None:
    """Make a new store. Its parameters are public and cannot be changed later.

    \b
    Examples:
      indknn init patients.store --epsilon 1 --tau 0.5
      indknn init patients.store --epsilon 0.5 --classes healthy,ill --max-queries 5000
      indknn init patients.store --public volunteers.csv
      indknn init patients.store --schema schema.yaml                for tables
      indknn init patients.store --prior none --max-queries 1000     the paper's Algorithm 3
    """
    labels = [] if classes is None else list(class_names(classes))
    width, draft, read = 1, True, None
    if schema is not None:
        read = read_schema(schema)
        labels, width, values["schema"] = labels or list(read.classes), read.n_features, to_plain(read)
        draft = not labels
    rows = None if public is None else public_rows(public, columns(features=features), read)
    with Store.create(store, Settings.of(width, labels, **values), draft=draft) as made:
        if rows is not None:
            made.declare_public(rows)
        B, facts, promised = made.settings.budget, made.settings.stored(draft=draft), guarantee(made.settings)
    words = f"{store}: every person may spend B = {B:.6g} with each analyst"
    show({"store": str(store), "budget": B, "guarantee": promised, **facts}, in_json, words, promised["words"])


@click.command("add")
@STORE
@FILE
@LABEL
@OWNER
@RECORD
@FEATURES
@click.option("--each-row", is_flag=True, help="Every row is a new person, without an owner. For an empty store.")
@WITNESS
@JSON
def add(
    store: Place,
    file: Path,
    label: str,
    owner: str,
    record: str,
    features: str | None,
    each_row: bool,
    witness: Path | None,
    in_json: bool,
) -> None:
    """Add the records of a file, all of them or none.

    FILE is npz (arrays X, y, owners and record_ids), csv, parquet or Arrow. A column may hold a list of features. If
    the store has a schema, FILE may also be JSON lines, and the schema names the columns.

    Owners are texts. A number becomes the text of its digits, so 17 and "17" are one person in every file. Record ids
    are your own ids, and optional. A row whose record id was added before replaces that record.

    \b
    Examples:
      indknn add patients.store features.npz
      indknn add patients.store visits.csv --label diagnosis --owner patient --record-id visit
    """
    named = columns(label, owner, features, record)
    with Store(store, witness=witness) as opened:
        known = None
        if opened.draft and not opened.settings.classes:
            known = labels_in(_pieces(file, named, opened), file)
        before = len(opened.engine.shard)
        with counting("records", not in_json) as count:
            opened.add_batches(_records(file, named, opened, each_row, count), known)
        tell([] if known is None else about_labels())
        records, owners = len(opened.engine.shard), opened.engine.ledger.n_owners
    facts = {"added": records - before, "records": records, "owners": owners}
    show(facts, in_json, f"added {records - before:,}; now {records:,} records of {owners:,} people")


def _pieces(file: Path, named: Columns, store: Store, rows: int = ROWS) -> Iterator[Piece]:
    """The rows of a file. If the store has a schema, they are encoded with it."""
    if store.schema is None:
        return pieces(file, named, rows)
    refuse_column_options()
    return table_pieces(file, store.schema, rows)


def _records(file: Path, named: Columns, store: Store, each_row: bool, count: Any) -> Iterator[tuple[Any, ...]]:
    for piece in _pieces(file, named, store):
        if piece.y is None:
            raise InvalidInputError(f"{file} has no labels: an array y, or a column named by --label")
        if each_row and piece.owners is not None:
            raise InvalidInputError(f"{file} names owners, so --each-row is not for it")
        if piece.owners is None and not each_row:
            where = "an array owners, or a column named by --owner"
            raise InvalidInputError(f"{file} has no owners: {where}; or --each-row, if every row is a new person")
        owners = EACH_ROW if each_row else piece.owners
        yield piece.X, as_stored(piece.y, store.settings), owners, piece.record_ids
        count(piece.first + len(piece.X))


@click.command("predict")
@STORE
@FILE
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="The file for the answers: npz, csv or parquet."
)
@click.option("--analyst", help="The analyst whose ledger is charged. Analysts must not share their answers.")
@click.option(
    "--proba", is_flag=True, help="Also write the probability of each class, in columns p_CLASS. This costs no budget."
)
@FEATURES
@WITNESS
@JSON
def predict(
    store: Place,
    file: Path,
    out: Path,
    analyst: str | None,
    proba: bool,
    features: str | None,
    witness: Path | None,
    in_json: bool,
) -> None:
    """Answer the queries of a file. This spends the budget of the people near them.

    After a crash, run it again: nobody pays twice for the same query.

    \b
    Examples:
      indknn predict patients.store queries.csv -o answers.csv
      indknn predict patients.store queries.csv -o answers.npz --analyst alice
      indknn predict patients.store queries.csv -o answers.csv --proba
    """
    if out.suffix not in FORMATS:
        raise InvalidInputError(f"{out} must end in one of {', '.join(FORMATS)}")
    answers: list[Any] = []
    with (
        Store(store, witness=witness) as opened,
        counting("queries", not in_json) as count,
        answers_in(out, opened.settings.class_array.tolist() if proba else None) as write,
    ):
        name = digest(file)
        if opened.schema is not None:  # all rows are checked before the first one is charged
            _check_queries(opened.schema, file)
        for piece in _pieces(file, columns(features=features), opened, _BATCH):
            told = _answered(opened, piece, f"file:{name}:{piece.first}", analyst, proba)
            write(told)
            answers += told[0]
            count(len(answers))
    tell(about_answers(answers))
    show({"answered": len(answers), "out": str(out)}, in_json, f"{len(answers):,} answers in {out}")


def _check_queries(schema: Schema, file: Path) -> None:
    """Read all queries once. A wrong value is refused with its row and column. Columns that do not fit the schema cause
    warnings."""
    outside = Outside(schema)
    if file.suffix != ".npz":
        for i, table in enumerate(read_pieces(file, ROWS)):
            with naming(file, i * ROWS):
                outside.see(schema.split(table).features)
    tell(outside.advice())


def _answered(store: Store, piece: Piece, request: str, analyst: str | None, proba: bool) -> Answers:
    name = f"{request}:{analyst or ''}"
    try:
        if not proba:
            return store.predict(piece.X, analyst, request_id=name).tolist(), None
        labels, likely = store.predict_both(piece.X, analyst, request_id=name)
    except InvalidInputError as error:
        raise InvalidInputError(f"queries from {piece.first}: {error}") from None
    return labels.tolist(), likely.tolist()


@click.command("forget")
@STORE
@click.argument("owners", nargs=-1, required=True, metavar="OWNER...")
@click.option("--receipt", type=click.Path(path_type=Path), help="Write the receipt to this file as well.")
@WITNESS
@JSON
def forget(store: Place, owners: tuple[str, ...], receipt: Path | None, witness: Path | None, in_json: bool) -> None:
    """Remove every record of these people, and print a receipt.

    What they spent stays in the ledger, under a keyed hash of their name.

    \b
    Example:
      indknn forget patients.store patient-17 --receipt receipt.json
    """
    with Store(store, witness=witness) as opened:
        facts = opened.forget(owners)
    if receipt is not None:
        with private_file(receipt) as file:
            file.write(as_json(facts) + "\n")
    show(
        facts,
        in_json,
        f"forgotten: {facts['owners_forgotten']} people, {facts['records']} records, at {facts['at']}",
        facts["released"],
        f"audit trail: entry with hash {facts['audit_hash']}",
    )


@click.command("purge")
@STORE
@WITNESS
@JSON
def purge(store: Place, witness: Path | None, in_json: bool) -> None:
    """Delete all answers and the shared model, for all analysts. People pay again for new ones.

    Everybody who asks again can see the purge. So purge on a schedule, and never because one person was
    forgotten: that would show that somebody left.

    \b
    Example:
      indknn purge patients.store
    """
    with Store(store, witness=witness) as opened:
        facts = opened.purge()
    where = f"audit trail: entry with hash {facts['audit_hash']}"
    show(facts, in_json, f"purged at {facts['at']}: {facts['dropped']}", facts["public"], where)


@click.command("backup")
@STORE
@click.argument("target", type=click.Path(path_type=Path))
@WITNESS
@JSON
def backup_command(store: Place, target: Path, witness: Path | None, in_json: bool) -> None:
    """Copy a store, and its file of keys, into TARGET, a new file that opens by itself.

    Do not copy a store with cp: its newest charges may be in other files. Nobody may have the store open. Its owner
    alone can read the copy. It holds people who are forgotten later, so delete it in time.

    \b
    Example:
      indknn backup patients.store /mnt/backup/patients-monday.store
    """
    with Store(store, witness=witness) as opened:
        facts = backup(opened, target)
    show(facts, in_json, f"{target} holds {store} up to {facts['at']}, {facts['audit_entries']:,} entries, checked")
