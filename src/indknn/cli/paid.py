"""`indknn tune STORE --paid FILE`: measure a store by labelled queries, at a price that you confirm first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from indknn.cli.files import Columns, digest
from indknn.cli.labels import as_stored, labelled
from indknn.cli.progress import counting
from indknn.core.inputs import encode_labels
from indknn.errors import InvalidInputError, StoreError
from indknn.store import Store
from indknn.store.tuning.paid import Cost, Score, expected_cost, validate

_BATCH = 256


def measure(
    path: Path, file: Path, named: Columns, analyst: str | None, records: int | None, yes: bool, in_json: bool
) -> dict[str, Any]:
    """Print the price, have it confirmed, ask the queries, and print how many answers were right."""
    with Store(path) as store:
        if store.draft:
            raise StoreError(f"{path} has never held records, so there is nothing to measure")
        X, y = labelled(file, named)
        y = as_stored(y, store.settings)
        encode_labels(y, store.settings.class_array)  # refuses an unknown label before anything is spent
        cost = expected_cost(store, X, analyst, records)
        click.echo(price_text(cost, store.settings.budget), err=in_json)
        if cost.fresh and not yes:
            _confirm()
        with counting("queries", not in_json) as count:
            scores = validate(store, _batches(X, y, digest(file), analyst), analyst, count)
    if not in_json:
        for name, words in (("all", "all answers"), ("asked", "people asked"), ("alone", "models alone")):
            if scores[name].of:
                click.echo(_score(words, scores[name]))
        click.echo("The answers are in the transcript: asked again they are free, and what is reused reuses them.")
    return {
        "cost": {"share_of_budget": cost.share, "rho": cost.rho, "at_most": cost.most, "fresh_queries": cost.fresh},
        "scores": {
            name: {"right": s.right, "of": s.of, "accuracy": s.accuracy, "interval": s.interval}
            for name, s in scores.items()
            if s.of
        },
    }


def price_text(cost: Cost, budget: float) -> str:
    """The price, in words, before it is paid."""
    if not cost.fresh:
        return f"All {cost.queries:,} queries were asked before: nothing will be spent."
    how = "at most about" if cost.most else "about"
    near = "" if cost.near is None else f"; {cost.near:.1%} of pairs are near"
    lines = [
        f"{cost.queries:,} validation queries, {cost.fresh:,} of them new{near}.",
        f"They will cost an average person {how} {cost.share:.2%} of their budget (rho = {cost.rho:.3g} of",
        f"{budget:.3g}), estimated from public quantities. Nobody pays more than they have left.",
    ]
    if cost.sums:
        lines.append(f"Of that {cost.sums:.0%} pays for statistics and report cards, which all later answers use.")
    return "\n".join(lines)


def _confirm() -> None:
    if not _at_a_terminal():
        raise InvalidInputError(
            "nothing was spent: there is no terminal to confirm the price on; use --yes to spend it"
        )
    if not click.confirm("Spend it?", err=True):
        raise InvalidInputError("nothing was spent: you did not confirm the price")


def _at_a_terminal() -> bool:
    return sys.stdin.isatty()


def _score(words: str, score: Score) -> str:
    low, high = score.interval
    return f"{words}: {score.accuracy:.3f} right of {score.of:,} (95% interval {low:.3f} to {high:.3f})"


def _batches(X: Any, y: Any, name: str, analyst: str | None) -> Iterator[tuple[str, Any, Any]]:
    for first in range(0, len(X), _BATCH):
        part = slice(first, first + _BATCH)
        yield f"tune:{name}:{first}:{analyst or ''}", X[part], y[part]
