"""`indknn forecast`: how long a store can answer queries, estimated only from public information."""

from __future__ import annotations

from pathlib import Path

import click

from indknn.cli.options import JSON, STORE, WITNESS, show
from indknn.errors import InvalidInputError
from indknn.ledger.figures import ledger_words
from indknn.models.forecast import Forecast, forecast
from indknn.place import Place
from indknn.store import Store
from indknn.store.outlook import stream

_DAYS = {"hour": 1 / 24, "day": 1.0, "week": 7.0, "month": 365.25 / 12, "year": 365.25}


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
