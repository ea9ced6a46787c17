"""Commands that look at a durable store and change nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from indknn.cli.options import JSON, STORE, WITNESS, show
from indknn.errors import StoreError, StoreLockedError
from indknn.store import Store
from indknn.store.chain import entries
from indknn.store.reports import statement, status
from indknn.store.verify import problems


@click.command("status")
@STORE
@JSON
def show_status(store: Path, in_json: bool) -> None:
    """Show how much people have spent. For the curator, not for those who query."""
    with Store(store) as opened:
        facts = status(opened)
    counts, left = facts["spent_share_histogram"], facts["queries_left_for_median_owner"]
    bars = [
        f"  {10 * i:3d}% to {10 * i + 10:3d}% spent  {'█' * round(40 * n / max(1, *counts)):<40} {n:,}"
        for i, n in enumerate(counts)
    ]
    promise = f"epsilon = {facts['epsilon']:g}, delta = {facts['delta']:g} ({facts['filter']})"
    people = f"{facts['records']:,} records of {facts['owners']:,} people, {facts['forgotten']:,} forgotten"
    show(
        facts,
        in_json,
        f"{facts['store']}: {promise}, B = {facts['budget']:.6g}",
        f"{people}; {facts['answers']:,} answers given",
        *bars,
        f"exhausted: {facts['exhausted']:,} people",
        f"queries left for the median person, at the pace so far: {'not known yet' if left is None else f'{left:,}'}",
    )


@click.command("owner")
@STORE
@click.argument("owner")
@JSON
def show_owner(store: Path, owner: str, in_json: bool) -> None:
    """Show a person's own statement: what was spent, and on how many queries."""
    with Store(store) as opened:
        facts = statement(opened, owner)
    promised = f"promised {facts['epsilon_promised']:g}, at delta = {facts['delta']:g}"
    show(
        facts,
        in_json,
        f"owner {facts['owner']}: {facts['records']} records, part of {facts['queries']:,} answers",
        f"spent {facts['rho']:.6g} of {facts['budget_per_analyst']:.6g} per analyst",
        f"epsilon so far {facts['epsilon_so_far']:.4f}, {promised}",
    )


@click.command("export")
@STORE
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
            yield {"owner": name, "rho": rho}


@click.command("verify")
@STORE
@WITNESS
@JSON
@click.pass_context
def verify(ctx: click.Context, store: Path, witness: Path | None, in_json: bool) -> None:
    """Check the audit trail, the answers and their debits, all budgets, and memory against disk.

    Exit code 1 if anything is wrong.
    """
    length = 0
    try:
        with Store(store, witness=witness) as opened:
            found = list(problems(opened))
            length = sum(1 for _ in entries(opened.db))
    except StoreLockedError:
        raise
    except StoreError as error:  # it refuses to open a file that is not as it should be
        found = [str(error)]
    verdict = f"{len(found)} problems" if found else f"all is well: {length:,} entries of the audit trail check out"
    show({"ok": not found, "problems": found, "audit_entries": length}, in_json, *found, verdict)
    ctx.exit(1 if found else 0)
