"""Commands that make, change or copy a durable store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import numpy as np

from indknn.cli.options import (
    FEATURES,
    JSON,
    KEY,
    LABEL,
    RECEIPT,
    STORE,
    URL,
    WITNESS,
    StorePlace,
    class_names,
    columns,
    parameter_options,
    remote,
    show,
    write_receipt,
)
from indknn.cli.records import pieces_of
from indknn.errors import InvalidInputError
from indknn.ledger.figures import guarantee
from indknn.models.shared_model import MOST_ROWS
from indknn.place import Place
from indknn.settings import PARAMETERS, Settings
from indknn.store import Store
from indknn.store.backup import backup, restore
from indknn.store.home import home_of
from indknn.tables.read import Named, naming
from indknn.tables.schema import Schema, read_schema, to_plain, vectors_of
from indknn.types import FloatArray

_COPY = click.Path(path_type=Path)


@click.command("init")
@STORE
@parameter_options(*(name for name, described in PARAMETERS.items() if described.kind is not tuple))
@click.option("--classes", help=f"{PARAMETERS['classes'].help} As a,b,c. Without it: {PARAMETERS['classes'].none}.")
@click.option(
    "--bounds", type=(float, float), help=f"{PARAMETERS['bounds'].help} Without it: {PARAMETERS['bounds'].none}."
)
@click.option("--schema", type=click.Path(path_type=Path), help="A file that describes the columns (indknn schema).")
@click.option(
    "--public",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="A file of public rows that resemble the records but belong to nobody in the store. A thousand rows make the "
    "shared model better. If they have labels, and --classes or --schema lists the classes, the model starts from what "
    "they say. Without it: the queries of the first request are used.",
)
@LABEL
@FEATURES
@JSON
def init(
    store: Place,
    in_json: bool,
    classes: str | None,
    bounds: tuple[float, float] | None,
    schema: Path | None,
    public: Path | None,
    label: str,
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
      indknn init patients.store --target number --bounds 0 120      numbers instead of labels
      indknn init patients.store --mode votes --max-queries 1000     the paper's Algorithm 3
    """
    labels = [] if classes is None else list(class_names(classes))
    width, draft, read = 1, True, None
    if schema is not None:
        read = read_schema(schema)
        labels, width, values["schema"] = labels or list(read.classes), read.n_features, to_plain(read)
        bounds = bounds or read.bounds
        values["target"] = values["target"] if read.bounds is None else "number"
        draft = not (labels or values["target"] == "number")
    rows = None if public is None else _public_rows(public, columns(label, features=features), read)
    with Store.create(store, Settings.of(width, labels, bounds=bounds, **values), draft=draft) as made:
        if rows is not None:
            made.declare_public(rows[0], rows[1] if labels or made.settings.numeric else None)
        B, facts, promised = made.settings.budget, made.settings.stored(draft=draft), guarantee(made.settings)
    words = f"{store}: every person may spend B = {B:.6g} with each analyst"
    most = f"{1 / facts['delta']:,.0f} people"
    suits = f"delta = {facts['delta']:g} is for fewer than {most}; for more, make a store with a smaller one"
    told = {"store": str(store), "budget": B, "guarantee": promised, **facts}
    show(told, in_json, words, promised["words"], suits)


def _public_rows(file: Path, named: Named, schema: Schema | None) -> tuple[FloatArray, list[Any] | None]:
    """The first rows of a file as vectors, as many as the model can use, and their labels if the file has them."""
    rows: list[FloatArray] = []
    labels: list[Any] = []
    for piece in pieces_of(file, named, schema, MOST_ROWS):
        with naming(file, piece.first):
            rows.append(np.asarray(vectors_of(piece.features, schema), dtype=np.float64))
        labels += [] if piece.y is None else list(piece.y)
        if sum(map(len, rows)) >= MOST_ROWS:
            break
    return np.concatenate(rows)[:MOST_ROWS], labels[:MOST_ROWS] or None


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


