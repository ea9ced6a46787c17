"""`indknn forecast`: how long a store lasts, told to anybody."""

from __future__ import annotations

from pathlib import Path

import click

from indknn.cli.files import as_json
from indknn.cli.rates import in_time, per_day
from indknn.models.forecast import Forecast, forecast
from indknn.store import Store
from indknn.store.outlook import stream


@click.command("forecast")
@click.argument("store", type=click.Path(path_type=Path))
@click.option("--analyst", help="Whose queries. Default: the analyst without a name.")
@click.option("--rate", help="How many queries there will be, as 1000/day; durations are then told as well.")
@click.option("--n", "records", type=int, help="About how many records there are, where that is public.")
@click.option("--json", "as_text", is_flag=True, help="Print JSON.")
def forecast_command(store: Path, analyst: str | None, rate: str | None, records: int | None, as_text: bool) -> None:
    """Tell how many more queries there can be, and how good the answers will be.

    Everything is estimated from what was released to the analyst, so it may be shown to them: nobody's budget is
    looked at. `indknn status`, for the curator alone, tells what people have really spent.

    \b
    Examples:
      indknn forecast patients.store
      indknn forecast patients.store --analyst alice --rate 1000/day
    """
    daily = None if rate is None else per_day(rate, "--rate")
    with Store(store) as opened:
        found, planned = forecast(stream(opened, analyst, records)), opened.settings.max_queries
    if as_text:
        days = {} if not daily else {"days_until_half": _days(found.until_half, daily)}
        days |= {} if not daily else {"days_until_used_up": _days(found.until_used_up, daily)}
        click.echo(as_json({**found.as_dict(), **days, "from": "public information alone"}))
        return
    for line in words(found, planned, daily):
        click.echo(line)


def words(found: Forecast, planned: int | None, daily: float | None) -> list[str]:
    """The forecast, in sentences."""
    asked = "" if found.ends or not found.answered else f"; people were asked for {found.asked_share:.0%} of the latest"
    lines = [f"{found.answered:,} queries answered so far{asked}."]
    if found.left is None:
        lines.append(
            "What an average person has left: unknown. Nothing public tells how many records there are; try --n."
        )
    else:
        lines.append(f"An average person has about {found.left:.0%} of their budget left, by what was released.")
    if found.until_half is not None and found.until_used_up is not None:
        half, all_ = found.until_half, found.until_used_up
        lines.append(f"At the present noise half of that lasts for {half:,} more queries{in_time(half, daily)},")
        lines.append(f"all of it for {all_:,}{in_time(all_, daily)}.")
    elif found.left is not None:
        lines.append("How many more queries that allows: unknown before the first answers, or without --n.")
    if planned is not None and found.planned_left is not None:
        more = found.planned_left
        lines.append(f"The noise is planned for {planned:,} queries: {more:,} more{in_time(more, daily)}.")
    if found.ends:
        lines.append("Then people drop out one by one, and answers turn into noise; the promise stays.")
        lines.append(
            "Accuracy: unknown, for nothing public tells. `indknn tune STORE --paid FILE` measures it, for a price."
        )
        return lines
    lines.append("Noise grows as budgets shrink, so the budget is never quite used up.")
    if found.accuracy_alone is None:
        lines.append("Accuracy: unknown before the first report card.")
    else:
        share, error = found.accuracy_alone, found.accuracy_alone_error or 0.0
        lines.append(f"Accuracy of the models alone: about {share:.3f} (± {2 * error:.3f}, by the latest report card).")
        lines.append(
            "That stays for ever, while the data stay as they are. Now it is that or better, where people are asked."
        )
    return lines


def _days(count: int | None, daily: float) -> float | None:
    return None if count is None else count / daily
