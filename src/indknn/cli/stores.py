"""Commands on a durable store."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import click

from indknn.cli.counts import QUERIES
from indknn.cli.files import Columns, Piece, as_json, digest, labels_in, pieces, write_answers
from indknn.cli.labels import as_stored
from indknn.cli.progress import counting
from indknn.core.inputs import as_owner_list
from indknn.core.modes import Prior, Reuse, default_prior
from indknn.errors import InvalidInputError
from indknn.records.indexes import INDEXES
from indknn.settings import Settings, index_options
from indknn.store import Store
from indknn.store.chain import entries
from indknn.store.naming import find_owner
from indknn.store.reports import statement, status
from indknn.store.verify import problems

_STORE = click.argument("store", type=click.Path(path_type=Path))
_FILE = click.argument("file", type=click.Path(path_type=Path))
_JSON = click.option("--json", "as_text", is_flag=True, help="Print JSON.")
_WITNESS = click.option("--witness", type=click.Path(path_type=Path), help="A file elsewhere that detects old copies.")
_BATCH = 256


@click.command("init")
@_STORE
@click.option("--epsilon", default=1.0, show_default=True, help="The promise to every person.")
@click.option("--delta", default=1e-5, show_default=True, help="The chance that it may fail.")
@click.option("--kernel", type=click.Choice(["cosine", "rbf"]), default="cosine", show_default=True)
@click.option("--tau", type=float, help="How similar a record must be to take part. Default: from the first queries.")
@click.option("--sigma2", type=float, help="Noise on the votes. Default: from the budget and --max-queries.")
@click.option("--bandwidth", type=float, help="Width of the rbf kernel. Default: e^0.75.")
@click.option("--max-queries", type=QUERIES, default="none", show_default=True, help="How many to plan for; or none.")
@click.option("--index", type=click.Choice(sorted(INDEXES)), default="exact", show_default=True)
@click.option("--n-tables", default=30, show_default=True, help="Hash tables, for --index lsh.")
@click.option("--n-bits", type=int, help="Bits per table (lsh, default 8) or of the sketch (default 512).")
@click.option("--accountant", type=click.Choice(["gdp", "rdp"]), default="gdp", show_default=True)
@click.option(
    "--reuse",
    type=click.Choice(get_args(Reuse)),
    default="student",
    show_default=True,
    help="What is made of released answers: a student learns from them, or they vote on later queries.",
)
@click.option(
    "--prior", type=click.Choice(get_args(Prior)), help="Statistics over all records. Default: with a student."
)
@click.option("--prior-share", default=0.5, show_default=True, help="What share of B the statistics cost, once.")
@click.option("--global-epsilon", type=float, help="A bound on what all analysts together may learn.")
@click.option("--classes", help="The label set, as a,b,c; it is public. Default: the labels of the first file added.")
@_JSON
def init(store: Path, as_text: bool, classes: str | None, n_tables: int, n_bits: int | None, **values: Any) -> None:
    """Make a new store.

    \b
    Examples:
      indknn init patients.store --epsilon 1 --tau 0.5
      indknn init patients.store --epsilon 0.5 --classes healthy,ill --max-queries 5000
      indknn init patients.store --reuse none --max-queries 1000     the paper's Algorithm 3
    """
    values["prior"] = values["prior"] or default_prior(values["reuse"])
    labels: tuple[Any, ...] = ()
    if classes is not None:
        names = [name.strip() for name in classes.split(",")]
        labels = tuple(int(name) for name in names) if all(n.lstrip("-").isdigit() for n in names) else tuple(names)
    values["index_options"] = index_options(values["index"], n_tables, n_bits)
    with Store.create(store, Settings(n_features=1, classes=labels, **values), draft=True) as made:
        facts = {"store": str(store), "budget": made.settings.budget, **values}
    click.echo(as_json(facts) if as_text else f"{store}: every person may spend B = {facts['budget']:.6g}")


@click.command("add")
@_STORE
@_FILE
@click.option("--label", default="y", show_default=True, help="Column of the label (csv, parquet).")
@click.option("--owner", default="owner", show_default=True, help="Column of the owner (csv, parquet).")
@click.option("--features", help="Columns of the features, as a,b,c. Default: all others.")
@_WITNESS
@_JSON
def add(
    store: Path, file: Path, label: str, owner: str, features: str | None, witness: Path | None, as_text: bool
) -> None:
    """Add the records of a file, all of them or none.

    FILE is npz (arrays X, y and owners), csv or parquet. Without owners every row is a new person.

    \b
    Examples:
      indknn add patients.store features.npz
      indknn add patients.store visits.csv --label diagnosis --owner patient
    """
    columns = Columns(label, owner, tuple(features.split(",")) if features else ())
    with Store(store, witness=witness) as opened:
        known = labels_in(file, columns) if opened.draft else None
        with counting("records", not as_text) as count:
            ids = opened.add_batches(_records(file, columns, opened, count), known)
        facts = {"added": len(ids), "records": len(opened.engine.shard), "owners": len(opened.engine.ledger.owners())}
    click.echo(
        as_json(facts)
        if as_text
        else f"added {facts['added']:,}; now {facts['records']:,} records of {facts['owners']:,} people"
    )


def _records(file: Path, columns: Columns, store: Store, count: Any) -> Iterator[tuple[Any, Any, Any]]:
    for piece in pieces(file, columns):
        if piece.y is None:
            raise InvalidInputError(f"{file} has no labels: an array y, or a column named by --label")
        owners = None if piece.owners is None else as_owner_list(piece.owners)
        yield piece.X, piece.y if store.draft else as_stored(piece.y, store.settings), owners
        count(piece.first + len(piece.X))


@click.command("predict")
@_STORE
@_FILE
@click.option(
    "-o", "--out", type=click.Path(path_type=Path), required=True, help="Where the answers go: npz, csv or parquet."
)
@click.option("--analyst", help="Whose ledger to charge. Analysts must not pool their answers.")
@click.option("--features", help="Columns of the features (csv, parquet), as a,b,c. Default: all.")
@_WITNESS
@_JSON
def predict(
    store: Path, file: Path, out: Path, analyst: str | None, features: str | None, witness: Path | None, as_text: bool
) -> None:
    """Answer the queries of a file. This spends the budget of the people near them.

    Run it again after a crash: what was answered is not paid for twice.

    \b
    Examples:
      indknn predict patients.store queries.npz -o answers.csv
      indknn predict patients.store queries.csv -o answers.npz --analyst alice
    """
    columns = Columns("", "", tuple(features.split(",")) if features else ())
    if out.suffix not in {".npz", ".csv", ".parquet"}:
        raise InvalidInputError(f"{out} must end in one of .npz, .csv, .parquet")
    with Store(store, witness=witness) as opened, counting("queries", not as_text) as count:
        answers: list[Any] = []
        target = out.open("w", newline="") if out.suffix == ".csv" else None
        writer = csv.writer(target) if target is not None else None
        if writer is not None:
            writer.writerow(["y"])
        name = digest(file)
        for piece in pieces(file, columns, _BATCH):
            answers += _answered(opened, piece, f"file:{name}:{piece.first}", analyst)
            if writer is not None and target is not None:
                writer.writerows([label] for label in answers[piece.first :])
                target.flush()
            count(len(answers))
        if target is not None:
            target.close()
        else:
            write_answers(out, answers)
    click.echo(
        as_json({"answered": len(answers), "out": str(out)}) if as_text else f"{len(answers):,} answers in {out}"
    )


def _answered(store: Store, piece: Piece, request: str, analyst: str | None) -> list[Any]:
    try:
        labels = store.predict(piece.X, analyst, request_id=f"{request}:{analyst or ''}")
    except InvalidInputError as error:
        raise InvalidInputError(f"queries from {piece.first}: {error}") from None
    return list(labels.tolist())


@click.command("forget")
@_STORE
@click.argument("owners", nargs=-1, required=True, metavar="OWNER...")
@click.option("--receipt", type=click.Path(path_type=Path), help="Write the receipt to this file as well.")
@click.option("--purge", is_flag=True, help="Drop what was released while they were here; those who remain pay again.")
@_WITNESS
@_JSON
def forget(
    store: Path, owners: tuple[str, ...], receipt: Path | None, purge: bool, witness: Path | None, as_text: bool
) -> None:
    """Remove every record of these people, and print a receipt.

    What they spent stays on the books under a keyed hash. A number is tried as text first, then as a number;
    write int:7 or str:7 to say which.

    \b
    Example:
      indknn forget patients.store patient-17 --receipt receipt.json
    """
    with Store(store, witness=witness) as opened:
        names = [find_owner(opened, text) for text in owners]
        paper = opened.forget(names, derived="purge" if purge else "keep")
    if receipt is not None:
        receipt.write_text(as_json(paper) + "\n")
    if as_text:
        click.echo(as_json(paper))
    else:
        click.echo(f"forgotten: {paper['owners_forgotten']} people, {paper['records']} records, at {paper['at']}")
        click.echo(paper["derived"])
        click.echo(f"audit trail: entry {paper['audit_position']}, {paper['audit_hash']}")


@click.command("status")
@_STORE
@_JSON
def show_status(store: Path, as_text: bool) -> None:
    """Show how much people have spent. For the curator, not for those who query."""
    with Store(store) as opened:
        facts = status(opened)
    if as_text:
        click.echo(as_json(facts))
        return
    counts, left = facts["spent_share_histogram"], facts["queries_left_for_median_owner"]
    bars = [
        f"  {10 * i:3d}% to {10 * i + 10:3d}% spent  {'█' * round(40 * n / max(1, *counts)):<40} {n:,}"
        for i, n in enumerate(counts)
    ]
    promise = (
        f"epsilon = {facts['epsilon']:g}, delta = {facts['delta']:g} ({facts['filter']}), B = {facts['budget']:.6g}"
    )
    people = f"{facts['records']:,} records of {facts['owners']:,} people, {facts['forgotten']:,} forgotten"
    forecast = "not known yet" if left is None else f"{left:,}"
    click.echo(f"{facts['store']}: {promise}, B = {facts['budget']:.6g}\n{people}; {facts['answers']:,} answers given")
    click.echo("\n".join(bars))
    click.echo(f"exhausted: {facts['exhausted']:,} people")
    click.echo(f"queries left for the median person, at the pace so far: {forecast}")


@click.command("owner")
@_STORE
@click.argument("owner")
@_JSON
def show_owner(store: Path, owner: str, as_text: bool) -> None:
    """Show a person's own statement: what was spent, and on how many queries."""
    with Store(store) as opened:
        facts = statement(opened, find_owner(opened, owner))
    if as_text:
        click.echo(as_json(facts))
        return
    click.echo(f"owner {facts['owner']}: {facts['records']} records, part of {facts['queries']:,} answers")
    click.echo(f"spent {facts['rho']:.6g} of {facts['budget_per_analyst']:.6g} per analyst")
    promised = f"promised {facts['epsilon_promised']:g}, at delta = {facts['delta']:g}"
    click.echo(f"epsilon so far {facts['epsilon_so_far']:.4f}, {promised}")


