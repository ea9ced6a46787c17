"""Commands that make or change a durable store."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeAlias

import click
import numpy as np

from indknn.cli.options import (
    FEATURES,
    FILE,
    JSON,
    LABEL,
    OWNER,
    RECORD,
    STORE,
    WITNESS,
    as_json,
    class_names,
    columns,
    counting,
    parameter_options,
    refuse_column_options,
    show,
    stages,
)
from indknn.core.advice import about_answers, about_labels, tell
from indknn.core.files import private, private_file
from indknn.core.inputs import EACH_ROW
from indknn.errors import InvalidInputError, needs
from indknn.ledger.figures import guarantee
from indknn.models.shared_model import MOST_ROWS
from indknn.place import Place
from indknn.settings import PARAMETERS, Settings
from indknn.store import Store
from indknn.store.backup import backup
from indknn.store.home import home_of
from indknn.tables.infer import Outside
from indknn.tables.read import ROWS, VECTORS, Named, Split, labels_in, naming, pieces
from indknn.tables.schema import Schema, read_schema, to_plain, vectors_of
from indknn.types import FloatArray

_BATCH = 256
FORMATS = (".npz", ".csv", ".parquet")
"""The formats for answers."""
Answers: TypeAlias = tuple[list[Any], list[list[float]] | None]
"""Labels, and the probability of each class if it was asked for."""
_RECEIPT = click.option("--receipt", type=click.Path(path_type=Path), help="Write the receipt to this file as well.")


@click.command("init")
@STORE
@parameter_options(*(name for name, described in PARAMETERS.items() if described.kind is not tuple))
@click.option("--classes", help=f"{PARAMETERS['classes'].help} As a,b,c. Without it: {PARAMETERS['classes'].none}.")
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
      indknn init patients.store --prior none --max-queries 1000     the paper's Algorithm 3
    """
    labels = [] if classes is None else list(class_names(classes))
    width, draft, read = 1, True, None
    if schema is not None:
        read = read_schema(schema)
        labels, width, values["schema"] = labels or list(read.classes), read.n_features, to_plain(read)
        draft = not labels
    rows = None if public is None else _public_rows(public, columns(label, features=features), read)
    with Store.create(store, Settings.of(width, labels, **values), draft=draft) as made:
        if rows is not None:
            made.declare_public(rows[0], rows[1] if labels else None)
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

    FILE is npz (arrays X, y, owners and record_ids), or a table: csv or tsv (with , ; | or tabs between the columns),
    JSON lines, parquet, Arrow or Excel. Text files may be gzipped. A column may hold a list of features. If the store
    has a schema, the schema names the columns.

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
            known = labels_in(_pieces(file, named, opened.schema), file)
        before = len(opened.engine.shard)
        with counting("records", not in_json) as count, naming(file) as at:
            found = _pieces(file, named, opened.schema)
            opened.add_batches(_records(found, file, each_row, count, at), known)
        tell([] if known is None else about_labels())
        records, owners = len(opened.engine.shard), opened.engine.ledger.n_owners
    facts = {"added": records - before, "records": records, "owners": owners}
    show(facts, in_json, f"added {records - before:,}; now {records:,} records of {owners:,} people")


def _pieces(file: Path, named: Named, schema: Schema | None, rows: int = ROWS) -> Iterator[Split]:
    """The rows of a file, split by the schema of the store, or else by the names of the columns."""
    if schema is not None:
        refuse_column_options()
    return pieces(file, named.split if schema is None else schema.split, rows)


def _records(
    found: Iterator[Split], file: Path, each_row: bool, count: Callable[[int], None], at: list[int]
) -> Iterator[Any]:
    for piece in found:
        at[0] = piece.first
        if piece.y is None:
            raise InvalidInputError(f"{file} has no labels: an array y, or a column named by --label")
        if each_row and piece.owners is not None:
            raise InvalidInputError(f"{file} names owners, so --each-row is not for it")
        if piece.owners is None and not each_row:
            where = "an array owners, or a column named by --owner"
            raise InvalidInputError(f"{file} has no owners: {where}; or --each-row, if every row is a new person")
        yield piece.features, piece.y, EACH_ROW if each_row else piece.owners, piece.record_ids
        count(piece.first + len(piece))


