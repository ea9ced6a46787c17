"""Commands that read a durable store and change nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from indknn.cli.options import JSON, STORE, WITNESS, show
from indknn.core.files import private_file
from indknn.errors import DamagedStoreError
from indknn.ledger.figures import exact, statement
from indknn.place import Address, Place
from indknn.store import Store
from indknn.store.chain import entries
from indknn.store.reports import status
from indknn.store.verify import problems


@contextmanager
def _looking(path: Place, witness: Path | None, new_witness: bool = False) -> Iterator[Store]:
    """Open a store for reading. This also works if the store or its folder is read-only."""
    read_only = isinstance(path, Address)  # a process that writes to the database is not disturbed
    if isinstance(path, Path) and path.is_file():
        read_only = not all(os.access(p, os.W_OK) for p in (path.resolve(), path.resolve().parent))
    if read_only and isinstance(path, Path):
        click.echo(f"{path} cannot be written: nothing notices another process that changes it now", err=True)
    with Store(path, witness=witness, new_witness=new_witness, read_only=read_only) as opened:
        yield opened


@click.command("status")
@STORE
@WITNESS
@JSON
def show_status(store: Place, witness: Path | None, in_json: bool) -> None:
    """Show how much people have spent. Only for the curator: do not show it to analysts."""
    with _looking(store, witness) as opened:
        facts = status(opened)
    counts, left = facts["spent_share_histogram"], facts["forecast"]["queries_left_for_median_owner"]
    bars = [
        f"  {10 * i:3d}% to {10 * i + 10:3d}% spent  {'█' * round(40 * n / max(1, *counts)):<40} {n:,}"
        for i, n in enumerate(counts)
    ]
    people = f"{facts['records']:,} records of {facts['owners']:,} people, {facts['forgotten']:,} forgotten"
    show(
        facts,
        in_json,
        f"{facts['store']}: {facts['guarantee']['words']}",
        f"{people}; {facts['answers']:,} answers given",
        f"figures {facts['whose']}:",
        *(f"  {_account(facts[who])}" for who in ("one_analyst", "together")),
        "people by the share spent of their fullest ledger (one analyst's B, or the global budget):",
        *bars,
        f"exhausted: {facts['exhausted']:,} people",
        *(f"analyst {name} was given epsilon = {given:g}" for name, given in facts["given_less"].items()),
        f"queries left for the median person, if all analysts go on as so far: {_known(left)}",
    )


def _known(number: int | None) -> str:
    return "not known yet" if number is None else f"{number:,}"


@click.command("owner")
@STORE
@click.argument("owner")
@WITNESS
@JSON
def show_owner(store: Place, owner: str, witness: Path | None, in_json: bool) -> None:
    """Show the statement of one person. Spending is rounded up to 1/50 of B, so you may give it to that person."""
    with _looking(store, witness) as opened:
        facts = statement(opened.engine, owner)
    accounts = [_account(facts[who]) for who in ("one_analyst", "together")]
    show(
        facts,
        in_json,
        f"owner {facts['owner']}: {facts['records']} records",
        *accounts,
        facts["rounding"],
        facts["words"],
    )


def _account(facts: dict[str, Any]) -> str:
    """A line with what was spent, for one kind of observer."""
    most, promised = "; nothing bounds it", ""
    if facts["budget"] is not None:
        most, promised = f" of {facts['budget']:.6g}", f" of {facts['epsilon']:g} promised"
    so_far = "too large to compute" if facts["epsilon_so_far"] is None else f"{facts['epsilon_so_far']:.4f}"
    given = f"at delta = {facts['delta']:g}, filter {facts['filter']}"
    return f"{facts['observer']}: spent {facts['spent']:.6g}{most}, epsilon so far {so_far}{promised} {given}"


@click.command("export")
@STORE
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="A .jsonl file.")
@click.option(
    "--what",
    type=click.Choice(["audit", "answers", "spent"]),
    default="audit",
    show_default=True,
    help="The audit trail, the answers that were given, or what each person has spent.",
)
@WITNESS
def export(store: Place, out: Path, what: str, witness: Path | None) -> None:
    """Write the audit trail, the answers or the spending to a file, one JSON object per line.

    Each answer is public to the analyst who got it. What people have spent is only for the curator.

    \b
    Example:
      indknn export patients.store --what audit -o audit.jsonl
    """
    with _looking(store, witness) as opened, private_file(out) as file:
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
        yield from exact(store.engine)


@click.command("verify")
@STORE
@WITNESS
@click.option("--new-witness", is_flag=True, help="Start a new witness. Only if you know that this is the latest copy.")
@click.option("--erased", is_flag=True, help="Also check that the old bytes of forgotten people are gone.")
@JSON
@click.pass_context
def verify(
    ctx: click.Context, store: Place, witness: Path | None, new_witness: bool, erased: bool, in_json: bool
) -> None:
    """Check the audit trail, the answers and their charges, all budgets, and that memory agrees with the disk.

    The exit code is 1 if anything is wrong.
    """
    length = 0
    try:
        with _looking(store, witness, new_witness) as opened:
            found = list(problems(opened))
            found += [f"erased: {doubt}" for doubt in (opened.home.old_bytes(opened.db) if erased else ())]
            length = sum(1 for _ in entries(opened.db))
    except DamagedStoreError as error:  # a damaged store cannot be opened at all
        found = [str(error)]
    verdict = f"{len(found)} problems" if found else f"all is well: {length:,} entries of the audit trail check out"
    show({"ok": not found, "problems": found, "audit_entries": length}, in_json, *found, verdict)
    ctx.exit(1 if found else 0)