@click.command("export")
@_STORE
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="A .jsonl file.")
@click.option("--what", type=click.Choice(["audit", "answers", "spent"]), default="audit", show_default=True)
def export(store: Path, out: Path, what: str) -> None:
    """Write out the audit trail, the answers given, or what each person has spent, a JSON object a line.

    The answers are public to the analyst who got them; what people spent is for the curator only.

    \b
    Example:
      indknn export patients.store --what audit -o audit.jsonl
    """
    with Store(store) as opened, out.open("w") as file:
        for row in _rows(opened, what):
            file.write(json.dumps(row) + "\n")
    click.echo(f"{what} in {out}")


def _rows(store: Store, what: str) -> Iterator[dict[str, Any]]:
    if what == "audit":
        for e in entries(store.db):
            yield {"position": e.position, "at": e.at, "kind": e.kind, "body": e.facts, "hash": e.hash.hex()}
    elif what == "answers":
        classes = store.settings.class_array.tolist()
        query = "SELECT seq, name, label FROM answers JOIN scopes ON scope = id WHERE label >= 0 ORDER BY seq"
        for seq, analyst, label in store.db.execute(query):
            yield {"answer": seq, "analyst": analyst[1:] or None, "label": classes[label]}
    else:
        names = store.engine.ledger.owners()
        for name, rho in zip(names, store.spent(names).tolist(), strict=True):
            yield {"owner": name if isinstance(name, int | str) else name.hex(), "rho": rho}


@click.command("verify")
@_STORE
@_WITNESS
@_JSON
@click.pass_context
def verify(ctx: click.Context, store: Path, witness: Path | None, as_text: bool) -> None:
    """Check the audit trail, the answers and their debits, all budgets, and memory against disk.

    Exit code 1 if anything is wrong.
    """
    with Store(store, witness=witness) as opened:
        found = list(problems(opened))
        length = sum(1 for _ in entries(opened.db))
    if as_text:
        click.echo(as_json({"ok": not found, "problems": found, "audit_entries": length}))
    else:
        for line in found:
            click.echo(line)
        click.echo(
            f"{len(found)} problems" if found else f"all is well: {length:,} entries of the audit trail check out"
        )
    ctx.exit(1 if found else 0)


COMMANDS = [init, add, predict, forget, show_status, show_owner, export, verify]