def _public_rows(file: Path, named: Named, schema: Schema | None) -> tuple[FloatArray, list[Any] | None]:
    """The first rows of a file as vectors, as many as the model can use, and their labels if the file has them."""
    rows: list[FloatArray] = []
    labels: list[Any] = []
    for piece in _pieces(file, named, schema, MOST_ROWS):
        with naming(file, piece.first):
            rows.append(np.asarray(vectors_of(piece.features, schema), dtype=np.float64))
        labels += [] if piece.y is None else list(piece.y)
        if sum(map(len, rows)) >= MOST_ROWS:
            break
    return np.concatenate(rows)[:MOST_ROWS], labels[:MOST_ROWS] or None


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
        with file.open("rb") as bytes_of_file:
            name = hashlib.file_digest(bytes_of_file, "sha256").hexdigest()
        if opened.schema is not None:  # all rows are checked before the first one is charged
            _check_queries(opened.schema, file)
        for piece in _pieces(file, columns(features=features), opened.schema, _BATCH):
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
    for piece in pieces(file, schema.split) if file.suffix not in VECTORS else ():
        with naming(file, piece.first):
            outside.see(piece.features)
    tell(outside.advice())


def _answered(store: Store, piece: Split, request: str, analyst: str | None, proba: bool) -> Answers:
    name = f"{request}:{analyst or ''}"
    try:
        if not proba:
            return store.predict(piece.features, analyst, request_id=name).tolist(), None
        labels, likely = store.predict_both(piece.features, analyst, request_id=name)
    except InvalidInputError as error:
        raise InvalidInputError(f"queries from {piece.first}: {error}") from None
    return labels.tolist(), likely.tolist()


@contextmanager
def answers_in(path: Path, classes: Sequence[Any] | None = None) -> Iterator[Callable[[Answers], None]]:
    """A function that writes answers to a file: npz (array y), csv or parquet (column y).

    With `classes` it also writes the probability of each class: in columns p_CLASS, or in npz as the arrays proba and
    classes. A csv file gets every answer as soon as it was charged. The other formats are written at the end.
    """
    names = [f"p_{name}" for name in classes or ()]
    if path.suffix == ".csv":
        with open(path, "w", newline="", opener=private) as file:
            writer = csv.writer(file)
            writer.writerow(["y", *names])

            def write(some: Answers) -> None:
                labels, likely = some
                writer.writerows([y] if likely is None else [y, *likely[i]] for i, y in enumerate(labels))
                file.flush()

            yield write
        return
    kept: list[Answers] = []
    yield kept.append
    labels = [label for some, _ in kept for label in some]
    likely = [p for _, some in kept if some is not None for p in some]
    proba = np.array(likely, dtype=np.float64).reshape(len(likely), -1 if likely else len(names))
    if path.suffix == ".npz":
        more: dict[str, Any] = {} if classes is None else {"proba": proba, "classes": np.array(classes)}
        with private_file(path, "wb") as archive:
            np.savez(archive, y=np.array(labels), **more)
    else:
        pa, pq = (needs(name, "parquet", "a parquet file") for name in ("pyarrow", "pyarrow.parquet"))
        with private_file(path, "wb") as archive:
            pq.write_table(pa.table({"y": labels, **dict(zip(names, proba.T, strict=True))}), archive)


@click.command("forget")
@STORE
@click.argument("owners", nargs=-1, required=True, metavar="OWNER...")
@_RECEIPT
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


@click.command("train")
@STORE
@WITNESS
@JSON
def train(store: Place, witness: Path | None, in_json: bool) -> None:
    """Train the shared model, or train it again if there are enough newcomers.

    Each person is charged for their own gradient, from the part of their budget that is for the model. If the model
    gets a person's records right, that person pays almost nothing. All analysts use the same model, and nobody pays
    for it again.

    A store trains the model by itself when the first query comes. Use this command to train earlier, or again from a
    timer such as cron. Never run it because certain people came or went: the time of a run is public. You can stop it
    at any time, and the next run continues.

    \b
    Example:
      indknn train patients.store
    """
    with Store(store, witness=witness) as opened, nullcontext() if in_json else stages() as bar:
        if opened.draft:
            raise InvalidInputError(f"{store} has never held records, so there is nothing to learn from")
        steps = 0
        for progress in opened.train():
            steps = progress.made
            if bar is not None:
                bar("steps of training", progress.made, progress.made + progress.follow)
        model = opened.engine.predictor.model
        assert model is not None
    card = model.card
    facts: dict[str, Any] = {"steps": steps, "rounds": model.rounds, "people_about": round(model.count)}
    words = [f"{steps} steps; about {model.count:,.0f} people, as far as noisy counts tell"]
    if not steps:
        words = ["no step: too few newcomers since the last round, as far as a noisy count tells"]
    if card is not None:
        facts |= {"accuracy": card.overall, "error": card.overall_error, "smoothed": card.other}
        words.append(f"the model is right about {card.overall:.3f} of the time (± {2 * card.overall_error:.3f})")
    show(facts, in_json, *words)


@click.command("rewrite")
@STORE
@_RECEIPT
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
    if receipt is not None:
        with private_file(receipt) as file:
            file.write(as_json(facts) + "\n")
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
