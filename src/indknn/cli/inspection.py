"""Commands that read a durable store: they show what is in it, check it, and write it to files for others."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from indknn.cli.options import (
    JSON,
    KEY,
    RECEIPT,
    STORE,
    URL,
    WITNESS,
    StorePlace,
    many,
    records_of,
    remote,
    show,
    write_receipt,
)
from indknn.errors import DamagedStoreError, InvalidInputError
from indknn.ledger.figures import exact, ledger_words, statement
from indknn.models.forecast import Forecast, forecast
from indknn.models.shown_numbers import NumberCard
from indknn.place import Address, Place, private_file
from indknn.published import write_model
from indknn.records.by_slot import STEPS
from indknn.store import Store
from indknn.store.chain import entries, signed_trail
from indknn.store.keyfile import keys_path, read_key_file
from indknn.store.reports import analysts_in_use, answers_by_analyst, status, stream
from indknn.store.verify import problems

_DAYS = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 365.25 / 12, "year": 365.25}
_OUT = click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="A .jsonl file.")


@contextmanager
def looking(path: Place, witness: Path | None, new_witness: bool = False) -> Iterator[Store]:
    """Open a store for reading. This also works if the store or its folder is read-only."""
    read_only = isinstance(path, Address)  # a process that writes to the database is not disturbed
    if isinstance(path, Path) and path.is_file():
        read_only = not all(os.access(p, os.W_OK) for p in (path.resolve(), path.resolve().parent))
    if read_only and isinstance(path, Path):
        click.echo(f"{path} cannot be written: nothing notices another process that changes it now", err=True)
    with Store(path, witness=witness, new_witness=new_witness, read_only=read_only) as opened:
        yield opened


@click.command("status")
@click.argument("store", type=StorePlace(), required=False)
@URL
@KEY
@WITNESS
@JSON
def show_status(store: Place | None, url: str | None, key: Path | None, witness: Path | None, in_json: bool) -> None:
    """Show how much people have spent. Only for the curator: do not show it to analysts.

    A server that has the store open is asked with --url, and with a key of role curator, auditor or admin.

    \b
    Examples:
      indknn status patients.store
      indknn status --url http://127.0.0.1:8080 --key curator.key
    """
    if (store is None) == (url is None):
        raise InvalidInputError("name either a STORE that nobody has open, or a server with --url")
    if url is not None:
        with remote(url, key) as client:
            facts = {"store": url, **client.status(), "by_analyst": client.analysts()["analysts"]}
    else:
        assert store is not None
        with looking(store, witness) as opened:
            keys = read_key_file(keys_path(opened.path)).keys
            used = analysts_in_use(opened.settings, answers_by_analyst(opened), keys, opened.analysts)
            facts = {**status(opened), "by_analyst": used}
    counts, left = facts["spent_share_histogram"], facts["forecast"]
    bars = [
        f"  {10 * i:3d}% to {10 * i + 10:3d}% spent  {'█' * round(40 * n / max(1, *counts)):<40} {n:,}"
        for i, n in enumerate(counts)
    ]
    people = f"{records_of(facts['records'], facts['owners'])}, {facts['forgotten']:,} forgotten"
    show(
        facts,
        in_json,
        f"{facts['store']}: {facts['guarantee']['words']}",
        f"{people}; {facts['answers']:,} answers given",
        *_expiring(facts["retention"]),
        f"figures {facts['whose']}:",
        *(f"  {_account(facts[who])}" for who in ("one_analyst", "together")),
        *(f"  {line}" for line in _over_all(facts)),
        *_clock(facts["time"]),
        "people by the share spent of their fullest ledger (one analyst's B, or the global budget):",
        *bars,
        f"the median person has spent {facts['spent_share_median']:.1%} of it",
        f"exhausted: {many(facts['exhausted'], 'person', 'people')}",
        *([f"promised less than everybody: {many(own, 'person', 'people')}"] if (own := facts["own_promises"]) else []),
        *(_used(one, facts["one_analyst"]) for one in facts["by_analyst"]),
        f"queries left: {left['words']} ({left['why']})",
    )


def _expiring(facts: dict[str, Any]) -> list[str]:
    """What expires when, in about these numbers. Nothing if no record has a date."""
    steps = {step: f"within a {step}" for step in STEPS} | {"expired": "expired, not erased yet", "later": "later"}
    ahead = [f"about {facts[step]:,} {words}" for step, words in steps.items() if facts[step]]
    keep = [] if facts["keep_days"] is None else [f"records take part for {facts['keep_days']} days after they came"]
    holds = [f"under a hold: {many(facts['held'], 'person', 'people')}"] if facts["held"] else []
    return [*([f"records that expire: {', '.join(ahead)}"] if ahead else []), *keep, *holds]


def _clock(facts: dict[str, Any] | None) -> list[str]:
    """When the next period begins, and how much votes may have used by now. Nothing if no budget depends on time."""
    if facts is None:
        return []
    renewed = f"period {facts.get('period')}: the next begins at {facts.get('next_begins')}"
    paced = f"votes may have used {facts.get('by_now', 1.0):.1%} of their part by now, all of it after "
    return [
        *([renewed] if facts["renew_days"] else []),
        *([f"{paced}{facts['pace_days']} days"] if facts["pace_days"] else []),
    ]


def _used(facts: dict[str, Any], promise: dict[str, Any]) -> str:
    """A line with what one analyst was told."""
    who = "analyst without a name" if facts["name"] is None else f"analyst {facts['name']}"
    left = "no limit of queries" if facts["queries_left"] is None else f"{facts['queries_left']:,} queries left"
    epsilon = "no epsilon" if facts["epsilon"] is None else f"epsilon = {facts['epsilon']:g}"
    given = f"{epsilon} at delta = {promise['delta']:g}, filter {promise['filter']}"
    return f"{who}: {facts['answers']:,} answers, {left}, {given}"


@click.command("owner")
@STORE
@click.argument("owner")
@click.option(
    "--lower", type=float, help="Promise this person a smaller epsilon from now on. It is never raised again."
)
@RECEIPT
@WITNESS
@JSON
def show_owner(
    store: Place, owner: str, lower: float | None, receipt: Path | None, witness: Path | None, in_json: bool
) -> None:
    """Show the statement of one person. Spending is rounded up to 1/50 of B, so you may give it to that person.

    \b
    Examples:
      indknn owner patients.store patient-17
      indknn owner patients.store patient-17 --lower 0.25
    """
    if lower is not None:
        with Store(store, witness=witness) as opened:
            promised = opened.lower(owner, lower)
        write_receipt(receipt, promised)
        facts = promised if in_json else promised["on_the_books"]
    else:
        with looking(store, witness) as opened:
            facts = statement(opened.engine, owner)
    if in_json:
        show(facts, in_json)
        return
    if lower is not None and (facts["one_analyst"]["epsilon"] or 0.0) > lower:  # None: nothing bounds it
        click.echo(f"more than epsilon = {lower:g} was spent already: nothing further is learned from them", err=True)
    lines = [f"owner {facts['owner']}: {many(facts['records'], 'record')}"]
    lines += [*(_account(facts[who]) for who in ("one_analyst", "together")), *_over_all(facts)]
    show(facts, in_json, *lines, *([facts["promise"]] if "promise" in facts else []), facts["rounding"], facts["words"])


def _over_all(facts: dict[str, Any]) -> list[str]:
    """Lines about all periods so far, if budgets are renewed."""
    if (found := facts.get("over_all_periods")) is None:
        return []
    head = f"the above is this period of {found['days']} days. Over all {found['begun']} periods so far:"
    return [head, *(_account(found[who]) for who in ("one_analyst", "together"))]


def _account(facts: dict[str, Any]) -> str:
    """A line with what was spent, for one kind of observer."""
    most, promised = "; nothing bounds it", ""
    if facts["budget"] is not None:
        most, promised = f" of {facts['budget']:.6g}", f" of {facts['epsilon']:g} promised"
    so_far = "too large to compute" if facts["epsilon_so_far"] is None else f"{facts['epsilon_so_far']:.4f}"
    given = f"at delta = {facts['delta']:g}, filter {facts['filter']}"
    return f"{facts['observer']}: spent {facts['spent']:.6g}{most}, epsilon so far {so_far}{promised} {given}"


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
        with looking(store, witness, new_witness) as opened:
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
@click.option("--analyst", help="The analyst who asks. Default: the only one who has asked.")
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
        analyst = _asking(opened, analyst)
        found, planned = forecast(stream(opened, analyst, records), daily), opened.settings.max_queries
        off = _off_by(opened, analyst)
        paced, steps = opened.engine.ledger.fraction
        of = ledger_words(opened.settings, analyst, paced / steps)
    facts = {"analyst": analyst, **found.as_dict(), "of": of, "from": "public information alone"}
    show({**facts, "off_by": off}, in_json, *words(found, of, planned, daily, off))


def _off_by(store: Store, analyst: str | None) -> float | None:
    """How far the model that this analyst sees is off, if records say numbers: by the card that was released."""
    adviser = None if store.draft else store.engine.predictor.adviser(analyst)
    card = None if adviser is None or adviser.model.shown is None else adviser.model.shown.card
    low, high = store.settings.bounds or (-1.0, 1.0)
    return 0.5 * (high - low) * card.error if isinstance(card, NumberCard) else None


def _asking(store: Store, analyst: str | None) -> str | None:
    """Whom a forecast is for. If nobody is named, the only one who has asked."""
    store.check_analyst(analyst)
    asked = answers_by_analyst(store)
    if analyst is not None or not asked or None in asked:
        return analyst
    if len(asked) > 1:
        names = ", ".join(sorted(map(str, asked)))
        raise InvalidInputError(
            f"several analysts have asked, and a forecast is for one; choose with --analyst: {names}"
        )
    (only,) = asked
    return only


def words(found: Forecast, of: str, planned: int | None, daily: float | None, off: float | None = None) -> list[str]:
    """The forecast, in sentences. `of` says which ledger it is about."""
    asked = "" if found.ends or not found.answered else f"; people were asked for {found.asked_share:.0%} of the latest"
    lines = [f"{found.answered:,} queries answered so far{asked}."]
    if found.left is None:
        lines.append("What an average person has left: unknown. The number of records is not public; try --n.")
    else:
        lines.append(f"An average person has about {found.left:.0%} of one ledger left, estimated from releases.")
    lines.append(f"That is {of}.")
    if found.until_half is not None and found.until_used_up is not None:
        half, all_ = found.until_half, found.until_used_up
        lasts = [_lasts(days, found) if daily else "" for days in (found.days_until_half, found.days_until_used_up)]
        lines.append(f"At the present noise half of that lasts for {half:,} more queries{lasts[0]},")
        lines.append(f"all of it for {all_:,}{lasts[1]}.")
    elif found.answered and not found.asked_share:
        lines.append("No end is in sight: nobody was asked for the latest answers, so nobody paid for them.")
    elif found.left is not None:
        lines.append("How many more queries that allows: unknown before the first answers, or without --n.")
    lines += _over_time(found)
    if planned is not None and found.planned_left is not None:
        more = found.planned_left
        lines.append(f"The noise is planned for {planned:,} queries: {more:,} more{_in_time(more, daily)}.")
    if found.ends:
        lines.append("Then people drop out one by one, and answers become noise. The guarantee stays.")
        lines.append("Accuracy: unknown, because nothing public shows it. Ask labelled queries with indknn predict.")
        return lines
    lines.append("Noise grows as budgets shrink, so the budget is never fully used.")
    if off is not None:
        lines.append(f"The model alone is off by about {off:.4g} (root of the mean square, by the latest report card).")
    elif found.accuracy_alone is None:
        lines.append("Accuracy: unknown before the first report card.")
    else:
        share, error = found.accuracy_alone, found.accuracy_alone_error or 0.0
        lines.append(f"Accuracy of the model alone: about {share:.3f} (± {2 * error:.3f}, by the latest report card).")
        lines.append("It stays like that as long as the data do, however many queries are asked.")
    return lines


def _lasts(days: float | None, found: Forecast) -> str:
    """How long something lasts, in brackets. A forecast without these days ends with the period."""
    return f" ({_duration(found.days_until_renewal if days is None else days)}{', the period' if days is None else ''})"


def _over_time(found: Forecast) -> list[str]:
    """What the clock changes: the pace of votes, the next period, and how long records take part."""
    lines = []
    if found.left_by_now is not None and found.left_by_now != found.left:
        queries = "" if found.until_pace is None else f", for {found.until_pace:,} more queries"
        daily = "" if found.queries_a_day is None else f" Then the pace allows about {found.queries_a_day:,} a day."
        lines.append(f"Votes are paced: about {found.left_by_now:.0%} of one ledger is there by now{queries}.{daily}")
    if found.days_until_renewal is not None:
        in_ = _duration(found.days_until_renewal)
        lines.append(f"All of this is about period {found.period}. The next begins in {in_}, with a whole ledger.")
    if found.keep_days is not None:
        longest = _duration(found.keep_days)
        lines.append(f"Every record takes part for {longest} at most, so without newcomers nobody can be asked then.")
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
    return f" ({_duration(count / rate)})" if rate else ""


def _duration(days: float | None) -> str:
    """So many days, in the largest unit of which there are at least two."""
    amounts = {unit: (days or 0.0) / _DAYS[unit] for unit in ("year", "month", "day", "hour")}
    unit = next((unit for unit, amount in amounts.items() if amount >= 2), "hour")
    return f"{amounts[unit]:.2g} {unit}s"


# Files for others


@click.group("export")
def export() -> None:
    """Write the audit trail, the answers, the spending or the shared model to a file."""


@export.command("audit")
@STORE
@_OUT
@WITNESS
def export_audit(store: Place, out: Path, witness: Path | None) -> None:
    """Write the audit trail, one JSON object per line. The last line is its signed head.

    Whoever has the public key can check the file without the store: indknn check FILE --key KEY.

    \b
    Example:
      indknn export audit patients.store -o audit.jsonl
    """
    with looking(store, witness) as opened:
        _write(out, signed_trail(opened.db, opened.signer))


@export.command("answers")
@STORE
@_OUT
@WITNESS
def export_answers(store: Place, out: Path, witness: Path | None) -> None:
    """Write the answers that were given, one JSON object per line. Each is public to the analyst who got it."""
    with looking(store, witness) as opened:
        _write(out, _answers(opened))


@export.command("spent")
@STORE
@_OUT
@WITNESS
def export_spent(store: Place, out: Path, witness: Path | None) -> None:
    """Write what each person has spent, one JSON object per line. Only for the curator."""
    with looking(store, witness) as opened:
        _write(out, exact(opened.engine))


@export.command("model")
@STORE
@click.option("-o", "--out", type=click.Path(path_type=Path), required=True, help="A .json or .onnx file.")
@click.option("--with-queries", is_flag=True, help="The file may hold queries, if no public rows were declared.")
@WITNESS
@JSON
def export_model(store: Place, out: Path, with_queries: bool, witness: Path | None, in_json: bool) -> None:
    """Write the shared model with its epsilon, delta and date. It is differentially private, and may be published.

    It answers without the store as the store's model does without votes. An ONNX file takes vectors, and needs
    pip install 'indknn[onnx]'. JSON also says how the rows of a table become vectors.

    \b
    Examples:
      indknn export model patients.store -o model.onnx
      indknn export model patients.store -o model.json
    """
    with Store(store, witness=witness) as opened:
        made = opened.publish(with_queries=with_queries)
    write_model(made, out)
    promise = made["promise"]
    words = f"for {promise['observer']}: epsilon = {promise['epsilon']:.4g}, delta = {promise['delta']:g}"
    show({"out": str(out), "made": made["made"], **promise}, in_json, f"{out}: {words}, filter {promise['filter']}")


def _write(out: Path, rows: Iterable[dict[str, Any]]) -> None:
    with private_file(out) as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    click.echo(f"written to {out}")


def _answers(store: Store) -> Iterator[dict[str, Any]]:
    target = store.settings.target_
    query = "SELECT seq, name, label FROM answers JOIN scopes ON scope = id WHERE label >= 0 ORDER BY seq"
    for seq, analyst, label in store.db.execute(query):
        yield {
            "answer": seq,
            "analyst": analyst[1:] if analyst else None,
            "label": target.decode(np.array([label]))[0].item(),
        }
