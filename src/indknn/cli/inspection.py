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
from indknn.errors import DamagedStoreError, InvalidInputError
from indknn.ledger.figures import exact, ledger_words, statement
from indknn.models.forecast import Forecast, forecast
from indknn.place import Address, Place
from indknn.store import Store
from indknn.store.chain import entries
from indknn.store.reports import status, stream
from indknn.store.verify import problems

_DAYS = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 365.25 / 12, "year": 365.25}


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
            yield {"answer": seq, "analyst": analyst[1:] if analyst else None, "label": classes[label]}
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


@click.command("forecast")
@STORE
@click.option("--analyst", help="The analyst who asks. Default: the analyst without a name.")
@click.option("--rate", help="How many queries there will be, as 1000/day. Then durations are printed too.")
@click.option("--n", "records", type=int, help="About how many records there are, if that is public.")
@WITNESS
@JSON
def forecast_command(
    store: Place, analyst: str | None, rate: str | None, records: int | None, witness: Path | None, in_json: bool
) -> None:
    """Estimate how many more queries there can be, and how good the answers will be.

    The estimate uses only what was released to the analyst, and no budgets. So you may show it to the analyst.
    `indknn status` shows what people have really spent, and is only for the curator.

    \b
    Examples:
      indknn forecast patients.store
      indknn forecast patients.store --analyst alice --rate 1000/day
    """
    daily = None if rate is None else per_day(rate, "--rate")
    with Store(store, witness=witness) as opened:
        found, planned = forecast(stream(opened, analyst, records)), opened.settings.max_queries
        of = ledger_words(opened.settings, analyst)
    days = {
        f"days_{name}": None if count is None else count / daily
        for name, count in (("until_half", found.until_half), ("until_used_up", found.until_used_up))
        if daily
    }
    facts = {**found.as_dict(), **days, "of": of, "from": "public information alone"}
    show(facts, in_json, *words(found, of, planned, daily))


def words(found: Forecast, of: str, planned: int | None, daily: float | None) -> list[str]:
    """The forecast, in sentences. `of` says which ledger it is about."""
    asked = "" if found.ends or not found.answered else f"; people were asked for {found.asked_share:.0%} of the latest"
    lines = [f"{found.answered:,} queries answered so far{asked}."]
    if found.left is None:
        lines.append("What an average person has left: unknown. The number of records is not public; try --n.")
    else:
        lines.append(f"An average person has about {found.left:.0%} of their budget left, estimated from releases.")
    lines.append(f"That is {of}.")
    if found.until_half is not None and found.until_used_up is not None:
        half, all_ = found.until_half, found.until_used_up
        lines.append(f"At the present noise half of that lasts for {half:,} more queries{_in_time(half, daily)},")
        lines.append(f"all of it for {all_:,}{_in_time(all_, daily)}.")
    elif found.left is not None:
        lines.append("How many more queries that allows: unknown before the first answers, or without --n.")
    if planned is not None and found.planned_left is not None:
        more = found.planned_left
        lines.append(f"The noise is planned for {planned:,} queries: {more:,} more{_in_time(more, daily)}.")
    if found.ends:
        lines.append("Then people drop out one by one, and answers become noise. The guarantee stays.")
        lines.append("Accuracy: unknown, because nothing public shows it. Ask labelled queries with indknn predict.")
        return lines
    lines.append("Noise grows as budgets shrink, so the budget is never fully used.")
    if found.accuracy_alone is None:
        lines.append("Accuracy: unknown before the first report card.")
    else:
        share, error = found.accuracy_alone, found.accuracy_alone_error or 0.0
        lines.append(f"Accuracy of the model alone: about {share:.3f} (± {2 * error:.3f}, by the latest report card).")
        lines.append("It stays like that as long as the data do, however many queries are asked.")
    return lines


def per_day(text: str, name: str) -> float:
    """A rate per day, from a rate as people write it.

    >>> per_day("1000/day", "rate"), per_day("7/week", "rate"), per_day("0", "updates")
    (1000.0, 1.0, 0.0)
    """
    number, _, unit = text.replace(",", "").partition("/")
    try:
        value = float(number) / _DAYS[unit.strip().removesuffix("s") or "day"]
    except (ValueError, KeyError):
        value = -1.0
    if not 0.0 <= value < 1e12:
        raise InvalidInputError(f"{name} must be like 1000/day, per {', '.join(_DAYS)}, got {text!r}")
    return value


def _in_time(count: float, rate: float | None) -> str:
    """How long this many queries take, in brackets. Empty without a rate.

    >>> _in_time(3000, 1000.0), _in_time(3000, None)
    (' (3 days)', '')
    """
    if not rate:
        return ""
    amounts = {unit: count / rate / _DAYS[unit] for unit in ("year", "month", "day", "hour")}
    unit = next((unit for unit, amount in amounts.items() if amount >= 2), "hour")
    return f" ({amounts[unit]:.2g} {unit}s)"