@click.command("rewrite")
@STORE
@RECEIPT
@WITNESS
@JSON
def rewrite(store: Place, receipt: Path | None, witness: Path | None, in_json: bool) -> None:
    """Overwrite the old bytes of forgotten people in a database. This is the second stage of an erasure.

    It writes all tables anew and replaces the log. A store in a file does not need it. It cannot erase archives of the
    log, standbys and backups. The receipt names those that the database knows of.

    \b
    Example:
      indknn rewrite postgresql://db.example/people --receipt rewritten.json
    """
    with Store(store, witness=witness) as opened:
        facts = opened.rewrite()
    write_receipt(receipt, facts)
    words = [f"{facts['stage']}, for all who were erased until {facts['erased_until']}"]
    show(facts, in_json, *words, *facts.get("why", ()), *(f"not ours: {who}" for who in facts.get("elsewhere", ())))


@click.command("takeover")
@STORE
@JSON
def takeover(store: Place, in_json: bool) -> None:
    """Take a store in PostgreSQL away from a process that you cannot stop. Nothing it does later is written.

    Then open the store as usual. You do not need this for a process that has ended.
    """
    who = home_of(store).take_over()
    show({"store": str(store), "was": who}, in_json, f"{store} was in use by {who}; it is free now")


@click.command("backup")
@click.argument("store", type=StorePlace(), required=False)
@click.argument("target", type=_COPY, required=False)
@URL
@KEY
@click.option("--name", help="With --url: the name of the copy. Default: the name of the model and the time.")
@WITNESS
@JSON
def backup_command(
    store: Place | None,
    target: Path | None,
    url: str | None,
    key: Path | None,
    name: str | None,
    witness: Path | None,
    in_json: bool,
) -> None:
    """Copy a store, and its file of keys, into TARGET, a new file that opens by itself.

    Do not copy a store with cp: its newest charges may be in other files. A store that a server has open is copied by
    that server (--url), into its folder (indknn serve --backups), while it answers. That needs a key of role admin.
    The owner of the copy alone can read it. It holds people who are forgotten later, so delete it in time.

    \b
    Examples:
      indknn backup patients.store /mnt/backup/patients-monday.store
      indknn backup --url http://127.0.0.1:8080 --key admin.key
    """
    if url is not None:
        if store is not None or witness is not None:
            raise InvalidInputError("with --url the server knows its store, its folder and its witness: give --name")
        with remote(url, key) as client:
            facts = client.backup(name)
        where, what = facts["backup"], url
    elif store is None or target is None:
        raise InvalidInputError("name STORE and TARGET, or the server that has the store open with --url")
    else:
        with Store(store, witness=witness) as opened:
            facts = backup(opened, target)
        where, what = str(target), str(store)
    show(facts, in_json, f"{where} holds {what} up to {facts['at']}, {facts['audit_entries']:,} entries, checked")


@click.command("restore")
@click.argument("backup", type=_COPY)
@click.argument("store", type=_COPY)
@WITNESS
@JSON
def restore_command(backup: Path, store: Path, witness: Path | None, in_json: bool) -> None:
    """Put a BACKUP in the place of STORE, if no budget was spent since it was made.

    The witness and the head beside STORE know that. A copy that is older is refused, with what is lost: nothing knows
    what people have spent since, and it must not be given back to them. Nothing is deleted: the files that were in the
    place of STORE get other names. The file of keys there stays, because keys may have been revoked since.

    \b
    Example:
      indknn restore /mnt/backup/monday.store patients.store --witness /mnt/witness/patients.witness
    """
    facts = restore(backup, store, witness)
    moved = f"; what was there is now {', '.join(facts['moved'])}" if facts["moved"] else ""
    show(facts, in_json, f"{store} is {backup}, up to {facts['at']}, {facts['audit_entries']:,} entries{moved}")
